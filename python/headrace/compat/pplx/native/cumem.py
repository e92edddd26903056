# SPDX-License-Identifier: Apache-2.0
"""pplx_garden.native.cumem: GPU memory that other processes of this host map."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Sequence
from enum import Enum
from math import prod
from typing import Any

import headrace

from .. import _cuda_driver, _descriptor_socket, _dlpack
from ..utils.math import round_up

HEAD = struct.Struct("<BQI")  # kind, bytes, GPU
BY_DESCRIPTOR, BY_FABRIC = 1, 2


class CUMemHandleKind(Enum):
    """How an allocation leaves its process."""

    Local = _cuda_driver.NO_KIND
    FileDescriptor = _cuda_driver.DESCRIPTOR
    Fabric = _cuda_driver.FABRIC


class _Allocation:
    """A handle of the driver; mappings keep it."""

    def __init__(self, handle: int, length: int, device: int) -> None:
        self.driver = _cuda_driver.driver()
        self.handle = handle
        self.length = length
        self.device = device

    def __del__(self) -> None:
        if not sys.is_finalizing():  # the end of the process frees all
            self.driver.release(self.handle)


class CUMemMapping:
    """Memory at an address. From `map` of a handle; ends with the last of it and of its tensors."""

    def __init__(self, allocation: _Allocation, device: int) -> None:
        self._driver = allocation.driver
        self._length = allocation.length
        self._device = device
        self._allocation: _Allocation | None = None
        self._address = self._driver.reserve(self._length)
        self._map(allocation)

    def _map(self, allocation: _Allocation) -> None:
        if self._allocation is not None:
            raise RuntimeError("the mapping has memory: call unmap first")
        if allocation.length != self._length:
            raise RuntimeError(
                f"the mapping has {self._length} bytes, and the memory {allocation.length}: give equal ones"
            )
        self._driver.map(self._address, self._length, allocation.handle, self._device)
        self._allocation = allocation

    @property
    def size(self) -> int:
        """In whole granules of the driver."""
        return self._length

    def data_ptr(self) -> int:
        return self._address

    def to_tensor(self, shape: Sequence[int], dtype: Any) -> Any:
        """A tensor at the beginning of the memory. It keeps the mapping; use it only while memory is mapped.

        Errors: RuntimeError (larger than the memory, nothing is mapped).
        """
        length = prod(shape) * dtype.itemsize
        if length > self._length:
            raise RuntimeError(f"shape {tuple(shape)} of {dtype} has {length} bytes, of {self._length} there")
        if self._allocation is None:
            raise RuntimeError("nothing is mapped: call map_to of a handle first")
        device = self._driver.dlpack_device, self._device
        return _dlpack.tensor_at(self._address, shape, dtype, device, self)

    def unmap(self) -> None:
        """Takes the memory away from the address, which stays reserved for `map_to`."""
        if self._allocation is not None:
            self._driver.unmap(self._address, self._length)
            self._allocation = None

    def __del__(self) -> None:
        if hasattr(self, "_address") and not sys.is_finalizing():
            self.unmap()
            self._driver.free(self._address, self._length)


class _Mappable:
    _allocation: _Allocation

    def map(self, device: Any = None) -> CUMemMapping:
        """device: the GPU that will use it; None: that of the memory."""
        own = self._allocation.device
        return CUMemMapping(self._allocation, own if device is None else _gpu_of(device))

    def map_to(self, mapping: CUMemMapping) -> None:
        """Maps it at the address of a mapping that was unmapped.

        Errors: RuntimeError (it is mapped, or has another size).
        """
        mapping._map(self._allocation)


class CUMemAllocHandle(_Mappable):
    """Memory of a GPU."""

    def __init__(self, size: int, device: Any, handle_kind: CUMemHandleKind = CUMemHandleKind.Local) -> None:
        """size: bytes, rounded up to granules of the driver.

        Errors: RuntimeError (not a GPU, no memory), headrace.NotSupported (no driver).
        """
        gpu, driver = _gpu_of(device), _cuda_driver.driver()
        length = round_up(size, driver.granularity(gpu, handle_kind.value))
        self._kind = handle_kind
        self._allocation = _Allocation(driver.create(length, gpu, handle_kind.value), length, gpu)

    def export(self) -> CUMemExportHandle:
        """Errors: RuntimeError (an allocation of kind Local)."""
        return CUMemExportHandle._of(self._kind, self._allocation)


class CUMemExportHandle:
    """What travels to other processes, by pickle. With a descriptor they must read it while this object
    lives, on this host and under this user."""

    _allocation: _Allocation | None = None  # of this process
    _offers: _descriptor_socket.Offers
    _word: bytes | None = None  # of the descriptor that this process offers
    _descriptor: int | None = None  # that was fetched
    _key = b""  # of the fabric

    def __init__(self, payload: bytes) -> None:
        """Errors: RuntimeError (damaged; the process that exported it has gone, or its handle)."""
        given = bytes(payload)
        if len(given) <= HEAD.size:
            raise RuntimeError(f"{len(given)} bytes are no handle of memory")
        kind, self._length, self._device = HEAD.unpack_from(given)
        rest = given[HEAD.size :]
        if kind == BY_DESCRIPTOR:
            word, path = rest[: _descriptor_socket.WORD_BYTES], rest[_descriptor_socket.WORD_BYTES :]
            self._descriptor = _descriptor_socket.fetch(os.fsdecode(path), word)
        elif kind == BY_FABRIC and len(rest) == _cuda_driver.FABRIC_BYTES:
            self._key = rest
        else:
            raise RuntimeError(f"{len(given)} bytes of kind {kind} are no handle of memory")

    @classmethod
    def _of(cls, kind: CUMemHandleKind, allocation: _Allocation) -> CUMemExportHandle:
        self = cls.__new__(cls)
        self._allocation = allocation
        self._length, self._device = allocation.length, allocation.device
        driver = allocation.driver
        if kind == CUMemHandleKind.Local:
            raise RuntimeError("memory of kind Local stays in its process: allocate it with FileDescriptor")
        if kind == CUMemHandleKind.Fabric:
            self._key = driver.export_fabric(allocation.handle)
        else:
            self._offers = _descriptor_socket.offers()
            self._word = self._offers.offer(driver.export_descriptor(allocation.handle))
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._key:
            return type(self), (HEAD.pack(BY_FABRIC, self._length, self._device) + self._key,)
        if self._word is None:
            raise RuntimeError("this handle came from another process: pickle the one that it was made from")
        head = HEAD.pack(BY_DESCRIPTOR, self._length, self._device)
        return type(self), (head + self._word + os.fsencode(self._offers.path),)

    def bind(self) -> CUMemImportHandle:
        """The memory, in this process.

        Errors: RuntimeError (in the process that exported it).
        """
        driver = _cuda_driver.driver()
        if self._word is not None:
            raise RuntimeError("this process exported the handle: map the allocation that it is of")
        if self._descriptor is not None:
            handle = driver.import_descriptor(self._descriptor)
        else:
            handle = driver.import_fabric(self._key)
        return CUMemImportHandle(_Allocation(handle, self._length, self._device))

    def __del__(self) -> None:
        if self._word is not None and self._offers.pid == os.getpid():
            self._offers.withdraw(self._word)
        if self._descriptor is not None:
            os.close(self._descriptor)


class CUMemImportHandle(_Mappable):
    """Memory of another process, from CUMemExportHandle.bind."""

    def __init__(self, allocation: _Allocation) -> None:
        self._allocation = allocation


class _NoMulticast:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise headrace.NotSupported(
            f"{type(self).__name__}: Headrace uses no multicast addresses of NVLink; headrace.Comm reduces "
            "and broadcasts without them"
        )


class CUMulticastHandle(_NoMulticast):
    """Memory of several GPUs that one store reaches.

    Errors: NotSupported.
    """


class CUMulticastExportHandle(_NoMulticast):
    """Errors: NotSupported."""


def _gpu_of(device: Any) -> int:
    if device.type != "cuda":
        raise RuntimeError(f"{device} is no GPU: give a device of type cuda")
    return device.index or 0
