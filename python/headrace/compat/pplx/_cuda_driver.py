# SPDX-License-Identifier: Apache-2.0
"""Memory of GPUs by the CUDA driver: the functions of libcuda.so.1 that native.cumem needs."""

from __future__ import annotations

import ctypes
import functools
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint64, c_ushort, c_void_p

import headrace

LIBRARY = "libcuda.so.1"
NO_KIND, DESCRIPTOR, FABRIC = 0, 1, 8  # CUmemAllocationHandleType
PINNED, ON_DEVICE, READ_WRITE = 1, 1, 3
FABRIC_BYTES = 64
DLPACK_CUDA = 2


class _Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _Flags(ctypes.Structure):
    _fields_ = (
        ("compression", c_ubyte),
        ("gpu_direct_rdma", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    )


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", c_int),
        ("handle_kinds", c_int),
        ("location", _Location),
        ("win32", c_void_p),
        ("flags", _Flags),
    )


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("rights", c_int))


class Driver:
    """Each method is one function of the driver. Errors: RuntimeError (the function, and what it said)."""

    dlpack_device = DLPACK_CUDA

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._call("cuInit", 0)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: {self._text_of(code)} ({code})")

    def _text_of(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, byref(text))
        return text.value.decode() if text.value else "unknown error"

    def granularity(self, device: int, kind: int) -> int:
        """Sizes of memory and addresses are multiples of it."""
        bytes_ = c_size_t()
        self._call("cuMemGetAllocationGranularity", byref(bytes_), byref(_properties(device, kind)), 0)
        return bytes_.value

    def create(self, length: int, device: int, kind: int) -> int:
        handle = c_uint64()
        properties = _properties(device, kind)
        self._call("cuMemCreate", byref(handle), c_size_t(length), byref(properties), c_uint64(0))
        return handle.value

    def release(self, handle: int) -> None:
        self._call("cuMemRelease", c_uint64(handle))

    def reserve(self, length: int) -> int:
        address = c_uint64()
        self._call(
            "cuMemAddressReserve", byref(address), c_size_t(length), c_size_t(0), c_uint64(0), c_uint64(0)
        )
        return address.value

    def free(self, address: int, length: int) -> None:
        self._call("cuMemAddressFree", c_uint64(address), c_size_t(length))

    def map(self, address: int, length: int, handle: int, device: int) -> None:
        """Maps memory, and lets the device read and write it."""
        self._call(
            "cuMemMap", c_uint64(address), c_size_t(length), c_size_t(0), c_uint64(handle), c_uint64(0)
        )
        access = Access(_Location(ON_DEVICE, device), READ_WRITE)
        try:
            self._call("cuMemSetAccess", c_uint64(address), c_size_t(length), byref(access), c_size_t(1))
        except RuntimeError:
            self.unmap(address, length)
            raise

    def unmap(self, address: int, length: int) -> None:
        self._call("cuMemUnmap", c_uint64(address), c_size_t(length))

    def export_descriptor(self, handle: int) -> int:
        descriptor = c_int()
        self._call(
            "cuMemExportToShareableHandle", byref(descriptor), c_uint64(handle), DESCRIPTOR, c_uint64(0)
        )
        return descriptor.value

    def import_descriptor(self, descriptor: int) -> int:
        handle = c_uint64()
        self._call("cuMemImportFromShareableHandle", byref(handle), c_void_p(descriptor), DESCRIPTOR)
        return handle.value

    def export_fabric(self, handle: int) -> bytes:
        key = (c_ubyte * FABRIC_BYTES)()
        self._call("cuMemExportToShareableHandle", byref(key), c_uint64(handle), FABRIC, c_uint64(0))
        return bytes(key)

    def import_fabric(self, key: bytes) -> int:
        handle = c_uint64()
        given = (c_ubyte * FABRIC_BYTES).from_buffer_copy(key)
        self._call("cuMemImportFromShareableHandle", byref(handle), byref(given), FABRIC)
        return handle.value


def _properties(device: int, kind: int) -> Properties:
    flags = _Flags(gpu_direct_rdma=1)
    return Properties(PINNED, kind, _Location(ON_DEVICE, device), None, flags)


@functools.cache
def driver() -> Driver:
    """Errors: headrace.NotSupported (no driver), RuntimeError (it does not start)."""
    try:
        return Driver(ctypes.CDLL(LIBRARY))
    except OSError as error:
        raise headrace.NotSupported(f"there is no GPU memory here: no NVIDIA driver ({error})") from error
