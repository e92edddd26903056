# SPDX-License-Identifier: Apache-2.0
"""`python -m headrace` and the script `headrace` run the compiled command that is installed with the
package."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Replaces this process by the command. Does not return; exits with an error text if the command cannot
    start."""
    command = Path(__file__).parent / "bin" / "headrace"
    os.environ.setdefault("HEADRACE_PYTHON", sys.executable)
    try:
        os.execv(command, ["headrace", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"headrace: {command} cannot be run ({error.strerror}): reinstall the package")


if __name__ == "__main__":
    main()
