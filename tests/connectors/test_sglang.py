# SPDX-License-Identifier: Apache-2.0
"""SGLang: a prefill and a decode engine, each a process with NIXL's key-value manager. The prefill engine
writes."""

from importlib.util import find_spec
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.skipif(find_spec("sglang") is None, reason="sglang is not installed")

SLOTS, BUFFERS = 64, 4


@pytest.fixture(scope="module")
def engine(start, ports):
    port = ports(1)[0]
    return lambda mode, seed: start("sglang_engine.py", mode, seed, port)


@pytest.fixture(scope="module")
def pair(engine):
    pair = SimpleNamespace(prefill=engine("prefill", 1), decode=engine("decode", 2))
    assert [pair.prefill.answer(), pair.decode.answer()] == ["ready", "ready"]
    return pair


def moved(pair, room, there, here):
    """Moves the pages of a request in two chunks, and its aux page. Returns how it ended on both sides."""
    pair.decode.ask("receive", room, here, 2)
    pair.prefill.ask("expect", room, len(there), 1)
    pair.prefill.ask("send", room, there[:1])
    pair.prefill.ask("send", room, there[1:])
    return pair.prefill.ask("ended", room), pair.decode.ask("ended", room)


def test_pages_of_a_request_are_written_and_both_sides_hear_of_it(pair):
    before = pair.decode.ask("pages", list(range(SLOTS)), 0)
    for room, there, here in ((1, [3, 4, 5, 60], [7, 9, 10, 11]), (2, [1, 0], [63, 2])):
        assert moved(pair, room, there, here) == (True, True)
        assert pair.decode.ask("pages", here, 2) == pair.prefill.ask("pages", there, 1)
    after = pair.decode.ask("pages", list(range(SLOTS)), 0)
    assert sum(was != now for was, now in zip(before, after, strict=True)) == 6 * BUFFERS


@pytest.mark.parametrize("backend", ["tcp"], indirect=True, scope="module")  # shm needs no answer of the peer
def test_a_decode_engine_whose_link_was_lost_is_reached_again(pair):
    assert moved(pair, 21, [3], [5]) == (True, True)
    name = pair.decode.ask("name")
    pair.decode.ask("receive", 22, [5, 6], 2)
    pair.prefill.ask("expect", 22, 2, 1)
    with pair.decode.stopped():
        pair.prefill.ask("send", 22, [3, 4])
        assert pair.prefill.ask("ended", 22) is not True
        pair.prefill.wait_for_text(f"invalidated remote agent {name}")  # _reload_invalidated_peers has asked
    assert moved(pair, 23, [8, 9], [20, 21]) == (True, True)
    assert pair.decode.ask("pages", [20, 21], 2) == pair.prefill.ask("pages", [8, 9], 1)


def test_a_decode_engine_that_was_killed_comes_back_and_gets_its_pages(pair, engine):
    assert moved(pair, 11, [3, 4], [5, 6]) == (True, True)
    dead = pair.decode.ask("name")

    pair.decode.ask("receive", 12, [5, 6], 2)
    pair.prefill.ask("expect", 12, 2, 1)
    pair.decode.kill()
    pair.prefill.ask("send", 12, [3, 4])
    assert pair.prefill.ask("ended", 12) is not True
    pair.prefill.wait_for_text(f"invalidated remote agent {dead}")  # _reload_invalidated_peers has asked

    pair.decode = engine("decode", 3)
    assert pair.decode.answer() == "ready"
    assert moved(pair, 13, [8, 9, 3], [60, 61, 0]) == (True, True)
    assert pair.decode.ask("pages", [60, 61, 0], 2) == pair.prefill.ask("pages", [8, 9, 3], 1)
