# SPDX-License-Identifier: Apache-2.0
"""`headrace demo`: a prefill worker and decode workers that write one text together."""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from headrace.demo_model import export, generate  # noqa: E402  (they need torch)

BUILD = Path(__file__).resolve().parents[2] / "build" / "demo_model"
COMMAND = Path(sys.executable).parent / "headrace"
WORDS = "and the king of Judah went up unto the house of the LORD with all his people ".split()


@pytest.fixture(scope="module")
def packages():
    """The exported packages, kept in the build folder from run to run."""
    export.export_pieces(BUILD, cache=BUILD / "cache")
    return BUILD


@pytest.fixture
def demo(packages, tmp_path):
    """Starts the command; what is left of it at the test's end is killed."""
    started = []

    def start(*arguments, **more):
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        process = subprocess.Popen(
            [COMMAND, "demo", "--packages", packages, *map(str, arguments)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def finished(process, seconds=110):
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, err.decode()
    return json.loads(out), err.decode()


def a_prompt(length):
    text = " ".join(random.choices(WORDS, k=length))
    return text[:length].encode()


def worker(process, name):
    """The pid of a worker of the demo, which is its child."""
    children = Path(f"/proc/{process.pid}/task").glob("*/children")
    for pid in itertools.chain.from_iterable(path.read_text().split() for path in children):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"demo-worker" in arguments and name.encode() in arguments:
            return int(pid)
    raise AssertionError(f"{name} is not among the demo's processes")


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("path", ["shm", "tcp"])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("page", [1, 16, 64])
def test_the_tokens_are_those_of_one_process_alone(demo, path, workers, page):
    said, _ = finished(demo("--json", "--check", "--tokens", 24, "--backend", path, "--workers", workers, "--page", page, "--seed", 7))
    assert (said["tokens"], said["path"], said["page_tokens"], said["decode_workers"]) == (24, path, page, workers)
    layers, token_bytes = 6, 2 * 2 * 32 * 4
    pages = layers * -(-said["prompt_tokens"] // page)
    assert (said["pages"], said["bytes"]) == (pages, pages * page * token_bytes)


def test_the_text_is_that_of_the_reference(demo, packages):
    prompt = a_prompt(300)
    said, _ = finished(demo("--json", "--prompt", prompt.decode(), "--tokens", 60, "--temperature", 0.7, "--top-p", 0.9, "--seed", 3))
    model = generate.Weights.load(Path(generate.__file__).parent / "weights.safetensors")
    cache = generate.Cache(model.sizes, 16, generate.pages_for(360, 16))
    import torch

    torch.set_num_threads(1)
    tokens = generate.generate(generate.Pieces.packages(packages), model, cache, prompt, 60, generate.Sampling(0.7, 0.9, 3))
    assert said["text"] == bytes(tokens).decode(errors="replace")


def test_most_bytes_have_moved_before_prefill_ends(demo):
    process = demo("--json", "--prompt-file", "-", "--tokens", 1, stdin=subprocess.PIPE)
    process.stdin.write(a_prompt(1000))
    process.stdin.close()
    process.stdin = None
    said, _ = finished(process)
    assert said["prompt_tokens"] == 1000
    assert said["share_before_prefill_ended"] >= 0.7


def test_the_text_comes_on_stdout_and_the_table_on_stderr(demo):
    process = demo("--prompt", "In the beginning", "--tokens", 20)
    out, err = process.communicate(timeout=110)
    assert process.returncode == 0, err.decode()
    assert out.startswith(b"In the beginning") and len(out) == len("In the beginning") + 20 + 1
    for row in ("tokens", "time to first token", "keys and values moved", "before prefill ended", "GB/s", "path"):
        assert row in err.decode()


def test_without_retry_the_prefill_worker_ends_and_names_the_decode_worker_that_died(demo):
    process = demo("--tokens", 1700)
    assert process.stdout.read(300)  # it writes
    prefill = worker(process, "prefill")
    os.kill(worker(process, "decode-0"), signal.SIGKILL)
    killed = time.monotonic()
    while runs(prefill):
        assert time.monotonic() < killed + 2, "the prefill worker goes on"
        time.sleep(0.01)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "prefill: decode-0 is lost" in err.decode()
    assert "worker decode-0 ended with signal 9" in err.decode()


def test_with_retry_the_text_goes_on_where_it_was(demo):
    process = demo("--tokens", 1200, "--retry", "--check")
    first = process.stdout.read(400)
    os.kill(worker(process, "decode-0"), signal.SIGKILL)
    rest, err = process.communicate(timeout=110)
    assert process.returncode == 0, err.decode()
    assert "decode-0 is back" in err.decode() and "checked: the same 1200 tokens" in err.decode()
    assert len(first + rest) > 1200


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--prompt", ""], "the prompt is empty"),
        (["--tokens", "0"], "ask for at least one"),
        (["--tokens", "5000"], "more than the model's context of 2048"),
        (["--page", "100"], "does not divide the chunk"),
        (["--prompt-file", "/nonexistent"], "read the prompt from /nonexistent"),
        (["--backend", "nosuch"], "nosuch"),
        (["--model-weights", "/nonexistent.safetensors"], "/nonexistent.safetensors"),
        (["--python", "/nonexistent"], "compile the demo's model"),
    ],
)
def test_what_is_wrong_is_said(demo, arguments, expected):
    process = demo(*arguments)
    out, err = process.communicate(timeout=110)
    assert process.returncode == 1, out
    assert expected in err.decode()


def test_nothing_is_left_behind(demo, tmp_path):
    finished(demo("--json", "--tokens", 3))
    assert not list(tmp_path.glob("headrace-demo-*"))
    process = demo("--tokens", 1700)
    assert process.stdout.read(200)
    workers = [worker(process, name) for name in ("prefill", "decode-0")]
    process.kill()  # the front cannot say goodbye
    process.wait()
    ended = time.monotonic() + 20
    while any(runs(pid) for pid in workers):
        assert time.monotonic() < ended, "workers outlive the demo"
        time.sleep(0.01)
    for folder in tmp_path.glob("headrace-demo-*"):
        shutil.rmtree(folder)
