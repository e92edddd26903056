# SPDX-License-Identifier: Apache-2.0
"""Metadata by torch's TCPStore, which a training or serving program has running anyway.

The store's protocol is spoken here, as NIXL speaks it: torch's own client would have to be imported, waits in
code that cannot be interrupted when the program ends, and prints. Numbers are in this machine's byte order,
as torch has them.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

import headrace

Answer = TypeVar("Answer")

PREFIX = "headrace/nixl"
CONNECT_MS, OPERATION_MS = 30000, 5000

VALIDATE, SET, GET, CHECK, DELETE = 0, 1, 3, 5, 8
MAGIC = 0x3C85F7CE
READY = 0
MOST_BYTES = 1 << 30


def is_configured() -> bool:
    """Whether NIXL's variables name one."""
    return bool(os.environ.get("NIXL_TCPSTORE_ENDPOINT"))


def seconds(variable: str, default_ms: int) -> float:
    """A duration that the environment gives in milliseconds."""
    text = os.environ.get(variable, "") or str(default_ms)
    if not text.isdigit():
        raise ValueError(f"{variable} is {text!r}, and a number of milliseconds is expected")
    return int(text) / 1000


def endpoint() -> tuple[str, int]:
    """Host and port."""
    text = os.environ.get("NIXL_TCPSTORE_ENDPOINT", "")
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"NIXL_TCPSTORE_ENDPOINT is {text!r}, and host:port is expected")
    return host.strip("[]"), int(port)


def patience_seconds() -> float:
    """How long a peer's metadata is waited for."""
    return seconds("NIXL_TCPSTORE_TIMEOUT_MS", CONNECT_MS)


def _text(value: bytes) -> bytes:
    return struct.pack("=Q", len(value)) + value


class Client:
    """One connection to the store. Errors: OSError; the connection is of no more use then."""

    def __init__(self) -> None:
        self._socket = socket.create_connection(endpoint(), patience_seconds())
        self._socket.settimeout(seconds("NIXL_TCPSTORE_OP_TIMEOUT_MS", OPERATION_MS))
        self._socket.sendall(struct.pack("=BI", VALIDATE, MAGIC))

    def set(self, key: str, value: bytes) -> None:
        """Overwrites."""
        self._ask(SET, key, _text(value))

    def get(self, key: str) -> bytes | None:
        """None: there is no such key."""
        self._ask(CHECK, key, count=1)
        if self._take(1)[0] != READY:
            return None
        self._ask(GET, key)
        (length,) = struct.unpack("=Q", self._take(8))
        if length > MOST_BYTES:
            raise OSError(f"the store says that {key} has {length} bytes: at most {MOST_BYTES} are taken")
        return self._take(length)

    def delete(self, key: str) -> None:
        """Nothing happens if there is no such key."""
        self._ask(DELETE, key)
        self._take(8)

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()

    def _ask(self, what: int, key: str, rest: bytes = b"", count: int | None = None) -> None:
        counted = b"" if count is None else struct.pack("=Q", count)
        # torch's clients put a slash before every key.
        self._socket.sendall(bytes([what]) + counted + _text(b"/" + key.encode()) + rest)

    def _take(self, length: int) -> bytes:
        taken = bytearray()
        while len(taken) < length:
            part = self._socket.recv(min(length - len(taken), 1 << 20))
            if not part:
                raise ConnectionError("the store has hung up")
            taken += part
        return bytes(taken)


class TcpStore:
    """A store as _exchange.Store has it. Threads: one."""

    def __init__(self, agent: headrace.Agent):
        self._agent = agent
        self._keys: set[str] = set()
        self._connected: Client | None = None

    def publish(self, label: str, regions: Sequence[int] | None, connection_info: bool) -> None:
        """What a TCPStore holds does not follow later registrations: publish again after them."""
        key = self._key(self._agent.name, label)
        metadata = self._agent.export_metadata(regions, connection_info)
        self._with_client(lambda client: client.set(key, metadata))
        self._keys.add(key)

    def find(self, peer: str, label: str) -> bool:
        """Reads once."""
        metadata = self._with_client(lambda client: client.get(self._key(peer, label)))
        if metadata is None:
            return False
        self._agent.import_metadata(metadata)
        return True

    def withdraw(self) -> None:
        """Peers that hold our metadata keep it: a TCPStore tells nobody of what goes."""
        while self._keys:
            key = next(iter(self._keys))
            self._with_client(lambda client, key=key: client.delete(key))  # type: ignore[misc]
            self._keys.discard(key)

    def _with_client(self, act: Callable[[Client], Answer]) -> Answer:
        """A connection that failed is not used again: who knows where in an answer it stopped."""
        client, self._connected = self._connected or Client(), None
        try:
            answer = act(client)
        except OSError:
            client.close()
            raise
        self._connected = client
        return answer

    @staticmethod
    def _key(name: str, label: str) -> str:
        return f"{PREFIX}/{label}/{name}"
