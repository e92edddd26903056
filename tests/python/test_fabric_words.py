# SPDX-License-Identifier: Apache-2.0
# backends: none
"""Flags, watched words and queues of commands of a fabric. Here threads stand for kernels."""

import ctypes
import gc
import pickle
import signal
import threading
import weakref

import numpy
import pytest

import headrace
from fabrics import SECONDS, await_true, fresh, open_fabric

UNIT = 64


@pytest.fixture
def pair():
    with open_fabric() as here, open_fabric() as there:
        yield here, there


class Queue:
    """A queue of commands with one write of 8 units, and what it writes to."""

    def __init__(self, here, there, **options):
        self.source, self.target = fresh(8 * UNIT), numpy.zeros(8 * UNIT, numpy.uint8)
        self.memory, far = here.register(self.source), there.register(self.target, "writable")
        self.write = headrace.FabricQueueWrite(
            self.memory, far.descriptor, UNIT, 8, immediate=1, count_by="page"
        )
        self.queue = here.command_queue([self.write], **{"timeout": SECONDS} | options)

    def same(self, units):
        return (self.source.reshape(8, UNIT)[units] == self.target.reshape(8, UNIT)[units]).all()


# ------------------------------------------------------------------ flags


def test_a_flag_grows_with_the_rounds_and_ends_with_the_expectation(pair):
    here, there = pair
    peer = here.connect(there.address)
    arrivals = there.expect(1, 2)
    flag = arrivals.flag()
    view = numpy.asarray(flag)
    assert (flag.rounds, flag.ended, flag.device, view.tolist()) == (0, False, None, [0])
    for _ in range(4):
        here.post_immediate(peer, 1)
    arrivals.wait(SECONDS)
    await_true(lambda: view[0] == 2)
    assert flag.rounds == 2
    assert ctypes.c_int64.from_address(flag.address).value == 2
    assert arrivals.remove() == 0
    assert (flag.rounds, flag.ended, view.tolist()) == (2, True, [2**62 + 2])
    with pytest.raises(headrace.InvalidArgument, match="was removed"):
        arrivals.flag()


def test_a_flag_lives_as_long_as_a_view_of_it(pair):
    _, there = pair
    view = numpy.asarray(there.expect(1, 1).flag())
    gc.collect()
    there.close()
    assert view.tolist() == [2**62]


def test_flags_for_gpus_need_a_gpu_and_memory_of_one(pair):
    _, there = pair
    arrivals = there.expect(1, 1)
    with pytest.raises(headrace.InvalidArgument, match="8 bytes of GPU memory"):
        arrivals.flag(memory=numpy.zeros(1, numpy.int64))
    with pytest.raises(AttributeError, match="no GPU sees"):
        _ = arrivals.flag().__cuda_array_interface__
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(arrivals.flag())


# ------------------------------------------------------------------ watched words


def test_a_function_is_told_of_changes_until_it_returns_false(pair):
    here, _ = pair
    told = []

    def changed(before, now):
        told.append((before, now))
        return now < 7

    watcher = here.watch(changed)
    assert (watcher.value, watcher.device) == (0, None)
    watcher.store(5)
    await_true(lambda: told == [(0, 5)])
    numpy.asarray(watcher)[0] = 7
    await_true(lambda: told == [(0, 5), (5, 7)])
    watcher.store(9)
    here.close()
    assert told == [(0, 5), (5, 7)]
    assert watcher.value == 9


def test_a_function_that_returns_nothing_goes_on_and_one_that_raises_is_told(pair):
    here, _ = pair
    told, errors = [], []
    here.on_error(errors.append)

    def changed(before, now):
        told.append(now)
        if now == 1:
            raise ValueError("the first")

    watcher = here.watch(changed)
    watcher.store(1)
    await_true(lambda: told == [1])
    watcher.store(2)
    await_true(lambda: told == [1, 2])
    await_true(lambda: [str(error) for error in errors] == ["the first"])


def test_no_call_begins_after_stop_and_the_function_is_freed(pair):
    here, _ = pair

    def changed(before, now):
        raise AssertionError("it was stopped")

    freed = weakref.ref(changed)
    watcher = here.watch(changed)
    watcher.stop()
    watcher.store(1)
    del changed
    await_true(lambda: freed() is None)
    watcher.stop()


def test_words_are_watched_without_their_handles_and_there_are_4096(pair):
    here, _ = pair
    told = threading.Event()
    view = numpy.asarray(here.watch(lambda before, now: told.set()))
    view[0] = 1
    assert told.wait(SECONDS)
    watchers = [here.watch(lambda before, now: True) for _ in range(4095)]
    with pytest.raises(headrace.Exhausted, match="all 4096 words"):
        here.watch(lambda before, now: True)
    for watcher in watchers:
        watcher.stop()
    del watchers, watcher
    here.watch(lambda before, now: True)


def test_what_cannot_be_watched_is_refused(pair):
    here, _ = pair
    with pytest.raises(headrace.InvalidArgument, match="cannot be called"):
        here.watch(5)
    watcher = here.watch(lambda before, now: True)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(watcher)
    here.close()
    with pytest.raises(headrace.InvalidArgument, match="closed"):
        here.watch(lambda before, now: True)


# ------------------------------------------------------------------ queues of commands


def test_commands_move_the_units_that_they_name(pair):
    one = Queue(*pair)
    arrivals = pair[1].expect(1, 3)
    number = one.queue.post(0, 2, 3)
    one.queue.wait(number)
    arrivals.wait(SECONDS)
    assert number == 1
    assert one.same(slice(2, 5))
    assert not one.target[: 2 * UNIT].any()
    assert not one.target[5 * UNIT :].any()
    one.queue.wait(one.queue.post(0))
    assert one.same(slice(None))
    assert (one.queue.ended, one.queue.failed, one.queue.status()) == (2, 0, None)
    assert (one.queue.capacity, one.queue.device) == (1024, None)
    assert (one.write.unit_bytes, one.write.units) == (UNIT, 8)


def test_threads_post_at_once_and_each_command_counts_once(pair):
    one = Queue(*pair, capacity=4)
    arrivals = pair[1].expect(1, 1)

    def post(unit):
        for _ in range(50):
            one.queue.wait(one.queue.post(0, unit, 1))

    threads = [threading.Thread(target=post, args=(unit,)) for unit in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    await_true(lambda: arrivals.rounds == 200)
    assert one.queue.ended == 200
    assert one.same(slice(0, 4))


def test_commands_that_lie_are_told_and_do_nothing(pair):
    errors = []
    pair[0].on_error(errors.append)
    one = Queue(*pair)
    one.queue.post(1, 0, 1)
    one.queue.wait(one.queue.post(0, 6, 3))
    assert one.queue.failed == 2
    assert not one.target.any()
    await_true(lambda: len(errors) == 2)
    assert "names write 1: its list has 1" in str(errors[0])
    assert "3 units from unit 6 on of write 0, which has 8" in str(errors[1])


def take_slots(queue, count):
    """Of commands whose slots are never filled, as if their kernels were slow."""
    POSTED = 40  # in headrace_fabric_queue_v1
    ctypes.c_uint64.from_address(queue.address + POSTED).value = count


@pytest.mark.parametrize("call", ["post", "wait"])
def test_ctrl_c_ends_a_wait_for_a_slot_and_for_a_command(pair, call):
    one = Queue(*pair, capacity=1, timeout=None)
    take_slots(one.queue, 1)
    timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])
    too_late = threading.Timer(SECONDS, one.queue.close)
    too_late.start()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        one.queue.post(0) if call == "post" else one.queue.wait(1)
    too_late.cancel()
    assert (one.queue.status(), one.queue.ended) == (None, 0)


def test_a_queue_without_a_slot_says_whether_it_is_late_or_closed(pair):
    one = Queue(*pair, capacity=1, timeout=0.001)
    take_slots(one.queue, 1)
    with pytest.raises(headrace.TimedOut, match="the queue was full for its timeout"):
        one.queue.post(0)
    assert one.queue.status().full
    one.queue.close()
    with pytest.raises(headrace.Canceled, match="the queue is closed"):
        one.queue.post(0)


def test_a_closed_fabric_or_queue_ends_what_waits(pair):
    one = Queue(*pair, capacity=1)
    one.queue.close()
    with pytest.raises(headrace.Canceled, match="queue is closed"):
        one.queue.wait(1)
    pair[0].close()
    with pytest.raises(headrace.InvalidArgument, match="closed"):
        pair[0].command_queue([one.write])


def test_queues_that_cannot_be_are_refused(pair):
    one = Queue(*pair)
    with pytest.raises(headrace.InvalidArgument, match="at least one write"):
        pair[0].command_queue([])
    with pytest.raises(headrace.InvalidArgument, match="1 to 4096 slots, not 0"):
        pair[0].command_queue([one.write], capacity=0)
    with pytest.raises(headrace.InvalidArgument, match="write 0 of the queue"):
        pair[0].command_queue(
            [headrace.FabricQueueWrite(one.memory, one.memory.descriptor or _far(pair), 1024)]
        )
    with pytest.raises(headrace.InvalidArgument, match="the descriptor is None"):
        headrace.FabricQueueWrite(one.memory, None, 1)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(one.queue)


def _far(pair):
    return pair[1].register(numpy.zeros(8 * UNIT, numpy.uint8), "writable").descriptor
