# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""Dispatch and combine between nodes: ranks of one host that a fabric joins over tcp alone."""

import signal
from contextlib import ExitStack

import numpy as np
import pytest

import headrace
import moe_rank
from conftest import unique
from moe_rank import TOKENS, config_of, expected_sums
from moe_threads import Ranks
from rank_process import RankProcess

TCP = ("127.0.0.1",)


@pytest.fixture
def open_ranks():
    with ExitStack() as stack:
        yield lambda ranks, **changes: Ranks(stack, ranks, nics=TCP, **changes)


@pytest.mark.parametrize(("ranks", "per_node"), [(2, 1), (4, 2), (3, 2)])
def test_each_token_gets_the_weighted_sum_of_its_experts(open_ranks, ranks, per_node):
    def body(moe):
        routing, got = moe.new_routing(), moe.new_rows()
        for _ in range(3):
            sums, raised = moe_rank.step(moe, routing, got)
            assert raised == []
            assert (sums == expected_sums(moe.config.rank)).all()
        assert moe.active == (1 << ranks) - 1
        return np.asarray(got.counts).sum()

    assert sum(open_ranks(ranks, ranks_per_node=per_node).run(body)) == ranks * TOKENS * 2


def regroup_and_step(ranks, mask):
    """The ranks of a mask go on together, and make steps."""

    def body(moe):
        if not mask >> moe.config.rank & 1:
            return
        moe.regroup(ranks.names, mask, timeout=60)
        lost = [e for r in range(moe.config.ranks) if not mask >> r & 1 for e in experts_of(moe.config, r)]
        routing, got = moe.new_routing(), moe.new_rows()
        for _ in range(2):
            sums, raised = moe_rank.step(moe, routing, got)
            assert raised == []
            assert (sums == expected_sums(moe.config.rank, lost)).all()
        assert moe.active == mask

    ranks.run(body)


def experts_of(config, rank):
    return range(config.first_expert(rank), config.first_expert(rank + 1))


@pytest.mark.parametrize("per_node", [1, 2])
def test_ranks_of_several_nodes_leave_and_come_back(open_ranks, per_node):
    ranks = open_ranks(4, ranks_per_node=per_node)
    for mask in (0b1111, 0b0111, 0b1110, 0b1100, 0b1111):
        regroup_and_step(ranks, mask)


def joined_alone(stack, configs):
    """Two ranks that know each other, not yet joined."""
    names = [unique("moe") for _ in configs]
    agents = [stack.enter_context(headrace.Agent(name, backends=["shm"])) for name in names]
    moes = [
        stack.enter_context(headrace.MoE(agent, config))
        for agent, config in zip(agents, configs, strict=True)
    ]
    agents[0].import_metadata(agents[1].export_metadata())
    return names, moes


def test_another_configuration_on_another_node_is_refused_by_field():
    with ExitStack() as stack:
        nodes = {"ranks_per_node": 1, "nics": TCP}
        names, moes = joined_alone(stack, [config_of(0, 2, **nodes), config_of(1, 2, max_tokens=7, **nodes)])
        with pytest.raises(headrace.InvalidArgument, match="rank 0 has max_tokens 20, rank 1 has 7"):
            moes[0].join(names)


def test_a_node_that_cannot_be_reached_is_named_with_the_network_cards():
    with ExitStack() as stack:
        nodes = {"ranks_per_node": 1, "nics": TCP}
        names, moes = joined_alone(stack, [config_of(rank, 2, **nodes) for rank in range(2)])
        moes[1].close()
        with pytest.raises(headrace.Error, match=r"rank 1 .* no way to it over .*127\.0\.0\.1"):
            moes[0].join(names, timeout=5)


def test_a_wrong_network_card_and_a_wrong_number_of_ranks_are_refused():
    with headrace.Agent(unique("moe"), backends=["shm"]) as agent:
        with pytest.raises(headrace.Error, match="no_card_of_this_name"):
            headrace.MoE(agent, config_of(0, 2, ranks_per_node=1, nics=("no_card_of_this_name",)))
        with pytest.raises(headrace.InvalidArgument, match="ranks_per_node is 3, expected 0 to 2"):
            config_of(0, 2, ranks_per_node=3)


@pytest.mark.parametrize("fate", [0, signal.SIGKILL])
def test_processes_of_two_nodes_step_and_go_on_without_one_that_is_killed(tmp_path, fate):
    changes = {"ranks_per_node": 1, "nics": TCP}
    ranks = [RankProcess(moe_rank.run_rank, rank, 3, tmp_path, fate, **changes) for rank in range(3)]
    told = [rank.hear() for rank in ranks]
    for rank in (0, 2):
        steps, active = told[rank]
        # A rank that is killed behind its third step may leave with sums of it that have not left.
        assert steps[:2] == [(True, [])] * 2
        raised = [text for _, texts in steps[2:] for text in texts]
        if not fate:
            assert raised == [] and all(right for right, _ in steps)
            assert active == 0b111
            continue
        assert active == 0b101
        assert len(raised) == 1
        assert raised[0].startswith("PeerLost: ")
        assert "rank 1" in raised[0]
    assert [rank.end() for rank in ranks] == [0, -fate, 0]


def run_until_regrouped(rank, names, folder, mask, is_new, parent):
    """Two steps with all, unless it is new; then, when told, it goes on with the ranks of a mask."""
    changes = {"ranks_per_node": 1, "nics": TCP}
    with (
        headrace.Agent(names[rank], backends=["shm"], store=f"file://{folder}") as agent,
        headrace.MoE(agent, config_of(rank, len(names), **changes)) as moe,
    ):
        agent.publish()
        right = []
        if not is_new:
            moe.join(names, timeout=60)
            routing, got = moe.new_routing(), moe.new_rows()
            right += [bool((moe_rank.step(moe, routing, got)[0] == expected_sums(rank)).all()) for _ in "ab"]
        parent.send(right)
        parent.recv()
        moe.regroup(names, mask, timeout=60)
        lost = [e for r in range(len(names)) if not mask >> r & 1 for e in experts_of(moe.config, r)]
        sums, raised = moe_rank.step(moe, moe.new_routing(), moe.new_rows())
        parent.send([bool((sums == expected_sums(rank, lost)).all()), moe.active, len(raised)])
        parent.recv()


@pytest.mark.parametrize("mask", [0b110, 0b111], ids=["without_it", "with_a_new_process_in_its_place"])
def test_processes_go_on_after_the_first_node_is_killed(tmp_path, mask):
    names = [f"moe{rank}" for rank in range(3)]
    ranks = [RankProcess(run_until_regrouped, rank, names, tmp_path, mask, False) for rank in range(3)]
    assert [rank.hear() for rank in ranks] == [[True, True]] * 3
    ranks[0].kill()
    if mask & 1:
        ranks[0] = RankProcess(run_until_regrouped, 0, names, tmp_path, mask, True)
        assert ranks[0].hear() == []
    members = [ranks[rank] for rank in range(3) if mask >> rank & 1]
    for member in members:
        member.pipe.send(None)
    assert [member.hear() for member in members] == [[True, mask, 0]] * len(members)
    for member in members:
        member.pipe.send(None)
    assert [member.end() for member in members] == [0] * len(members)


def test_an_abort_ends_a_join_that_waits_for_a_node_that_is_stopped(tmp_path):
    changes = {"ranks_per_node": 1, "nics": TCP}
    with (
        moe_rank.stopped_rank(1, 2, tmp_path, **changes),
        headrace.Agent("moe0", backends=["shm"], store=f"file://{tmp_path}") as agent,
        headrace.MoE(agent, config_of(0, 2, **changes)) as moe,
    ):
        moe.abort()
        with pytest.raises(headrace.Canceled, match=r"rank 1 .*: it was interrupted by its caller"):
            moe.join(["moe0", "moe1"], timeout=3600)
