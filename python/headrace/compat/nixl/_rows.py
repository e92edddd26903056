# SPDX-License-Identifier: Apache-2.0
"""Descriptors of one device in a short form: a regular list is kept as three numbers, any other list as its
addresses."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

from ._compiled import capture_rows


class Rows(NamedTuple):
    """Rows of (address, length, device), at least one, in the form of _compiled.capture_rows."""

    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    device: int
    address: int
    """The address of the first row."""
    step: int
    """The distance of neighbouring addresses if all distances and all lengths are equal, else 0."""
    length: int
    """The length of the first row."""
    addresses: bytes | None
    """The addresses as uint64; None: they are regular."""
    lengths: bytes | None
    """The lengths as uint64; None: all are equal to `length`."""

    def words(self) -> array[int]:
        """Returns three words per row."""
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
    """Copies a contiguous buffer of three uint64 a row; the buffer is not kept. None: there are no rows, or
    they name several devices."""
    found = capture_rows(rows) if len(rows) else None
    return None if found is None else Rows._make(found)
