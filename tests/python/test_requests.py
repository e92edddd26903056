# SPDX-License-Identifier: Apache-2.0
# backends: by case
"""Requests: the bytes arrive, every completion is reported in every form, and a dropped request leaves
nothing behind."""

import gc
import os
import select
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import headrace
import peer_process
from conftest import introduce, unique, until


def random_bytes(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


@pytest.fixture
def lists(pair):
    """The agent left, and lists of 64 pages of 4096 bytes on each side."""
    left, right = pair
    here, there = left.allocate(1 << 18), right.allocate(1 << 18, name="there")
    there.numpy()[:] = random_bytes(1 << 18)
    left.import_metadata(right.export_metadata())
    local = left.prepare(headrace.UniformPages(here, 0, 0, 4096, 64))
    remote = left.prepare(
        headrace.UniformPages(left.peer_region(right.name, "there"), 0, 0, 4096, 64), peer=right.name
    )
    return left, right, here, there, local, remote


@pytest.mark.parametrize("op", ["read", "write"])
@pytest.mark.parametrize("memory", ["allocated", "registered"])
def test_random_pages_of_odd_sizes_at_odd_offsets_arrive(pair, op, memory):
    left, right = pair
    rng = np.random.default_rng(1)
    size = 3_000_017

    def make(agent, seed):
        data = agent.allocate(size, name="r").numpy() if memory == "allocated" else np.empty(size, np.uint8)
        if memory == "registered":
            agent.register(data, name="r")
        data[:] = random_bytes(size, seed)
        return data

    here, there = make(left, 2), make(right, 3)
    left.import_metadata(right.export_metadata())
    # Pages that tile both sides without overlap, in a different order on each side, of 1 byte to 100 kB.
    lengths = np.unique(np.concatenate([np.arange(1, 40), rng.integers(1, 100_000, 30)])).astype(np.uint64)
    rng.shuffle(lengths)
    assert lengths.sum() + len(lengths) * 3 < size

    def tile():
        order = rng.permutation(len(lengths))
        offsets = np.empty(len(lengths), np.uint64)
        at = 1
        for i in order:
            offsets[i] = at
            at += int(lengths[i]) + int(rng.integers(0, 4))
        return offsets

    local_at, remote_at = tile(), tile()
    expected_here, expected_there = here.copy(), there.copy()
    for a, b, n in zip(local_at.tolist(), remote_at.tolist(), lengths.tolist()):
        if op == "read":
            expected_here[a : a + n] = there[b : b + n]
        else:
            expected_there[b : b + n] = here[a : a + n]
    table = np.column_stack([local_at + np.uint64(here.ctypes.data), lengths])
    region = left.peer_region(right.name, "r")
    far = np.column_stack([np.full(len(lengths), region.id, np.uint64), remote_at, lengths])
    request = getattr(left, op)(right.name, table, far, timeout=60)
    assert request.bytes == lengths.sum() and request.state == "done"
    assert (here == expected_here).all() and (there == expected_there).all()


def test_a_thousand_regions_registered_in_one_call_are_read_in_one_request(pair):
    left, right = pair
    rng = np.random.default_rng()
    arrays = [rng.integers(0, 256, int(n), dtype=np.uint8) for n in rng.integers(1, 700, 1000)]
    regions = right.register(arrays, name="part")
    left.import_metadata(right.export_metadata())
    whole = np.zeros(sum(array.size for array in arrays), np.uint8)
    left.register(whole)
    ends = np.cumsum([array.size for array in arrays])
    order = rng.permutation(1000)
    pages = [whole[ends[i] - arrays[i].size : ends[i]] for i in order]
    request = left.read(right.name, pages, [(regions[i].id, 0, arrays[i].size) for i in order], timeout=60)
    assert (request.pages, request.bytes) == (1000, whole.size)
    assert (whole == np.concatenate(arrays)).all()


def test_indices_select_pages_in_any_order(lists):
    left, _, here, there, local, remote = lists
    rng = np.random.default_rng(4)
    ours, theirs = rng.permutation(64)[:40], rng.permutation(64)[:40].astype(np.int32)
    request = left.make_request("read", local, remote, ours, theirs)
    request.post()
    request.wait(30)
    got, sent = here.numpy("u1", (64, 4096)), there.numpy("u1", (64, 4096))
    assert (got[ours] == sent[theirs]).all()
    assert not np.delete(got, ours, axis=0).any()


@pytest.mark.parametrize("op", ["read", "write"])
def test_strided_pages_of_a_peer_or_of_the_same_agent_are_selected_by_index(agent, pair, op):
    rng = np.random.default_rng()
    page, stride, count = 613, 1009, 97

    for mover, owner in ((agent, agent), pair):
        ours, theirs = (rng.integers(0, 256, 41 + stride * count, dtype=np.uint8) for _ in range(2))
        here, there = mover.register(ours), owner.register(theirs)
        if owner is not mover:
            mover.import_metadata(owner.export_metadata())
        local = mover.prepare(headrace.UniformPages(here, 17, stride, page, count))
        remote = mover.prepare(headrace.UniformPages(there.id, 41, stride, page, count), peer=owner.name)
        picked = rng.permutation(count)[:60], rng.permutation(count)[:60].astype(np.uint32)
        source, target = (theirs.copy(), ours.copy()) if op == "read" else (ours.copy(), theirs.copy())
        bases = (41, 17) if op == "read" else (17, 41)
        for a, b in zip(*(reversed(picked) if op == "read" else picked)):
            begin, end = bases[0] + int(a) * stride, bases[1] + int(b) * stride
            target[end : end + page] = source[begin : begin + page]
        request = mover.make_request(op, local, remote, *picked)
        request.post()
        request.wait(60)
        assert ((ours if op == "read" else theirs) == target).all()
        assert ((theirs if op == "read" else ours) == source).all()


def test_a_request_within_one_agent_moves_the_bytes(agent):
    memory = agent.allocate(2048)
    array = memory.numpy()
    array[:1024] = random_bytes(1024)
    request = agent.write(
        agent.name, [(memory.region.id, 0, 1024)], [(memory.region.id, 1024, 1024)], timeout=30
    )
    assert request.peer == agent.name and (array[:1024] == array[1024:]).all()


def test_a_request_describes_itself_and_its_posts(lists):
    left, right, _, _, local, remote = lists
    request = left.make_request("read", local, remote)
    assert (request.op, request.pages, request.bytes, request.peer) == ("read", 64, 1 << 18, right.name)
    assert (request.state, request.done, request.error) == ("prepared", False, None)
    assert request.backend == left.backends()[0].name and request.backend in request.explain()
    cost = request.cost()
    assert cost.duration > 0 and cost.margin >= 0 and cost.method and cost.backend == request.backend
    for posts in (1, 2):
        request.post()
        request.wait(30)
        times = request.times
        assert (request.state, request.done, request.error) == ("done", True, None)
        assert (times.posts, times.bytes, times.pages) == (posts, 1 << 18, 64)
        assert times.transfer_ns > 0 and times.posted_at_ns > 0 and times.post_ns > 0
    assert repr(request) == f"Request(read, peer={right.name!r}, pages=64, bytes=262144, state='done')"


def test_poll_completes_a_request(lists):
    left, _, here, there, local, remote = lists
    request = left.make_request("read", local, remote)
    request.post()
    states = set()
    until(lambda: states.add(request.poll()) or request.done)
    assert request.poll() == "done" and states <= {"posted", "done"}
    assert (here.numpy() == there.numpy()).all()


def test_post_returns_the_state_of_the_request(lists, backend):
    left, _, here, there, local, remote = lists
    request = left.make_request("read", local, remote, [5], [3])
    request.post()
    request.wait()  # the first post to a peer may have to wait for the link
    state = request.post()
    assert state == "done" if backend == "shm" else state in ("posted", "done")
    request.wait()
    assert request.state == "done"
    assert (here.numpy()[5 * 4096 : 6 * 4096] == there.numpy()[3 * 4096 : 4 * 4096]).all()


class Labelled(headrace.Request):
    """A subclass with an attribute of its user."""

    __slots__ = ("label",)
    ended = 0

    def __init__(self):
        raise AssertionError("make_request does not call it")

    def __del__(self):
        Labelled.ended += 1


def test_a_request_has_the_given_subclass(lists):
    left, _, here, there, local, remote = lists
    before = Labelled.ended
    for indices in ((None, None), ([5], [3])):
        request = left.make_request("read", local, remote, *indices, cls=Labelled)
        assert type(request) is Labelled
        with pytest.raises(AttributeError, match="'Labelled' object has no attribute 'label'"):
            _ = request.label
        request.label = "mine"
        request.post()
        request.wait(30)
        assert (request.state, request.label) == ("done", "mine")
        gone = weakref.ref(request)
        del request
        assert gone() is None
    assert Labelled.ended == before + 2
    assert (here.numpy()[5 * 4096 : 6 * 4096] == there.numpy()[3 * 4096 : 4 * 4096]).all()


def test_a_request_of_a_subclass_that_refers_to_itself_is_collected(lists):
    left, _, _, _, local, remote = lists
    request = left.make_request("read", local, remote, cls=Labelled)
    request.label = request
    gone = weakref.ref(request)
    del request
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("cls", [object, headrace.Agent, "Request", 7])
def test_a_class_that_is_no_subclass_of_request_is_refused(lists, cls):
    left, _, _, _, local, remote = lists
    with pytest.raises(headrace.InvalidArgument, match="give a subclass of Request"):
        left.make_request("read", local, remote, cls=cls)


def test_waiting_for_a_request_that_was_never_posted_is_invalid(lists):
    left, *_, local, remote = lists
    with pytest.raises(headrace.InvalidArgument, match="has not been posted"):
        left.make_request("read", local, remote).wait(1)


def test_calls_for_captured_requests_are_refused_without_a_capture(lists):
    left, _, _, _, local, remote = lists
    request = left.make_request("read", local, remote)
    numbers = np.arange(3)
    for ask in (
        request.check,
        lambda: request.set_indices(numbers, stream=0),
        lambda: request.set_indices(remote=[1, 2], stream=0),
    ):
        with pytest.raises(headrace.InvalidArgument, match="lies in no graph"):
            ask()
    with pytest.raises(headrace.InvalidArgument, match="no page numbers were given"):
        request.set_indices(stream=0)
    with pytest.raises(headrace.InvalidArgument, match="local has 3 page numbers and remote has 2"):
        request.set_indices(numbers, [1, 2], stream=0)
    with pytest.raises(
        headrace.InvalidArgument, match="local holds -1, which is not a page number"
    ) as refused:
        request.set_indices([0, -1], stream=0)
    assert refused.value.page == 1
    with pytest.raises(headrace.InvalidArgument, match="remote page number 0 is 64: the list has 64 pages"):
        request.set_indices(remote=np.array([64], np.uint32), stream=0)
    with pytest.raises(headrace.InvalidArgument, match="torch.cuda.Stream"):
        request.set_indices(numbers, stream="main")
    with pytest.raises(headrace.InvalidArgument, match="name the stream"):
        request.post(local=numbers)
    with pytest.raises(headrace.NotSupported, match="does not support streams"):
        request.post(stream=0, local=numbers)
    assert request.state == "prepared"
    request.post()
    request.wait(10)


class OnGpu:
    """An array that claims to lie on a GPU."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, *, stream):
        assert stream == -1, "no stream may wait: it may be in a capture"
        return self.array.__dlpack__()


def test_indices_on_a_gpu_are_not_read_and_must_have_the_right_type(lists):
    left, _, _, _, local, remote = lists
    request = left.make_request("read", local, remote)
    for dtype in (np.int32, np.uint32):
        with pytest.raises(
            headrace.InvalidArgument, match="lies in no graph"
        ):  # only the GPU can check the value -1
            request.set_indices(remote=OnGpu(np.full(3, -1).astype(dtype)), stream=0)
    for wrong, why in (
        (np.arange(3), "int64 array .* must be int32 or uint32"),
        (np.zeros((2, 2), np.int32), "must have one dimension"),
        (np.arange(6, dtype=np.int32)[::2], "no gaps"),
    ):
        with pytest.raises(headrace.InvalidArgument, match=why):
            request.set_indices(OnGpu(wrong), stream=0)
    with pytest.raises(headrace.InvalidArgument, match="put both on the GPU"):
        request.post(stream=0, local=OnGpu(np.zeros(2, np.int32)), remote=[0, 1])


def test_a_timeout_must_be_a_number_of_seconds(lists):
    left, *_, local, remote = lists
    request = left.make_request("read", local, remote, timeout=float("inf"))
    for wrong in (-1, float("nan")):
        with pytest.raises(headrace.InvalidArgument, match="give a number of seconds"):
            request.post(timeout=wrong)
    with pytest.raises(TypeError, match=r"^post\(\): incompatible function arguments"):
        request.post(timeout="1")
    request.post(timeout=1e300)
    request.wait(30)


def test_a_callback_runs_once_for_each_post_on_another_thread(lists):
    left, *_, local, remote = lists
    request = left.make_request("read", local, remote)
    calls = []
    request.on_done(lambda error: calls.append((error, threading.get_ident())))
    for posts in range(1, 4):
        request.post()
        request.wait(30)
        until(lambda posts=posts: len(calls) == posts)
    assert {error for error, _ in calls} == {None}
    assert threading.get_ident() not in {thread for _, thread in calls}
    request.on_done(None)
    request.post()
    request.wait(30)
    assert len(calls) == 3


def test_a_callback_gets_the_error(lists):
    left, right, *_, local, remote = lists
    request = left.make_request("read", local, remote)
    errors = []
    request.on_done(errors.append)
    right.close()
    until(lambda: left.peers()[0].lost or not left.peers()[0].connected)
    with pytest.raises(headrace.PeerLost, match=right.name):
        request.post()
        request.wait(30)
    until(lambda: errors)
    assert isinstance(errors[0], headrace.PeerLost) and right.name in str(errors[0])
    assert isinstance(request.error, headrace.PeerLost) and right.name in str(request.error)


def test_an_exception_in_a_callback_goes_to_the_unraisable_hook(lists, monkeypatch):
    left, *_, local, remote = lists
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: seen.append(args.exc_value))
    request = left.make_request("read", local, remote)

    def fail(error):
        raise KeyError("in a callback")

    request.on_done(fail)
    request.post()
    request.wait(30)
    until(lambda: seen)
    assert isinstance(seen[0], KeyError)
    with pytest.raises(headrace.InvalidArgument, match="cannot be called"):
        request.on_done(7)


@pytest.fixture
def quick_collections():
    """The collector passes over all that is there already: torch alone has a million objects."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_a_callback_that_refers_to_its_request_runs_and_is_collected_with_it(lists, quick_collections):
    left, *_, local, remote = lists
    calls = []
    gone = []
    left.connect(lists[1].name)  # so that one post after the other fills the pages
    for _ in range(50):
        request = left.make_request("read", local, remote)
        request.on_done(lambda error, request=request: calls.append(request.pages))
        request.post()
        gone.append(weakref.ref(request))
        del request
        gc.collect()  # the request is collected neither before its end nor before its callback
    until(lambda: len(calls) == 50)

    def all_gone():
        gc.collect()
        return all(ref() is None for ref in gone)

    until(all_gone)


def test_the_descriptor_becomes_readable_at_each_completion(lists):
    left, *_, local, remote = lists
    request = left.make_request("read", local, remote)
    fd = request.fileno()
    assert fd == request.fileno()
    for _ in range(3):
        assert select.select([request], [], [], 0) == ([], [], [])
        request.post()
        assert select.select([request], [], [], 30) == ([request], [], [])
        assert request.done
        assert int.from_bytes(os.read(fd, 8), "little") == 1


def test_a_request_can_be_posted_again_after_each_completion(lists):
    left, _, here, there, local, remote = lists
    request = left.make_request("write", local, remote)
    for value in range(20):
        here.numpy()[:] = value
        request.post()
        request.wait(30)
        assert (there.numpy() == value).all()


def test_cancel_ends_a_request_in_flight_and_does_nothing_to_one_that_has_ended(stopped):
    request = stopped.make_request()
    request.cancel()
    assert request.state == "prepared"
    for _ in range(5):
        request.post()
        assert request.poll() == "posted"
        request.cancel()
        with pytest.raises(headrace.Canceled, match=stopped.peer.name):
            request.wait(30)
        assert request.state == "canceled"
    request.cancel()
    assert request.state == "canceled"
    stopped.peer.resume()
    request.post()
    request.wait(30)
    request.cancel()
    assert request.state == "done" and (stopped.here == stopped.there).all()


def test_a_request_canceled_right_after_its_post_is_done_or_canceled(pair):
    left, right = pair
    bytes_in_all = 8 << 20  # more than shm copies inside `post`
    here, there = left.allocate(bytes_in_all), right.allocate(bytes_in_all, name="there")
    there.numpy()[:] = random_bytes(bytes_in_all)
    left.import_metadata(right.export_metadata())
    local = left.prepare(headrace.UniformPages(here, 0, 0, 65536, 128))
    region = left.peer_region(right.name, "there")
    remote = left.prepare(headrace.UniformPages(region, 0, 0, 65536, 128), peer=right.name)
    request = left.make_request("read", local, remote)
    posts, canceled, deadline = 0, 0, time.monotonic() + 30
    while posts < 50 or (canceled == 0 and time.monotonic() < deadline):
        posts += 1
        here.numpy()[:] = 0
        request.post()
        request.cancel()
        try:
            request.wait(30)
            assert request.state == "done" and (here.numpy() == there.numpy()).all()
        except headrace.Canceled as error:
            assert request.peer in str(error) and request.state == "canceled"
            canceled += 1
    assert canceled > 0, f"the cancel came too late {posts} times"


def test_a_notification_comes_after_the_bytes_and_names_its_sender(lists):
    left, right, here, there, local, remote = lists
    for i in range(20):
        here.numpy()[:] = i
        left.write(right.name, local, remote, notification=f"written {i}".encode(), timeout=30)
        assert right.wait_notification(30, prefix=b"written") == (left.name, f"written {i}".encode())
        assert (there.numpy() == i).all()
    left.read(right.name, local, remote, notification=bytearray(b"read"), timeout=30)
    assert right.wait_notification(30) == (left.name, b"read")


def test_a_notification_that_is_too_long_is_refused(lists):
    left, right, *_, local, remote = lists
    request = left.make_request("write", local, remote)
    with pytest.raises(headrace.InvalidArgument, match="65537 bytes: at most 65536"):
        request.post(notification=bytes(65537))
    with pytest.raises(TypeError, match="the notification must be bytes"):
        request.post(notification="text")
    request.post(notification=bytes(65536))
    request.wait(30)
    assert len(right.wait_notification(30)[1]) == 65536


def test_a_region_that_was_deregistered_is_not_found(lists):
    left, right, here, there, local, remote = lists
    request = left.make_request("read", local, remote)
    request.post()
    request.wait(30)  # now the link is ready, so the owner can report the end of the region
    right.deregister(there, timeout=30)
    with pytest.raises(headrace.NotFound, match=right.name):
        request.post()
        request.wait(30)
    with pytest.raises(headrace.NotFound, match=f"peer {right.name} has none of that id"):
        left.prepare([(there.region.id, 0, 1)], peer=right.name)
    left.deregister(here, timeout=30)
    with pytest.raises(headrace.NotFound, match="lies in no registered region"):
        left.prepare([here])


def test_a_request_is_restricted_to_named_backends(lists):
    left, *_, local, remote = lists
    name = left.backends()[0].name
    assert left.make_request("read", local, remote, backends=[name]).backend == name
    with pytest.raises(headrace.NotSupported, match="no path"):
        left.make_request("read", local, remote, backends=["no_such"])


def test_overlapping_sources_are_legal_and_overlapping_destinations_are_refused_when_checked(backend):
    with headrace.Agent("a", [backend], options={"check": True}) as agent:
        memory = agent.allocate(4096)
        region = memory.region.id
        apart, overlap = [(region, 0, 64), (region, 64, 64)], [(region, 1024, 64), (region, 1056, 64)]
        agent.read("a", apart, overlap, timeout=30)
        agent.write("a", overlap, apart, timeout=30)
        for op, local, remote in (("read", overlap, apart), ("write", apart, overlap)):
            with pytest.raises(headrace.InvalidArgument, match="overlap"):
                getattr(agent, op)("a", local, remote, timeout=30)


def test_a_closed_agent_refuses_calls(lists):
    left, _right, *_, local, remote = lists
    request = left.make_request("read", local, remote)
    request.post()
    request.wait(30)
    left.close()
    left.close()
    assert left.closed and "closed" in repr(left)
    for call in (
        left.peers,
        left.regions,
        left.export_metadata,
        lambda: left.prepare([(1, 0, 1)]),
        left.notification_fd,
    ):
        with pytest.raises(headrace.InvalidArgument, match="is closed"):
            call()
    with pytest.raises(headrace.InvalidArgument, match="not posted: "):
        request.post()
    assert request.done and local.count == 64


def test_requests_dropped_after_their_post_leave_nothing_behind(lists):
    left, *_, local, remote = lists
    for _ in range(200):
        request = left.make_request("read", local, remote)
        request.post()
        del request
    left.deregister(left.regions(), 30)
    assert left.regions() == []


def test_requests_dropped_in_flight_are_canceled_and_leave_nothing_behind(stopped):
    for _ in range(20):
        request = stopped.make_request()
        request.post()
        assert request.poll() == "posted"
        del request
    until(lambda: stopped.agent.telemetry().counters["requests.canceled"] == 20)
    stopped.peer.resume()
    stopped.agent.deregister(stopped.agent.regions(), 30)
    assert stopped.agent.regions() == [] and not stopped.here.any()


def test_a_wait_that_times_out_leaves_the_request_in_flight(stopped):
    request = stopped.make_request()
    request.post()
    for timeout in (0, 0.01):
        with pytest.raises(headrace.TimedOut, match="still in flight"):
            request.wait(timeout)
    assert request.poll() == "posted"
    stopped.peer.resume()
    request.wait(30)
    assert request.state == "done" and (stopped.here == stopped.there).all()


def test_a_request_to_a_stopped_peer_ends_by_its_deadline(stopped):
    request = stopped.make_request(timeout=0.2)
    request.post()
    with pytest.raises(headrace.TimedOut, match=f"{stopped.peer.name}.*deadline"):
        request.wait(30)
    assert request.done and isinstance(request.error, headrace.TimedOut)


@pytest.mark.parametrize("backend", ["shm"], indirect=True)
@pytest.mark.parametrize("region", ["allocated", "registered"])
def test_a_stopped_peer_does_not_stop_copies_over_a_ready_link_of_shm(start_peer, backend, region):
    peer = start_peer(unique("stopped"))
    with headrace.Agent(unique("a"), [backend]) as agent:
        agent.fetch_metadata(peer.address)
        memory = agent.allocate(peer_process.REGION_BYTES)
        agent.connect(peer.name, 30)
        peer.stop()
        try:
            agent.read(peer.name, [memory], [agent.peer_region(peer.name, region)], timeout=30)
            assert (memory.numpy() == peer_process.contents()).all()
        finally:
            peer.resume()


def test_an_agent_with_two_backends_chooses_one_and_explains_the_choice():
    with (
        headrace.Agent(unique("left"), ["shm", "tcp"]) as left,
        headrace.Agent(unique("right"), ["shm", "tcp"]) as right,
    ):
        here, there = left.allocate(4096), right.allocate(4096, name="there")
        introduce(left, right)
        request = left.make_request(
            "read", left.prepare([here]), left.prepare([left.peer_region(right.name, "there")], right.name)
        )
        assert request.backend == "shm"
        assert "shm" in request.explain() and "tcp" in request.explain()
        assert there.region.backends == ["shm", "tcp", "local"]
