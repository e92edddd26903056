# SPDX-License-Identifier: Apache-2.0
"""Shared fixtures: two agents over each backend, a peer in a second process, a time limit for each test."""

import contextlib
import faulthandler
import itertools
import json
import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

import headrace
import parts
import peer_process
from parts import pytest_collection_modifyitems  # noqa: F401  (a hook)
from rank_process import RankProcess

HERE = Path(__file__).resolve().parent
TEST_SECONDS, SLOW_TEST_SECONDS = 120, 1800

_numbers = itertools.count()


def pytest_addoption(parser):
    parser.addoption(
        "--soak-seconds", type=float, default=600, help="how long the soak between GPUs may take"
    )
    parts.add_option(parser)


def pytest_configure(config):
    """Keeps a copy of the real stderr: during a test pytest replaces stderr, and that text is lost if the
    process exits."""
    config.real_stderr = os.dup(2)


@pytest.fixture(autouse=True)
def no_test_hangs(request):
    """Prints the stack of every thread and ends the process if a test runs too long."""
    seconds = SLOW_TEST_SECONDS if request.node.get_closest_marker("slow") else TEST_SECONDS
    faulthandler.dump_traceback_later(seconds, exit=True, file=request.config.real_stderr)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def no_rank_outlives_its_test():
    yield
    RankProcess.kill_all()


@pytest.fixture(autouse=True)
def own_runtime_folder(tmp_path_factory, monkeypatch):
    """Gives each test a runtime folder of its own, so that it meets no other agents. The folder is not below
    the test's folder, because paths of sockets must be short."""
    folder = tmp_path_factory.mktemp("run")
    folder.chmod(0o700)
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", str(folder))


@pytest.fixture(params=parts.BY_CASE)
def backend(request):
    return request.param


def introduce(left, right):
    """Each agent imports all metadata of the other."""
    left.import_metadata(right.export_metadata())
    right.import_metadata(left.export_metadata())


def unique(name):
    return f"{name}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def agent(backend):
    with headrace.Agent(unique("agent"), backends=[backend]) as agent:
        yield agent


@pytest.fixture
def pair(backend):
    """Two agents of one process that know each other and have no regions yet."""
    with (
        headrace.Agent(unique("left"), [backend]) as left,
        headrace.Agent(unique("right"), [backend]) as right,
    ):
        introduce(left, right)
        yield left, right


def until(condition, seconds=30):
    """Waits until the condition holds; another thread or process makes it true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{condition} did not come true in {seconds} s"
        time.sleep(0.001)


class PeerProcess:
    """Runs tests/python/peer_process.py: an agent in a process of its own that takes commands as lines."""

    def __init__(self, name, backend, under=()):
        """under: a command that starts the process, for example in another PID namespace."""
        self.name = name
        command = [*under, sys.executable, str(HERE / "peer_process.py"), name, backend]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = self.answer()["address"]

    def answer(self):
        line = self.process.stdout.readline()
        assert line, f"the peer's process: {subprocess.CalledProcessError(self.process.wait(), self.name)}"
        return json.loads(line)

    def ask(self, command, **arguments):
        self.process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        self.process.stdin.flush()
        answer = self.answer()
        assert "error" not in answer, answer
        return answer

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Returns when every thread of the process has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        until(lambda: all(state == "T" for state in self.thread_states()))

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def thread_states(self):
        stats = Path(f"/proc/{self.process.pid}/task").glob("*/stat")
        return [stat.read_text().rpartition(")")[2].split()[0] for stat in stats]

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            self.process.stdout.close()


@pytest.fixture
def start_peer(backend):
    """A function that starts a peer with the given name in another process."""
    peers = []

    def start(name):
        peers.append(PeerProcess(name, backend))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()


@pytest.fixture(
    params=[("shm", "no link"), ("tcp", "no link"), ("tcp", "link")], ids=lambda param: " ".join(param)
)
def stopped(request):
    """A read of 1 MiB from a peer whose process is stopped: a post stays in flight until `resume`. A link
    that is not ready needs the peer. Over one that is ready, tcp needs the peer and shm does not."""
    backend, link = request.param
    peer = PeerProcess(unique("stopped"), backend)
    try:
        # The link is not to end by time.
        options = {f"{backend}.handshake_timeout": "120s"}
        with headrace.Agent(unique("here"), [backend], options=options) as agent:
            agent.fetch_metadata(peer.address)
            memory = agent.allocate(peer_process.REGION_BYTES)
            region = agent.peer_region(peer.name, "registered")
            local, remote = agent.prepare([memory]), agent.prepare([region], peer.name)
            if link == "link":
                agent.connect(peer.name, 30)
            peer.stop()
            try:
                yield SimpleNamespace(
                    agent=agent,
                    peer=peer,
                    here=memory.numpy(),
                    there=peer_process.contents(),
                    make_request=lambda **more: agent.make_request("read", local, remote, **more),
                )
            finally:
                peer.resume()
    finally:
        peer.close()


@pytest.fixture
def run_script():
    """Runs a program in a fresh interpreter; returns its exit code, output and errors."""

    def run(text, *arguments, seconds=60):
        done = subprocess.run(
            [sys.executable, "-c", text, *arguments],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def nixl_log(caplog, monkeypatch):
    """caplog with the lines of the drop-in, whose loggers pass nothing on to others."""
    from headrace.compat.nixl.logging import setup_logging

    setup_logging()
    monkeypatch.setattr(logging.getLogger("nixl"), "propagate", True)
    return caplog


def free_ports(count):
    """Ports that are free, and below those that the system gives to connections and to listeners that name
    none: no other test gets one by chance before it is used."""
    given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates, ports = range(10_000, max(given, 20_000)), set()
    while len(ports) < count:
        port = random.SystemRandom().choice(candidates)
        with contextlib.suppress(OSError):
            socket.create_server(("", port)).close()
            ports.add(port)
    return list(ports)


@pytest.fixture(scope="session")
def etcd(tmp_path_factory):
    """host:port of a real etcd. All tests share it; each uses a namespace of its own."""
    program = shutil.which("etcd")
    assert program, "etcd is not installed: run tools/setup.sh"
    folder = tmp_path_factory.mktemp("etcd")
    client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    command = [
        program,
        "--data-dir",
        str(folder / "data"),
        "--listen-client-urls",
        client,
        "--advertise-client-urls",
        client,
        "--listen-peer-urls",
        peer,
        "--initial-advertise-peer-urls",
        peer,
        "--initial-cluster",
        f"default={peer}",
    ]
    with (folder / "etcd.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def healthy():
        assert server.poll() is None, (folder / "etcd.log").read_text()
        try:
            with urllib.request.urlopen(f"{client}/health", timeout=5) as answer:
                return b"true" in answer.read()
        except OSError:
            return False

    try:
        until(healthy, 60)
        yield client.removeprefix("http://")
    finally:
        server.terminate()
        server.wait(30)
