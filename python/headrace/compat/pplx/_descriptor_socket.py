# SPDX-License-Identifier: Apache-2.0
"""Gives descriptors to other processes of this user on this host, by a Unix socket."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import socket
import struct
import tempfile
import threading
from contextlib import closing

SECONDS = 10  # in which the other process must say its word
WORD_BYTES = 16
FOUND, UNKNOWN = b"\x01", b"\x00"


class Offers:
    """The descriptors that this process gives, each to the processes that know its word.

    The socket lies in a folder that only this user can enter, and only processes of this user are answered.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._folder = tempfile.mkdtemp(prefix="headrace-")
        atexit.register(self._remove_folder)
        self.path = os.path.join(self._folder, "descriptors")
        self._offered: dict[bytes, int] = {}
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(64)
        threading.Thread(target=self._serve, name="headrace-handles", daemon=True).start()

    def _remove_folder(self) -> None:
        if os.getpid() == self.pid:
            shutil.rmtree(self._folder, ignore_errors=True)

    def offer(self, descriptor: int) -> bytes:
        """Returns the word. Owns the descriptor until `withdraw`."""
        word = secrets.token_bytes(WORD_BYTES)
        with self._lock:
            self._offered[word] = descriptor
        return word

    def withdraw(self, word: bytes) -> None:
        with self._lock:
            os.close(self._offered.pop(word))

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with closing(connection):
                try:
                    self._answer(connection)
                except OSError:
                    pass  # the other process has gone, or says nothing

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(SECONDS)
        if uid_of(connection) != os.getuid():
            return
        word = connection.recv(WORD_BYTES, socket.MSG_WAITALL)
        with self._lock:  # so that it is not closed meanwhile
            descriptor = self._offered.get(word)
            if descriptor is None:
                connection.sendall(UNKNOWN)
            else:
                socket.send_fds(connection, [FOUND], [descriptor])


def uid_of(connection: socket.socket) -> int:
    """The user of the process at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


_offers: Offers | None = None
_lock = threading.Lock()


def offers() -> Offers:
    """Of this process; a forked child has its own."""
    global _offers
    with _lock:
        if _offers is None or _offers.pid != os.getpid():
            _offers = Offers()
        return _offers


def fetch(path: str, word: bytes) -> int:
    """The descriptor that another process offers. The caller owns it.

    Errors: RuntimeError (the process has gone, is another user's, or offers it no more).
    """
    with closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.settimeout(SECONDS)
        try:
            connection.connect(path)
            if uid_of(connection) != os.getuid():
                raise RuntimeError(f"the socket {path} is another user's")
            connection.sendall(word)
            answer, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
        except OSError as error:
            raise RuntimeError(
                f"the process that exported the memory does not answer at {path} ({error}): it must live, on "
                "this host and under this user"
            ) from error
    if answer != FOUND or not descriptors:
        raise RuntimeError("the memory is exported no more: keep the export handle until all have read it")
    return descriptors[0]
