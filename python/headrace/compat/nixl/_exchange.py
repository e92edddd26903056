# SPDX-License-Identifier: Apache-2.0
"""Metadata by socket and store, in the background as NIXL does it: calls return at once,
check_remote_metadata tells when it came.

What goes wrong is logged, since the call that asked for it has returned.
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
"""A notification that no program sees: its sender takes its metadata back. Headrace's metadata socket has no
such message."""

LOOK_AGAIN_SECONDS = 0.05
FINISH_SECONDS = 5.0

logger = get_logger("exchange")


def address_of(host: str, port: int) -> str:
    """Headrace's way to write it; NIXL's programs give no brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


class Store(Protocol):
    """A place where agents leave their metadata under their names."""

    def publish(self, label: str, regions: Sequence[int] | None, connection_info: bool) -> None:
        """Leaves ours; None: all regions."""

    def find(self, peer: str, label: str) -> bool:
        """Imports a peer's; false: it has not left any yet."""

    def withdraw(self) -> None:
        """Takes back all that we left."""


class AgentStore:
    """The store that Headrace's agent was opened with: etcd."""

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
        """Whole metadata is published again after each registration."""
        self._agent.publish(regions, connection_info, self._label(label))

    def find(self, peer: str, label: str) -> bool:
        """Peers that were found here are forgotten when they withdraw.

        The watch begins before the first look, else it would miss who leaves between the two.
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
        if peer in self._left:  # told of while what it left was on the way to us
            self._forget(peer)
        return True

    def withdraw(self) -> None:
        """All labels."""
        self._agent.unpublish()

    def _saw(self, event: str, peer: str) -> None:
        if event == "left" and peer in self._wanted:
            self._left.add(peer)
            self._forget(peer)


class Exchange:
    """One thread that does what was asked for, in order; it starts with the first job. Threads: any."""

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
        """Gives our metadata to the agent that listens there."""
        address = address_of(host, port)
        self._later(
            f"send metadata to {address}",
            lambda: self._agent.send_metadata(address, regions, connection_info),
        )

    def fetch(self, peer: str, host: str, port: int) -> None:
        """Asks the agent that listens there for its metadata."""
        self._later(f"fetch metadata of {peer}", lambda: self._fetch(peer, address_of(host, port)))

    def withdraw_from(self, host: str, port: int) -> None:
        """Makes the agent that listens there forget us."""
        address = address_of(host, port)
        self._later(f"withdraw metadata from {address}", lambda: self._withdraw(address))

    def publish(self, label: str, regions: Sequence[int] | None, connection_info: bool) -> None:
        """Leaves our metadata in the store."""
        self._need_store()
        self._later(
            f"publish metadata {label!r}", lambda: self._opened().publish(label, regions, connection_info)
        )

    def find(self, peer: str, label: str) -> None:
        """Looks for a peer's metadata in the store until it is there or the patience ends."""
        self._need_store()
        end = time.monotonic() + self._patience
        self._start(lambda: self._find(peer, label or DEFAULT_LABEL, end))

    def withdraw(self) -> None:
        """Takes our metadata out of the store."""
        self._need_store()
        self._later("withdraw metadata", lambda: self._opened().withdraw())

    def _need_store(self) -> None:
        if self._open_store is None:
            raise failure(
                nixlInvalidParamError,
                "no address is given and there is no store: set NIXL_ETCD_ENDPOINTS or "
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
        except (
            KeyError,
            headrace.NotFound,
        ):  # not known yet, or not any more: a notification needs to know the peer
            self._withdraw_from_stranger(address)

    def _withdraw_from_stranger(self, address: str) -> None:
        try:
            self._agent.notify(self._agent.fetch_metadata(address).peer, WITHDRAWAL)
        except headrace.PeerLost as error:
            logger.info("nobody is left at %s to withdraw metadata from: %s", address, str(error))

    def _fetch(self, peer: str, address: str) -> None:
        found = self._peer_at[address] = self._agent.fetch_metadata(address).peer
        if found != peer:
            logger.warning("the agent at %s is %s, and metadata of %s was asked for", address, found, peer)

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
            "metadata of %s, label %s, has not come into the store in %s s", peer, label, self._patience
        )
        return True

    def _later(self, what: str, job: Callable[[], object]) -> None:
        def run() -> bool:
            try:
                job()
            except Exception as error:
                logger.error("%s: %s", what, str(error))  # the error itself would hold this agent
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
    """At the end of the program what was asked for last, often to take metadata back, is still done.

    weakref.finalize could do that by itself, but in no order with what closes Headrace's agents then. That is
    registered with the first agent, and this after it, hence runs before it.
    """
    for exchange, thread in list(_running.items()):
        _finish(exchange._jobs, thread)


@functools.cache
def _finish_all_at_exit() -> None:
    atexit.register(_finish_all)


def _finish(jobs: queue.SimpleQueue[Callable[[], bool] | None], thread: threading.Thread) -> None:
    jobs.put(None)
    # The last reference may have been a job's.
    if thread is not threading.current_thread():
        thread.join(FINISH_SECONDS)


def _work(jobs: queue.SimpleQueue[Callable[[], bool] | None]) -> None:
    """Runs jobs until None comes; those that are not done yet are tried again and again."""
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
        # The job holds its Exchange, hence its agent, which could not end while this thread waits on.
        del job


def etcd_options() -> dict[str, str]:
    """Headrace's options for the store that NIXL's variables name; empty: none."""
    endpoints = os.environ.get("NIXL_ETCD_ENDPOINTS", "").replace(";", ",").split(",")
    hosts = [
        endpoint.strip().removeprefix("http://").rstrip("/") for endpoint in endpoints if endpoint.strip()
    ]
    if not hosts:
        return {}
    namespace = os.environ.get("NIXL_ETCD_NAMESPACE") or "/nixl/agents"
    return {"etcd_endpoints": ",".join(hosts), "etcd_namespace": "/" + namespace.strip("/")}
