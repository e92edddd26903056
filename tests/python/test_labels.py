# SPDX-License-Identifier: Apache-2.0
# backends: none
"""Labels of ctest and marks of pytest have the same names, and every test that needs a GPU bears one."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HARDWARE = ("gpu1", "gpu2", "gpu4", "kernel")


def marks():
    """Those that pyproject.toml declares; --strict-markers refuses others."""
    text = (ROOT / "pyproject.toml").read_text().partition("markers = [")[2].partition("\n]")[0]
    return set(re.findall(r'^  "(\w+):', text, re.MULTILINE))


def names_in(file, pattern):
    found = re.search(pattern, (ROOT / file).read_text(), re.DOTALL)
    assert found, f"{file} has nothing like {pattern}"
    return set(re.findall(r"\w+", found[1]))


def test_ctest_and_pytest_have_the_same_labels():
    in_ctest = names_in("cmake/tests.cmake", r'MATCHALL "_\(([\w|]+)\)')
    # Of C++ tests ctest is told by other means which one runs alone: RUN_SERIAL.
    assert marks() - {"alone"} == in_ctest - {"alone"}


def test_the_daily_run_leaves_out_every_label_but_that_of_order():
    assert names_in("tools/test.py", r"\nLABELS = \[([^]]+)\]") == marks() - {"alone"}
    assert names_in("tools/gpu_steps/tree.py", r"\nLABELS = \[([^]]+)\]") == set(HARDWARE)


def test_every_test_of_the_files_for_gpus_bears_a_label_of_what_it_needs():
    files = [
        path
        for path in sorted((ROOT / "tests" / "python").glob("test_gpu*.py"))
        if path.stem != "test_gpu_steps"
    ]
    assert len(files) >= 4
    without = "not (" + " or ".join(HARDWARE) + ")"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--collect-only",
        "-q",
        "-m",
        without,
    ]
    done = subprocess.run([*command, *map(str, files)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 5, f"without a label:\n{done.stdout}{done.stderr}"  # 5: none is left
