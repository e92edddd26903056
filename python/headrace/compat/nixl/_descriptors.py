# SPDX-License-Identifier: Apache-2.0
"""Descriptor lists: one (address, length, device) per descriptor, all of one kind of memory, kept as one
array of words.

A list made of a NumPy array does not keep the array: the program may change the array later. This file does
not import NumPy.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from threading import RLock
from typing import Any

from ._compiled import pack_tuples
from ._enums import nixl_mem_t
from ._errors import failure, nixlNotFoundError
from ._rows import Rows, captured
from ._state import StateReader, head, record

WIDTH = 3

_spelling = RLock()
"""Held while a list's rows are converted to words. Recursive: a signal handler may interrupt its own thread
in the conversion."""


def _in_a_forked_child() -> None:
    """The thread that holds the lock may not exist in the child: make a new lock."""
    global _spelling
    _spelling = RLock()


os.register_at_fork(after_in_child=_in_a_forked_child)


def is_array(value: object) -> bool:
    """Returns whether `value` is a NumPy array. If NumPy is not imported, it cannot be one."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def checked_rows(rows: Any, width: int) -> Any:
    """Returns the array as it is.

    errors   ValueError (not contiguous, or not `width` columns of 64-bit integers)
    """
    if rows.ndim != 2 or rows.shape[1] != width:
        raise ValueError(f"an array of descriptors must have the shape (n, {width}), not {rows.shape}")
    if rows.dtype.kind not in "ui" or rows.dtype.itemsize != 8 or not rows.dtype.isnative:
        raise ValueError(f"an array of descriptors must be of uint64 or int64, not {rows.dtype}")
    if not rows.flags.c_contiguous:
        raise ValueError("an array of descriptors must be C-contiguous: pass numpy.ascontiguousarray(...)")
    return rows


def described(table: Any) -> Rows | array[int]:
    """Copies an array of rows (address, length, device) in the shortest form. The array is not kept."""
    return _shortest(checked_rows(table, WIDTH).view("uint8"))


def _shortest(rows: Any) -> Rows | array[int]:
    """Copies bytes of three uint64 a row in the shortest form. The bytes are not kept."""
    found = captured(rows)
    if found is not None:
        return found
    words = array("Q")
    words.frombytes(rows)
    return words


def as_text(value: object, what: str) -> str:
    """Returns text that is given as str or bytes."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, str):
        return value
    raise TypeError(f"{what} must be str or bytes, not {type(value).__name__}")


def as_bytes(value: object, what: str) -> bytes:
    """Returns bytes that are given as bytes, bytearray or str."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray):
        return bytes(value)
    raise TypeError(f"{what} must be bytes or str, not {type(value).__name__}")


class DescriptorList:
    """The base of the three kinds of list: the words, and the operations on them."""

    __slots__ = ("_type", "_spelt", "_rows", "_extras")
    __hash__ = None  # type: ignore[assignment]
    _has_extra = False

    _type: nixl_mem_t
    _spelt: array[int]
    """The words, if `_rows` is None."""
    _rows: Rows | None
    """The short form of an array, until the words are read or changed: most lists are only prepared."""
    _extras: list[Any]

    def __new__(cls, *_args: object, **_kwargs: object) -> DescriptorList:
        self = super().__new__(cls)
        self._type, self._spelt, self._rows, self._extras = nixl_mem_t.DRAM_SEG, array("Q"), None, []
        return self

    # Several threads may use one list: the words are made once, and `_rows` becomes None only after that.

    @property
    def _words(self) -> array[int]:
        if self._rows is not None:
            with _spelling:
                rows = self._rows
                if rows is not None:
                    self._spelt, self._rows = rows.words(), None
        return self._spelt

    @_words.setter
    def _words(self, words: array[int]) -> None:
        self._spelt, self._rows = words, None

    def _keep(self, source: Rows | array[int]) -> None:
        """Keeps the form that _source returns."""
        if isinstance(source, Rows):
            self._rows = source
        else:
            self._words = source

    def _source(self) -> Rows | array[int]:
        """Returns the descriptors in the form in which they are kept, for preparing."""
        rows = self._rows
        return self._spelt if rows is None else rows

    def __init__(self, type: nixl_mem_t, descs: Any = None, init_size: int = 0):
        if not isinstance(type, nixl_mem_t):
            raise TypeError(f"the first argument must be a nixl_mem_t, not {type!r}")
        self._type = type
        if descs is None:
            self._fill(init_size)
        elif isinstance(descs, int):
            self._fill(descs)
        elif isinstance(descs, list):
            self._take(descs)
        elif is_array(descs):
            self._take_array(descs)
        else:
            raise TypeError(
                f"descriptors must be a list of tuples or an array of {WIDTH} columns, not {descs!r}"
            )

    @classmethod
    def _no_extra(cls) -> Any:
        raise NotImplementedError

    @classmethod
    def _checked_extra(cls, value: object) -> Any:
        raise NotImplementedError

    def _fill(self, count: int) -> None:
        if count < 0:
            raise ValueError(f"a list cannot have {count} descriptors")
        self._words = array("Q", bytes(count * WIDTH * 8))
        if self._has_extra:
            self._extras = [self._no_extra() for _ in range(count)]

    def _take(self, descs: list[tuple[Any, ...]]) -> None:
        packed = None if self._has_extra else pack_tuples(descs)
        if packed is None:
            self._take_each(descs)
        else:
            self._keep(_shortest(packed))

    def _take_each(self, descs: list[tuple[Any, ...]]) -> None:
        """Takes tuples one by one: they have a fourth element, or one of them is wrong."""
        width = WIDTH + self._has_extra
        for desc in descs:
            if not isinstance(desc, tuple):
                raise TypeError(f"each descriptor must be a tuple, not {desc!r}")
            if len(desc) != width:
                raise ValueError(f"each descriptor must have {width} elements, and this one is {desc!r}")
        if self._has_extra:
            self._words = array("Q", chain.from_iterable(desc[:WIDTH] for desc in descs))
            self._extras = [self._checked_extra(desc[WIDTH]) for desc in descs]
        else:
            self._words = array("Q", chain.from_iterable(descs))

    def _take_array(self, rows: Any) -> None:
        self._keep(described(rows))
        if self._has_extra:
            self._extras = [self._no_extra()] * len(rows)

    def _at(self, index: object) -> int:
        if not isinstance(index, int) or index < 0:
            raise TypeError(f"an index must be an int of at least 0, not {index!r}")
        if index >= self.descCount():
            raise IndexError(f"index {index} is outside a list of {self.descCount()} descriptors")
        return index * WIDTH

    def _row(self, desc: object) -> array[int]:
        if not isinstance(desc, tuple):
            raise TypeError(f"a descriptor must be a tuple, not {desc!r}")
        if len(desc) < WIDTH + self._has_extra:
            raise IndexError(
                f"a descriptor must have {WIDTH + self._has_extra} elements, and this one is {desc!r}"
            )
        return array("Q", desc[:WIDTH])

    def getType(self) -> nixl_mem_t:
        """Returns the kind of memory."""
        return self._type

    def descCount(self) -> int:
        """Returns the number of descriptors."""
        rows = self._rows
        return len(self._spelt) // WIDTH if rows is None else rows.count

    def isEmpty(self) -> bool:
        """Returns whether the list has no descriptors."""
        return self.descCount() == 0

    def addDesc(self, desc: tuple[Any, ...]) -> None:
        """Appends a descriptor."""
        row = self._row(desc)
        if self._has_extra:
            self._extras.append(self._checked_extra(desc[WIDTH]))
        self._words.extend(row)

    def append(self, desc: tuple[Any, ...]) -> None:
        """Appends a descriptor."""
        self.addDesc(desc)

    def remDesc(self, index: int) -> None:
        """Removes a descriptor."""
        at = self._at(index)
        del self._words[at : at + WIDTH]
        if self._has_extra:
            del self._extras[index]

    def clear(self) -> None:
        """Removes all descriptors."""
        del self._words[:]
        self._extras.clear()

    def print(self) -> None:
        """Writes the list to stdout."""
        print(f"{self.descCount()} descriptors of {self._type.name}")
        for desc in self:
            print(
                f"  address {desc[0]:#x} length {desc[1]} device {desc[2]}",
                *(repr(extra) for extra in desc[WIDTH:]),
            )

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return (self[i] for i in range(self.descCount()))

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        at = self._at(index)
        row = tuple(self._words[at : at + WIDTH])
        return (*row, self._extras[index]) if self._has_extra else row

    def __setitem__(self, index: int, desc: tuple[Any, ...]) -> None:
        at = self._at(index)
        row = self._row(desc)
        if self._has_extra:
            self._extras[index] = self._checked_extra(desc[WIDTH])
        self._words[at : at + WIDTH] = row

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        assert isinstance(other, DescriptorList)
        return self._type == other._type and self._words == other._words and self._extras == other._extras


class _Searchable(DescriptorList):
    __slots__ = ()

    def index(self, desc: tuple[Any, ...]) -> int:
        """Returns the index of the first descriptor with this address, length and device."""
        row = self._row(desc)
        for at in range(0, len(self._words), WIDTH):
            if self._words[at : at + WIDTH] == row:
                return at // WIDTH
        raise failure(nixlNotFoundError, f"{desc!r} is not in this list")


class nixlXferDList(_Searchable):
    """A list for transfers: (address, length, device) each."""

    __slots__ = ()

    def __getstate__(self) -> bytes:
        state = head(b"nixlBDList", int(self._type), self.descCount())
        return state + record(b"", self._words.tobytes()) if self._words else state

    def __setstate__(self, state: bytes) -> None:
        reader = StateReader(state)
        memory, count = reader.take_head(b"nixlBDList")
        words = reader.take_descriptors(count)
        reader.finish()
        self._type, self._words = nixl_mem_t(memory), array("Q", words)


class nixlRegDList(_Searchable):
    """A list for registration: (address, length, device, extra) each. The extra is the owner's text for the
    descriptor, such as a path or a key, as str or bytes."""

    __slots__ = ()
    _has_extra = True

    @classmethod
    def _no_extra(cls) -> bytes:
        return b""

    @classmethod
    def _checked_extra(cls, value: object) -> bytes:
        return as_bytes(value, "the last element of a descriptor")

    def trim(self) -> nixlXferDList:
        """Returns the list without the extras."""
        trimmed = nixlXferDList(self._type)
        trimmed._words = self._words[:]
        return trimmed

    def __getstate__(self) -> bytes:
        words = self._words.tobytes()
        rows = (words[at : at + 8 * WIDTH] for at in range(0, len(words), 8 * WIDTH))
        blobs = (record(b"", row + extra) for row, extra in zip(rows, self._extras, strict=True))
        return head(b"nixlSDList", int(self._type), self.descCount()) + b"".join(blobs)

    def __setstate__(self, state: bytes) -> None:
        reader = StateReader(state)
        memory, count = reader.take_head(b"nixlSDList")
        rows = list(reader.take_blobs(count))
        reader.finish()
        self._type = nixl_mem_t(memory)
        self._words = array("Q", b"".join(row for row, _ in rows))
        self._extras = [extra for _, extra in rows]


class nixlRemoteDList(DescriptorList):
    """A list of several agents' memory: (address, length, device, agent) each."""

    __slots__ = ()
    _has_extra = True

    @classmethod
    def _no_extra(cls) -> str:
        return ""

    @classmethod
    def _checked_extra(cls, value: object) -> str:
        return as_text(value, "an agent's name")

    def _take_array(self, rows: Any) -> None:
        raise TypeError("a nixlRemoteDList needs a list of tuples: an array has no names of agents")

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("a nixlRemoteDList cannot be pickled")


def owners(descs: Iterable[tuple[Any, ...]]) -> set[str]:
    """Returns the agents that a remote list names."""
    return {desc[WIDTH] for desc in descs}
