# SPDX-License-Identifier: Apache-2.0
"""How NIXL's descriptors name files, block devices and objects, as Headrace's MemoryRange."""

from __future__ import annotations

import headrace

ACCESS = ("ro", "rw")
FLAGS = ("direct", "sync", "noatime", "create")


def path_in(said: str) -> str:
    """The path in "<access>[,<flag>...]:<path>"; empty if it is not of that form: then the device is an open descriptor."""
    modes, colon, path = said.partition(":")
    access, *flags = modes.split(",")
    return path if colon and access in ACCESS and all(flag in FLAGS for flag in flags) else ""


def registered(kind: str, length: int, device: int, said: bytes) -> headrace.MemoryRange:
    """What is registered: an object by its key, else its number; a file or block device by path or open descriptor."""
    text = said.decode()
    if kind == "object":
        return headrace.MemoryRange(kind, 0, length, path=text or str(device))
    path = path_in(text)
    if path:
        return headrace.MemoryRange(kind, 0, length, path=path)
    return headrace.MemoryRange(kind, 0, length, file_descriptor=device)


def asked_about(kind: str, device: int, said: bytes) -> headrace.MemoryRange:
    """What is asked about: by path or key."""
    text = said.decode()
    return headrace.MemoryRange(kind, path=path_in(text) or text or (str(device) if kind == "object" else ""))
