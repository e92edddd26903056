# SPDX-License-Identifier: Apache-2.0
# backends: by case
"""An agent whose process comes near its limit of file descriptors (ulimit -n)."""

import json
import subprocess
import sys
import threading
import time

import pytest

import headrace
from conftest import unique

MODEST, RESERVED = 120, 32
HANDSHAKE = 100  # seconds: a client that waits for it is not told
# A hub that has filled its limit while it held one for a moment, to refuse somebody, has that one left later.
FEW_LEFT = r"(no|\d) file descriptors? left"

# A hub in a process that may open few more descriptors. Each line is a number of files to hold open: at most
# that many. It answers with how many it has, or with the number of its log lines.
HUB = """
import json, os, resource, sys
import headrace

lines = []
headrace.set_log_sink(lambda level, room, text: lines.append(text))
name, backend, more, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
with headrace.Agent(name, [backend], listen="127.0.0.1:0", options=options) as agent:
    memory = agent.allocate(1 << 16, name="memory")
    memory.numpy()[:] = 7
    limit = len(os.listdir("/proc/self/fd")) + more
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    metadata = agent.export_metadata().hex()
    print(json.dumps({"address": agent.listen_address, "metadata": metadata}), flush=True)
    files = []
    for line in sys.stdin:
        wanted = int(line)
        while len(files) > wanted:
            os.close(files.pop())
        try:
            while len(files) < wanted:
                files.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        print(json.dumps({"files": len(files), "lines": lines}), flush=True)
"""


def patient(backend):
    return {f"{backend}.handshake_timeout": f"{HANDSHAKE}s"}


class Hub:
    def __init__(self, backend, more):
        self.name = unique("hub")
        self.process = subprocess.Popen(
            [sys.executable, "-c", HUB, self.name, backend, str(more), json.dumps(patient(backend))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        opened = json.loads(self.process.stdout.readline())
        self.address, self.metadata = opened["address"], bytes.fromhex(opened["metadata"])

    def hold_files(self, count):
        """Returns the number of files that it has opened, and its log."""
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["files"], answer["lines"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        assert self.process.wait(30) == 0
        self.process.stdout.close()


class Client:
    def __init__(self, hub, backend):
        self.hub = hub
        self.agent = headrace.Agent(unique("client"), [backend], options=patient(backend))
        self.agent.import_metadata(hub.metadata)
        self.memory = self.agent.allocate(1 << 16)

    def read(self):
        self.memory.numpy()[:] = 0
        local = self.agent.prepare([self.memory])
        remote = self.agent.prepare([self.agent.peer_region(self.hub.name, "memory")], self.hub.name)
        request = self.agent.make_request("read", local, remote)
        request.post()
        request.wait(30)
        assert (self.memory.numpy() == 7).all()


@pytest.fixture
def clients(backend):
    """A function that makes one more client of a hub."""
    made = []

    def make(hub):
        made.append(Client(hub, backend))
        return made[-1]

    yield make
    for client in made:
        client.agent.close()


def test_a_hub_refuses_links_while_its_program_can_still_open_files(backend, clients):
    with Hub(backend, MODEST) as hub:
        linked = []
        with pytest.raises(headrace.Exhausted) as refused:
            while len(linked) < 2 * MODEST:
                client = clients(hub)
                client.read()
                linked.append(client)
        assert linked
        assert hub.name in str(refused.value) and "ulimit -n" in str(refused.value)
        for _ in range(20):
            with pytest.raises(headrace.Exhausted, match="reserved_descriptors"):
                clients(hub).agent.connect(hub.name, 30)
        files, lines = hub.hold_files(RESERVED - 1)
        assert files == RESERVED - 1
        assert 1 <= sum("refused" in line for line in lines) < 20  # at most one a second
        for client in linked:
            client.read()


def test_a_hub_without_descriptors_says_so_to_each_client_at_once(backend, clients):
    with Hub(backend, MODEST) as hub:
        first = clients(hub)
        first.read()
        hub.hold_files(2 * MODEST)
        began = time.monotonic()
        for _ in range(5):
            client = clients(hub)
            with pytest.raises(headrace.Exhausted, match=f"{hub.name}.*{FEW_LEFT}.*ulimit -n"):
                client.agent.connect(hub.name, 30)
            with pytest.raises(headrace.Exhausted, match="ulimit -n"):
                client.read()
            with pytest.raises(headrace.Exhausted, match="ulimit -n"):
                client.agent.notify(hub.name, b"anybody there?")
            with pytest.raises(headrace.Exhausted, match=f"{hub.name}.*{FEW_LEFT}.*ulimit -n"):
                client.agent.fetch_metadata(hub.address)
        assert time.monotonic() - began < HANDSHAKE  # no timeout of a handshake has passed
        first.read()
        _, lines = hub.hold_files(0)
        assert 1 <= sum("refused" in line for line in lines) <= 16
        client = clients(hub)
        client.agent.fetch_metadata(hub.address)
        client.read()


def test_many_clients_at_once_are_told(backend, clients):
    with Hub(backend, MODEST) as hub:
        hub.hold_files(2 * MODEST)
        refused, began = [], time.monotonic()

        def read(client):
            with pytest.raises(headrace.Exhausted, match=FEW_LEFT):
                client.read()
            refused.append(client)

        threads = [threading.Thread(target=read, args=[clients(hub)]) for _ in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refused) == len(threads)
        assert time.monotonic() - began < HANDSHAKE


# Opens an agent with no free descriptor, with one, and so on.
WITHOUT = """
import os, resource, sys
import headrace

fd = os.open("/dev/null", os.O_RDONLY)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
held = []
try:
    while True:
        held.append(os.dup(fd))
except OSError:
    pass
opened = []
for free in range(60):
    try:
        headrace.Agent("agent", [sys.argv[1]], options={"log": "off"}).close()
        opened.append(free)
    except headrace.Exhausted as error:
        assert not opened and "ulimit -n" in str(error), (free, opened, str(error))
    os.close(held.pop())
assert opened
"""


def test_an_agent_that_lacks_descriptors_says_so(backend, run_script):
    code, _, errors = run_script(WITHOUT, backend)
    assert code == 0, errors


LOW = """
import os, resource, sys
import headrace

address, backend, hub = sys.argv[1:]
agents = []
limit = len(os.listdir("/proc/self/fd")) + 150
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
refused = None
try:
    while len(agents) < 150:
        agents.append(headrace.Agent(f"client {len(agents)}", [backend]))
        agents[-1].fetch_metadata(address)
        agents[-1].connect(hub, 30)
except headrace.Exhausted as error:
    refused = str(error)
assert agents and refused and "ulimit -n" in refused and "reserved_descriptors" in refused, refused
files = [open("/dev/null") for _ in range(8)]
"""


def test_a_client_refuses_a_link_that_would_take_the_descriptors_of_its_program(backend, run_script):
    with Hub(backend, 1000) as hub:
        code, _, errors = run_script(LOW, hub.address, backend, hub.name)
        assert code == 0, errors
