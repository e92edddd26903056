# SPDX-License-Identifier: Apache-2.0
"""Metadata by torch's TCPStore, which a training or serving program has running anyway. torch is imported at the first use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import headrace

PREFIX = "headrace/nixl"
CONNECT_MS, OPERATION_MS = 30000, 5000


def is_configured() -> bool:
    """Whether NIXL's variables name one."""
    return bool(os.environ.get("NIXL_TCPSTORE_ENDPOINT"))


def milliseconds(variable: str, default: int) -> int:
    """A duration from the environment."""
    text = os.environ.get(variable, "")
    if not text:
        return default
    if not text.isdigit():
        raise ValueError(f"{variable} is {text!r}, and a number of milliseconds is expected")
    return int(text)


def endpoint() -> tuple[str, int]:
    """Host and port."""
    text = os.environ.get("NIXL_TCPSTORE_ENDPOINT", "")
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"NIXL_TCPSTORE_ENDPOINT is {text!r}, and host:port is expected")
    return host.strip("[]"), int(port)


def patience_seconds() -> float:
    """How long a peer's metadata is waited for."""
    return milliseconds("NIXL_TCPSTORE_TIMEOUT_MS", CONNECT_MS) / 1000


class TcpStore:
    """A store as _exchange.Store has it. Threads: one."""

    def __init__(self, agent: headrace.Agent):
        self._agent = agent
        self._keys: set[str] = set()
        self._store = _connect()

    def publish(self, label: str, regions: Sequence[int] | None, connection_info: bool) -> None:
        """What a TCPStore holds does not follow later registrations: publish again after them."""
        key = self._key(self._agent.name, label)
        self._store.set(key, self._agent.export_metadata(regions, connection_info))
        self._keys.add(key)

    def find(self, peer: str, label: str) -> bool:
        """Reads once."""
        key = self._key(peer, label)
        if not self._store.check([key]):
            return False
        self._agent.import_metadata(self._store.get(key))
        return True

    def withdraw(self) -> None:
        """Peers that hold our metadata keep it: a TCPStore tells nobody of what goes."""
        for key in sorted(self._keys):
            self._store.delete_key(key)
        self._keys.clear()

    @staticmethod
    def _key(name: str, label: str) -> str:
        return f"{PREFIX}/{label}/{name}"


def _connect() -> Any:
    host, port = endpoint()
    try:
        from torch.distributed import TCPStore
    except ImportError as error:
        raise RuntimeError("NIXL_TCPSTORE_ENDPOINT needs torch: install it, or use etcd or sockets") from error
    store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(milliseconds=milliseconds("NIXL_TCPSTORE_TIMEOUT_MS", CONNECT_MS)))
    store.set_timeout(timedelta(milliseconds=milliseconds("NIXL_TCPSTORE_OP_TIMEOUT_MS", OPERATION_MS)))
    return store
