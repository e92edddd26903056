# SPDX-License-Identifier: Apache-2.0
"""Registers descriptors as regions, and finds the regions by address, length and device."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import headrace

from . import _storage
from ._descriptors import nixlRegDList
from ._enums import kind_of
from ._errors import failure, nixlBackendError, nixlNotFoundError, translated
from ._ledger import Ledger, Registered
from ._peers import device_note

ADDRESSED = ("dram", "vram")
"""Kinds with addresses. For them a length of 0 means no bytes; for files and objects it means all bytes."""


class Memory:
    """The registered memory of one agent. Threads: any."""

    def __init__(self, agent: headrace.Agent):
        self._agent = agent
        self.ledger = Ledger()

    def register(self, descs: nixlRegDList, paths: Iterable[str]) -> None:
        """Registers all descriptors or none."""
        if descs.isEmpty():
            raise failure(nixlBackendError, "the list to register is empty")
        registered: list[tuple[Registered, int]] = []
        try:
            for device, rows in _by_device(descs).items():
                registered += self._register(kind_of(descs.getType()), device, rows, sorted(paths))
        except headrace.Error as error:
            self._deregister(registered)
            raise failure(nixlBackendError, str(error)) from error
        self.ledger.add(registered)

    def deregister(self, descs: nixlRegDList) -> None:
        """Deregisters the descriptors that are registered, then raises nixlNotFoundError if others are
        not."""
        taken, missing = self.ledger.take(_entries(descs))
        try:
            self._deregister(taken)
        except headrace.Error as error:
            self.ledger.add(taken)
            raise translated(error) from error
        if missing:
            raise failure(nixlNotFoundError, f"not registered: {missing[0]}, and {len(missing) - 1} more")

    def regions_of(self, descs: nixlRegDList) -> list[int]:
        """Returns the regions of registered descriptors."""
        regions, missing = self.ledger.regions_of(_entries(descs))
        if missing:
            raise failure(nixlNotFoundError, f"not registered: {missing[0]}")
        return [region for region in regions if region]

    def query(self, descs: nixlRegDList, path: str) -> list[dict[str, str] | None]:
        """Returns a backend's facts about files, block devices or objects; None for each that does not
        exist."""
        kind = kind_of(descs.getType())
        try:
            return [
                self._answer(_storage.asked_about(kind, device, said), path) for _, _, device, said in descs
            ]
        except headrace.Error as error:
            raise translated(error) from error

    def _answer(self, what: headrace.MemoryRange, path: str) -> dict[str, str] | None:
        answer = self._agent.query(what, path) if what.path else None
        if answer is None:
            return None
        answer["size"] = answer.pop("bytes", "0")
        return answer

    def _register(
        self, kind: str, device: int, rows: list[tuple[Any, ...]], paths: list[str]
    ) -> list[tuple[Registered, int]]:
        """Returns the region of each descriptor; an empty descriptor gets region 0, no region."""
        if kind not in ADDRESSED:
            return self._register_storage(kind, device, rows, paths)
        full = [_item(kind, row) for row in rows if row[1]]
        regions = iter(self._agent.register(full, note=device_note(device), backends=paths) if full else ())
        return [
            (Registered(kind, row[0], row[1], device), next(regions).id if row[1] else 0) for row in rows
        ]  # fmt: skip

    def _register_storage(
        self, kind: str, device: int, rows: list[tuple[Any, ...]], paths: list[str]
    ) -> list[tuple[Registered, int]]:
        """Registers storage. A descriptor of length 0 means the whole file, block device or object."""
        by_path = kind == "file" and any(_storage.named_in(os.fsdecode(row[3]))[0] for row in rows)
        if by_path and (len(rows) > 1 or self.ledger.names_file(device)):
            raise failure(
                nixlBackendError,
                f"device {device} already stands for a file: give each file that is named by its path a "
                "number of its own",
            )
        with _storage.registered(kind, rows) as ranges:
            regions = self._agent.register(ranges, note=device_note(device), backends=paths)
        return [
            (Registered(kind, row[0], row[1], device), region.id)
            for row, region in zip(rows, regions, strict=True)
        ]

    def _deregister(self, registered: list[tuple[Registered, int]]) -> None:
        regions = [region for _, region in registered if region]
        if regions:
            self._agent.deregister(regions)


def _entries(descs: nixlRegDList) -> list[Registered]:
    kind = kind_of(descs.getType())
    return [Registered(kind, address, length, device) for address, length, device, _ in descs]


def _by_device(descs: Iterable[tuple[Any, ...]]) -> dict[int, list[tuple[Any, ...]]]:
    found: dict[int, list[tuple[Any, ...]]] = {}
    for row in descs:
        found.setdefault(row[2], []).append(row)
    return found


def _item(kind: str, row: tuple[Any, ...]) -> Any:
    """Returns what Headrace registers for one descriptor (address, length, device, extra) of memory."""
    address, length, device, _ = row
    return (address, length) if kind == "dram" else headrace.MemoryRange(kind, address, length, device)
