# SPDX-License-Identifier: Apache-2.0
"""Checks the output path before compiling, which takes minutes. Needs no torch."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import InvalidArgument, NotFound


def check_output(path: Path, replace: bool = True) -> None:
    """Raises unless a package can be written to `path`.

    replace  an existing package will be replaced; else it is an error
    errors   not_found (no such folder), invalid_argument (the name does not end in .pt2, is a folder, is
             taken, or the folder is not writable)
    """
    if path.suffix != ".pt2":
        raise InvalidArgument(f"{path} cannot be the package's name: it must end in .pt2")
    if path.is_dir():
        raise InvalidArgument(
            f"{path} is a folder: --output must name the package to write, such as {path / 'model.pt2'}"
        )
    if path.exists() and not replace:
        raise InvalidArgument(f"{path} exists: --force replaces it, or choose another --output")
    if not path.parent.is_dir():
        raise NotFound(f"{path.parent} is not a folder: create it first, or choose another for {path.name}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InvalidArgument(
            f"the folder {path.parent} is not writable: choose another folder for {path.name}"
        )
