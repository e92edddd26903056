# SPDX-License-Identifier: Apache-2.0
"""Descriptors of one device, kept as short as they can be: a regular list is three numbers, one in any order
its addresses."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

from ._compiled import capture_rows


class Rows(NamedTuple):
    """Rows of (address, length, device), at least one, as _compiled.capture_rows tells them."""

    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    device: int
    address: int
    """Of the first."""
    step: int
    """How far apart neighbours begin, if that and the lengths are the same all along; else 0."""
    length: int
    """Of the first."""
    addresses: bytes | None
    """As uint64; None: they are regular."""
    lengths: bytes | None
    """As uint64; None: all have that of the first."""

    def words(self) -> array[int]:
        """Three for each row."""
        words = array("Q", bytes(24 * self.count))
        words[0::3] = array("Q", self._line() if self.addresses is None else self.addresses)
        words[1::3] = (
            array("Q", [self.length]) * self.count if self.lengths is None else array("Q", self.lengths)
        )
        words[2::3] = array("Q", [self.device]) * self.count
        return words

    def _line(self) -> range:
        return range(self.address, self.address + self.step * self.count, self.step)


def captured(rows: Any) -> Rows | None:
    """Of a contiguous buffer of three uint64 a row; nothing of it is kept. None: there are no rows, or they
    lie on several devices."""
    found = capture_rows(rows) if len(rows) else None
    return None if found is None else Rows._make(found)
