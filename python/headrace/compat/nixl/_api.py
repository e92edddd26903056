# SPDX-License-Identifier: Apache-2.0
"""nixl_agent: the class that NIXL's programs use, on the raw agent of _bindings."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

import headrace

from . import _bindings as nixlBind
from ._compiled import QuickMake
from ._descriptors import described, is_array
from ._handles import nixl_prepped_dlist_handle, nixl_xfer_handle, was_released
from ._inputs import MEMORIES, is_tensor, reg_list, remote_list, tensor_memory, xfer_list
from ._transfer import message
from ._unpickle import descriptors_of
from .logging import get_logger

if TYPE_CHECKING:
    import numpy as np

    from ._descriptors import nixlRegDList, nixlRemoteDList, nixlXferDList

DEFAULT_COMM_PORT = nixlBind.DEFAULT_COMM_PORT

nixl_backend_handle = int

logger = get_logger("api")

_THREADS_PARAMETER = {
    "UCX": "num_threads",
    "OBJ": "num_threads",
    "LIBFABRIC": "num_threads",
    "GDS_MT": "thread_count",
    "UCCL": "num_cpus",
}
"""For each backend the parameter that gets the configuration's num_threads."""

_OPERATIONS = {"READ": "read", "WRITE": "write"}
_WORDS = {"posted": "PROC", "canceling": "PROC", "done": "DONE"}

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _quick(method: _Method) -> _Method:
    """Runs make_prepped_xfer in compiled code if its arguments are usual. In all other cases, and after an
    error there, it calls the Python method."""
    made: Any = QuickMake(
        method, headrace.Agent.make_request, headrace.Error, nixl_prepped_dlist_handle, nixl_xfer_handle
    )
    return made  # type: ignore[no-any-return]


class nixl_thread_sync_t(Enum):
    """NIXL's modes of thread safety. They have no effect: any thread may use Headrace's agents."""

    NIXL_THREAD_SYNC_NONE = nixlBind.nixl_thread_sync_t.NIXL_THREAD_SYNC_NONE
    NIXL_THREAD_SYNC_STRICT = nixlBind.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
    NIXL_THREAD_SYNC_RW = nixlBind.nixl_thread_sync_t.NIXL_THREAD_SYNC_RW
    NIXL_THREAD_SYNC_DEFAULT = nixlBind.nixl_thread_sync_t.NIXL_THREAD_SYNC_DEFAULT


class nixl_agent_config:
    """The configuration of an agent: listening for metadata and its port, telemetry, the backends to create.

    enable_prog_thread and sync_mode are kept and have no effect: Headrace's agents always make progress by
    themselves, and any thread may use them.
    """

    def __init__(
        self,
        enable_prog_thread: bool = True,
        enable_listen_thread: bool = False,
        listen_port: int = DEFAULT_COMM_PORT,
        capture_telemetry: bool = False,
        num_threads: int = 0,
        backends: list[str] = ["UCX"],  # noqa: B006
        sync_mode: nixl_thread_sync_t | None = None,
    ):
        if sync_mode is not None and not isinstance(sync_mode, nixl_thread_sync_t):
            raise TypeError(f"sync_mode must be a nixl_thread_sync_t, not {sync_mode!r}")
        self.enable_pthread = enable_prog_thread
        self.enable_listen = enable_listen_thread
        self.port = listen_port
        self.capture_telemetry = capture_telemetry
        self.num_threads = num_threads
        self.backends = backends
        self.sync_mode = sync_mode

    def _raw(self) -> nixlBind.nixlAgentConfig:
        unsaid = (
            nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
            if self.enable_listen
            else nixl_thread_sync_t.NIXL_THREAD_SYNC_NONE
        )
        raw = nixlBind.nixlAgentConfig()
        raw.useProgThread = self.enable_pthread
        raw.useListenThread = self.enable_listen
        raw.listenPort = self.port
        raw.captureTelemetry = self.capture_telemetry
        raw.syncMode = (self.sync_mode or unsaid).value
        return raw

    def _parameters(self, backend: str) -> dict[str, str]:
        parameter = _THREADS_PARAMETER.get(backend)
        return {parameter: str(self.num_threads)} if parameter and self.num_threads > 0 else {}


class nixl_agent:
    """An agent registers memory, has peers and makes transfers. Threads: any."""

    __slots__ = ("_native", "__dict__", "__weakref__")

    def __init__(
        self, agent_name: str, nixl_conf: nixl_agent_config | None = None, instantiate_all: bool = False
    ):
        if nixl_conf is not None and instantiate_all:
            logger.warning("instantiate_all has no effect: the configuration names the backends")
        conf = nixl_conf or nixl_agent_config()
        self.name = agent_name
        self.agent = nixlBind.nixlAgent(agent_name, conf._raw())
        self._native = self.agent._agent
        self.notifs: dict[str, list[bytes]] = {}
        self.backends: dict[str, int] = {}
        self.backend_mems: dict[str, list[str]] = {}
        self.backend_options: dict[str, dict[str, str]] = {}
        self.plugin_list = self.agent.getAvailPlugins()
        self.plugin_b_options: dict[str, dict[str, str]] = {}
        self.plugin_mem_types: dict[str, list[str]] = {}
        self.nixl_mems = dict(MEMORIES)
        self.nixl_ops = {
            "WRITE": nixlBind.nixl_xfer_op_t.NIXL_WRITE,
            "READ": nixlBind.nixl_xfer_op_t.NIXL_READ,
        }
        for backend in self.plugin_list if instantiate_all and nixl_conf is None else conf.backends:
            if backend in self.plugin_list:
                self.create_backend(backend, conf._parameters(backend))
            else:
                logger.warning("backend %s is not created: Headrace has no path for it", backend)
        logger.info("agent %s is open", agent_name)

    # Backends

    def get_plugin_list(self) -> list[str]:
        """Returns the names of plugins for which Headrace has a path."""
        return self.plugin_list

    def _plugin(self, backend: str, table: dict[str, Any], nothing: Any) -> Any:
        if backend not in self.plugin_mem_types and backend in self.plugin_list:
            self.plugin_b_options[backend], self.plugin_mem_types[backend] = self.agent.getPluginParams(
                backend
            )
        return self._known(backend, table, nothing, "plugin")

    @staticmethod
    def _known(backend: str, table: dict[str, Any], nothing: Any, what: str) -> Any:
        if backend not in table:
            logger.warning("%s %s does not exist", what, backend)
        return table.get(backend, nothing)

    def get_plugin_mem_types(self, backend: str) -> list[str]:
        """Returns the kinds of memory that a plugin carries; [] if there is no such plugin."""
        found: list[str] = self._plugin(backend, self.plugin_mem_types, [])
        return found

    def get_plugin_params(self, backend: str) -> dict[str, str]:
        """Returns a plugin's parameters with their defaults; {} if there is no such plugin."""
        found: dict[str, str] = self._plugin(backend, self.plugin_b_options, {})
        return found

    def get_backend_mem_types(self, backend: str) -> list[str]:
        """Returns the kinds of memory that a created backend carries; [] if there is no such backend."""
        found: list[str] = self._known(backend, self.backend_mems, [], "backend")
        return found

    def get_backend_params(self, backend: str) -> dict[str, str]:
        """Returns the parameters with which a backend was created; {} if there is no such backend."""
        found: dict[str, str] = self._known(backend, self.backend_options, {}, "backend")
        return found

    def create_backend(self, backend: str, initParams: dict[str, str] = {}) -> None:  # noqa: B006
        """Creates a backend, a name for the paths of Headrace that carry its kinds of memory."""
        handle = self.agent.createBackend(backend, initParams)
        self.backends[backend] = handle
        self.backend_options[backend], self.backend_mems[backend] = self.agent.getBackendParams(handle)

    def _handles(self, backends: list[str] | None) -> list[int]:
        return [self.backends[backend] for backend in backends] if backends else []

    # Memory

    def register_memory(
        self,
        reg_list: Any,
        mem_type: str | None = None,
        backends: list[str] = [],  # noqa: B006  NIXL's own signature
    ) -> nixlRegDList:
        """Registers memory in any form that get_reg_descs accepts. Returns the list for deregister_memory."""
        descs: Any = self.get_reg_descs(reg_list, mem_type)
        self.agent.registerMem(descs, self._handles(backends))
        return descs  # type: ignore[no-any-return]

    def deregister_memory(self, dereg_list: nixlRegDList, backends: list[str] = []) -> None:  # noqa: B006
        """Deregisters memory. Returns when no peer can reach the memory any more."""
        self.agent.deregisterMem(dereg_list, self._handles(backends))

    def query_memory(
        self, reg_list: Any, backend: str, mem_type: str | None = None
    ) -> list[dict[str, str] | None]:
        """Returns a backend's facts about files, block devices and objects; None for each that does not
        exist."""
        descs: Any = self.get_reg_descs(reg_list, mem_type)
        if backend not in self.backends:
            raise ValueError(
                f"backend {backend!r} is not created; created are {', '.join(self.backends) or 'none'}"
            )
        return self.agent.queryMem(descs, self.backends[backend])

    def get_xfer_descs(self, descs: Any, mem_type: str | None = None) -> nixlXferDList | None:
        """Returns a list for transfers, made of tuples (address, length, device), an array of such rows, a
        tensor or a list of tensors.

        mem_type: required unless `descs` are tensors. Returns None if no list can be made; the log has the
        reason.
        """
        return xfer_list(descs, mem_type)

    def get_reg_descs(self, descs: Any, mem_type: str | None = None) -> nixlRegDList | None:
        """Returns a list for registration, made as in get_xfer_descs. Tuples have a fourth element, the
        extra: the owner's text for the descriptor, such as a path or a key."""
        return reg_list(descs, mem_type)

    def get_remote_descs(self, descs: Any, mem_type: str | None = None) -> nixlRemoteDList | None:
        """Returns a list of several agents' memory, made of tuples (address, length, device, agent)."""
        return remote_list(descs, mem_type)

    @staticmethod
    def _tensor_mem_type(tensor: Any) -> str:
        return tensor_memory(tensor)

    def get_serialized_descs(self, descs: Any) -> bytes:
        """Returns a list as bytes, for a peer."""
        return pickle.dumps(descs)

    def deserialize_descs(self, serialized_descs: bytes) -> Any:
        """Returns the list that get_serialized_descs made bytes of. Accepts descriptor lists and plain
        values; refuses pickles of anything else."""
        return descriptors_of(serialized_descs)

    # Transfers

    def prep_xfer_dlist(
        self, agent_name: str, xfer_list: Any, mem_type: str | None = None, backends: list[str] = []  # noqa: B006
    ) -> nixl_prepped_dlist_handle:  # fmt: skip
        """Prepares a list once for any number of transfers.

        agent_name: "NIXL_INIT_AGENT" or "" for the local list; a peer's name, or this agent's own name for
        the remote list of a transfer inside this agent. xfer_list: any form that get_xfer_descs accepts, or
        an array of rows (address, length, device, stride, count), which needs mem_type. Arrays are read, not
        kept.
        """
        name = nixlBind.NIXL_INIT_AGENT if agent_name in ("NIXL_INIT_AGENT", "") else agent_name
        if is_array(xfer_list) and xfer_list.ndim == 2 and xfer_list.shape[1] == 5:
            if mem_type is None:
                raise ValueError("strided descriptors need a kind of memory")
            handle = self.agent.prepXferDlist(
                name, self.nixl_mems[mem_type], xfer_list, self._handles(backends)
            )
        elif is_array(xfer_list) and xfer_list.ndim == 2 and xfer_list.shape[1] == 3 and mem_type is not None:
            handle = self.agent._prepare(
                name, self.nixl_mems[mem_type], described(xfer_list), self._handles(backends)
            )
        else:
            handle = self.agent.prepXferDlist(
                name, self.get_xfer_descs(xfer_list, mem_type), self._handles(backends)
            )
        return nixl_prepped_dlist_handle(self.agent, handle)

    @_quick
    def make_prepped_xfer(
        self,
        operation: str,
        local_xfer_side: nixl_prepped_dlist_handle,
        local_indices: list[int] | np.ndarray[Any, Any],
        remote_xfer_side: nixl_prepped_dlist_handle,
        remote_indices: list[int] | np.ndarray[Any, Any],
        notif_msg: bytes = b"",
        backends: list[str] = [],  # noqa: B006
        skip_desc_merge: bool = False,
    ) -> nixl_xfer_handle:
        """Makes a transfer between descriptors of two prepared lists, chosen by index.

        Indices: lists, or one-dimensional arrays of integers of any type (uint32 and 64-bit ones are read
        without a copy).
        """
        op = _OPERATIONS[operation]
        local, remote, chosen = local_xfer_side._thing, remote_xfer_side._thing, self._handles(backends)
        return self.agent._make_prepared(
            nixl_xfer_handle, op, local, local_indices, remote, remote_indices, notif_msg, chosen
        )  # fmt: skip

    def initialize_xfer(
        self,
        operation: str,
        local_descs: nixlXferDList,
        remote_descs: nixlXferDList,
        remote_agent: str,
        notif_msg: bytes = b"",
        backends: list[str] = [],  # noqa: B006
    ) -> nixl_xfer_handle:
        """Makes a transfer between two lists, and prepares the lists for this transfer alone."""
        op = self.nixl_ops[operation]
        chosen = self._handles(backends)
        return self.agent._create(
            nixl_xfer_handle, op, local_descs, remote_descs, remote_agent, notif_msg, chosen
        )

    def transfer(self, handle: nixl_xfer_handle, notif_msg: bytes = b"") -> str:
        """Posts a transfer. Returns "PROC" (in flight) or "DONE". A notification given here replaces the
        earlier one."""
        if notif_msg and not handle._released:
            handle.notification = message(notif_msg)
        try:
            state = handle.post(handle.notification)
        except headrace.Error as error:
            state = handle.again(error)
        except AttributeError:
            # release() deletes the notification, so that a post need not test for a released handle.
            if handle._released:
                raise was_released() from None
            raise
        return "DONE" if state == "done" else _WORDS[handle.other(state)]

    def check_xfer_state(self, handle: nixl_xfer_handle) -> str:
        """Returns "PROC" or "DONE"; raises if the transfer has failed or was not posted."""
        if handle._remote is None:
            raise was_released()
        state = handle.poll()
        return "DONE" if state == "done" else _WORDS[handle.other(state)]

    def get_xfer_telemetry(self, handle: nixl_xfer_handle) -> nixlBind.nixlXferTelemetry:
        """Returns times, bytes and descriptors of the last post that has completed."""
        return self.agent.getXferTelemetry(handle._handle)

    def estimate_xfer_cost(self, req_handle: nixl_xfer_handle) -> tuple[int, int, str]:
        """Returns the estimate in microseconds, its margin in microseconds, and the method."""
        duration, margin, method = self.agent.estimateXferCost(req_handle._handle)
        known = nixlBind.nixl_cost_t(method) == nixlBind.nixl_cost_t.NIXL_COST_ANALYTICAL_BACKEND
        return duration, margin, "ANALYTICAL_BACKEND" if known else "UNKNOWN"

    def query_xfer_backend(self, handle: nixl_xfer_handle) -> str:
        """Returns the name of the backend that carries a transfer."""
        number = self.agent.queryXferBackend(handle._handle)
        return next(name for name, backend in self.backends.items() if backend == number)

    def release_xfer_handle(self, handle: nixl_xfer_handle) -> None:
        """Frees a transfer. A transfer in flight is canceled first."""
        handle.release()

    def release_dlist_handle(self, handle: nixl_prepped_dlist_handle) -> None:
        """Frees a prepared list."""
        handle.release()

    def prep_mem_view(
        self, dlist: nixlXferDList | nixlRemoteDList, *, backends: list[str] | None = None
    ) -> int:
        """Always raises: Headrace has no views of memory for GPU kernels."""
        return self.agent.prepMemView(dlist, self._handles(backends))

    def release_mem_view(self, mvh: int) -> None:
        """Always raises: there are no views."""
        self.agent.releaseMemView(mvh)

    # Notifications

    def get_new_notifs(self, backends: list[str] = []) -> dict[str, list[bytes]]:  # noqa: B006
        """Returns the notifications that arrived since the last call, by sender."""
        return self.agent.getNotifs({}, self._handles(backends))

    def update_notifs(self, backends: list[str] = []) -> dict[str, list[bytes]]:  # noqa: B006
        """Returns all notifications that arrived and that check_remote_xfer_done has not removed, by
        sender."""
        self.notifs = self.agent.getNotifs(self.notifs, self._handles(backends))
        return self.notifs

    def check_remote_xfer_done(
        self, remote_agent_name: str, lookup_tag: bytes, backends: list[str] = [], tag_is_prefix: bool = True  # noqa: B006
    ) -> bool:  # fmt: skip
        """Returns whether a notification with this tag has arrived from that peer, and removes the first one.
        The tag is a prefix of it, or if tag_is_prefix is false any part."""
        messages = self.update_notifs(backends).get(remote_agent_name, [])
        for i, payload in enumerate(messages):
            if payload.startswith(lookup_tag) if tag_is_prefix else lookup_tag in payload:
                del messages[i]
                return True
        return False

    def send_notif(self, remote_agent_name: str, notif_msg: bytes, backend: str | None = None) -> None:
        """Sends a notification without a transfer."""
        self.agent.genNotif(remote_agent_name, notif_msg, self._handles([backend] if backend else []))

    # Metadata

    def get_agent_metadata(self) -> bytes:
        """Returns this agent's whole metadata, for a peer."""
        return self.agent.getLocalMD()

    def get_partial_agent_metadata(
        self,
        descs: nixlRegDList,
        inc_conn_info: bool = False,
        backends: list[str] = [],  # noqa: B006  NIXL's own signature
    ) -> bytes:
        """Returns the metadata of some regions. An empty list gives the addresses of this agent."""
        return self.agent.getLocalPartialMD(descs, inc_conn_info, self._handles(backends))

    def add_remote_agent(self, metadata: bytes) -> bytes:
        """Imports a peer's metadata, or a part or an update of it. Returns the peer's name as bytes."""
        return self.agent.loadRemoteMD(metadata)

    def remove_remote_agent(self, agent: str) -> None:
        """Forgets a peer."""
        self.agent.invalidateRemoteMD(agent)

    def check_remote_metadata(self, agent: str, descs: nixlXferDList | None = None) -> bool:
        """Returns whether this agent has the peer's metadata and it covers these descriptors."""
        wanted = nixlBind.nixlXferDList(nixlBind.nixl_mem_t.DRAM_SEG) if descs is None else descs
        return self.agent.checkRemoteMD(agent, wanted) == nixlBind.nixl_status_t.NIXL_SUCCESS

    def make_connection(self, remote_agent: str, backends: list[str] = []) -> None:  # noqa: B006
        """Connects to a peer before the first transfer."""
        self.agent.makeConnection(remote_agent, self._handles(backends))

    def send_local_metadata(self, ip_addr: str = "", port: int = DEFAULT_COMM_PORT) -> None:
        """Sends this agent's metadata to the agent that listens at the address, or without one to the store.
        Returns at once."""
        self.agent.sendLocalMD(ip_addr, port)

    def send_partial_agent_metadata(
        self,
        descs: nixlRegDList,
        inc_conn_info: bool = False,
        backends: list[str] = [],  # noqa: B006
        ip_addr: str = "",
        port: int = DEFAULT_COMM_PORT,
        label: str = "",
    ) -> None:
        """Sends the metadata of some regions; a store keeps it under the label. Returns at once."""
        self.agent.sendLocalPartialMD(descs, inc_conn_info, self._handles(backends), ip_addr, port, label)

    def fetch_remote_metadata(
        self, remote_agent: str, ip_addr: str = "", port: int = DEFAULT_COMM_PORT, label: str = ""
    ) -> None:
        """Fetches a peer's metadata from the agent that listens at the address, or without one from the
        store. Returns at once; check_remote_metadata says whether the metadata has arrived."""
        self.agent.fetchRemoteMD(remote_agent, ip_addr, port, label)

    def invalidate_local_metadata(self, ip_addr: str = "", port: int = DEFAULT_COMM_PORT) -> None:
        """Makes the agent that listens at the address forget this agent, or without an address removes this
        agent's metadata from the store. Returns at once."""
        self.agent.invalidateLocalMD(ip_addr, port)


__all__ = [
    "DEFAULT_COMM_PORT",
    "nixlBind",
    "nixl_agent",
    "nixl_agent_config",
    "nixl_backend_handle",
    "nixl_prepped_dlist_handle",
    "nixl_thread_sync_t",
    "nixl_xfer_handle",
]

_is_torch_tensor = is_tensor

for _class in (nixl_prepped_dlist_handle, nixl_xfer_handle):
    _class.__module__ = __name__
del _class
