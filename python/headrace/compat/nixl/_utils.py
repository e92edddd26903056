# SPDX-License-Identifier: Apache-2.0
"""Memory for tests and examples, by address."""

from __future__ import annotations

import ctypes

PATTERN = 0xBA

_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]


def malloc_passthru(size: int) -> int:
    """Allocates `size` bytes and returns their address. The caller owns them until free_passthru."""
    address = _libc.malloc(size)
    if not address:
        raise MemoryError(f"malloc of {size} bytes")
    return int(address)


def free_passthru(address: int) -> None:
    """Frees memory of malloc_passthru."""
    _libc.free(address)


def ba_buf(address: int, size: int) -> None:
    """Fills the memory with the byte 0xBA."""
    ctypes.memset(address, PATTERN, size)


def verify_transfer(source: int, target: int, size: int) -> None:
    """Compares `size` bytes at two addresses. Errors: AssertionError (they differ; the text has the first
    difference)."""
    left, right = ctypes.string_at(source, size), ctypes.string_at(target, size)
    if left != right:
        at = next(i for i in range(size) if left[i] != right[i])
        raise AssertionError(
            f"byte {at} of {size} is {right[at]:#04x} at the target and {left[at]:#04x} at the source"
        )
