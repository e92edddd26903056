# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""Weights of hot experts come to the ranks that need them: ranks as threads and as processes, errors."""

import pickle
import signal
from contextlib import ExitStack

import numpy as np
import pytest

import headrace
import moe_weights_rank
from conftest import unique
from moe_threads import run_threads
from moe_weights_rank import HIDDEN, OWN, PLACES, TOKENS, expected_sums, kept_experts, tokens_of
from rank_process import RankProcess


class Rank:
    def __init__(self, moe, agent, weights):
        self.moe, self.agent, self.weights = moe, agent, weights


@pytest.fixture
def open_ranks():
    """Ranks that have joined, with their weights in registered memory of torch or NumPy."""
    with ExitStack() as stack:

        def opened(count, zeros=lambda: np.zeros((PLACES, HIDDEN), np.float32)):
            names = [unique("weights") for _ in range(count)]
            ranks = []
            for number, name in enumerate(names):
                agent = stack.enter_context(headrace.Agent(name, backends=["shm"]))
                weights = zeros()
                moe_weights_rank.fill_places(number, np.asarray(weights))
                agent.register(weights)
                config = moe_weights_rank.config_of(number, count)
                ranks.append(Rank(stack.enter_context(headrace.MoE(agent, config)), agent, weights))
            for one in ranks:
                for other in ranks:
                    if one is not other:
                        one.agent.import_metadata(other.agent.export_metadata())
            for rank in ranks:
                rank.moe.join(names, timeout=60)
            return ranks

        yield opened


def torch_zeros():
    return pytest.importorskip("torch").zeros((PLACES, HIDDEN))


@pytest.mark.parametrize("zeros", [lambda: np.zeros((PLACES, HIDDEN), np.float32), torch_zeros])
def test_ranks_get_equally_many_rows_and_sums_keep_their_bits(open_ranks, zeros):
    ranks = open_ranks(3, zeros)

    def body(rank):
        number, moved = rank.moe.config.rank, []
        with headrace.MoEWeights(rank.moe, kept_experts(3), [rank.weights], timeout=60) as balancer:
            for hot in (0, 0, 3, 5):
                rows, named = tokens_of(number, hot, 3 * OWN)
                counts = np.bincount(named.ravel(), minlength=3 * OWN)
                replicas = balancer.balance(counts, timeout=60)
                weights = np.asarray(rank.weights)
                sums, came = moe_weights_rank.step(rank.moe, replicas, weights, rows, named)
                assert (sums == expected_sums(rows, named)).all()
                assert came == balancer.plan.loads[number] == 2 * TOKENS
                moved.append(balancer.moved_bytes)
            held = balancer.plan.experts[number * PLACES : (number + 1) * PLACES]
            for place, expert in enumerate(held):
                if expert >= 0:
                    assert (weights[place] == moe_weights_rank.weights_of(expert)).all()
        return moved

    moved = np.array(run_threads(ranks, body))
    assert (moved.sum(axis=0) >= HIDDEN * 4 * np.array([2, 0, 2, 2])).all()
    assert (moved[:, 1] == 0).all()


def test_processes_go_on_without_a_rank_that_is_killed_and_keep_a_replica(tmp_path):
    ranks = [RankProcess(moe_weights_rank.run_rank, rank, 3, tmp_path) for rank in range(3)]
    told = [rank.hear() for rank in ranks]
    assert told[1] == "ends"
    for rank in (0, 2):
        steps, active = told[rank]
        assert active == 0b101
        assert [good for _, good in steps] == [True] * 6
        assert [bool(raised) for raised, _ in steps] == [False] * 3 + [True] + [False] * 2
        assert 'rank 1 (agent "weights1")' in steps[3][0]
    assert [rank.end() for rank in ranks] == [0, -signal.SIGKILL, 0]


def test_what_is_wrong_is_told(open_ranks):
    (rank,) = open_ranks(1)
    experts = kept_experts(1)
    for tensors, sentence in (
        ([], "no tensor of weights is given"),
        ([rank.weights[:3]], r"tensor 0: it has the shape \[3, 32\], expected \[4, ...\] without gaps"),
        ([rank.weights, np.zeros((4, 2))], "tensor 1: it is not in memory that agent .* has registered"),
    ):
        with pytest.raises(headrace.InvalidArgument, match=sentence):
            headrace.MoEWeights(rank.moe, experts, tensors)
    with pytest.raises(headrace.InvalidArgument, match="3 places are given, expected those of the conf"):
        headrace.MoEWeights(rank.moe, [0, 1, -1], [rank.weights])
    balancer = headrace.MoEWeights(rank.moe, experts, [rank.weights])
    with pytest.raises(headrace.InvalidArgument, match="3 counts are given, expected one for each of 2 exp"):
        balancer.balance([1, 2, 3])
    with pytest.raises(headrace.InvalidArgument, match="the count of expert 1 is -1, expected 0 to 80"):
        balancer.balance([1, -1])
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(balancer)
    balancer.close()
    balancer.close()
    with pytest.raises(headrace.InvalidArgument, match="the weights are closed"):
        balancer.balance([1, 2])


def test_a_rank_that_does_not_come_is_named(open_ranks):
    ranks = open_ranks(2)
    with pytest.raises(headrace.TimedOut, match="rank 0 waited for a greeting of rank 1"):
        headrace.MoEWeights(ranks[0].moe, kept_experts(2), [ranks[0].weights], timeout=0.05)
