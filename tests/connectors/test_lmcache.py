# SPDX-License-Identifier: Apache-2.0
"""LMCache: each engine is a process with a buffer of pages, and both of LMCache's channels."""

from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("lmcache") is None, reason="lmcache is not installed")


@pytest.fixture(scope="module")
def pair(start, ports):
    numbers = ports(4)
    here, there = start("lmcache_engine.py", 1, *numbers[:2]), start("lmcache_engine.py", 2, *numbers[2:])
    assert [here.answer(), there.answer()] == ["ready", "ready"]
    return here, there, numbers[2:]


def test_pages_are_written_and_read_over_the_channel_of_its_storage_backends(pair):
    here, there, (channel_port, _) = pair
    before = there.ask("pages", list(range(32)))
    here.ask("connect", "there", channel_port)
    written = here.ask("pages", [0, 5, 31])
    assert here.ask("write", "there", [0, 5, 31], [7, 3, 30]) == 3
    assert there.ask("pages", [7, 3, 30]) == written
    others = [page for page in range(32) if page not in (7, 3, 30)]
    assert there.ask("pages", others) == [before[page] for page in others]
    assert here.ask("read", "there", [10, 12], [1, 2]) == 2
    assert here.ask("pages", [10, 12]) == before[1:3]


def test_pages_are_read_over_the_channel_of_its_multi_process_server(pair):
    here, there, (_, server_port) = pair
    kept = here.ask("pages", list(range(6, 32)))
    wanted = there.ask("pages", [9, 4, 0, 31])
    assert here.ask("read_from_server", server_port, [1, 2, 4, 5], [9, 4, 0, 31]) == [True] * 4
    assert here.ask("pages", [1, 2, 4, 5]) == wanted
    assert here.ask("pages", list(range(6, 32))) == kept
