# SPDX-License-Identifier: Apache-2.0
"""Notifications between agents: order, filters, callbacks, the descriptor, and waiting."""

import gc
import select
import sys
import threading
import weakref
from pathlib import Path

import pytest

import headrace
from conftest import unique, until
from sleeping import sleeps_in_epoll


def test_notifications_arrive_once_and_in_order(pair):
    left, right = pair
    sent = [f"{i}".encode() + bytes(i) for i in range(200)]
    for payload in sent:
        left.notify(right.name, payload)
    got = []
    until(lambda: got.extend(right.take_notifications()) or len(got) >= len(sent))
    assert got == [(left.name, payload) for payload in sent]
    assert right.take_notifications() == []


def test_a_filter_takes_its_matches_and_leaves_the_rest(pair):
    left, right = pair
    for payload in (b"a1", b"b1", b"a2", b"b2", b"last"):
        left.notify(right.name, payload)
    right.notify(right.name, b"a3")
    assert right.wait_notification(30, prefix=b"last") == (left.name, b"last")  # now all have arrived
    assert right.wait_notification(30, prefix=b"b") == (left.name, b"b1")
    assert right.take_notifications(peer="nobody") == []
    assert right.take_notifications(left.name, b"x") == []
    assert right.take_notifications(right.name, b"b") == []
    assert right.take_notifications(left.name, b"a") == [(left.name, b"a1"), (left.name, b"a2")]
    assert right.take_notifications(prefix=b"b") == [(left.name, b"b2")]
    left.notify(right.name, b"a4")
    assert right.wait_notification(30, peer=left.name) == (left.name, b"a4")
    assert right.take_notifications(peer=right.name) == [(right.name, b"a3")]
    assert right.take_notifications() == []


def test_any_bytes_up_to_64_kib_can_be_sent(pair):
    left, right = pair
    for payload in (b"", b"\x00\xff", bytearray(b"x"), memoryview(b"abc")[1:], bytes(65536)):
        left.notify(right.name, payload)
        assert right.wait_notification(30) == (left.name, bytes(payload))
    with pytest.raises(headrace.InvalidArgument, match="65537 bytes: at most 65536"):
        left.notify(right.name, bytes(65537))
    with pytest.raises(TypeError, match="the payload must be bytes"):
        left.notify(right.name, "text")
    with pytest.raises(headrace.NotFound, match="nobody"):
        left.notify("nobody", b"")


def test_a_wait_without_a_notification_times_out(agent):
    with pytest.raises(headrace.TimedOut, match="no notification came in time"):
        agent.wait_notification(0.01)
    with pytest.raises(TimeoutError, match="no notification came in time"):
        agent.wait_notification(0)


def test_closing_the_agent_ends_a_wait(backend):
    agent = headrace.Agent(unique("a"), [backend])
    errors = []

    def wait():
        try:
            agent.wait_notification()
        except headrace.Error as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: sleeps_in_epoll(thread.native_id))
    assert errors == []
    agent.close()
    thread.join()
    assert isinstance(errors[0], headrace.Canceled) and "closed while this call waited" in str(errors[0])


def test_a_signal_ends_a_wait(run_script):
    text = f"""
import signal, sys, threading, time, headrace
sys.path.append({str(Path(__file__).parent)!r})
from sleeping import sleeps_in_epoll
class Rung(Exception): pass
def ring(*_): raise Rung
signal.signal(signal.SIGALRM, ring)
main = threading.main_thread()
def watch():
    while not sleeps_in_epoll(main.native_id): time.sleep(0.001)
    signal.pthread_kill(main.ident, signal.SIGALRM)
with headrace.Agent("a", backends=["shm"]) as agent:
    threading.Thread(target=watch).start()
    try:
        agent.wait_notification()
    except Rung:
        print("rung")
"""
    assert run_script(text) == (0, "rung\n", "")


def test_the_descriptor_is_readable_while_a_notification_waits(pair):
    left, right = pair
    fd = right.notification_fd()
    assert select.select([fd], [], [], 0)[0] == []
    left.notify(right.name, b"1")
    assert select.select([fd], [], [], 30)[0] == [fd]
    assert right.wait_notification(30) == (left.name, b"1")
    until(lambda: select.select([fd], [], [], 0)[0] == [])


def test_a_callback_gets_each_notification_and_none_stays_in_the_inbox(pair, monkeypatch):
    left, right = pair
    seen, taken = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: seen.append(args.exc_value))

    def take(peer, payload):
        taken.append((peer, payload))
        if payload == b"1":
            raise RuntimeError("in a callback")

    right.on_notification(take)
    for i in range(3):
        left.notify(right.name, str(i).encode())
    until(lambda: len(taken) == 3)
    assert taken == [(left.name, b"0"), (left.name, b"1"), (left.name, b"2")]
    assert [type(error) for error in seen] == [RuntimeError]
    assert right.take_notifications() == []
    right.on_notification(None)
    left.notify(right.name, b"kept")
    assert right.wait_notification(30) == (left.name, b"kept")
    with pytest.raises(headrace.InvalidArgument, match="cannot be called"):
        right.on_notification(7)


def test_an_agent_may_be_closed_by_its_own_callback(pair):
    left, right = pair
    right.on_notification(lambda peer, payload: right.close())
    left.notify(right.name, b"end")
    until(lambda: right.closed)


def test_a_callback_that_refers_to_its_agent_is_collected_with_it(backend):
    agent = headrace.Agent(unique("a"), [backend])
    agent.on_notification(lambda peer, payload, agent=agent: None)
    gone = weakref.ref(agent)
    del agent

    def collected():
        gc.collect()
        return gone() is None

    until(collected)  # the callback thread may still hold it: it has looked for earlier notifications
