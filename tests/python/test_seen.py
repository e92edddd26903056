# SPDX-License-Identifier: Apache-2.0
"""The reports of a test's processes name what they load and read, also those of their children."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from testing import seen


@pytest.fixture
def watch(tmp_path):
    """Runs a Python program where the folder `tree` is watched, but for tree/left_out."""
    tree = tmp_path / "tree"
    (tree / "left_out" / "package").mkdir(parents=True)
    (tree / "file").write_text("text")

    def run(program, *arguments):
        reports = tmp_path / "reports"
        within = [tree, tree / "left_out" / "package"]
        watched = seen.environment_of_python(reports, within, [tree / "left_out"])
        command = [sys.executable, "-c", program, *map(str, arguments)]
        subprocess.run(command, cwd=tree, env={**os.environ, **watched}, check=True, timeout=60)
        return seen.read(reports)

    run.tree = tree
    return run


def test_programs_and_objects_are_reported_by_the_processes_that_load_them(watch):
    report = watch("import subprocess, _ctypes; subprocess.run(['sh', '-c', 'env true'], check=True)")
    assert {os.path.basename(sys.executable), "sh", "env", "true", "libc.so.6"} <= report.names()
    assert any(name.startswith("_ctypes") for name in report.names())
    assert "libc.so.6" not in {os.path.basename(path) for path in report.programs}
    assert not report.unseen


def test_files_that_are_read_listed_or_copied_are_reported(watch):
    text = "import os, sys; {}"
    file, folder = watch.tree / "file", watch.tree
    assert str(file) in watch(text.format("open('file').read()")).paths
    assert str(file) in watch(text.format("os.symlink(sys.argv[1], '../link')"), file).paths
    assert str(folder) in watch(text.format("os.listdir(sys.argv[1])"), folder).paths
    child = "import subprocess; subprocess.run([sys.executable, '-c', 'open(\"file\")'])"
    assert str(file) in watch(text.format(child)).paths
    assert watch(text.format("")).paths == set()


def test_of_two_folders_the_deeper_one_decides(watch):
    (watch.tree / "left_out" / "other").write_text("")
    (watch.tree / "left_out" / "package" / "object").write_text("")
    report = watch("[open(f'left_out/{name}').read() for name in ('other', 'package/object')]")
    assert report.paths == {str(watch.tree / "left_out" / "package" / "object")}


def test_paths_in_the_words_of_a_command_are_reported(watch):
    program = (
        "import subprocess, sys; subprocess.run(['true', f'--of={sys.argv[1]}:x', f\"'{sys.argv[1]}2'\"])"
    )
    file = watch.tree / "file"
    assert watch(program, file).words == {str(file), f"{file}2"}


@pytest.mark.parametrize(
    "how", ["subprocess.run(['true'], env={})", "os.posix_spawn('/bin/true', ['t'], {})"]
)
def test_a_process_with_an_environment_of_its_own_is_noticed(watch, how):
    assert watch(f"import os, subprocess; {how}").unseen


def test_old_reports_are_removed(tmp_path):
    (tmp_path / "process.1").write_text("     1:\tinitialize program: old\n")
    seen.environment(tmp_path)
    assert seen.read(tmp_path).names() == set()
