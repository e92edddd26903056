# SPDX-License-Identifier: Apache-2.0
"""Every program in examples/*.py runs and prints its text."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name, *arguments):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": ""},  # unbuffered, a line is two writes: ranks mix theirs
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def test_every_example_has_a_test():
    text = Path(__file__).read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in text] == []


def test_two_peers_exchange_pages():
    said = run("two_peers.py")
    assert "prefill: decode says: took pages [200, 3, 77, 142]" in said and "decode: 262144 bytes" in said


def test_a_binding_of_the_c_api_reads_pages():
    assert run("c_api_by_ctypes.py") == "page 7 begins with b'\\x07', page 3 with b'\\x03'\n"


def test_partial_metadata_shows_one_region_at_a_time():
    said = run("partial_metadata.py")
    assert "name='layer 2'" in said and "after deregistration:" in said


def test_three_processes_add_their_elements():
    said = run("all_reduce.py")
    assert sorted(said.splitlines()) == [f"rank {rank}: the sum is 6" for rank in range(3)]


def test_a_rank_serves_others_with_asyncio():
    said = run("send_recv_asyncio.py")
    assert sorted(said.splitlines()) == ["rank 1: [100, 121, 144, 169]", "rank 2: [400, 441, 484, 529]"]


def test_two_ranks_exchange_messages_and_write_into_windows():
    said = run("messages.py")
    assert sorted(said.splitlines()) == ["rank 0: 11, 100", "rank 1: 10, 121"]


def test_a_backend_of_communicators_is_a_python_class():
    said = run("comm_backend.py")
    assert sorted(said.splitlines()) == [f"rank {rank}: the sum is 6" for rank in range(3)]


@pytest.mark.slow
def test_a_training_step_leaves_all_ranks_with_the_same_weights():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    said = run("ddp_step.py")
    assert sorted(said.splitlines()) == [f"rank {rank}: the weights are equal: True" for rank in range(2)]


def test_two_agents_find_each_other_in_a_real_etcd(etcd, monkeypatch):
    monkeypatch.setenv("HEADRACE_TCP_LISTEN", "127.0.0.1:0")  # else a warning: a store, and no secret
    said = run("etcd_agents.py", f"etcd://{etcd}/example")
    assert "in the namespace: ['trainer']" in said and "read weights (uint8, 1048576)" in said
