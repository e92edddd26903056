# SPDX-License-Identifier: Apache-2.0
"""Where a package may be written: told before anything is compiled, which takes minutes. Needs no torch."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import InvalidArgument, NotFound


def check_output(path: Path) -> None:
    """Returns if a package can get that name; one that is there already will be replaced.

    errors   not_found (no such folder), invalid_argument (another ending, a folder has the name, nothing can
             be written there)
    """
    if path.suffix != ".pt2":
        raise InvalidArgument(f"{path} cannot be the package's name: it must end in .pt2")
    if path.is_dir():
        raise InvalidArgument(
            f"{path} is a folder: --output names the package to write, such as {path / 'model.pt2'}"
        )
    if not path.parent.is_dir():
        raise NotFound(f"{path.parent} is no folder: make it first, or choose another for {path.name}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InvalidArgument(
            f"nothing can be written into {path.parent}: choose another folder for {path.name}"
        )
