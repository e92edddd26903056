# SPDX-License-Identifier: Apache-2.0
"""Registered memory by pplx-garden's names."""

from __future__ import annotations

from typing import Any

import headrace

from ._fabric_types import _as_bytes


class MemoryRegionHandle:
    """Registered memory of this process. From TransferEngine.register_tensor and register_memory."""

    __slots__ = ("_memory",)

    def __init__(self, memory: headrace.FabricMemory) -> None:
        self._memory = memory

    def debug_str(self) -> str:
        return f"{{ptr: 0x{self._memory.address:x}}}"

    def __repr__(self) -> str:
        return f"<MemoryRegionHandle {self.debug_str()}>"


class MemoryRegionDescriptor:
    """Names registered memory to other processes. Bytes, which hold the addresses of its network cards."""

    __slots__ = ("_descriptor",)

    def __init__(self, bytes: bytes) -> None:
        """Errors: ValueError (damaged, cut, or of another version)."""
        try:
            self._descriptor = headrace.FabricDescriptor(_as_bytes(bytes))
        except headrace.Error as error:
            raise ValueError(f"this is no descriptor of memory: {error}") from error

    @classmethod
    def from_bytes(cls, bytes_: bytes) -> MemoryRegionDescriptor:
        return cls(bytes_)

    def as_bytes(self) -> bytes:
        return bytes(self._descriptor)

    def debug_str(self) -> str:
        """Its length, and the addresses of its owner."""
        return str(self._descriptor)

    def __repr__(self) -> str:
        return f"<MemoryRegionDescriptor {self.debug_str()}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.as_bytes(),)
