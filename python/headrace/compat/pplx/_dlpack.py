# SPDX-License-Identifier: Apache-2.0
"""Memory at an address as a tensor of torch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_char_p, c_int, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from math import prod
from typing import Any

NAME = b"dltensor"
UNSIGNED = 1  # DLDataTypeCode


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int),
        ("device_id", c_int),
        ("dimensions", c_int),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", c_void_p), ("deleter", _Deleter))

_kept: dict[int, tuple[Any, ...]] = {}  # by the address of the _Managed


def _delete(managed: Any) -> None:
    _kept.pop(ctypes.addressof(managed.contents), None)


_deleter = _Deleter(_delete)


def tensor_at(address: int, shape: Sequence[int], dtype: Any, device: tuple[int, int], owner: object) -> Any:
    """A tensor of torch that keeps the owner of the memory.

    device: type and number, by DLPack.
    """
    import torch

    length = prod(shape) * dtype.itemsize
    managed, dimension = _Managed(), (c_int64 * 1)(length)
    managed.tensor = _Tensor(address, *device, 1, UNSIGNED, 8, 1, dimension, None, 0)
    managed.deleter = _deleter
    _kept[ctypes.addressof(managed)] = managed, dimension, owner
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]
    capsule = make(ctypes.addressof(managed), NAME, None)
    return torch.utils.dlpack.from_dlpack(capsule).view(dtype).reshape(tuple(shape))
