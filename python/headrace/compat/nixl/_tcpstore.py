# SPDX-License-Identifier: Apache-2.0
"""Exchanges metadata by torch's TCPStore, which training and serving programs often run.

This file implements the store's protocol, as NIXL does. torch's own client needs an import of torch, waits in
code that cannot be interrupted at the end of the program, and prints. Numbers are in the machine's byte
order, as in torch.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import headrace

Answer = TypeVar("Answer")

PREFIX = "headrace/nixl"
CONNECT_MS, OPERATION_MS = 30000, 5000

VALIDATE, SET, GET, CHECK, DELETE = 0, 1, 3, 5, 8
MAGIC = 0x3C85F7CE
READY = 0
MOST_BYTES = 1 << 30


def is_configured() -> bool:
    """Returns whether NIXL's variables name a store."""
    return bool(os.environ.get("NIXL_TCPSTORE_ENDPOINT"))


def seconds(variable: str, default_ms: int) -> float:
    """Returns a duration in seconds that the environment gives in milliseconds."""
    text = os.environ.get(variable, "") or str(default_ms)
    if not text.isdigit():
        raise ValueError(f"{variable} must be a number of milliseconds, and is {text!r}")
    return int(text) / 1000


def endpoint() -> tuple[str, int]:
    """Returns the host and port of the store."""
    text = os.environ.get("NIXL_TCPSTORE_ENDPOINT", "")
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"NIXL_TCPSTORE_ENDPOINT must be host:port, and is {text!r}")
    return host.strip("[]"), int(port)


def patience_seconds() -> float:
    """Returns the time to wait for a peer's metadata, in seconds."""
    return seconds("NIXL_TCPSTORE_TIMEOUT_MS", CONNECT_MS)


def _text(value: bytes) -> bytes:
    return struct.pack("=Q", len(value)) + value


class Client:
    """One connection to the store, for an agent: its close ends a call that is under way.

    Errors: OSError, headrace.Canceled (the agent was closed). After either the connection is useless.
    """

    def __init__(self, agent: headrace.Agent) -> None:
        self._agent = agent  # the descriptor is the agent's
        self._closing = agent._closing_fd()
        self._patience = patience_seconds()
        self._socket = self._connect(*endpoint())
        self._patience = seconds("NIXL_TCPSTORE_OP_TIMEOUT_MS", OPERATION_MS)
        self._send(struct.pack("=BI", VALIDATE, MAGIC))

    def set(self, key: str, value: bytes) -> None:
        """Sets the value of a key; replaces an earlier value."""
        self._ask(SET, key, _text(value))

    def get(self, key: str) -> bytes | None:
        """Returns the value of a key; None if there is no such key."""
        self._ask(CHECK, key, count=1)
        if self._take(1)[0] != READY:
            return None
        self._ask(GET, key)
        (length,) = struct.unpack("=Q", self._take(8))
        if length > MOST_BYTES:
            raise OSError(f"the value of {key} has {length} bytes: at most {MOST_BYTES} are accepted")
        return self._take(length)

    def delete(self, key: str) -> None:
        """Deletes a key; has no effect if there is no such key."""
        self._ask(DELETE, key)
        self._take(8)

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def _connect(self, host: str, port: int) -> socket.socket:
        """Connects to the first address of the host that answers."""
        failed = OSError(f"{host} has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            connection = socket.socket(family, kind, protocol)
            try:
                self._finish_connect(connection, address)
                return connection
            except OSError as error:
                connection.close()
                failed = error
            except headrace.Canceled:
                connection.close()
                raise
        raise failed

    def _finish_connect(self, connection: socket.socket, address: Any) -> None:
        connection.setblocking(False)
        code = connection.connect_ex(address)
        if code == errno.EINPROGRESS:
            self._wait(connection, select.POLLOUT)
            code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code != 0:
            raise OSError(code, f"connect to {address}: {os.strerror(code)}")

    def _wait(self, connection: socket.socket, event: int) -> None:
        poll = select.poll()
        poll.register(connection, event)
        poll.register(self._closing, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(self._patience * 1000)]
        if self._closing in ready:
            raise headrace.Canceled(f"agent {self._agent.name} was closed while the store did not answer")
        if not ready:
            raise TimeoutError(f"the store did not answer within {self._patience} s")

    def _send(self, message: bytes) -> None:
        rest = memoryview(message)
        while rest:
            self._wait(self._socket, select.POLLOUT)
            rest = rest[self._socket.send(rest) :]

    def _ask(self, what: int, key: str, rest: bytes = b"", count: int | None = None) -> None:
        counted = b"" if count is None else struct.pack("=Q", count)
        # torch's clients put a slash before every key.
        self._send(bytes([what]) + counted + _text(b"/" + key.encode()) + rest)

    def _take(self, length: int) -> bytes:
        taken = bytearray()
        while len(taken) < length:
            self._wait(self._socket, select.POLLIN)
            part = self._socket.recv(min(length - len(taken), 1 << 20))
            if not part:
                raise ConnectionError("the store closed the connection")
            taken += part
        return bytes(taken)


class TcpStore:
    """A store with the interface of _exchange.Store. Threads: one."""

    def __init__(self, agent: headrace.Agent):
        self._agent = agent
        self._keys: set[str] = set()
        self._connected: Client | None = None

    def publish(self, label: str, regions: Sequence[int] | None, connection_info: bool) -> None:
        """Publishes metadata. A TCPStore does not follow later registrations: publish again after them."""
        key = self._key(self._agent.name, label)
        metadata = self._agent.export_metadata(regions, connection_info)
        self._with_client(lambda client: client.set(key, metadata))
        self._keys.add(key)

    def find(self, peer: str, label: str) -> bool:
        """Queries the store once."""
        metadata = self._with_client(lambda client: client.get(self._key(peer, label)))
        if metadata is None:
            return False
        self._agent.import_metadata(metadata)
        return True

    def withdraw(self) -> None:
        """Removes all that was published. Peers keep the metadata they have: a TCPStore does not notify
        them."""
        while self._keys:
            key = next(iter(self._keys))
            self._with_client(lambda client, key=key: client.delete(key))  # type: ignore[misc]
            self._keys.discard(key)

    def _with_client(self, act: Callable[[Client], Answer]) -> Answer:
        """Runs `act` on the connection. A failed connection is not used again: it may have stopped inside an
        answer."""
        client, self._connected = self._connected or Client(self._agent), None
        try:
            answer = act(client)
        except (OSError, headrace.Canceled):
            client.close()
            raise
        self._connected = client
        return answer

    @staticmethod
    def _key(name: str, label: str) -> str:
        return f"{PREFIX}/{label}/{name}"
