# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""bench/compare_moe.py runs each side that is there on small shapes, compares what came, writes rows, and
says why a side is not there."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "compare_moe.py"
SHAPE = ["--tokens", "3,20", "--hidden", "64", "--experts", "6", "--top-k", "2", "--seconds", "0.01"]


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=280, check=False
    )


@pytest.mark.slow
def test_each_side_that_is_there_is_measured_and_right(tmp_path):
    done = run(*SHAPE, "--ranks", "2,3", "--rounds", "1", "--results", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "WRONG" not in done.stdout
    for peer in ("deep-ep", "flashinfer", "nccl-ep"):
        assert f"{peer}: not run: " in done.stdout
    rows = [json.loads(line) for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    assert {row["table"] for row in rows} == {"moe"}
    assert all(row["checked"] and row["ratio"] > 0 for row in rows)
    assert {(row["case"], row["peer"]) for row in rows} == {
        (f"python/{operation}/{tokens}x64/6/2/{ranks}", peer)
        for operation in ("dispatch", "combine")
        for tokens in (3, 20)
        for ranks in (2, 3)
        for peer in ("headrace-deep-ep", "headrace-all-to-all", "torch-all-to-all")
    }


def test_what_is_refused():
    for arguments, sentence in (
        (["--peers", "deepep"], "no peer deepep: the peers are headrace-deep-ep, "),
        (["--ranks", "2,3"], "--experts 256 cannot be shared evenly by 3 ranks"),
    ):
        done = run(*arguments)
        assert done.returncode == 2
        assert sentence in done.stderr
