# SPDX-License-Identifier: Apache-2.0
"""The names of NIXL's backends, and the backends of Headrace that each name stands for.

A name for storage stands for every open backend of Headrace that carries both the storage and the memory of
the name. A name for the network or GPUs stands for every open backend that carries one of its kinds of memory
and no storage, if one of them reaches other agents. Headrace chooses the backend of each request. A name that
stands for no backend is absent, like a plugin that is not installed in NIXL.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol


class OpenBackend(Protocol):
    """The used attributes of headrace.BackendInfo."""

    @property
    def name(self) -> str: ...
    @property
    def kinds(self) -> list[str]: ...
    @property
    def remote(self) -> bool: ...


@dataclass(frozen=True)
class Plugin:
    """One of NIXL's names."""

    kinds: tuple[str, ...]
    """Kinds of memory, in Headrace's words. The first is the purpose of the name: without a path for it, the
    name is absent. For storage the second is the memory to and from which it moves."""

    parameters: dict[str, str] = field(default_factory=dict)
    """Parameters with their defaults. Programs may read and pass them; Headrace's own options are set in
    Headrace's way."""


_MEMORY = ("dram", "vram")
_GPU = ("vram", "dram")
_GPU_AND_FILE = ("file", "vram", "dram")
_STORAGE = frozenset(("block", "file", "object"))

PLUGINS = {
    "AZURE_BLOB": Plugin(("object", "dram")),
    "GDS": Plugin(_GPU_AND_FILE),
    "GDS_MT": Plugin(_GPU_AND_FILE),
    "GPUNETIO": Plugin(_GPU),
    "GUSLI": Plugin(("block", "dram")),
    "HF3FS": Plugin(("file", "dram")),
    "INFINIA": Plugin(("object", "dram", "vram")),
    "LIBFABRIC": Plugin(_MEMORY),
    "MOONCAKE": Plugin(_MEMORY),
    "OBJ": Plugin(("object", "dram")),
    "POSIX": Plugin(
        ("file", "dram"),
        {
            "ios_pool_size": "65536",
            "kernel_queue_size": "256",
            "use_aio": "false",
            "use_posix_aio": "false",
            "use_uring": "false",
        },
    ),
    "UCCL": Plugin(_MEMORY),
    "UCX": Plugin(_MEMORY, {"num_workers": "1", "ucx_devices": "", "ucx_error_handling_mode": "peer"}),
}

SEGMENTS = {
    "dram": "DRAM_SEG",
    "vram": "VRAM_SEG",
    "block": "BLK_SEG",
    "object": "OBJ_SEG",
    "file": "FILE_SEG",
}
"""NIXL's word for each kind of memory."""


@dataclass(frozen=True)
class Carried:
    """A name, with the open backends of Headrace that it stands for."""

    name: str
    kinds: tuple[str, ...]
    """The kinds of memory that a backend carries."""

    paths: dict[str, tuple[str, ...]]
    """The backends of Headrace for each kind."""

    remote: bool
    """Whether one of the backends reaches other agents."""

    def segments(self) -> list[str]:
        """Returns the kinds in NIXL's words."""
        return [SEGMENTS[kind] for kind in self.kinds]

    def backends(self) -> list[str]:
        """Returns all backends of Headrace that the name stands for."""
        return list(dict.fromkeys(path for kind in self.kinds for path in self.paths[kind]))

    def __str__(self) -> str:
        return "; ".join(f"{kind} by {', '.join(self.paths[kind])}" for kind in self.kinds)


def carried(name: str, open_backends: Iterable[OpenBackend]) -> Carried | None:
    """Returns the backends that a name stands for; None if the name is unknown, if its first kind has no
    path, or if a name of the network has no path to other agents."""
    plugin = PLUGINS.get(name)
    if plugin is None:
        return None
    infos = [info for info in open_backends if _stands_for(info, plugin)]
    paths = {kind: tuple(info.name for info in infos if kind in info.kinds) for kind in plugin.kinds}
    kinds = tuple(kind for kind in plugin.kinds if paths[kind])
    # A name whose first kind has no path is absent. NIXL lists host memory first for most names of the
    # network.
    remote = any(info.remote for info in infos)
    if plugin.kinds[0] not in kinds or (plugin.kinds[0] not in _STORAGE and not remote):
        return None
    return Carried(name, tuple(sorted(kinds, key=list(SEGMENTS).index)), paths, remote)


def _stands_for(info: OpenBackend, plugin: Plugin) -> bool:
    """Returns whether the name stands for the backend. A backend that reads files into host memory carries
    host memory too, but is no path to another agent's."""
    if plugin.kinds[0] in _STORAGE:
        return all(kind in info.kinds for kind in plugin.kinds[:2])
    return _STORAGE.isdisjoint(info.kinds)


def available(open_backends: Iterable[OpenBackend]) -> list[str]:
    """Returns the names that stand for at least one open backend."""
    infos = list(open_backends)
    return [name for name in PLUGINS if carried(name, infos)]
