# SPDX-License-Identifier: Apache-2.0
"""The bytes that a descriptor list becomes in a pickle: NIXL's own, so that lists of either library can be
read.

A magic word, then records of tag, length (8 bytes, little-endian), value and a bar.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ._errors import failure, nixlMismatchError

MAGIC = b"nixlSerDes|"
LENGTH = struct.Struct("<Q")
MEMORY = struct.Struct("<I")
DESCRIPTOR_BYTES = 24


def _corrupt(why: str) -> Exception:
    return failure(nixlMismatchError, f"this is no pickled descriptor list: {why}")


def record(tag: bytes, value: bytes) -> bytes:
    """One record."""
    return tag + LENGTH.pack(len(value)) + value + b"|"


def head(kind: bytes, memory: int, count: int) -> bytes:
    """What precedes the descriptors."""
    return (
        MAGIC
        + record(b"nixlDList", kind)
        + record(b"t", MEMORY.pack(memory))
        + record(b"n", LENGTH.pack(count))
    )


class StateReader:
    """Takes records off, in the order in which they were written."""

    def __init__(self, state: object):
        if not isinstance(state, bytes | bytearray):
            raise _corrupt(f"its state is {type(state).__name__}, not bytes")
        self._state = bytes(state)
        if not self._state.startswith(MAGIC):
            raise _corrupt("the first word is missing")
        self._at = len(MAGIC)

    def take(self, tag: bytes) -> bytes:
        """The value of the next record, which must bear that tag."""
        begin = self._at + len(tag) + LENGTH.size
        if self._state[self._at : self._at + len(tag)] != tag or begin > len(self._state):
            raise _corrupt(f"record {tag!r} is missing at byte {self._at}")
        (length,) = LENGTH.unpack_from(self._state, begin - LENGTH.size)
        if self._state[begin + length : begin + length + 1] != b"|":
            raise _corrupt(f"record {tag!r} at byte {self._at} does not end after {length} bytes")
        self._at = begin + length + 1
        return self._state[begin : begin + length]

    def take_head(self, kind: bytes) -> tuple[int, int]:
        """Memory kind and number of descriptors."""
        found, memory, count = self.take(b"nixlDList"), self.take(b"t"), self.take(b"n")
        if found != kind:
            raise _corrupt(f"it holds {found!r}, and {kind!r} is expected")
        if len(memory) != MEMORY.size or len(count) != LENGTH.size:
            raise _corrupt("kind or count have another length")
        return MEMORY.unpack(memory)[0], LENGTH.unpack(count)[0]

    def take_descriptors(self, count: int) -> bytes:
        """All of a transfer list, in one record; an empty list has none."""
        value = self.take(b"") if count else b""
        if len(value) != count * DESCRIPTOR_BYTES:
            raise _corrupt(f"{count} descriptors are announced, and there are {len(value)} bytes of them")
        return value

    def take_blobs(self, count: int) -> Iterator[tuple[bytes, bytes]]:
        """Descriptor and what its owner said about it, one by one."""
        for _ in range(count):
            value = self.take(b"")
            if len(value) < DESCRIPTOR_BYTES:
                raise _corrupt(f"a descriptor has {len(value)} bytes")
            yield value[:DESCRIPTOR_BYTES], value[DESCRIPTOR_BYTES:]

    def finish(self) -> None:
        """Nothing may follow."""
        if self._at != len(self._state):
            raise _corrupt(f"{len(self._state) - self._at} bytes follow its end")
