# SPDX-License-Identifier: Apache-2.0
"""The end of the interpreter and forks while agents are alive: no crash, no hang, no output."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent

OPEN = """
import os, sys, threading, time, headrace
sys.path.append({folder!r})
left = headrace.Agent("left", ["{backend}"], options={options})
right = headrace.Agent("right", ["{backend}"])
here, there = left.allocate(1 << 22), right.allocate(1 << 22, name="there")
left.import_metadata(right.export_metadata()); right.import_metadata(left.export_metadata())
pages, far = left.prepare([here]), left.prepare([left.peer_region("right", "there")], peer="right")
request = left.make_request("read", pages, far)
del pages, far
"""


def opened(backend, options=None):
    """The text of a program that has two agents and a request between them."""
    return OPEN.format(backend=backend, options=options or {}, folder=str(HERE))


ENDINGS = {
    "agents alive": "",
    "agents alive in a cycle": """
cycle = [left]; cycle.append(cycle)
right.on_notification(lambda *_: right.peers())
""",
    "a request just posted": "request.post()",
    "many requests just posted": """
pages, far = left.prepare([here]), left.prepare([left.peer_region("right", "there")], peer="right")
requests = [left.make_request("read", pages, far) for _ in range(50)]
for r in requests: r.post()
""",
    "callbacks pending": """
import queue
begun = queue.SimpleQueue()
def slow(error):
    begun.put(1)
    time.sleep(0.05)
def make():
    pages, far = left.prepare([here]), left.prepare([left.peer_region("right", "there")], peer="right")
    return left.make_request("read", pages, far)
requests = [make() for _ in range(50)]
for r in requests:
    r.on_done(slow)
    r.post()
begun.get()
assert begun.qsize() < 49
""",
    "messages for a callback pending": """
import queue
begun = queue.SimpleQueue()
def slow(peer, payload):
    begun.put(1)
    time.sleep(0.05)
right.on_notification(slow)
left.connect("right")
for i in range(100): left.notify("right", b"x")
begun.get()
assert begun.qsize() < 99
""",
    "a daemon in a wait": """
from sleeping import sleeps_in_epoll
def wait():
    try:
        right.wait_notification()
    except headrace.Canceled:  # the agent was closed
        pass
t = threading.Thread(target=wait, daemon=True); t.start()
while not sleeps_in_epoll(t.native_id): time.sleep(0.001)
""",
    "daemons in use of it": """
rounds = [0] * 4
def use(number):
    while True:
        try:
            left.read("right", [here], [left.peer_region("right", "there")])
            left.peers(); request.poll(); left.telemetry()
            rounds[number] += 1
        except headrace.Error:
            pass
for number in range(4): threading.Thread(target=use, args=(number,), daemon=True).start()
while min(rounds) < 2: time.sleep(0.001)
""",
    "a log sink": """
headrace.set_log_sink(lambda *line: None)
headrace.set_log_level("trace")
request.post()
""",
    "views of its memory": "view = memoryview(here); array = bytearray(10); left.register(array)",
    "an exception": "raise SystemExit(0)",
    "a name of it in a module": "sys.modules['kept'] = left; sys.agent = right",
}


@pytest.fixture
def only_errors_are_logged(monkeypatch):
    """A backend may warn of a connection that was cut while it was being made. These tests check the output
    of Python itself."""
    monkeypatch.setenv("HEADRACE_LOG", "error")


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_interpreter_ends_without_output_with(run_script, only_errors_are_logged, backend, ending):
    assert run_script(opened(backend) + ENDINGS[ending] + "\nprint('last line')") == (
        0,
        "" if ending == "an exception" else "last line\n",
        "",
    )


def test_the_interpreter_ends_while_threads_hold_the_last_references_to_agents(
    run_script, monkeypatch, backend
):
    monkeypatch.setenv("PYTHONMALLOC", "debug")  # overwrites what is freed
    text = f"""
import sys, threading, time, headrace
sys.path.append({str(HERE)!r})
from sleeping import sleeps_in_epoll
def wait(number):
    try:
        headrace.Agent(f"agent {{number}}", [{backend!r}]).wait_notification()
    except headrace.Canceled:
        pass
threads = [threading.Thread(target=wait, args=(number,), daemon=True) for number in range(4)]
for thread in threads: thread.start()
while not all(sleeps_in_epoll(thread.native_id) for thread in threads): time.sleep(0.001)
print("last line")
"""
    assert run_script(text) == (0, "last line\n", "")


def test_the_interpreter_ends_without_output_with_a_request_in_flight(run_script, only_errors_are_logged):
    text = """
request.post()
assert request.poll() == "posted"
print('last line')
"""
    assert run_script(opened("fake", {"fake.faults": "drop"}) + text) == (0, "last line\n", "")


FORK = """
child = os.fork()
if child == 0:
    for call in (left.peers, left.regions, left.export_metadata, lambda: left.notify("right", b"x"),
                 lambda: request.post(), lambda: left.prepare([here]), lambda: left.allocate(4096),
                 lambda: left.wait_notification(1)):
        try:
            call()
        except headrace.InvalidArgument as error:
            assert "process" in str(error), error
        else:
            print("no error", call); sys.exit(3)
    {ending}
_, status = os.waitpid(child, 0)
print("child", os.waitstatus_to_exitcode(status))
request.post(); request.wait(30)
left.notify("right", b"still here")
print(right.wait_notification(30))
"""


@pytest.mark.parametrize(
    "ending",
    [
        "sys.exit(0)",
        "left.close(); right.close(); sys.exit(0)",
        "del left, right, request, here, there; sys.exit(0)",
        "os._exit(0)",
    ],
)
def test_the_agents_of_a_forked_child_refuse_calls_and_the_parents_go_on(run_script, backend, ending):
    code, out, err = run_script(opened(backend) + FORK.format(ending=ending))
    assert (code, out, err) == (0, "child 0\n('left', b'still here')\n", "")


def test_a_forked_child_may_open_an_agent_of_its_own(run_script, backend):
    text = (
        opened(backend)
        + f"""
child = os.fork()
if child == 0:
    with headrace.Agent("child", ["{backend}"]) as agent:
        memory = agent.allocate(8192)
        agent.write("child", [(memory.region.id, 0, 4096)], [(memory.region.id, 4096, 4096)], timeout=30)
    sys.exit(0)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert run_script(text) == (0, "child 0\n", "")


def test_multiprocessing_may_fork_and_spawn_while_an_agent_is_open(run_script, tmp_path, backend):
    script = tmp_path / "program.py"
    script.write_text(
        f"""
import multiprocessing, sys, headrace
def work(number):
    with headrace.Agent(f"worker{{number}}", ["{backend}"]) as agent:
        return len(agent.allocate(4096))
if __name__ == "__main__":
    with headrace.Agent("main", ["{backend}"]):
        for method in ("fork", "spawn"):
            with multiprocessing.get_context(method).Pool(2) as pool:
                print(pool.map(work, range(3)))
"""
    )
    code, out, err = run_script(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
    assert (code, out) == (0, "[4096, 4096, 4096]\n[4096, 4096, 4096]\n"), err


def test_a_log_sink_gets_lines_and_may_raise_or_replace_itself(run_script):
    text = """
import sys, headrace
lines = []
headrace.set_log_level("trace")
headrace.set_log_sink(lambda level, room, text: lines.append((level, room, text)))
headrace.Agent("a", backends=["shm"]).close()
headrace.set_log_sink(None)  # all lines so far have been delivered
levels = ("error", "warn", "info", "debug", "trace")
assert lines and all(level in levels and room and text for level, room, text in lines), lines
seen = []
sys.unraisablehook = lambda args: seen.append(type(args.exc_value))
def fail(*line): raise KeyError(line)
headrace.set_log_sink(fail)
headrace.Agent("b", backends=["shm"]).close()
headrace.set_log_sink(None)
assert seen and set(seen) == {KeyError}, seen
once = []
def replace(*line):
    once.append(line)
    headrace.set_log_sink(None)
headrace.set_log_level("off")
headrace.set_log_level("trace")
headrace.set_log_sink(replace)
headrace.Agent("c", backends=["shm"]).close()
headrace.set_log_level("off")
for wrong, why in (("loud", 'log level "loud" in "loud" is not one of'),
                   ("=debug", '"=debug" in "=debug" names no room')):
    try:
        headrace.set_log_level(wrong)
    except headrace.InvalidArgument as error:
        assert why in str(error), error
    else:
        sys.exit("accepted " + wrong)
try:
    headrace.set_log_sink(7)
except headrace.InvalidArgument:
    print("fine")
"""
    code, out, err = run_script(text)
    assert (code, out) == (0, "fine\n"), err
