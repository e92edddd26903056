# SPDX-License-Identifier: Apache-2.0
"""The io spec inside a package: a file in its zip archive, next to the files that torch wrote. Needs no
torch."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from ..errors import NotFound

SPEC_ENTRY = "extra/headrace.json"


def append_spec(package: Path, spec: dict[str, Any]) -> None:
    """Adds the spec to a package."""
    with zipfile.ZipFile(package, "a", zipfile.ZIP_STORED) as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/{SPEC_ENTRY}", json.dumps(spec, indent=1))


def read_spec(package: Path) -> dict[str, Any]:
    """Returns the spec that append_spec added.

    errors   not_found (the archive has no spec); zipfile.BadZipFile (the file is not a zip archive)
    """
    with zipfile.ZipFile(package) as archive:
        entry = next((name for name in archive.namelist() if name.partition("/")[2] == SPEC_ENTRY), None)
        if entry is None:
            raise NotFound(f"{package} has no entry {SPEC_ENTRY}: export it with python -m headrace.export")
        spec: dict[str, Any] = json.loads(archive.read(entry))
        return spec
