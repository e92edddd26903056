# SPDX-License-Identifier: Apache-2.0
"""`headrace demo --moe --ranks 2`: decode workers that share the experts of a model."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from headrace.demo_model import export, generate

BUILD = Path(__file__).resolve().parents[2] / "build" / "demo_model"
FOLDER = Path(generate.__file__).parent
WEIGHTS = FOLDER / "experts.safetensors"
COMMAND = Path(sys.executable).parent / "headrace"
PATIENCE = 600  # seconds: of slow tests, as the command has its own limits


@pytest.fixture(scope="module")
def packages():
    """The exported packages, kept in the build folder from run to run."""
    folder = BUILD / "experts"
    export.export_pieces(folder, cache=BUILD / "cache", target=export.Target("experts"))
    return folder


@pytest.fixture
def demo(packages, tmp_path):
    """Starts the command; what is left of it at the test's end is killed."""
    started = []

    def start(*arguments, ranks=2):
        words = ["--packages", packages, "--python", sys.executable, "--backend", "shm", "--ranks", ranks]
        process = subprocess.Popen(
            [COMMAND, "demo", "--moe", *map(str, words), *map(str, arguments)],
            bufsize=0,
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def finished(process):
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err.decode()
    return out, err.decode()


def failed(process):
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    return " ".join(err.decode().split())


def check_text(demo, ranks, tokens, *more):
    out, _ = finished(demo("--json", "--check", "--tokens", tokens, *more, ranks=ranks))
    said = json.loads(out)
    assert (said["shape"], said["expert_parallel"], said["decode_workers"]) == ("experts", ranks, ranks)
    assert (said["checked"], said["tokens"]) == (True, tokens)


def test_two_ranks_write_the_tokens_of_one_process(demo):
    check_text(demo, 2, 24)


@pytest.mark.slow
@pytest.mark.parametrize("ranks, page", [(1, 16), (2, 1), (3, 64), (4, 16), (8, 16)])
def test_any_number_of_ranks_writes_the_tokens_of_one_process(demo, ranks, page):
    check_text(demo, ranks, 120, "--page", page, "--seed", 5)


@pytest.mark.slow
def test_the_demos_own_text_is_that_of_one_process(demo):
    _, err = finished(demo("--check"))
    assert "checked: a single process generates the same 400 tokens, and the same bits of logits" in err
    assert "one of 2 ranks that share the experts" in err


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_is_named(demo, rank):
    process = demo("--tokens", 1700)
    assert process.stdout.read(300)  # it writes
    os.kill(worker(process, f"decode-{rank}"), signal.SIGKILL)
    assert f"worker decode-{rank} (rank {rank} of 2) ended by signal 9" in failed(process)


@pytest.mark.slow
def test_a_rank_that_says_nothing_is_named(demo):
    process = demo("--tokens", 1700, "--patience", 4)  # less than the link to a stopped process waits
    assert process.stdout.read(300)
    os.kill(worker(process, "decode-1"), signal.SIGSTOP)
    said = failed(process)
    assert "worker decode-1 (rank 1 of 2) has sent nothing for 4 s" in said
    assert "it is stopped by signal 19" in said


@pytest.mark.slow
def test_texts_that_ranks_write_at_the_same_time_are_those_that_they_write_alone(demo):
    server = demo("--serve", 0)
    url = server.stdout.readline().decode().split()[-1] + "/v1/completions"

    def text(prompt):
        asked = {"model": "headrace-demo", "prompt": prompt, "max_tokens": 80, "temperature": 0}
        request = urllib.request.Request(
            url, json.dumps(asked).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            return json.load(reply)["choices"][0]["text"]

    prompts = ["In the beginning ", "And the king said unto ", "Blessed are ", "The LORD is my "]
    alone = [text(prompt) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as threads:
        assert list(threads.map(text, prompts)) == alone
    assert len(set(alone)) == len(prompts)


def worker(process, name):
    """The pid of the demo's worker of that name."""
    for children in Path(f"/proc/{process.pid}/task").glob("*/children"):
        for pid in children.read_text().split():
            if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return int(pid)
    raise AssertionError(f"{name} is not among the demo's processes")


def refused(arguments):
    """The exit code and the error of a command that ends before it starts anything."""
    done = subprocess.run(
        [COMMAND, "demo", *arguments], capture_output=True, check=False, text=True, timeout=60
    )
    return done.returncode, " ".join(done.stderr.split())


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--workers", "2"], "leave --workers out, and say how many with --ranks"),
        (["--retry"], "leave --retry out"),
        (
            ["--ranks", "9"],
            "the model has 8 experts in each layer, and each rank has at least one: choose 1 to 8",
        ),
        (["--backend", "tcp"], "ranks map one another's memory, which backend shm does: add --backend shm"),
        (["--model-weights", str(FOLDER / "weights.safetensors")], "has no experts: leave --moe out"),
    ],
)
def test_what_ranks_cannot_do_is_said_at_once(arguments, expected):
    code, said = refused(["--moe", *arguments])
    assert code == 1 and expected in said


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--ranks", "2"], "--moe"),
        (["--moe", "--ranks", "0"], '"0" is not a whole number from 1 to 64'),
        (["--moe", "--shape", "8b"], "--shape"),
        (["--moe", "--tensor-parallel", "2"], "--tensor-parallel"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments, expected):
    code, said = refused(arguments)
    assert code == 2 and expected in said


def test_a_model_with_experts_is_not_run_without_them():
    code, said = refused(["--model-weights", str(WEIGHTS)])
    assert code == 1 and "has 8 experts in each layer: add --moe" in said
