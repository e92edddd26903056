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


def test_commands_run_at_once_and_those_that_fail_or_take_too_long_are_shown(sitting, capsys):
    sitting.limit = time.monotonic() + 10
    # Each waits for what the other writes: one after another they would wait for ever.
    meet = "import pathlib, time; here = pathlib.Path({!r}); (here / {!r}).touch()\nwhile not (here / {!r}).exists(): time.sleep(0.01)"
    where = str(gpu.WORK)
    assert gpu.run_together(sitting, {"one": python(meet.format(where, "a", "b")), "other": python(meet.format(where, "b", "a"))})
    sitting.limit = time.monotonic() + 2
    assert not gpu.run_together(sitting, {"fails": python("print('some words'); raise SystemExit(3)"), "stays": python("import time; time.sleep(60)")})
    text = capsys.readouterr().out
    assert "some words" in text and "fails: exit code 3" in text and "stays: out of time" in text


def test_what_the_demo_says_becomes_rows_of_a_place_and_a_length(sitting):
    said = {"shape": "8b", "prefill_device": "cuda:0", "decode_device": "cuda:1", "prompt_tokens": 2048, "tokens": 100, "checked": True}
    said |= {"tokens_per_second": 90.5, "GB/s": 200.0, "share_before_prefill_ended": 0.97, "first_token_seconds": 0.5, "bytes": 268435456}
    sitting.keep_rows(gpu.demo_rows(sitting, said))
    (file,) = sitting.out.glob("*-h200x2-misc.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["case"] for row in rows} == {"demo/8b/cuda:0-cuda:1/2048"} and all(row["checked"] and row["commit"] == "0123456789ab" for row in rows)
    assert {row["metric"]: row["value"] for row in rows}["GB/s"] == 200.0


def test_what_cannot_be_carried_or_is_not_there_is_said(tmp_path):
    script = str(ROOT / "tools" / "test_gpu.py")
    done = subprocess.run([sys.executable, script, "--collect", str(tmp_path / "a"), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "libheadrace_kernels.so" in done.stderr
    done = subprocess.run([sys.executable, script, "--carried", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "is not what --collect makes" in done.stderr
