# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""`headrace demo`: a prefill worker and decode workers that write one text together."""

import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from headrace.demo_model import export, generate

BUILD = Path(__file__).resolve().parents[2] / "build" / "demo_model"
COMMAND = Path(sys.executable).parent / "headrace"
# Named, so that the command needs not look up among the options of all backends.
SETTINGS = {"--backend": "shm", "--python": sys.executable}
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

    def start(*arguments, folder=packages, **more):
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        process = subprocess.Popen(
            command(folder, *arguments),
            bufsize=0,  # `communicate` does not see what `read` has left in a buffer
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **more,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def command(folder, *arguments):
    """The command line; the settings are those of SETTINGS unless the arguments have others."""
    usual = [word for name, value in SETTINGS.items() if name not in arguments for word in (name, value)]
    return [COMMAND, "demo", "--packages", folder, *usual, *map(str, arguments)]


def finished(process, seconds=110):
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, err.decode()
    return json.loads(out), err.decode()


def a_prompt(length):
    text = " ".join(random.choices(WORDS, k=length))
    return text[:length].encode()


def child(process, *words):
    """The pid of the demo's child with these words on its command line."""
    children = Path(f"/proc/{process.pid}/task").glob("*/children")
    for pid in itertools.chain.from_iterable(path.read_text().split() for path in children):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if all(word in arguments for word in words):
            return int(pid)
    raise AssertionError(f"{words} is not among the demo's processes")


def worker(process, name):
    return child(process, b"demo-worker", name.encode())


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def combinations(every_day):
    """Numbers of workers and tokens of a page; all but one are slow tests."""
    return [
        pytest.param(*each, marks=[] if each == every_day else [pytest.mark.slow])
        for each in itertools.product((1, 3), (1, 16, 64))
    ]


@pytest.mark.parametrize("workers, page", combinations((3, 16)))
def test_the_tokens_are_those_of_one_process_alone(demo, workers, page):
    check_tokens(demo, "shm", workers, page)


def check_tokens(demo, backend, workers, page):
    said, _ = finished(
        demo(
            "--json",
            "--check",
            "--tokens",
            24,
            "--backend",
            backend,
            "--workers",
            workers,
            "--page",
            page,
            "--seed",
            7,
        )
    )
    assert (said["tokens"], said["path"], said["page_tokens"], said["decode_workers"]) == (
        24,
        backend,
        page,
        workers,
    )
    assert said["worker"] in [f"decode-{i}" for i in range(workers)]
    assert said["checked"] is True
    layers, token_bytes = 6, 2 * 2 * 32 * 4
    pages = layers * -(-said["prompt_tokens"] // page)
    assert (said["pages"], said["bytes"]) == (pages, pages * page * token_bytes)


@pytest.fixture(scope="module")
def small():
    """As the large model with random weights in all but size."""
    folder = BUILD.parent / "demo_small"
    export.export_pieces(folder, cache=BUILD / "cache", target=export.Target("small"))
    return folder


@pytest.mark.slow
def test_random_weights_are_the_same_in_every_process(demo, small):
    check_random_weights(demo, small, "shm")


def check_random_weights(demo, small, backend):
    process = demo(
        "--shape",
        "small",
        "--json",
        "--check",
        "--tokens",
        24,
        "--backend",
        backend,
        "--workers",
        2,
        folder=small,
    )
    said, _ = finished(process)
    assert (said["shape"], said["text"], len(said["token_ids"]), said["path"]) == ("small", "", 24, backend)
    assert said["prompt_tokens"] == 2048 - 24 and said["share_before_prefill_ended"] >= 0.7
    layers, token_bytes = 4, 2 * 2 * 32 * 2
    assert said["bytes"] == layers * -(-said["prompt_tokens"] // 16) * 16 * token_bytes
    assert (said["prefill_device"], said["decode_device"]) == ("cpu", "cpu") and said["tokens_per_second"] > 0


@pytest.mark.slow
def test_random_weights_print_what_moved_and_no_text(demo, small):
    process = demo("--shape", "small", "--prompt", "any text", "--tokens", 5, folder=small)
    out, err = process.communicate(timeout=110)
    assert (process.returncode, out) == (0, b""), err.decode()
    assert "8 + 5" in err.decode() and "B/s" in err.decode()


def test_the_text_is_that_of_the_reference(demo, packages):
    prompt = a_prompt(300)
    said, _ = finished(
        demo(
            "--json",
            "--prompt",
            prompt.decode(),
            "--tokens",
            60,
            "--temperature",
            0.7,
            "--top-p",
            0.9,
            "--seed",
            3,
        )
    )
    model = generate.Weights.load(Path(generate.__file__).parent / "weights.safetensors")
    cache = generate.Cache(model.sizes, 16, generate.pages_for(360, 16))
    import torch

    torch.set_num_threads(1)
    tokens = generate.generate(
        generate.Pieces.packages(packages), model, cache, prompt, 60, generate.Sampling(0.7, 0.9, 3)
    )
    assert said["text"] == bytes(tokens).decode(errors="replace")
    assert said["checked"] is False, "without --check no process compares the tokens"


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
    for row in (
        "starting a prefill worker, 1 decode worker",
        "tokens",
        "time to first token",
        "keys and values moved",
        "before prefill ended",
        "B/s",
        "path",
    ):
        assert row in err.decode()
    assert re.search(r"\nwritten by +decode-0 +the decode worker\n", err.decode())


def test_without_retry_the_prefill_worker_ends_and_names_the_decode_worker_that_died(demo):
    process = demo("--tokens", 1700)
    assert process.stdout.read(300)  # it writes
    prefill = worker(process, "prefill")
    os.kill(worker(process, "decode-0"), signal.SIGKILL)
    killed = time.monotonic()
    while runs(prefill):
        assert time.monotonic() < killed + 60, "the prefill worker goes on"
        time.sleep(0.01)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "prefill: decode-0 is lost" in err.decode()
    assert "worker decode-0 ended by signal 9" in err.decode()


def test_with_retry_the_text_goes_on_where_it_was(demo):
    process = demo("--tokens", 400, "--retry", "--check")
    first = process.stdout.read(200)
    os.kill(worker(process, "decode-0"), signal.SIGKILL)
    rest, err = process.communicate(timeout=110)
    assert process.returncode == 0, err.decode()
    assert "decode-0 is back" in err.decode() and "generates the same 400 tokens" in err.decode()
    assert len(first + rest) > 400


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--prompt", ""], "the prompt is empty"),
        (["--tokens", "5000"], "more than the model's context of 2048"),
        (["--page", "100"], "does not divide the chunk"),
        (["--prompt-file", "/nonexistent"], "read the prompt from /nonexistent"),
        (["--prompt-file", "/tmp"], "read the prompt from /tmp: Is a directory"),
        (["--prompt-file", "/dev/zero"], "longer than the model's context of 2048 tokens"),
        (["--tokens", "999999999"], "more than the model's context of 2048"),
        (["--model-weights", "/nonexistent.safetensors"], "/nonexistent.safetensors"),
        (["--python", "/nonexistent"], "compile the demo's model"),
        (["--device", "tpu"], "tpu"),
        (["--shape", "8b"], "takes 20 GB of a GPU for each worker: add --device cuda"),
        (["--shape", "small", "--serve", "0"], "write no text to serve"),
        (["--shape", "small", "--model-weights", "x.safetensors"], "leave --model-weights out"),
    ],
)
def test_what_is_wrong_is_said(demo, arguments, expected):
    process = demo(*arguments)
    out, err = process.communicate(timeout=110)
    assert process.returncode == 1, out
    assert expected in err.decode()


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--tokens", "0"], "--tokens"),
        (["--tokens", "-1"], "--tokens"),
        (["--tokens", "99999999999999999999"], "--tokens"),
        (["--temperature", "nan"], "--temperature"),
        (["--top-p", "nan"], "--top-p"),
        (["--page", "257"], "--page"),
        (["--shape", "70b"], "--shape"),
        (["--serve", "0", "--check"], "--check"),
        (["--prompt", "a", "--prompt-file", "-"], "--prompt-file"),
    ],
)
def test_a_command_line_that_is_wrong_is_refused(demo, arguments, expected):
    process = demo(*arguments)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, b"")
    assert expected in err.decode()


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_said(demo):
    process = demo("--device", "cuda")
    _, err = process.communicate(timeout=60)
    assert (
        process.returncode == 1
        and "this machine has no GPU: leave the option out to run on the CPU"
        in " ".join(err.decode().split())
    )


def test_a_temporary_folder_that_is_none_is_named(packages):
    environment = os.environ | {"TMPDIR": "/nonexistent"}
    done = subprocess.run(
        command(packages),
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "temporary files cannot be made in /nonexistent" in done.stderr


def test_a_reader_that_leaves_ends_the_text(demo):
    process = demo("--tokens", 1700)
    assert process.stdout.read(10)
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    assert "time to first token" not in err.decode()  # it did not go on to the end


def test_a_full_device_is_said(packages, tmp_path):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command(packages),
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr and "time to first token" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_text_and_leaves_nothing(demo, tmp_path, number):
    # Whoever runs the tests under nohup has SIGHUP ignored, which a child inherits.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        process = demo("--tokens", 1700, "--backend", "shm")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert process.stdout.read(200)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -number, err.decode()
    assert not list(tmp_path.glob("headrace-work-*"))
    assert not [path for path in Path(os.environ["HEADRACE_RUNTIME_DIR"]).rglob("*") if not path.is_dir()]


def test_what_a_killed_demo_left_is_removed_by_the_next(demo, tmp_path):
    process = demo("--tokens", 1700)
    assert process.stdout.read(200)
    process.kill()
    process.wait()
    assert list(tmp_path.glob("headrace-work-*"))
    finished(demo("--json", "--tokens", 3))
    assert not list(tmp_path.glob("headrace-work-*"))


def test_a_worker_that_says_nothing_is_named(demo):
    process = demo("--tokens", 1700, "--patience", 2)
    assert process.stdout.read(200)
    os.kill(worker(process, "decode-0"), signal.SIGSTOP)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "worker decode-0 has sent nothing for 2 s: it is stopped by signal 19" in err.decode()


@pytest.mark.slow
def test_with_retry_a_prompt_runs_again_if_the_decode_worker_died_while_it_ran(demo):
    process = demo("--prompt", " ".join(WORDS * 22)[:1700], "--tokens", 40, "--retry", "--check")
    assert process.stdout.read(1)  # the prompt is printed when it begins to run
    time.sleep(0.02)  # it takes longer than this
    os.kill(worker(process, "decode-0"), signal.SIGKILL)
    _, err = process.communicate(timeout=110)
    assert process.returncode == 0, err.decode()
    assert "decode-0 is back" in err.decode() and "generates the same 40 tokens" in err.decode()


@pytest.mark.slow
def test_with_retry_weights_that_are_gone_come_back(demo):
    process = demo("--tokens", 1200, "--retry", "--check")
    assert process.stdout.read(200)
    os.kill(child(process, b"serve"), signal.SIGKILL)
    os.kill(worker(process, "decode-0"), signal.SIGKILL)
    _, err = process.communicate(timeout=110)
    assert process.returncode == 0, err.decode()
    assert "weights ended by signal 9" in err.decode() and "decode-0 is back" in err.decode()


def test_a_worker_that_cannot_live_is_given_up_by_name(demo):
    process = demo("--tokens", 1700, "--retry")
    assert process.stdout.read(200)
    end = time.monotonic() + 100
    while process.poll() is None:
        assert time.monotonic() < end, "it is started again for ever"
        try:
            os.kill(worker(process, "decode-0"), signal.SIGKILL)
        except (AssertionError, OSError):
            pass  # in a pause, or just ended
        time.sleep(0.01)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "worker decode-0 ended by signal 9" in err.decode() and "6 times in a row" in err.decode()


def test_nothing_is_left_behind(demo, tmp_path):
    finished(demo("--json", "--tokens", 3))
    assert not list(tmp_path.glob("headrace-work-*"))
    process = demo("--tokens", 1700)
    assert process.stdout.read(200)
    workers = [worker(process, name) for name in ("prefill", "decode-0")]
    process.kill()  # the front cannot say goodbye
    process.wait()
    ended = time.monotonic() + 20
    while any(runs(pid) for pid in workers):
        assert time.monotonic() < ended, "workers outlive the demo"
        time.sleep(0.01)
    for folder in tmp_path.glob("headrace-work-*"):
        shutil.rmtree(folder)
