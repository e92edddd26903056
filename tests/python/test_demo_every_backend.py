# SPDX-License-Identifier: Apache-2.0
"""`headrace demo` without settings opens every backend; the tests of test_demo.py open one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from headrace.demo_model import export

BUILD = Path(__file__).resolve().parents[2] / "build" / "demo_model"
COMMAND = Path(sys.executable).parent / "headrace"


def demo(folder, *arguments):
    export.export_pieces(BUILD, cache=BUILD / "cache")
    return subprocess.run(
        [COMMAND, "demo", "--packages", BUILD, *arguments],
        env=os.environ | {"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_backend_that_does_not_exist_is_named(tmp_path):
    done = demo(tmp_path, "--backend", "nosuch")
    assert done.returncode == 1 and "nosuch" in done.stderr


def test_the_demo_chooses_among_all_backends(tmp_path):
    done = demo(tmp_path, "--json", "--check", "--tokens", "16")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["tokens"], said["checked"], said["path"]) == (16, True, "shm")
