# SPDX-License-Identifier: Apache-2.0
"""The plain values of pplx_garden.fabric_lib: network cards, groups of them, addresses, page numbers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import headrace

LOOPBACK = "lo"


@dataclass(frozen=True)
class DomainInfo:
    """A network card."""

    name: str
    link_speed: int  #: bits a second; 0: unknown


@dataclass(frozen=True)
class TopologyGroup:
    """A GPU, and what is near it."""

    cuda_device: int | None  #: None: host memory, on a machine without GPUs
    numa: int  #: -1: unknown
    domains: list[DomainInfo] = field(hash=False)
    cpus: list[int] = field(hash=False)


def groups_of(found: Iterable[headrace.TopologyGroup]) -> list[TopologyGroup]:
    """The groups of the GPUs that CUDA shows to this process; without one, those of the NUMA nodes."""
    found = list(found)
    of_gpus = [group for group in found if group.gpu and group.gpu.index is not None]
    return [_group_of(group) for group in of_gpus or [group for group in found if not group.gpu]]


def _group_of(group: headrace.TopologyGroup) -> TopologyGroup:
    return TopologyGroup(
        group.gpu.index if group.gpu else None,
        -1 if group.numa_node is None else group.numa_node,
        _domains_of(group.nics),
        group.own_cpus if len(group.own_cpus) > 1 else group.cpus,  # programs take two
    )


def _domains_of(nics: Iterable[headrace.TopologyNic]) -> list[DomainInfo]:
    """Those that sockets can use, each once; loopback, which reaches this host, where there is none."""
    domains = []
    seen: set[str] = set()
    for nic in nics:
        if not seen.issuperset(nic.interfaces):
            domains.append(DomainInfo(nic.name, nic.speed_mbit * 10**6))
        seen.update(nic.interfaces)
    return domains or [DomainInfo(LOOPBACK, 0)]


class DomainAddress:
    """Where an engine is found. Bytes, of which only engines know the meaning."""

    __slots__ = ("_bytes",)

    def __init__(self, bytes: bytes) -> None:
        self._bytes = _as_bytes(bytes)

    @classmethod
    def from_bytes(cls, bytes: bytes) -> DomainAddress:
        return cls(bytes)

    def as_bytes(self) -> bytes:
        return self._bytes

    @classmethod
    def from_str(cls, s: str) -> DomainAddress:
        """Of hexadecimal digits.

        Errors: ValueError (other signs, an odd number of them, none).
        """
        try:
            # bytes.fromhex takes blanks
            return cls(_not_empty(bytes.fromhex(s if s.isalnum() else "?")))
        except ValueError:
            raise ValueError(f"{s!r} is no address: give an even number of hexadecimal digits") from None

    def __str__(self) -> str:
        return self._bytes.hex()

    def __repr__(self) -> str:
        return f"DomainAddress.from_str('{self}')"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DomainAddress) and self._bytes == other._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._bytes,)


class PageIndices:
    """The numbers of pages, for `submit_paged_writes`: whole numbers from 0 to 2**32 - 1."""

    __slots__ = ("_indices",)

    def __init__(self, indices: Iterable[int]) -> None:
        """Copies them.

        Errors: TypeError, OverflowError (values that are no such numbers).
        """
        self._indices = array("I", indices)

    def __len__(self) -> int:
        return len(self._indices)

    def __repr__(self) -> str:
        return f"PageIndices({self._indices.tolist()})"


@dataclass(frozen=True)
class UvmWatcher:
    """A number that kernels change. Its memory stays while this lives, or the callback has not declined."""

    ptr: int  #: of its 64 bits
    _word: headrace.FabricWatcher = field(repr=False, compare=False)


def _as_bytes(given: Any) -> bytes:
    """Of bytes, or of a sequence of numbers; not of a number, of which `bytes` makes zeros."""
    if isinstance(given, (str, int)):
        raise TypeError(f"expected bytes, and not {type(given).__name__}")
    return bytes(given)


def _not_empty(given: bytes) -> bytes:
    if not given:
        raise ValueError("empty")
    return given
