# SPDX-License-Identifier: Apache-2.0
# backends: none
"""The processes of a test name the programs and objects that they load, also those of their children."""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from testing import seen


def test_programs_and_objects_are_reported_by_the_processes_that_load_them(tmp_path):
    program = "import subprocess, _ctypes; subprocess.run(['sh', '-c', 'env true'], check=True)"
    environment = {**os.environ, **seen.environment(tmp_path)}
    # Without -I, -S and the like and with them: the loader does not know these options.
    for options in ([], ["-I", "-S"]):
        command = [sys.executable, *options, "-c", program]
        subprocess.run(command, env=environment, check=True, timeout=60)
        names = seen.names(tmp_path)
        assert {os.path.basename(sys.executable), "sh", "env", "true", "libc.so.6"} <= names
        assert any(name.startswith("_ctypes") for name in names)
        seen.environment(tmp_path)


def test_old_reports_are_removed(tmp_path):
    (tmp_path / "process.1").write_text("     1:\tinitialize program: old\n")
    assert seen.names(tmp_path) == {"old"}
    seen.environment(tmp_path)
    assert seen.names(tmp_path) == set()
