# SPDX-License-Identifier: Apache-2.0
"""The bytes of a descriptor list in a pickle. The format is NIXL's, so that each library reads the lists of
the other.

A magic word comes first, then records of tag, length (8 bytes, little-endian), value and a vertical bar.
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
    return failure(nixlMismatchError, f"this is not a pickled descriptor list: {why}")


def record(tag: bytes, value: bytes) -> bytes:
    """Returns one record."""
    return tag + LENGTH.pack(len(value)) + value + b"|"


def head(kind: bytes, memory: int, count: int) -> bytes:
    """Returns the bytes before the descriptors."""
    return (
        MAGIC
        + record(b"nixlDList", kind)
        + record(b"t", MEMORY.pack(memory))
        + record(b"n", LENGTH.pack(count))
    )


class StateReader:
    """Reads records in the order in which they were written."""

    def __init__(self, state: object):
        if not isinstance(state, bytes | bytearray):
            raise _corrupt(f"its state is {type(state).__name__}, not bytes")
        self._state = bytes(state)
        if not self._state.startswith(MAGIC):
            raise _corrupt("the magic word is missing")
        self._at = len(MAGIC)

    def take(self, tag: bytes) -> bytes:
        """Returns the value of the next record, which must have that tag."""
        begin = self._at + len(tag) + LENGTH.size
        if self._state[self._at : self._at + len(tag)] != tag or begin > len(self._state):
            raise _corrupt(f"record {tag!r} is missing at byte {self._at}")
        (length,) = LENGTH.unpack_from(self._state, begin - LENGTH.size)
        if self._state[begin + length : begin + length + 1] != b"|":
            raise _corrupt(f"record {tag!r} at byte {self._at} does not end after {length} bytes")
        self._at = begin + length + 1
        return self._state[begin : begin + length]

    def take_head(self, kind: bytes) -> tuple[int, int]:
        """Returns the kind of memory and the number of descriptors."""
        found, memory, count = self.take(b"nixlDList"), self.take(b"t"), self.take(b"n")
        if found != kind:
            raise _corrupt(f"it contains {found!r}, and {kind!r} is expected")
        if len(memory) != MEMORY.size or len(count) != LENGTH.size:
            raise _corrupt("the kind or the count has a wrong length")
        return MEMORY.unpack(memory)[0], LENGTH.unpack(count)[0]

    def take_descriptors(self, count: int) -> bytes:
        """Returns all descriptors of a transfer list. They are one record; an empty list has no record."""
        value = self.take(b"") if count else b""
        if len(value) != count * DESCRIPTOR_BYTES:
            raise _corrupt(f"{count} descriptors do not fit {len(value)} bytes")
        return value

    def take_blobs(self, count: int) -> Iterator[tuple[bytes, bytes]]:
        """Yields each descriptor and its extra."""
        for _ in range(count):
            value = self.take(b"")
            if len(value) < DESCRIPTOR_BYTES:
                raise _corrupt(f"a descriptor has {len(value)} bytes")
            yield value[:DESCRIPTOR_BYTES], value[DESCRIPTOR_BYTES:]

    def finish(self) -> None:
        """Raises nixlMismatchError if bytes follow."""
        if self._at != len(self._state):
            raise _corrupt(f"{len(self._state) - self._at} bytes follow its end")
