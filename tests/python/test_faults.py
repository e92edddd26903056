# SPDX-License-Identifier: Apache-2.0
"""Requests in flight, and paths that fail at a page. The backend `fake` does both by script."""

import asyncio
import re
import select
import signal
import threading

import numpy as np
import pytest

import headrace
from conftest import PeerProcess, introduce, unique, until
from sleeping import sleeps_in_epoll

PAGE, COUNT = 331, 12  # odd lengths, so nothing is aligned


class Scripted:
    """Two agents over `fake`, and a request that reads COUNT pages of one into the other in another order."""

    def __init__(self, faults, completion="progress", timeout=None):
        self.left = headrace.Agent(
            unique("left"), ["fake"], options={"fake.faults": faults, "fake.completion": completion}
        )
        self.right = headrace.Agent(unique("right"), ["fake"])
        rng = np.random.default_rng()
        self.source = rng.integers(1, 256, (COUNT, PAGE), dtype=np.uint8)
        self.here = np.zeros_like(self.source)
        ours, theirs = self.left.register(self.here), self.right.register(self.source)
        introduce(self.left, self.right)
        self.left.connect(self.right.name, 30)  # the script counts no post that waits for its link
        self.order = rng.permutation(COUNT)
        local = self.left.prepare(headrace.UniformPages(ours, 0, 0, PAGE, COUNT))
        remote = self.left.prepare(headrace.UniformPages(theirs.id, 0, 0, PAGE, COUNT), peer=self.right.name)
        self.make_request = lambda: self.left.make_request(
            "read", local, remote, None, self.order, timeout=timeout
        )
        self.request = self.make_request()

    def arrived(self):
        """For each page, whether it has arrived completely. All others must be unchanged."""
        whole = (self.here == self.source[self.order]).all(axis=1)
        assert not self.here[~whole].any()
        return whole.tolist()

    def close(self):
        self.left.close()
        self.right.close()


@pytest.fixture
def script():
    """A function that makes a Scripted with the given faults."""
    made = []

    def make(*arguments, **named):
        made.append(Scripted(*arguments, **named))
        return made[-1]

    yield make
    for scripted in made:
        scripted.close()


def test_a_post_may_end_when_a_slice_of_its_wait_has_passed(script):
    """Python waits in slices of 100 ms. After one the thread may wait some ms for the interpreter, in which
    the post ends."""
    case = script(",".join(f"delay:{ms}ms@{post}" for post, ms in enumerate(range(97, 107), 1)), "thread")
    done = threading.Event()

    def keep_the_interpreter():
        while not done.is_set():
            pass

    busy = threading.Thread(target=keep_the_interpreter)
    busy.start()
    try:
        for _ in range(10):
            case.request.post()
            case.request.wait(30)
    finally:
        done.set()
        busy.join()
    assert case.request.state == "done"
    assert all(case.arrived())


def test_a_wait_that_times_out_leaves_the_request_in_flight(script):
    case = script("drop@1")
    case.request.post()
    for timeout in (0, 0.01):
        with pytest.raises(headrace.TimedOut, match=f"^read from peer {case.right.name}: still in flight"):
            case.request.wait(timeout)
    assert (case.request.poll(), case.request.done, case.request.error) == ("posted", False, None)
    with pytest.raises(
        headrace.InvalidArgument, match="not posted: the request is in flight: wait"
    ) as refused:
        case.request.post()
    assert "closed" not in str(refused.value) and "GPU" not in str(refused.value)
    case.request.cancel()
    with pytest.raises(headrace.Canceled, match=case.right.name):
        case.request.wait(30)
    assert case.request.state == "canceled" and case.arrived() == [False] * COUNT
    case.request.post()
    case.request.wait(30)
    assert case.arrived() == [True] * COUNT


@pytest.mark.parametrize(
    ("faults", "error"),
    [("drop", headrace.TimedOut), ("drop", headrace.Canceled), ("partial:500", headrace.BackendFailed)],
)
def test_an_error_has_a_sentence_and_does_not_repeat_its_code(script, faults, error):
    case = script(faults)
    case.request.post(timeout=0.05 if error is headrace.TimedOut else None)
    if error is headrace.Canceled:
        case.request.cancel()
    with pytest.raises(error) as caught:
        case.request.wait(30)
    what, _, why = str(caught.value).partition(": ")
    assert (
        what.startswith(f"read from peer {case.right.name}")
        and len(why) > 10
        and f"{caught.value.code}:" not in why
    )


@pytest.mark.parametrize("whose", ["post's", "request's"])
def test_a_request_ends_by_its_own_deadline(script, whose):
    case = script("drop", timeout=0.05 if whose == "request's" else None)
    case.request.post(timeout=0.05 if whose == "post's" else None)
    with pytest.raises(headrace.TimedOut, match="deadline") as caught:
        case.request.wait(30)
    assert case.right.name in str(caught.value) and case.request.done
    assert isinstance(case.request.error, headrace.TimedOut)


def test_a_canceled_request_signals_its_callback_its_descriptor_and_its_await(script):
    case = script("drop@1..2")
    errors = []
    case.request.on_done(errors.append)
    case.request.post()
    assert select.select([case.request], [], [], 0)[0] == []
    case.request.cancel()
    assert select.select([case.request], [], [], 30)[0] == [case.request]
    until(lambda: errors)
    assert isinstance(errors[0], headrace.Canceled)

    async def main():
        case.request.post()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(case.request, 0.01)

    asyncio.run(main())
    assert case.request.state == "canceled"


@pytest.mark.parametrize(
    ("faults", "error", "page"),
    [("kill:7", headrace.PeerLost, 7), (f"partial:{5 * PAGE}", headrace.BackendFailed, 5)],
)
def test_an_error_during_a_move_names_the_peer_and_the_page(script, faults, error, page):
    case = script(f"{faults}@1")
    with pytest.raises(error, match=case.right.name) as caught:
        case.request.post()
        case.request.wait(30)
    assert caught.value.page == page and f"page {page}" in str(caught.value)
    again = case.request.error
    assert (type(again), again.page, str(again)) == (error, page, str(caught.value))
    assert case.arrived() == [True] * page + [False] * (COUNT - page)


def test_a_delayed_request_is_polled_waited_for_and_awaited(script):
    case = script("delay:20ms")
    case.request.post(notification=b"late")
    assert case.request.poll() == "posted"
    until(lambda: case.request.poll() == "done")
    assert case.arrived() == [True] * COUNT
    assert case.request.times.transfer_ns >= 20_000_000 > case.request.times.post_ns
    case.request.post()
    case.request.wait(30)

    async def main():
        case.request.post()
        await case.request

    asyncio.run(main())
    assert case.request.times.posts == 3
    assert case.right.wait_notification(30) == (case.left.name, b"late")


def test_a_one_shot_that_is_not_done_in_time_is_canceled(script):
    case = script("drop@1")
    pages = [(case.left.regions()[0].id, 0, PAGE)], [(case.right.regions()[0].id, PAGE, PAGE)]
    with pytest.raises(headrace.TimedOut, match=case.right.name):
        case.left.read(case.right.name, *pages, timeout=0.05)
    assert not case.here.any()
    assert case.left.read(case.right.name, *pages, timeout=30).state == "done"
    assert (case.here[0] == case.source[1]).all()


class Rung(Exception):
    pass


@pytest.fixture
def ring_when_asleep():
    """A function that interrupts the main thread with Rung as soon as it sleeps in the library."""

    def ring(*_):
        raise Rung

    def watch():
        main = threading.main_thread()
        until(lambda: sleeps_in_epoll(main.native_id))
        signal.pthread_kill(main.ident, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, ring)
    watcher = threading.Thread(target=watch)
    yield watcher.start
    watcher.join()
    signal.signal(signal.SIGALRM, before)


def test_a_signal_ends_a_wait_and_the_request_stays_in_flight(script, ring_when_asleep):
    case = script("drop@1")
    case.request.post()
    ring_when_asleep()
    with pytest.raises(Rung):
        case.request.wait()
    assert case.request.poll() == "posted"


@pytest.mark.parametrize("call", ["connect", "map"])
def test_a_signal_ends_a_wait_for_a_peer_that_is_stopped(ring_when_asleep, call):
    peer = PeerProcess(unique("stopped"), "shm")
    try:
        with headrace.Agent(unique("here"), ["shm"], options={"shm.handshake_timeout": "60s"}) as agent:
            agent.fetch_metadata(peer.address)
            region = agent.peer_region(peer.name, "allocated")
            peer.stop()
            ring_when_asleep()
            with pytest.raises(Rung):
                agent.connect(peer.name, None) if call == "connect" else agent.map(peer.name, region, None)
            peer.resume()
            agent.connect(peer.name, 30)
            assert agent.map(peer.name, region).alive
    finally:
        peer.resume()
        peer.close()


def test_a_signal_ends_a_one_shot_after_its_request_has_ended(script, ring_when_asleep):
    case = script("drop@1")
    ring_when_asleep()
    with pytest.raises(Rung):
        case.left.read(case.right.name, [case.here], [(case.right.regions()[0].id, 0, case.source.nbytes)])
    assert case.left.telemetry().counters["requests.canceled"] == 1
    case.left.deregister(case.left.regions(), timeout=30)
    assert not case.here.any()


def test_requests_dropped_in_flight_are_canceled_and_leave_nothing_behind(script):
    case, count = script("drop"), 200
    for _ in range(count):
        request = case.make_request()
        request.post()
        assert request.poll() == "posted"
        del request
    until(lambda: case.left.telemetry().counters["requests.canceled"] == count)
    case.left.deregister(case.left.regions(), timeout=30)
    assert case.left.regions() == [] and not case.here.any()


def test_closing_the_agent_cancels_its_requests_in_flight(script):
    case = script("drop")
    case.request.post()
    assert case.request.poll() == "posted"
    case.left.close()
    assert case.request.state == "canceled" and isinstance(case.request.error, headrace.Canceled)


def test_a_request_whose_only_path_declines_is_not_made(script):
    with pytest.raises(headrace.NotSupported, match="fake"):
        script("deny")


def test_a_request_takes_another_path_if_the_first_fails():
    options = {"fake.faults": "partial:100@1", "fake.completion": "inline"}
    with (
        headrace.Agent(unique("left"), ["fake", "tcp"], options=options) as left,
        headrace.Agent(unique("right"), ["fake", "tcp"]) as right,
    ):
        source = np.random.default_rng().integers(0, 256, 10_007, dtype=np.uint8)
        here = np.zeros_like(source)
        theirs = right.register(source)
        left.register(here)
        introduce(left, right)
        request = left.make_request(
            "read", left.prepare([here]), left.prepare([(theirs.id, 0, source.size)], right.name)
        )
        first = request.backend
        request.post()
        request.wait(30)
        assert (here == source).all()
        assert first == "fake" and request.backend == "tcp", request.explain()
        assert re.search(
            r"not fake: it failed this post: .*the fault script stopped the copy after 100 bytes",
            request.explain(),
        ), request.explain()


def test_a_post_with_an_immediate_tries_no_other_path_after_a_failure():
    options = {"fake.faults": "partial:100@1", "fake.completion": "inline"}
    with (
        headrace.Agent(unique("left"), ["fake", "tcp"], options=options) as left,
        headrace.Agent(unique("right"), ["fake", "tcp"]) as right,
    ):
        source = np.random.default_rng().integers(1, 256, 10_007, dtype=np.uint8)
        target = np.zeros_like(source)
        theirs = right.register(target)
        left.register(source)
        introduce(left, right)
        request = left.make_request(
            "write", left.prepare([source]), left.prepare([(theirs.id, 0, source.size)], right.name)
        )
        request.post(immediate=1)
        with pytest.raises(headrace.BackendFailed, match="stopped the copy after 100 bytes"):
            request.wait(30)
        assert request.backend == "fake"
        request.post(immediate=1)
        request.wait(30)
        right.counter(1).wait(1, timeout=30)
        assert (target == source).all()
        assert right.counter(1).value == 1
