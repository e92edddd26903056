# SPDX-License-Identifier: Apache-2.0
"""nixlAgent: NIXL's agent with handles that are plain numbers, on an agent of Headrace.

The agent never uses a handle's number twice. A released or unknown number is an invalid parameter, never a
crash. Prepared lists and requests are Headrace's own. This file adds their numbers, NIXL's names and the
translation of addresses (_regions.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import headrace

from . import _tcpstore
from ._arguments import NIXL_INIT_AGENT, indices, need, no_handle, of_prepare, word_of
from ._backends import Backends
from ._config import nixlAgentConfig
from ._descriptors import (
    as_bytes,
    as_text,
    checked_rows,
    is_array,
    nixlRegDList,
    nixlRemoteDList,
    nixlXferDList,
    owners,
)
from ._enums import kind_of, nixl_cost_t, nixl_mem_t, nixl_status_t, nixl_xfer_op_t
from ._errors import (
    failure,
    nixlBackendError,
    nixlInvalidParamError,
    nixlNoTelemetryError,
    nixlNotFoundError,
    nixlNotPostedError,
    nixlNotSupportedError,
    translated,
)
from ._exchange import DEFAULT_COMM_PORT, WITHDRAWAL, AgentStore, Exchange, Store, etcd_options
from ._memory import ADDRESSED, Memory
from ._peers import Life, Peers
from ._plugins import PLUGINS
from ._regions import FEW, RegionTable, strided_pages
from ._rows import Rows, captured
from ._telemetry import is_collected, nixlXferTelemetry
from ._transfer import Lent, PreparedList, Transfer, message, patiently

STRIDED_WIDTH = 5

Kind = TypeVar("Kind", bound=Transfer)


class nixlAgent:
    """An agent. Threads: any, for every configuration. It closes with the last reference to it."""

    def __init__(self, name: str, config: nixlAgentConfig):
        name = as_text(name, "an agent's name")
        need(config, nixlAgentConfig, "an agent's configuration")
        if not name:
            raise ValueError("an agent's name must not be empty")
        self._name = name
        self._numbers = itertools.count(1)
        self._telemetry = is_collected(config.captureTelemetry)
        self._agent = _open(name, config)
        self._peers = Peers(self._agent)
        self._memory = Memory(self._agent)
        self._backends = Backends(self._agent, self._numbers)
        self._lists: dict[int, PreparedList] = {}
        self._transfers: dict[int, Transfer] = {}
        self._lent = Lent(self._numbers)
        self._exchange = Exchange(self._agent, self._store_opener(), _patience(config))

    def _store_opener(self) -> Callable[[], Store] | None:
        agent, peers = self._agent, self._peers
        if etcd_options():
            return lambda: AgentStore(agent, peers.forget)
        return (lambda: _tcpstore.TcpStore(agent)) if _tcpstore.is_configured() else None

    def __reduce__(self) -> Any:
        raise TypeError("a nixlAgent cannot be pickled")

    # Backends

    def getAvailPlugins(self) -> list[str]:
        """Returns the names of plugins for which Headrace has a path."""
        return self._backends.names()

    def getPluginParams(self, plugin: str) -> tuple[dict[str, str], list[str]]:
        """Returns a plugin's parameters with their defaults, and its kinds of memory."""
        found = self._backends.plugin(plugin)
        return dict(PLUGINS[found.name].parameters), found.segments()

    def getBackendParams(self, backend: int) -> tuple[dict[str, str], list[str]]:
        """Returns the parameters with which a backend was created, and its kinds of memory."""
        created = self._backends.get(backend)
        return dict(created.parameters), created.carried.segments()

    def createBackend(self, plugin: str, parameters: Mapping[str, str]) -> int:
        """Creates a backend, a name for paths of Headrace. An agent has at most one of each name."""
        return self._backends.create(plugin, parameters)

    # Memory

    def registerMem(self, descs: nixlRegDList, backends: Sequence[int] = ()) -> nixl_status_t:
        """Registers all descriptors or none."""
        need(descs, nixlRegDList, "the list to register")
        self._memory.register(descs, self._backends.paths(descs.getType(), backends))
        return nixl_status_t.NIXL_SUCCESS

    def deregisterMem(self, descs: nixlRegDList, backends: Sequence[int] = ()) -> nixl_status_t:
        """Deregisters the descriptors that are registered, then raises nixlNotFoundError if others are
        not."""
        need(descs, nixlRegDList, "the list to deregister")
        self._backends.paths(descs.getType(), backends)
        self._memory.deregister(descs)
        return nixl_status_t.NIXL_SUCCESS

    def queryMem(self, descs: nixlRegDList, backend: int) -> list[dict[str, str] | None]:
        """Returns facts about files, block devices and objects; None for each that does not exist."""
        need(descs, nixlRegDList, "the list to query")
        created, kind = self._backends.get(backend), kind_of(descs.getType())
        paths = created.carried.paths.get(kind, ())
        if not paths or kind in ADDRESSED:
            raise failure(
                nixlNotSupportedError,
                f"backend {created.carried.name} has no storage of kind {descs.getType().name}",
            )
        return self._memory.query(descs, paths[0])

    # Transfers

    def prepXferDlist(self, *arguments: Any, **named: Any) -> int:
        """Prepares a list. The arguments are (agent_name, descs, backend=[]), (descs, backend=[]) for the
        local list, or (agent_name, mem_type, rows, backend=[]).

        Rows are an array of (address, length, device, stride, count); it is read without a copy.
        """
        agent_name, memory, source, backends = of_prepare(arguments, named)
        if memory is None:
            need(source, nixlXferDList, "the list to prepare")
            return self._prepare(agent_name, source.getType(), source._source(), backends)
        return self._prepare(agent_name, memory, checked_rows(source, STRIDED_WIDTH), backends)

    def _prepare(self, agent_name: str, memory: nixl_mem_t, source: Any, backends: Sequence[int]) -> int:
        """Prepares a list of words or rows of three, or of an array of five columns."""
        agent_name = as_text(agent_name, "an agent's name")
        life, table = self._side(agent_name, memory)
        paths = self._backends.paths(memory, backends)
        pages = self._pages(agent_name, table, source)
        return self._keep(
            self._lists, PreparedList(pages, life, self._peers, self._lent, paths if backends else None)
        )

    def _side(self, agent_name: str, memory: nixl_mem_t) -> tuple[Life | None, RegionTable]:
        """Returns the peer's current incarnation (None for this agent) and the table of its regions of that
        kind."""
        kind = kind_of(memory)
        if agent_name in (NIXL_INIT_AGENT, self._name):
            return None, self._memory.ledger.table(kind)
        return self._peers.side(agent_name, kind)

    def _pages(self, agent_name: str, table: RegionTable, source: Any) -> headrace.PageList:
        if not isinstance(source, Rows) and len(source) == 0:
            raise failure(nixlNotFoundError, "there are no descriptors")
        try:
            return self._prepared(table, source, agent_name or None)
        except headrace.Error as error:
            raise translated(error) from error

    def _prepared(self, table: RegionTable, source: Any, peer: str | None) -> headrace.PageList:
        if is_array(source):
            return self._agent.prepare(strided_pages(table, source), peer=peer)
        rows = source if isinstance(source, Rows) else captured(source) if len(source) > 3 * FEW else None
        if rows is None:
            return self._agent.prepare(table.pages(source), peer=peer)
        try:
            return self._agent.prepare(table.pages_of(rows), peer=peer)
        except headrace.Error:
            table.pages(rows.words())  # raises with the index if a row is in no region
            raise

    def makeXferReq(
        self,
        operation: nixl_xfer_op_t,
        local_side: int,
        local_indices: Any,
        remote_side: int,
        remote_indices: Any,
        notif_msg: str | bytes = "",
        backend: Sequence[int] = (),
        skip_desc_merg: bool = False,
    ) -> int:
        """Makes a request of two prepared lists. skip_desc_merg has no effect: Headrace merges neighbouring
        pages when it moves them."""
        op, local, remote = word_of(operation), self._list(local_side), self._list(remote_side)
        made = self._make_prepared(
            Transfer, op, local, local_indices, remote, remote_indices, notif_msg, backend
        )
        return self._keep(self._transfers, made)

    def _make_prepared(
        self,
        kind: type[Kind],
        op: str,
        local: PreparedList,
        local_indices: Any,
        remote: PreparedList,
        remote_indices: Any,
        notification: str | bytes,
        backends: Sequence[int],
    ) -> Kind:
        limited = backends or local.paths is not None or remote.paths is not None
        paths = self._backends.limited(backends, local.paths, remote.paths) if limited else None
        said = notification if type(notification) is bytes else message(notification)
        try:
            made: Any = self._agent.make_request(  # type: ignore[call-overload]  # op is one of two words
                op, local.pages, remote.pages, local_indices, remote_indices, paths, None, kind
            )
        except (headrace.Error, TypeError) as error:
            made = self._make_of_other_indices(
                error, kind, op, local, local_indices, remote, remote_indices, paths
            )
        made.notification, made._remote = said or None, remote
        return made  # type: ignore[no-any-return]

    def _make_of_other_indices(
        self,
        error: Exception,
        kind: type[Kind],
        op: str,
        local: PreparedList,
        here: Any,
        remote: PreparedList,
        there: Any,
        paths: list[str] | None,
    ) -> Kind:
        """Retries with the indices converted as NIXL converts them, if the conversion changes them: NIXL
        accepts indices that Headrace refuses."""
        plain = indices(here), indices(there)
        if plain[0] is here and plain[1] is there:
            if not isinstance(error, headrace.Error):
                raise error
            raise remote.error_of(error) from error
        return self._request(kind, op, local, remote, plain, paths)

    def createXferReq(
        self,
        operation: nixl_xfer_op_t,
        local_descs: nixlXferDList,
        remote_descs: nixlXferDList,
        remote_agent: str,
        notif_msg: str | bytes = "",
        backend: Sequence[int] = (),
    ) -> int:
        """Makes a request of two whole lists."""
        return self._keep(
            self._transfers,
            self._create(Transfer, operation, local_descs, remote_descs, remote_agent, notif_msg, backend),
        )

    def _create(
        self,
        kind: type[Kind],
        operation: nixl_xfer_op_t,
        local_descs: nixlXferDList,
        remote_descs: nixlXferDList,
        remote_agent: str,
        notif_msg: str | bytes,
        backend: Sequence[int],
    ) -> Kind:
        op = word_of(operation)
        need(local_descs, nixlXferDList, "the local list")
        need(remote_descs, nixlXferDList, "the remote list")
        remote_agent = as_text(remote_agent, "an agent's name")
        notification = message(notif_msg)
        if local_descs.descCount() != remote_descs.descCount():
            raise failure(
                nixlInvalidParamError,
                f"{local_descs.descCount()} local and {remote_descs.descCount()} remote descriptors",
            )
        life, table = self._side(remote_agent, remote_descs.getType())
        _, own_table = self._side(NIXL_INIT_AGENT, local_descs.getType())
        paths = self._backends.paths(local_descs.getType(), backend) & self._backends.paths(
            remote_descs.getType(), backend
        )
        local = PreparedList(
            self._pages(NIXL_INIT_AGENT, own_table, local_descs._source()),
            None,
            self._peers,
            self._lent,
            None,
        )
        remote = PreparedList(
            self._pages(remote_agent, table, remote_descs._source()), life, self._peers, self._lent, None
        )
        made = self._request(kind, op, local, remote, (None, None), sorted(paths) if backend else None)
        made.notification, made._remote = notification, remote
        return made

    def _request(
        self,
        kind: type[Kind],
        op: str,
        local: PreparedList,
        remote: PreparedList,
        indices: tuple[Any, Any],
        paths: list[str] | None,
    ) -> Kind:
        try:
            return self._agent.make_request(op, local.pages, remote.pages, *indices, paths, None, kind)  # type: ignore
        except headrace.Error as error:
            raise remote.error_of(error) from error

    def postXferReq(self, reqh: int, notif_msg: str | bytes = "") -> nixl_status_t:
        """Posts a request. A notification given here replaces the earlier one, for later posts too."""
        return _STATUS[self._transfer(reqh).start(notif_msg)]

    def getXferStatus(self, reqh: int) -> nixl_status_t:
        """Returns the state of a request; raises if it has failed or was not posted."""
        return _STATUS[self._transfer(reqh).look()]

    def getXferTelemetry(self, reqh: int) -> nixlXferTelemetry:
        """Returns the times of the last post that has completed."""
        transfer = self._transfer(reqh)
        if not self._telemetry:
            raise failure(nixlNoTelemetryError, "set capture_telemetry or NIXL_TELEMETRY_ENABLE=y")
        if not transfer.done:
            raise failure(nixlNotPostedError, "no post of it has completed yet")
        return nixlXferTelemetry._of(transfer.times)

    def queryXferBackend(self, reqh: int) -> int:
        """Returns the created backend whose name stands for the path that Headrace chose."""
        return self._backends.standing_for(self._transfer(reqh).backend)

    def estimateXferCost(self, req_handle: int) -> tuple[int, int, int]:
        """Returns the estimate in microseconds, its margin in microseconds, and the method."""
        try:
            cost = self._transfer(req_handle).cost()
        except headrace.Error as error:
            raise translated(error) from error
        microseconds = cost.duration * 1e6
        return (
            round(microseconds),
            round(microseconds * cost.margin),
            int(nixl_cost_t.NIXL_COST_ANALYTICAL_BACKEND),
        )

    def releaseXferReq(self, handle: int) -> nixl_status_t:
        """Cancels the request if it is in flight, waits until its memory is quiet, and frees the number."""
        self._transfer(handle).end()
        self._transfers.pop(handle, None)
        self._lent.take_back(handle)
        return nixl_status_t.NIXL_SUCCESS

    def releasedDlistH(self, handle: int) -> nixl_status_t:
        """Frees the number. Requests made of the list stay valid."""
        self._list(handle)
        self._lists.pop(handle, None)
        return nixl_status_t.NIXL_SUCCESS

    def prepMemView(self, dlist: nixlXferDList | nixlRemoteDList, backends: Sequence[int] = ()) -> int:
        """Always raises: Headrace has no views of memory for GPU kernels."""
        if not isinstance(dlist, nixlXferDList | nixlRemoteDList):
            raise TypeError(f"a view needs a nixlXferDList or a nixlRemoteDList, not {dlist!r}")
        for name in owners(dlist) if isinstance(dlist, nixlRemoteDList) else ():
            if self._peers.info(name) is None:
                raise failure(nixlNotFoundError, f"agent {name!r} is unknown: add its metadata first")
        raise failure(nixlBackendError, "Headrace has no views of memory for GPU kernels yet")

    def releaseMemView(self, mvh: int) -> None:
        """Always raises: there are no views."""
        raise failure(nixlInvalidParamError, f"{mvh!r} is not a view of this agent")

    def _keep(self, table: dict[int, Any], value: Any) -> int:
        handle = next(self._numbers)
        table[handle] = value
        return handle

    def _list(self, handle: int) -> PreparedList:
        try:
            return self._lists[handle]
        except (KeyError, TypeError):
            raise no_handle(handle, "prepared list") from None

    def _transfer(self, handle: int) -> Transfer:
        try:
            return self._transfers.get(handle) or self._lent[handle]
        except (KeyError, TypeError):
            raise no_handle(handle, "transfer") from None

    # Notifications

    def getNotifs(
        self, notif_map: dict[str, list[bytes]], backends: Sequence[int] = ()
    ) -> dict[str, list[bytes]]:
        """Returns a copy of the map with the new notifications appended."""
        need(notif_map, dict, "the map of notifications")
        merged = {name: list(messages) for name, messages in notif_map.items()}
        for name, payload in self._agent.take_notifications():
            if payload == WITHDRAWAL:
                self._peers.forget(name)
            else:
                merged.setdefault(name, []).append(payload)
        return merged

    def genNotif(self, remote_agent: str, msg: str | bytes, backends: Sequence[int] = ()) -> nixl_status_t:
        """Sends a notification without a transfer."""
        remote_agent, payload = as_text(remote_agent, "an agent's name"), as_bytes(msg, "a notification")
        try:
            patiently(lambda: self._agent.notify(remote_agent, payload))
        except headrace.Error as error:
            raise translated(error) from error
        return nixl_status_t.NIXL_SUCCESS

    # Metadata

    def getLocalMD(self) -> bytes:
        """Returns this agent's whole metadata."""
        self._need_remote_backend()
        return self._agent.export_metadata()

    def getLocalPartialMD(
        self, descs: nixlRegDList, inc_conn_info: bool = False, backends: Sequence[int] = ()
    ) -> bytes:
        """Returns the metadata of these regions. An empty list gives the addresses of this agent."""
        self._need_remote_backend()
        need(descs, nixlRegDList, "the list of regions")
        return self._agent.export_metadata(self._memory.regions_of(descs), inc_conn_info or descs.isEmpty())

    def _need_remote_backend(self) -> None:
        if not self._backends.reach_peers():
            raise failure(nixlInvalidParamError, "no created backend reaches other agents: create one first")

    def loadRemoteMD(self, metadata: bytes | str) -> bytes:
        """Imports a peer's metadata, or a part or an update of it. Returns the peer's name."""
        blob = as_bytes(metadata, "metadata")
        try:
            return self._agent.import_metadata(blob).peer.encode()
        except headrace.Error as error:
            raise translated(error) from error

    def invalidateRemoteMD(self, remote_agent: str) -> nixl_status_t:
        """Forgets a peer: transfers with it fail, and lists of its memory become invalid."""
        name = as_text(remote_agent, "an agent's name")
        if name == self._name:
            return nixl_status_t.NIXL_ERR_INVALID_PARAM
        return nixl_status_t.NIXL_SUCCESS if self._peers.forget(name) else nixl_status_t.NIXL_ERR_NOT_FOUND

    def checkRemoteMD(self, remote_agent: str, descs: nixlXferDList) -> nixl_status_t:
        """Returns NIXL_SUCCESS if this agent has the peer's metadata, it covers these descriptors, and the
        peer is not known to be dead: programs ask it before they shake hands once more."""
        name = as_text(remote_agent, "an agent's name")
        need(descs, nixlXferDList, "the list to check")
        for sender, _ in self._agent.take_notifications(prefix=WITHDRAWAL):
            self._peers.forget(sender)
        try:
            if name != self._name and not self._peers.is_alive(name):
                return nixl_status_t.NIXL_ERR_NOT_FOUND
            if not descs.isEmpty():
                kind = kind_of(descs.getType())
                table = (
                    self._memory.ledger.table(kind) if name == self._name else self._peers.table(name, kind)
                )
                table.pages(descs._words)
        except (nixlNotFoundError, headrace.NotFound):
            return nixl_status_t.NIXL_ERR_NOT_FOUND
        return nixl_status_t.NIXL_SUCCESS

    def makeConnection(self, remote_agent: str, backends: Sequence[int] = ()) -> nixl_status_t:
        """Connects to a peer before the first transfer."""
        name = as_text(remote_agent, "an agent's name")
        if name != self._name:
            try:
                self._agent.connect(name, backends=self._backends.limited(backends))
            except headrace.Error as error:
                raise translated(error) from error
        return nixl_status_t.NIXL_SUCCESS

    def sendLocalMD(self, ip_addr: str = "", port: int = 0) -> None:
        """Sends this agent's metadata to the agent that listens at the address, or without one to the store.
        Returns at once."""
        self._send(None, True, ip_addr, port, "")

    def sendLocalPartialMD(
        self,
        descs: nixlRegDList,
        inc_conn_info: bool = False,
        backends: Sequence[int] = (),
        ip_addr: str = "",
        port: int = 0,
        label: str = "",
    ) -> None:
        """Sends a part of the metadata; a store keeps it under the label. Returns at once."""
        need(descs, nixlRegDList, "the list of regions")
        if not ip_addr and not label:
            raise failure(
                nixlInvalidParamError,
                "a store keeps parts of metadata under labels: give one, or an address to send to",
            )
        self._send(self._memory.regions_of(descs), inc_conn_info or descs.isEmpty(), ip_addr, port, label)

    def _send(
        self, regions: list[int] | None, connection_info: bool, host: str, port: int, label: str
    ) -> None:
        self._need_remote_backend()
        if host:
            self._exchange.send(host, port or DEFAULT_COMM_PORT, regions, connection_info)
        else:
            self._exchange.publish(label or "metadata", regions, connection_info)

    def fetchRemoteMD(self, remote_agent: str, ip_addr: str = "", port: int = 0, label: str = "") -> None:
        """Fetches a peer's metadata from the agent that listens at the address, or without one from the
        store. Returns at once; checkRemoteMD says whether the metadata has arrived."""
        name = as_text(remote_agent, "an agent's name")
        if ip_addr:
            self._exchange.fetch(name, ip_addr, port or DEFAULT_COMM_PORT)
        else:
            self._exchange.find(name, label)

    def invalidateLocalMD(self, ip_addr: str = "", port: int = 0) -> None:
        """Makes the agent that listens at the address forget this agent, or without an address removes this
        agent's metadata from the store. Returns at once."""
        if ip_addr:
            self._exchange.withdraw_from(ip_addr, port or DEFAULT_COMM_PORT)
        else:
            self._exchange.withdraw()


_STATUS = {
    "posted": nixl_status_t.NIXL_IN_PROG,
    "canceling": nixl_status_t.NIXL_IN_PROG,
    "done": nixl_status_t.NIXL_SUCCESS,
}


def _open(name: str, config: nixlAgentConfig) -> headrace.Agent:
    etcd = etcd_options()
    if etcd and _tcpstore.is_configured():
        raise RuntimeError(
            "NIXL_ETCD_ENDPOINTS and NIXL_TCPSTORE_ENDPOINT are both set: an agent uses one store, unset "
            "one of them"
        )
    listen = f"0.0.0.0:{config.listenPort}" if config.useListenThread else ""
    try:
        return headrace.Agent(name, listen=listen, store="etcd://" if etcd else "", options=etcd)
    except headrace.InvalidArgument as error:
        raise ValueError(str(error)) from error
    except headrace.Error as error:
        raise RuntimeError(str(error)) from error


def _patience(config: nixlAgentConfig) -> float:
    return (
        _tcpstore.patience_seconds() if _tcpstore.is_configured() else config.etcdWatchTimeout.total_seconds()
    )
