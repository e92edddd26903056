# SPDX-License-Identifier: Apache-2.0
"""Makes Headrace's MemoryRange of NIXL's descriptors of files, block devices and objects."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import headrace

from ._errors import failure, nixlBackendError

ACCESS = {"ro": os.O_RDONLY, "rw": os.O_RDWR}
FLAGS = {"direct": os.O_DIRECT, "sync": os.O_SYNC, "noatime": os.O_NOATIME, "create": os.O_CREAT}
LARGEST_DESCRIPTOR = (1 << 31) - 1


def named_in(said: str) -> tuple[str, int]:
    """Returns the path in "<access>[,<flag>...]:<path>" and the flags for open(2). The path is empty if the
    text does not have that form: then the device is an open file descriptor."""
    modes, colon, path = said.partition(":")
    access, *flags = modes.split(",")
    if not colon or access not in ACCESS or not all(flag in FLAGS for flag in flags):
        return "", 0
    how = ACCESS[access]
    for flag in flags:
        how |= FLAGS[flag]
    return path, how


@contextmanager
def registered(
    kind: str, rows: Iterable[tuple[int, int, int, bytes]]
) -> Iterator[list[headrace.MemoryRange]]:
    """Yields the range to register for each (start, length, device, extra), from offset 0. An object is named
    by its key or, without one, by its number; a file or block device by its path or an open file descriptor.

    Files that are named by their paths are open until the block ends; a backend keeps a descriptor of its
    own.
    """
    opened: list[int] = []
    try:
        yield [
            _range(kind, start + length if length else 0, device, os.fsdecode(said), opened)
            for start, length, device, said in rows
        ]
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _range(kind: str, length: int, device: int, said: str, opened: list[int]) -> headrace.MemoryRange:
    if kind == "object":
        return headrace.MemoryRange(kind, 0, length, path=said or str(device))
    path, how = named_in(said)
    if path:
        opened.append(_open(path, how))
        device = opened[-1]
    if device > LARGEST_DESCRIPTOR:
        raise failure(
            nixlBackendError,
            f"device {device} is not a file descriptor, and {said!r} does not name a path in the form "
            f"<ro|rw>[,<flag>...]:<path>",
        )
    return headrace.MemoryRange(kind, 0, length, file_descriptor=device)


def _open(path: str, how: int) -> int:
    try:
        # O_NONBLOCK: opening a FIFO must not wait. Registration refuses it.
        return os.open(path, how | os.O_NONBLOCK, 0o666)
    except (OSError, ValueError) as error:
        raise failure(nixlBackendError, f"open {path!r}: {error}") from error


def asked_about(kind: str, device: int, said: bytes) -> headrace.MemoryRange:
    """Returns the range to query, named by path or key."""
    text = said.decode()
    return headrace.MemoryRange(
        kind, path=named_in(text)[0] or text or (str(device) if kind == "object" else "")
    )
