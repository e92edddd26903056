# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""The backend that torchcomms loads, in processes of torchcomms."""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from conftest import free_ports

MODULE = Path(headrace.__file__).parent / "torchcomms_backend.py"
VARIABLE = "TORCHCOMMS_BACKEND_LIB_PATH_HEADRACE"
LIBRARY = MODULE.parent / "lib" / "libheadrace_torchcomms.so"
RANK = Path(__file__).parent / "torchcomms_rank.py"
CASES = ("operations", "works_and_messages", "windows", "splits", "errors", "reconfigures")


def load_from(folder):
    """Runs the module as that of a package in the folder."""
    copy = folder / MODULE.name
    copy.write_text(MODULE.read_text())
    spec = importlib.util.spec_from_file_location("torchcomms_backend_of_a_test", copy)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_without_its_library_the_module_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ImportError, match=f"HEADRACE_TORCHCOMMS_ROOT.*{VARIABLE}"):
        load_from(tmp_path)


def test_the_module_names_its_library(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "")  # so that it is taken back
    monkeypatch.delenv(VARIABLE)
    library = tmp_path / "lib" / LIBRARY.name
    library.parent.mkdir()
    library.touch()
    load_from(tmp_path)
    assert os.environ[VARIABLE] == str(library)


def test_a_library_that_the_user_names_is_taken(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "/elsewhere/lib.so")
    load_from(tmp_path)
    assert os.environ[VARIABLE] == "/elsewhere/lib.so"


def test_torchcomms_finds_the_module():
    points = importlib.metadata.distribution("headrace").entry_points
    found = [point.value for point in points if point.group == "torchcomms.backends"]
    assert found == ["headrace.torchcomms_backend"]


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_of_torchcomms(case, tmp_path):
    if importlib.util.find_spec("torchcomms") is None:
        pytest.skip("torchcomms is not installed")
    if not LIBRARY.is_file() and VARIABLE not in os.environ:
        pytest.skip("Headrace was built without its backend for torchcomms")
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    processes = [
        subprocess.Popen(
            [sys.executable, RANK, case, tmp_path / "store"],
            env={**os.environ, **place, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
