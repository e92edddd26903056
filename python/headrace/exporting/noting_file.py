# SPDX-License-Identifier: Apache-2.0
"""A file for torch to write a package to. torch's archive writer ends the process when a write fails while it
closes, as on a full disk; so a failed write is noted here, what follows is dropped, and the failure is raised
when torch is done."""

from __future__ import annotations

import io
from pathlib import Path


class NotingFile(io.RawIOBase):
    """Writes to a path; `check` raises the first failure."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("wb", buffering=0)
        self._failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Claims to have written everything, always."""
        rest = memoryview(data).cast("B")
        try:
            while rest and self._failure is None:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._failure = error
        return len(data)

    def check(self) -> None:
        """Raises the OSError of the write that failed, if one did."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        self._file.close()
        super().close()
