# SPDX-License-Identifier: Apache-2.0
"""vLLM: a prefill and a decode engine, each a process with the scheduler's and the worker's NixlConnector."""

import time
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

import engines

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed")

BLOCKS, LAYERS = 64, 3


@pytest.fixture(scope="module")
def engine(start, ports, tmp_path_factory):
    """Starts an engine; one that is started again has its engine id and its port, and other bytes."""
    folder, addresses = tmp_path_factory.mktemp("vllm"), {}

    def run(engine_id, seed):
        port = addresses.setdefault(engine_id, ports(1)[0])
        return start("vllm_engine.py", engine_id, seed, folder, VLLM_NIXL_SIDE_CHANNEL_PORT=str(port))

    return run


@pytest.fixture(scope="module")
def pair(engine):
    pair = SimpleNamespace(prefill=engine("prefill", 1), decode=engine("decode", 2))
    assert [pair.prefill.answer(), pair.decode.answer()] == ["ready", "ready"]
    return pair


def test_blocks_are_read_and_the_reader_notifies(pair):
    prefill, decode = pair.prefill, pair.decode
    before = decode.ask("pages", list(range(BLOCKS)))
    for request, there, here in (("first", [3, 9, 40, 41], [60, 7, 8, 1]), ("second", [12], [30])):
        parameters = prefill.ask("prefill", request, there)
        assert decode.ask("decode", request, here, parameters) is True
        assert decode.ask("pages", here) == prefill.ask("pages", there)
        assert prefill.ask("sent", request) is True
    after = decode.ask("pages", list(range(BLOCKS)))
    assert sum(was != now for was, now in zip(before, after, strict=True)) == 5 * LAYERS


def test_a_producer_that_was_killed_is_read_again_under_its_engine_id(pair, engine):
    decode = pair.decode
    parameters = pair.prefill.ask("prefill", "alive", [5, 6])
    assert decode.ask("decode", "alive", [5, 6], parameters) is True
    assert decode.ask("pages", [5, 6]) == pair.prefill.ask("pages", [5, 6])
    known = decode.ask("known")["prefill"]

    pair.prefill.kill()
    pair.prefill = engine("prefill", 3)
    assert pair.prefill.answer() == "ready"
    failed, end = 0, time.monotonic() + engines.SECONDS
    while True:  # a read over the dead producer's metadata fails, and the one after it shakes hands again
        request = f"again-{failed}"
        parameters = pair.prefill.ask("prefill", request, [5, 6])
        if decode.ask("decode", request, [20, 21], parameters):
            break
        failed += 1
        assert time.monotonic() < end, "the producer that came back is not read"
    assert failed
    assert decode.ask("pages", [20, 21]) == pair.prefill.ask("pages", [5, 6])
    assert pair.prefill.ask("sent", request) is True
    assert decode.ask("known")["prefill"] != known
    assert "was invalidated; re-handshaking" in decode.text()  # _cleanup_remote_engines has asked
