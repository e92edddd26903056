# SPDX-License-Identifier: Apache-2.0
"""The run on a GPU machine goes on after a failure, ends what takes too long, and keeps the rows."""

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Not by the tool's own name, which a file of tests bears too.
_spec = importlib.util.spec_from_file_location("gpu_steps", ROOT / "tools" / "test_gpu.py")
gpu = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(gpu)


@pytest.fixture
def sitting(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "WORK", tmp_path / "work")
    monkeypatch.setattr(gpu, "describe_gpus", lambda: ("2x NVIDIA H200 (NVLink), 32 cores, driver 580.1", "h200x2", 2))
    (tmp_path / "carried").mkdir()
    (tmp_path / "carried" / "commit.txt").write_text("0123456789ab\n")
    return gpu.Sitting(argparse.Namespace(carried=tmp_path / "carried", out=tmp_path / "out", budget=60))


def python(text):
    return [sys.executable, "-c", text]


def test_a_step_that_fails_or_breaks_stops_no_other(sitting, monkeypatch, capsys):
    def breaks(_):
        raise OSError("no such program")

    steps = {"fails": (lambda _: False, 5), "breaks": (breaks, 5), "works": (lambda _: True, 5)}
    monkeypatch.setattr(gpu, "STEPS", steps)
    assert gpu.run_steps(sitting, list(steps)) == 1
    assert gpu.run_steps(sitting, ["works"]) == 0
    text = capsys.readouterr().out
    assert "no such program" in text
    assert sitting.log.read_text().count("works") >= 2


def test_a_command_that_takes_too_long_ends_with_what_it_started(sitting, capsys):
    sitting.limit = time.monotonic() + 1
    start = time.monotonic()
    assert not sitting.run(python("import subprocess, sys; print('begun', flush=True); subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"))
    assert time.monotonic() - start < 20
    text = capsys.readouterr().out
    assert "begun" in text and "out of time" in text


def test_rows_that_a_program_prints_go_to_their_table_with_the_gpus_and_the_commit(sitting):
    sitting.limit = time.monotonic() + 20
    row = {"date": "d", "commit": "0.1.0", "machine": "a processor", "command": "headrace bench pages", "table": "pages-gpu", "case": "read/4096x16384", "value": 1}
    assert sitting.run(python(f"print('some words')\nprint('''{json.dumps(row)}''')"), rows=True, case_suffix="/sm16")
    (file,) = sitting.out.glob("*-h200x2-pages-gpu.jsonl")
    assert json.loads(file.read_text()) == {**row, "case": "read/4096x16384/sm16", "commit": "0123456789ab", "machine": sitting.machine}


def test_what_cannot_be_carried_or_is_not_there_is_said(tmp_path):
    script = str(ROOT / "tools" / "test_gpu.py")
    done = subprocess.run([sys.executable, script, "--collect", str(tmp_path / "a"), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "libheadrace_kernels.so" in done.stderr
    done = subprocess.run([sys.executable, script, "--carried", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "is not what --collect makes" in done.stderr
