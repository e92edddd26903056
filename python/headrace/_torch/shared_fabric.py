# SPDX-License-Identifier: Apache-2.0
"""The fabric of this process for one-sided transports of torch and torchcomms, which register memory without
saying over which transport it will go."""

from __future__ import annotations

import itertools
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable

import headrace

RETRY_SECONDS = 0.0005

_lock = threading.Lock()
_open: weakref.ref[SharedFabric] | None = None
_scopes = itertools.count(secrets.randbits(31))


class SharedFabric:
    """A fabric with the GPUs that torch sees, or host memory alone. It closes with the last object that holds
    it. From `shared_fabric`."""

    def __init__(self) -> None:
        """Errors: those of headrace.Fabric."""
        import torch

        self._pid = os.getpid()
        self.fabric = headrace.Fabric(range(torch.cuda.device_count()))
        self.nothing = self.fabric.register(bytearray(1))  # of messages that only watch a peer
        # Tells descriptors of this process from those of others. Nothing secret: it may be guessed.
        self.id = secrets.token_bytes(8)

    def __del__(self) -> None:
        if getattr(self, "_pid", None) == os.getpid() and hasattr(self, "fabric"):
            self.fabric.close()

    @property
    def is_usable(self) -> bool:
        return self._pid == os.getpid() and not self.fabric.closed


def shared_fabric() -> SharedFabric:
    """That of the process; opens it where nothing holds one. A forked child opens its own.

    Errors: those of headrace.Fabric.
    """
    global _open
    with _lock:
        shared = _open() if _open else None
        if shared is None or not shared.is_usable:
            shared = SharedFabric()
            _open = weakref.ref(shared)
        return shared


def is_supported() -> bool:
    """Whether a fabric opens here."""
    try:
        shared_fabric()
    except headrace.Error:
        return False
    return True


def new_scope() -> int:
    """A scope of immediates that no other transport of this process has."""
    return next(_scopes) % (1 << 31)  # larger ones are the engine's own


def memory_of(tensor: object) -> headrace.MemoryRange:
    """The bytes of a contiguous tensor on the CPU or a GPU. The caller keeps the tensor.

    Errors: TypeError (no tensor), ValueError (gaps, no bytes, another device).
    """
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"memory is registered from a torch.Tensor, not from {type(tensor).__name__}")
    if not tensor.is_contiguous():
        raise ValueError("the tensor is not contiguous: register tensor.contiguous(), or its base")
    if not tensor.nbytes:
        raise ValueError("the tensor is empty: register one that has bytes")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"no network card reaches memory of {tensor.device}: give a tensor on cpu or cuda")
    kind = "vram" if tensor.is_cuda else "dram"
    return headrace.MemoryRange(kind, tensor.data_ptr(), tensor.nbytes, max(tensor.get_device(), 0))


def posted(post: Callable[[], headrace.FabricWork]) -> headrace.FabricWork:
    """Posts. While too many other posts run, waits."""
    while True:
        try:
            return post()
        except headrace.WouldBlock:
            time.sleep(RETRY_SECONDS)


def deregister(shared: SharedFabric, memory: headrace.FabricMemory) -> None:
    """Ends the posts that use the memory; then no peer reaches it. Does nothing after the fabric's end."""
    if shared.is_usable:
        try:
            shared.fabric.deregister(memory)
        except headrace.Error:
            pass  # the fabric was closed meanwhile


def _in_forked_child() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_forked_child)
