# SPDX-License-Identifier: Apache-2.0
"""Exchanges metadata by socket and store in the background, as NIXL does. Calls return at once;
check_remote_metadata says whether the metadata has arrived.

Errors are logged, because the call has already returned.
"""

from __future__ import annotations

import atexit
import functools
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

import headrace

from ._errors import failure, nixlInvalidParamError
from .logging import get_logger

DEFAULT_COMM_PORT = 8888
DEFAULT_LABEL = "metadata"
WITHDRAWAL = b"\0headrace.compat.nixl: forget my metadata"
"""A notification that programs do not get: its sender withdraws its metadata. Headrace's metadata socket has
no such message."""

LOOK_AGAIN_SECONDS = 0.05
FINISH_SECONDS = 5.0

logger = get_logger("exchange")


def address_of(host: str, port: int) -> str:
    """Returns the address in Headrace's form. NIXL's programs write IPv6 addresses without brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


class Store(Protocol):
    """A place where agents publish their metadata under their names."""

    def publish(self, label: str, regions: Sequence[int] | None, connection_info: bool) -> None:
        """Publishes this agent's metadata; None: of all regions."""

    def find(self, peer: str, label: str) -> bool:
        """Imports a peer's metadata. Returns false if the peer has not published any yet."""

    def withdraw(self) -> None:
        """Removes all that this agent published."""


class AgentStore:
    """The store with which Headrace's agent was opened: etcd."""

    def __init__(self, agent: headrace.Agent, forget: Callable[[str], object]):
        self._agent = agent
        self._forget = forget
        self._is_watching = False
        self._wanted: set[str] = set()
        self._left: set[str] = set()

    @staticmethod
    def _label(label: str) -> str:
        return "" if label == DEFAULT_LABEL else label

    def publish(self, label: str, regions: Sequence[int] | None, connection_info: bool) -> None:
        """Publishes metadata. Headrace publishes whole metadata again after each registration."""
        self._agent.publish(regions, connection_info, self._label(label))

    def find(self, peer: str, label: str) -> bool:
        """Imports a peer's metadata. The peer is forgotten when it withdraws its metadata.

        The watch begins before the first query: otherwise it misses a peer that withdraws between the two.
        """
        if not self._is_watching:
            self._agent.watch_namespace(self._saw)
            self._is_watching = True
        self._wanted.add(peer)
        self._left.discard(peer)
        try:
            self._agent.find(peer, label=self._label(label))
        except headrace.NotFound:
            return False
        if peer in self._left:  # the peer withdrew while its metadata was being imported
            self._forget(peer)
        return True

    def withdraw(self) -> None:
        """Removes all labels."""
        self._agent.unpublish()

    def _saw(self, event: str, peer: str) -> None:
        if event == "left" and peer in self._wanted:
            self._left.add(peer)
            self._forget(peer)


class Exchange:
    """Runs jobs in order in one thread, which starts with the first job. Threads: any."""

    def __init__(
        self, agent: headrace.Agent, open_store: Callable[[], Store] | None, patience_seconds: float
    ):
        self._agent = agent
        self._open_store = open_store
        self._store: Store | None = None
        self._patience = patience_seconds
        self._jobs: queue.SimpleQueue[Callable[[], bool] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_running = False
        self._peer_at: dict[str, str] = {}

    def send(self, host: str, port: int, regions: Sequence[int] | None, connection_info: bool) -> None:
        """Sends this agent's metadata to the agent that listens at the address."""
        address = address_of(host, port)
        self._later(
            f"send metadata to {address}",
            lambda: self._agent.send_metadata(address, regions, connection_info),
        )

    def fetch(self, peer: str, host: str, port: int) -> None:
        """Fetches the metadata of the agent that listens at the address."""
        self._later(f"fetch metadata of {peer}", lambda: self._fetch(peer, address_of(host, port)))

    def withdraw_from(self, host: str, port: int) -> None:
        """Makes the agent that listens at the address forget this agent."""
        address = address_of(host, port)
        self._later(f"withdraw metadata from {address}", lambda: self._withdraw(address))

    def publish(self, label: str, regions: Sequence[int] | None, connection_info: bool) -> None:
        """Publishes this agent's metadata in the store."""
        self._need_store()
        self._later(
            f"publish metadata {label!r}", lambda: self._opened().publish(label, regions, connection_info)
        )

    def find(self, peer: str, label: str) -> None:
        """Queries the store for a peer's metadata until it exists or the timeout passes."""
        self._need_store()
        end = time.monotonic() + self._patience
        self._start(lambda: self._find(peer, label or DEFAULT_LABEL, end))

    def withdraw(self) -> None:
        """Removes this agent's metadata from the store."""
        self._need_store()
        self._later("withdraw metadata", lambda: self._opened().withdraw())

    def _need_store(self) -> None:
        if self._open_store is None:
            raise failure(
                nixlInvalidParamError,
                "there is neither an address nor a store: pass an address, or set NIXL_ETCD_ENDPOINTS or "
                "NIXL_TCPSTORE_ENDPOINT",
            )

    def _opened(self) -> Store:
        if self._store is None:
            assert self._open_store is not None
            self._store = self._open_store()
        return self._store

    def _withdraw(self, address: str) -> None:
        try:
            self._agent.notify(self._peer_at[address], WITHDRAWAL)
        except (KeyError, headrace.NotFound):
            # The peer is not known yet, or no longer known; only a known peer can be notified.
            self._withdraw_from_stranger(address)

    def _withdraw_from_stranger(self, address: str) -> None:
        try:
            self._agent.notify(self._agent.fetch_metadata(address).peer, WITHDRAWAL)
        except headrace.PeerLost as error:
            logger.info("no agent listens at %s, so none has metadata to withdraw: %s", address, str(error))

    def _fetch(self, peer: str, address: str) -> None:
        found = self._peer_at[address] = self._agent.fetch_metadata(address).peer
        if found != peer:
            logger.warning("the agent at %s is %s, but metadata of %s was requested", address, found, peer)

    def _find(self, peer: str, label: str, end: float) -> bool:
        try:
            if self._opened().find(peer, label):
                return True
        except Exception as error:
            logger.error("find metadata of %s: %s", peer, str(error))
            return True
        if time.monotonic() < end:
            return False
        logger.error(
            "metadata of %s, label %s, did not appear in the store within %s s", peer, label, self._patience
        )
        return True

    def _later(self, what: str, job: Callable[[], object]) -> None:
        def run() -> bool:
            try:
                job()
            except Exception as error:
                logger.error("%s: %s", what, str(error))  # the error would keep the agent alive
            return True

        self._start(run)

    def _start(self, job: Callable[[], bool]) -> None:
        self._jobs.put(job)
        with self._lock:
            if self._is_running:
                return
            self._is_running = True
            _finish_all_at_exit()
            thread = threading.Thread(
                target=_work, args=(self._jobs,), name="headrace-nixl-metadata", daemon=True
            )
            thread.start()
            weakref.finalize(self, _finish, self._jobs, thread).atexit = False
            _running[self] = thread


_running: weakref.WeakKeyDictionary[Exchange, threading.Thread] = weakref.WeakKeyDictionary()


def _finish_all() -> None:
    """Finishes the last jobs when the program ends; often one of them withdraws metadata.

    weakref.finalize does not order this before the closing of Headrace's agents. The function that closes
    them is registered with the first agent; this function is registered later, so it runs earlier.
    """
    for exchange, thread in list(_running.items()):
        _finish(exchange._jobs, thread)


@functools.cache
def _finish_all_at_exit() -> None:
    atexit.register(_finish_all)


def _finish(jobs: queue.SimpleQueue[Callable[[], bool] | None], thread: threading.Thread) -> None:
    jobs.put(None)
    # This may run in the worker thread: a job may have had the last reference.
    if thread is not threading.current_thread():
        thread.join(FINISH_SECONDS)


def _work(jobs: queue.SimpleQueue[Callable[[], bool] | None]) -> None:
    """Runs jobs until it gets None. Retries jobs that are not done yet."""
    pending: list[Callable[[], bool]] = []
    while True:
        try:
            job = jobs.get(timeout=LOOK_AGAIN_SECONDS if pending else None)
        except queue.Empty:
            pending = [job for job in pending if not job()]
            continue
        if job is None:
            return
        if not job():
            pending.append(job)
        # The job references its Exchange and so the agent, which could not close while this thread waits.
        del job


def etcd_options() -> dict[str, str]:
    """Returns Headrace's options for the store that NIXL's variables name; empty if they name none."""
    endpoints = os.environ.get("NIXL_ETCD_ENDPOINTS", "").replace(";", ",").split(",")
    hosts = [
        endpoint.strip().removeprefix("http://").rstrip("/") for endpoint in endpoints if endpoint.strip()
    ]
    if not hosts:
        return {}
    namespace = os.environ.get("NIXL_ETCD_NAMESPACE") or "/nixl/agents"
    return {"etcd_endpoints": ",".join(hosts), "etcd_namespace": "/" + namespace.strip("/")}
