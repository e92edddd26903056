# SPDX-License-Identifier: Apache-2.0
"""`python -m headrace` and the script `headrace`: the compiled command that came with the package."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Becomes the command; returns only if there is none."""
    command = Path(__file__).parent / "bin" / "headrace"
    os.environ.setdefault("HEADRACE_PYTHON", sys.executable)
    try:
        os.execv(command, ["headrace", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"headrace: {command} cannot be run ({error.strerror}): install the package again")


if __name__ == "__main__":
    main()
