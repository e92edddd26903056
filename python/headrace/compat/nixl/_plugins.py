# SPDX-License-Identifier: Apache-2.0
"""The backends that NIXL's users name, and the paths of Headrace that stand for each.

A name for storage stands for every open backend of Headrace that carries both sides of what the name is used
for; a name for the network or GPUs for every one that carries one of its kinds of memory and no storage.
Which of them takes a given request is Headrace's choice. A name that nobody stands for is absent, as a plugin
that is not installed is to NIXL.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol


class OpenBackend(Protocol):
    """What is used of headrace.BackendInfo."""

    @property
    def name(self) -> str: ...
    @property
    def kinds(self) -> list[str]: ...
    @property
    def remote(self) -> bool: ...


@dataclass(frozen=True)
class Plugin:
    """A name of NIXL's."""

    kinds: tuple[str, ...]
    """Of memory, in Headrace's words. The first is what the name is used for: without a path for it, the name
    is absent. Of storage the second is the memory at its other side."""

    parameters: dict[str, str] = field(default_factory=dict)
    """That its users may read and hand back, with their defaults. Headrace's own options are set as
    Headrace's are."""


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
    """A name, as far as Headrace's open backends can stand for it."""

    name: str
    kinds: tuple[str, ...]
    """Those that somebody carries."""

    paths: dict[str, tuple[str, ...]]
    """The backends of Headrace for each of them."""

    remote: bool
    """Whether one of them reaches other agents."""

    def segments(self) -> list[str]:
        """The kinds in NIXL's words."""
        return [SEGMENTS[kind] for kind in self.kinds]

    def backends(self) -> list[str]:
        """All backends of Headrace that it stands for."""
        return list(dict.fromkeys(path for kind in self.kinds for path in self.paths[kind]))

    def __str__(self) -> str:
        return "; ".join(f"{kind} by {', '.join(self.paths[kind])}" for kind in self.kinds)


def carried(name: str, open_backends: Iterable[OpenBackend]) -> Carried | None:
    """What stands for that name; None if it is unknown, or its first kind has no path."""
    plugin = PLUGINS.get(name)
    if plugin is None:
        return None
    infos = [info for info in open_backends if _stands_for(info, plugin)]
    paths = {kind: tuple(info.name for info in infos if kind in info.kinds) for kind in plugin.kinds}
    kinds = tuple(kind for kind in plugin.kinds if paths[kind])
    # Names of the network stand for whatever host memory they can reach, though NIXL lists host memory first
    # for most.
    if plugin.kinds[0] not in kinds:
        return None
    return Carried(
        name, tuple(sorted(kinds, key=list(SEGMENTS).index)), paths, any(info.remote for info in infos)
    )


def _stands_for(info: OpenBackend, plugin: Plugin) -> bool:
    """Who reads files into host memory carries host memory, and is no path to another agent's."""
    if plugin.kinds[0] in _STORAGE:
        return all(kind in info.kinds for kind in plugin.kinds[:2])
    return _STORAGE.isdisjoint(info.kinds)


def available(open_backends: Iterable[OpenBackend]) -> list[str]:
    """The names that something stands for."""
    infos = list(open_backends)
    return [name for name in PLUGINS if carried(name, infos)]
