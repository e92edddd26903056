# SPDX-License-Identifier: Apache-2.0
"""NIXL's enumerations, with its names and numbers."""

from __future__ import annotations

import enum


class Enumeration(enum.Enum):
    """A member compares equal to its int and can be an index, but is not an int. Any int makes a member; an
    unknown one has the name "???"."""

    _value_: int

    @classmethod
    def _missing_(cls, value: object) -> Enumeration:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{cls.__name__} needs an int, not {value!r}")
        member = object.__new__(cls)
        member._name_ = "???"
        member._value_ = value
        return member

    def __reduce_ex__(self, protocol: object) -> tuple[type[Enumeration], tuple[int]]:
        return type(self), (self._value_,)

    def __int__(self) -> int:
        return self._value_

    __index__ = __int__

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Enumeration):
            return type(self) is type(other) and self._value_ == other._value_
        return isinstance(other, int) and self._value_ == other

    def __hash__(self) -> int:
        return hash(self._value_)

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self._name_}"


class nixl_mem_t(Enumeration):
    """Kinds of memory."""

    DRAM_SEG = 0
    VRAM_SEG = 1
    BLK_SEG = 2
    OBJ_SEG = 3
    FILE_SEG = 4


class nixl_xfer_op_t(Enumeration):
    """The direction of a transfer, from the initiator's view."""

    NIXL_READ = 0
    NIXL_WRITE = 1


class nixl_cost_t(Enumeration):
    """The method of a cost estimate."""

    NIXL_COST_ANALYTICAL_BACKEND = 0


class nixl_thread_sync_t(Enumeration):
    """NIXL's modes of thread safety. They are kept and have no effect: any thread may use Headrace's
    agents."""

    NIXL_THREAD_SYNC_NONE = 0
    NIXL_THREAD_SYNC_STRICT = 1
    NIXL_THREAD_SYNC_RW = 2
    NIXL_THREAD_SYNC_DEFAULT = 0


class nixl_status_t(Enumeration):
    """The status of a call. Codes below these appear only as exceptions."""

    NIXL_IN_PROG = 1
    NIXL_SUCCESS = 0
    NIXL_ERR_NOT_POSTED = -1
    NIXL_ERR_INVALID_PARAM = -2
    NIXL_ERR_BACKEND = -3
    NIXL_ERR_NOT_FOUND = -4
    NIXL_ERR_MISMATCH = -5
    NIXL_ERR_NOT_ALLOWED = -6
    NIXL_ERR_REPOST_ACTIVE = -7
    NIXL_ERR_UNKNOWN = -8
    NIXL_ERR_NOT_SUPPORTED = -9


ENUMERATIONS = (nixl_thread_sync_t, nixl_mem_t, nixl_xfer_op_t, nixl_cost_t, nixl_status_t)

KINDS = {
    nixl_mem_t.DRAM_SEG: "dram",
    nixl_mem_t.VRAM_SEG: "vram",
    nixl_mem_t.BLK_SEG: "block",
    nixl_mem_t.OBJ_SEG: "object",
    nixl_mem_t.FILE_SEG: "file",
}
"""Headrace's word for each kind of memory."""


def kind_of(memory: nixl_mem_t) -> str:
    """Returns Headrace's word, or "unknown" for a number that is no kind of NIXL."""
    return KINDS.get(memory, "unknown")
