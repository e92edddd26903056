# SPDX-License-Identifier: Apache-2.0
"""What the README shows works."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def block(language: str) -> str:
    return re.search(rf"```{language}\n(.*?)```", README, re.DOTALL).group(1)


def test_the_page_of_python_runs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", block("python")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "took two pages" in done.stdout


def test_the_page_of_cpp_is_part_of_the_example_that_runs_as_a_test():
    assert block("cpp").rstrip() in (ROOT / "examples" / "two_peers.cpp").read_text()
