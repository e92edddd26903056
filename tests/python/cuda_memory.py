# SPDX-License-Identifier: Apache-2.0
"""A driver of GPU memory for tests of headrace.compat.pplx.native.cumem: host memory stands in, in memfds."""

import ctypes
import mmap
import os

from headrace.compat.pplx import _cuda_driver

GRANULE = 65536
DLPACK_CPU = 1
NO_ACCESS, MAP_FIXED = 0, 0x10
READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class HostDriver:
    """As _cuda_driver.Driver. `handles` and `addresses` are what is not freed yet."""

    dlpack_device = DLPACK_CPU

    def __init__(self):
        self.handles, self.addresses, self.mapped = {}, {}, {}

    def _new_handle(self, descriptor):
        handle = max(self.handles, default=0) + 1
        self.handles[handle] = descriptor
        return handle

    def granularity(self, device, kind):
        return GRANULE

    def create(self, length, device, kind):
        assert length % GRANULE == 0
        descriptor = os.memfd_create("gpu")
        os.ftruncate(descriptor, length)
        return self._new_handle(descriptor)

    def release(self, handle):
        os.close(self.handles.pop(handle))

    def reserve(self, length):
        address = _mmap(None, length, NO_ACCESS, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        self.addresses[address] = length
        return address

    def free(self, address, length):
        assert self.addresses.pop(address) == length and address not in self.mapped
        assert _libc.munmap(address, length) == 0

    def map(self, address, length, handle, device):
        assert self.addresses[address] == length and address not in self.mapped
        _mmap(address, length, READ_WRITE, mmap.MAP_SHARED | MAP_FIXED, self.handles[handle])
        self.mapped[address] = device

    def unmap(self, address, length):
        del self.mapped[address]
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
        _mmap(address, length, NO_ACCESS, flags, -1)

    def export_descriptor(self, handle):
        return os.dup(self.handles[handle])

    def import_descriptor(self, descriptor):
        return self._new_handle(os.dup(descriptor))

    def export_fabric(self, handle):
        path = f"/proc/{os.getpid()}/fd/{self.handles[handle]}"
        return path.encode().ljust(_cuda_driver.FABRIC_BYTES, b"\0")

    def import_fabric(self, key):
        return self._new_handle(os.open(key.rstrip(b"\0"), os.O_RDWR))


def _mmap(address, length, protection, flags, descriptor):
    got = _libc.mmap(address, length, protection, flags, descriptor, 0)
    assert got != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    return got


def use_host_memory():
    """For a process of its own."""
    driver = HostDriver()
    _cuda_driver.driver = lambda: driver


def increment(handles, pipe, on_host):
    """In another process: adds 1 to the first byte of each, and tells what it was."""
    if on_host:
        use_host_memory()
        mappings = [handle.bind().map() for handle in handles]
        seen = []
        for mapping in mappings:
            first = ctypes.c_uint8.from_address(mapping.data_ptr())
            seen.append(first.value)
            first.value += 1
    else:
        import torch

        mappings = [handle.bind().map() for handle in handles]
        tensors = [mapping.to_tensor((mapping.size,), torch.uint8) for mapping in mappings]
        seen = [int(tensor[0]) for tensor in tensors]
        for tensor in tensors:
            tensor[0] += 1
        torch.cuda.synchronize()
    pipe.send(seen)
