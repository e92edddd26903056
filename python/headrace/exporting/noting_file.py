# SPDX-License-Identifier: Apache-2.0
"""A file to which torch writes a package.

torch's archive writer ends the process when a write fails while the writer closes, for example on a full
disk. So this file keeps the first failure, drops all later writes, and raises the failure when torch is done.
"""

from __future__ import annotations

import io
from pathlib import Path


class NotingFile(io.RawIOBase):
    """Writes to a path and keeps the first failure; `check` raises it."""

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
        """Always reports that all bytes were written."""
        rest = memoryview(data).cast("B")
        try:
            while rest and self._failure is None:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._failure = error
        return len(data)

    def check(self) -> None:
        """Raises the OSError of the first write that failed, if one failed."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        self._file.close()
        super().close()
