# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""`headrace demo --serve`: OpenAI's completions protocol, tried with OpenAI's own client."""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import until

pytest.importorskip("torch", reason="torch is not installed")

import openai

from headrace.demo_model import export, generate

BUILD = Path(__file__).resolve().parents[2] / "build" / "demo_model"
# The settings are named, so that the command needs not look up among the options of all backends.
COMMAND = [Path(sys.executable).parent / "headrace", "demo", "--backend", "shm", "--python", sys.executable]
MODEL = "headrace-demo"
PROMPT = "And the king said unto "


class Server:
    """`headrace demo --serve 0`."""

    def __init__(self, folder, *arguments):
        # Not below the test's folder, because paths of sockets must be short.
        self.runtime = tempfile.TemporaryDirectory(prefix="headrace-")
        environment = os.environ | {"TMPDIR": str(folder), "HEADRACE_RUNTIME_DIR": self.runtime.name}
        self.folder = folder
        self.process = subprocess.Popen(
            [*COMMAND, "--serve", "0", "--packages", BUILD, *map(str, arguments)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=(folder / "stderr").open("w"),
            text=True,
            start_new_session=True,
        )
        line = self.process.stdout.readline()
        assert line.startswith("listening at http://127.0.0.1:"), (line, self.errors())
        self.url = line.split()[-1]
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=100)

    def errors(self):
        return (self.folder / "stderr").read_text()

    def health(self):
        with urllib.request.urlopen(self.url + "/health", timeout=20) as answer:
            return json.load(answer)

    def is_well(self):
        try:
            return self.health()["status"] == "ok"
        except urllib.error.HTTPError:  # no worker answers: one may be starting
            return False

    def workers(self):
        return self.health()["workers"]

    def all_pages_are_free(self):
        return all(
            worker["free_pages"] == worker["pages"] for worker in self.workers() if "lost" not in worker
        )

    def complete(self, **wanted):
        return self.client.completions.create(
            model=MODEL, **({"prompt": PROMPT, "max_tokens": 24, "seed": 1} | wanted)
        )

    def streamed(self, **wanted):
        return text_of(self.complete(stream=True, **wanted))

    def begun(self, **wanted):
        """A stream whose first part has come."""
        stream = iter(self.complete(stream=True, **wanted))
        return [next(stream)], stream

    def connect(self):
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=60)

    def ask(self, body, version="1.1"):
        """A connection on which a request has been made, whose answer nobody has read yet."""
        connection, text = self.connect(), json.dumps(body)
        connection.sendall(
            f"POST /v1/completions HTTP/{version}\r\nHost: here\r\n"
            f"Content-Length: {len(text)}\r\n\r\n{text}".encode()
        )
        return connection

    def kill(self):
        self.client.close()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.runtime.cleanup()


def text_of(*parts):
    return "".join(part.choices[0].text for part in itertools.chain(*parts))


@pytest.fixture(scope="module")
def packages():
    """The exported packages, kept in the build folder from run to run."""
    export.export_pieces(BUILD, cache=BUILD / "cache")


@pytest.fixture(scope="module")
def server(packages, tmp_path_factory):
    """One for all tests that leave it as it was, with two decode workers."""
    server = Server(tmp_path_factory.mktemp("door"), "--workers", 2)
    yield server
    server.kill()


@pytest.fixture
def own_server(packages, tmp_path):
    """One that the test may end."""
    server = Server(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def start_server(packages, tmp_path):
    """Starts one with arguments of the test's own, which may end it."""
    started = []

    def start(*arguments):
        started.append(Server(tmp_path, *arguments))
        return started[-1]

    yield start
    for server in started:
        server.kill()


# Texts


LONG = 1000  # tokens


@pytest.fixture(scope="module")
def half_a_long_text(server):
    """Seconds in which a long text comes half-way. Pages that are free earlier do not wait for its end."""
    began = time.monotonic()
    assert server.complete(max_tokens=LONG).usage.completion_tokens == LONG
    return (time.monotonic() - began) / 2


@pytest.mark.slow
def test_the_text_is_that_of_the_reference(server):
    import torch

    torch.set_num_threads(1)
    model = generate.Weights.load(Path(generate.__file__).parent / "weights.safetensors")
    cache = generate.Cache(model.sizes, 16, generate.pages_for(100, 16))
    sampling = generate.Sampling(0.7, 0.9, 5)
    expected = bytes(
        generate.generate(generate.Pieces.packages(BUILD), model, cache, PROMPT.encode(), 60, sampling)
    )
    answer = server.complete(max_tokens=60, temperature=0.7, top_p=0.9, seed=5)
    assert answer.choices[0].text == expected.decode(errors="replace")
    assert (answer.object, answer.model, answer.choices[0].finish_reason) == (
        "text_completion",
        MODEL,
        "length",
    )
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(PROMPT), 60)
    assert server.streamed(max_tokens=60, temperature=0.7, top_p=0.9, seed=5) == answer.choices[0].text


def test_a_stream_comes_in_parts_and_ends_with_reason_and_usage(server):
    parts = list(server.complete(stream=True, stream_options={"include_usage": True}))
    assert len({part.id for part in parts}) == 1
    *texts, last, usage = parts
    assert len(texts) > 1 and all(part.choices[0].finish_reason is None for part in texts)
    assert last.choices[0].finish_reason == "length"
    assert usage.choices == [] and usage.usage.completion_tokens == 24


def test_a_prompt_may_be_a_list_with_one_text_or_bytes(server):
    expected = server.complete().choices[0].text
    assert server.complete(prompt=[PROMPT]).choices[0].text == expected
    assert server.complete(prompt=list(PROMPT.encode())).choices[0].text == expected


def test_echo_puts_the_prompt_before_the_text_and_replaces_what_is_no_text(server):
    prompt = b"\xff and \xe2\x82"
    answer = server.complete(prompt=list(prompt), echo=True).choices[0].text
    assert answer == prompt.decode(errors="replace") + server.complete(prompt=list(prompt)).choices[0].text
    assert server.streamed(prompt=list(prompt), echo=True) == answer


def test_a_text_ends_before_a_stop_word_and_frees_its_pages(server, half_a_long_text):
    whole = server.complete(max_tokens=60, temperature=0).choices[0].text
    word = whole[20:25]
    expected = whole[: whole.index(word)]
    answer = server.complete(max_tokens=LONG, temperature=0, stop=[word, "\x00"])
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (expected, "stop")
    assert server.streamed(max_tokens=LONG, temperature=0, stop=word) == expected
    until(server.all_pages_are_free, half_a_long_text)


def test_without_a_seed_texts_differ(server):
    assert (
        len({server.complete(seed=None, max_tokens=40, temperature=1).choices[0].text for _ in range(3)}) > 1
    )


def test_models_are_listed(server):
    assert [model.id for model in server.client.models.list()] == [MODEL]
    assert server.client.models.retrieve(MODEL).owned_by == "headrace"


@pytest.mark.slow
def test_twenty_streams_at_once_are_each_as_alone(server):
    prompts = [f"{'In the days of the king ' * (1 + i % 7)}{i} " for i in range(20)]
    wanted = [{"prompt": prompt, "max_tokens": 40, "seed": seed} for seed, prompt in enumerate(prompts)]
    alone = [server.complete(**one).choices[0].text for one in wanted]
    together = threading.Barrier(20)

    def at_once(one):
        together.wait()
        return server.streamed(**one)

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(at_once, wanted)) == alone
    assert len(set(alone)) == 20
    until(server.all_pages_are_free)


# Clients that leave


def test_a_client_that_leaves_in_mid_stream_frees_its_pages(server, half_a_long_text):
    stream = server.complete(stream=True, max_tokens=LONG)
    next(iter(stream))
    assert not server.all_pages_are_free()
    stream.close()
    until(server.all_pages_are_free, half_a_long_text)


def test_a_client_that_leaves_before_its_answer_frees_its_pages(server, half_a_long_text):
    with server.ask({"prompt": PROMPT, "max_tokens": LONG}):
        until(lambda: not server.all_pages_are_free())
    until(server.all_pages_are_free, half_a_long_text)


def answer_of(connection):
    """Status and body of what comes until the server closes; what is said before the answer is passed
    over."""
    heard = b"".join(iter(lambda: connection.recv(65536), b""))
    while heard.startswith(b"HTTP/1.1 100 "):
        heard = heard.partition(b"\r\n\r\n")[2]
    head, _, body = heard.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def test_a_client_that_closes_its_sending_side_gets_its_text(server):
    tokens = 150  # which take longer than the end of what the client sends
    expected = server.complete(max_tokens=tokens).choices[0].text
    with server.ask({"prompt": PROMPT, "max_tokens": tokens, "seed": 1}) as connection:
        connection.shutdown(socket.SHUT_WR)
        status, body = answer_of(connection)
    assert (status, json.loads(body)["choices"][0]["text"]) == (200, expected)
    with server.ask({"prompt": PROMPT, "max_tokens": tokens, "seed": 1, "stream": True}) as connection:
        connection.shutdown(socket.SHUT_WR)
        status, body = answer_of(connection)
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    assert (status, "".join(event["choices"][0]["text"] for event in events)) == (200, expected)


@pytest.mark.slow
def test_a_client_of_http_1_0_that_closes_its_sending_side_gets_its_text(server):
    with server.ask({"prompt": PROMPT, "max_tokens": 900, "seed": 1}, "1.0") as connection:
        connection.shutdown(socket.SHUT_WR)
        status, body = answer_of(connection)
    assert (status, json.loads(body)["choices"][0]["text"]) == (
        200,
        server.complete(max_tokens=900).choices[0].text,
    )


def test_a_client_that_closes_its_sending_side_and_then_leaves_frees_its_pages(server, half_a_long_text):
    with server.ask({"prompt": PROMPT, "max_tokens": LONG}) as connection:
        connection.shutdown(socket.SHUT_WR)
        until(lambda: not server.all_pages_are_free())
    until(server.all_pages_are_free, half_a_long_text)


def test_head_is_answered_without_a_body_and_a_target_may_name_the_host(server):
    with server.connect() as connection:
        connection.sendall(b"HEAD http://here/v1/models HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        assert answer_of(connection) == (200, b"")
    with server.connect() as connection:
        connection.sendall(b"GET http://here/v1/models HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        status, body = answer_of(connection)
    assert (status, json.loads(body)["data"][0]["id"]) == (200, MODEL)


def test_clients_that_leave_at_any_moment_free_their_pages_and_disturb_nobody(server):
    prompt = "And it came to pass " * 40
    expected = server.complete(prompt=prompt, max_tokens=60).choices[0].text
    with ThreadPoolExecutor(4) as pool:
        texts = [pool.submit(server.streamed, prompt=prompt, max_tokens=60) for _ in range(4)]
        for _ in range(30):
            server.ask({"prompt": prompt, "max_tokens": 1000, "stream": True}).close()
        assert [text.result() for text in texts] == [expected] * 4
    until(server.all_pages_are_free)


@pytest.mark.slow
def test_more_texts_than_there_are_pages_for_wait_for_their_turn(server):
    whole = server.complete(max_tokens=40, temperature=0).choices[0].text
    word = whole[30:35]
    pages = sum(worker["pages"] for worker in server.workers())
    reserved = -(-(len(PROMPT) + 1900) // 16)
    together = pages // reserved + 10
    with ThreadPoolExecutor(together) as pool:
        texts = pool.map(
            lambda _: server.complete(max_tokens=1900, temperature=0, stop=word).choices[0].text,
            range(together),
        )
        assert set(texts) == {whole[: whole.index(word)]}
    until(server.all_pages_are_free)


# What is wrong


@pytest.mark.parametrize(
    "wanted, error, said",
    [
        ({"model": "other"}, openai.NotFoundError, "there is no model \"other\": there is \"headrace-demo\""),
        ({"max_tokens": -1}, openai.BadRequestError, "max_tokens is -1: give a whole number from 1 to 2047"),
        ({"max_tokens": 2047}, openai.BadRequestError, "more than the model's context of 2048"),
        ({"prompt": ""}, openai.BadRequestError, "give at least one byte"),
        ({"prompt": ["a", "b"]}, openai.BadRequestError, "give one a request"),
        ({"n": 3}, openai.BadRequestError, "n is 3: give 1"),
        ({"temperature": -1}, openai.BadRequestError, "temperature is -1: give a number from 0 to 2"),
        ({"stop": [""]}, openai.BadRequestError, "each of 1 to 256 bytes"),
        ({"extra_body": {"seed": "x"}}, openai.BadRequestError, "seed is of the type string"),
        ({"stream": True, "max_tokens": 0}, openai.BadRequestError, "max_tokens is 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(server, wanted, error, said):
    with pytest.raises(error) as caught:
        server.client.completions.create(**({"model": MODEL, "prompt": PROMPT} | wanted))
    assert caught.value.type == "invalid_request_error"
    assert said in caught.value.body["message"]


@pytest.mark.parametrize(
    "method, path, status",
    [
        ("GET", "/", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/health", 405),
    ],
)
def test_what_is_not_there_is_said(server, method, path, status):
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(server.url + path, method=method), timeout=20)
    assert caught.value.code == status
    assert json.load(caught.value)["error"]["message"]


def test_whatever_comes_in_the_server_goes_on(server):
    bodies = [
        b"",
        b"{",
        b"[" * 1_000_000,
        b"\xff\xfe",
        b'{"prompt": ' + b"9" * 500_000 + b"}",
        b"null",
        b'"' + b"a" * 2_000_000,
    ]
    for body in bodies:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(server.url + "/v1/completions", data=body, timeout=20)
        assert caught.value.code in (400, 413)
    for text in (
        b"\0" * 100_000,
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"GET",
    ):
        with server.connect() as connection:
            try:
                connection.sendall(text)
            except ConnectionError:
                pass  # it has said its word already
    assert server.complete(max_tokens=3).usage.completion_tokens == 3


def test_a_port_in_use_is_said(server):
    port = server.url.split(":")[-1]
    command = [*COMMAND, "--serve", port, "--packages", BUILD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert f"port {port}" in done.stderr and "--serve 0" in done.stderr


# The end


def a_terminals_interrupt(process):
    """All processes of the terminal get it, the workers too."""
    os.killpg(process.pid, signal.SIGINT)


@pytest.mark.parametrize("stop", [subprocess.Popen.terminate, a_terminals_interrupt])
def test_a_signal_ends_streams_and_server(own_server, stop):
    parts = iter(own_server.complete(stream=True, max_tokens=1900))
    next(parts)
    with own_server.connect():  # a connection without a request holds nobody up
        stop(own_server.process)
        assert own_server.process.wait(30) == 0
    with pytest.raises(openai.APIError, match="being stopped"):
        list(parts)
    assert not list(own_server.folder.glob("headrace-work-*"))


def the_last_worker_dies(server, name):
    """Its client is told, and the server ends."""
    _, stream = server.begun(max_tokens=1900)
    os.kill(worker(server.process, name), signal.SIGKILL)
    with pytest.raises(openai.APIError, match=f"worker {name} ended by signal 9"):
        list(stream)
    assert server.process.wait(30) == 1
    assert f"worker {name} ended by signal 9" in server.errors()


def test_when_a_worker_dies_clients_are_told_and_the_server_ends(own_server):
    the_last_worker_dies(own_server, "decode-0")


def test_health_names_a_silent_worker(own_server):
    stopped = worker(own_server.process, "decode-0")
    os.kill(stopped, signal.SIGSTOP)
    with pytest.raises(urllib.error.HTTPError) as caught:
        own_server.workers()
    assert caught.value.code == 503
    assert json.load(caught.value)["workers"] == [{"name": "decode-0", "silent": True}]
    os.kill(stopped, signal.SIGCONT)
    until(own_server.all_pages_are_free)


@pytest.mark.slow
def test_when_one_of_two_workers_dies_its_clients_are_told_and_the_other_goes_on(start_server):
    server = start_server("--workers", 2)
    wanted = {"max_tokens": 1900, "seed": 5}
    streams = [server.begun(**wanted) for _ in range(2)]
    os.kill(worker(server.process, "decode-0"), signal.SIGKILL)
    texts, errors = [], []
    for begin, rest in streams:
        try:
            texts.append(text_of(begin, rest))
        except openai.APIError as error:
            errors.append(str(error))
    assert len(texts) == len(errors) == 1
    assert "worker decode-0 ended by signal 9" in errors[0]

    health = server.health()
    assert health["status"] == "degraded"
    assert health["workers"][0] == {"name": "decode-0", "lost": "ended by signal 9 (SIGKILL)"}
    assert [server.complete(**wanted).choices[0].text for _ in range(3)] == texts * 3
    until(server.all_pages_are_free)
    assert "worker decode-0 ended by signal 9 (SIGKILL); continuing with decode-1" in server.errors()
    the_last_worker_dies(server, "decode-1")


@pytest.mark.slow
def test_with_retry_the_texts_of_a_worker_that_dies_go_on(start_server):
    server = start_server("--workers", 2, "--retry")
    streams = [server.begun(max_tokens=1900, seed=5) for _ in range(2)]
    os.kill(worker(server.process, "decode-0"), signal.SIGKILL)
    first, second = (text_of(begin, rest) for begin, rest in streams)
    assert first == second == server.complete(max_tokens=1900, seed=5).choices[0].text
    assert "decode-0 is back" in server.errors()
    until(lambda: server.is_well() and server.all_pages_are_free())


@pytest.mark.slow
def test_with_retry_a_worker_that_is_back_before_its_loss_was_seen_gets_its_texts_again(start_server):
    server = start_server("--retry")
    begin, rest = server.begun(max_tokens=1900, seed=5)
    prefill, decode = (worker(server.process, name) for name in ("prefill", "decode-0"))
    os.kill(prefill, signal.SIGSTOP)  # it sees the old life and the new one at once
    os.kill(decode, signal.SIGKILL)
    until(lambda: "starting it again" in server.errors())
    until(server.is_well)
    os.kill(prefill, signal.SIGCONT)
    assert text_of(begin, rest) == server.complete(max_tokens=1900, seed=5).choices[0].text
    assert "decode-0 is back" in server.errors()


def test_a_silent_worker_of_two_is_ended_and_the_other_answers(start_server):
    server = start_server("--workers", 2, "--patience", 2)
    os.kill(worker(server.process, "decode-1"), signal.SIGSTOP)
    until(lambda: server.workers()[1].get("lost"))
    assert "decode-1 has sent nothing for 2 s: it is stopped by signal 19; ending it" in server.errors()
    assert len({server.complete().choices[0].text for _ in range(3)}) == 1


def worker(process, name):
    """The pid of a worker, which is a child of the command."""
    for children in Path(f"/proc/{process.pid}/task").glob("*/children"):
        for pid in children.read_text().split():
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"demo-worker" in arguments and name.encode() in arguments:
                return int(pid)
    raise AssertionError(f"{name} is not among the demo's processes")
