# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""Dispatch and combine of experts: ranks as threads and as processes, tensors, errors."""

import os
import pickle
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

import headrace
import moe_rank
from conftest import unique
from gpus import count_gpus
from moe_rank import EXPERTS, HIDDEN, TOKENS, config_of, expected_sums, run_experts, tokens_of
from moe_threads import Ranks
from rank_process import RankProcess


@pytest.fixture
def open_ranks():
    with ExitStack() as stack:
        yield lambda ranks, **changes: Ranks(stack, ranks, **changes)


@pytest.mark.parametrize("ranks", [1, 3])
def test_each_token_gets_the_weighted_sum_of_its_experts(open_ranks, ranks):
    def body(moe):
        routing, got = moe.new_routing(), moe.new_rows()
        for _ in range(3):
            sums, raised = moe_rank.step(moe, routing, got)
            assert raised == []
            assert (sums == expected_sums(moe.config.rank)).all()
        assert routing.tokens == TOKENS
        assert moe.active == (1 << ranks) - 1
        assert moe.failure is None
        return np.asarray(got.counts).sum()

    assert sum(open_ranks(ranks).run(body)) == ranks * TOKENS * 2


def test_both_halves_and_a_routing_that_is_used_again(open_ranks):
    def body(moe):
        rank = moe.config.rank
        rows, experts, weights = tokens_of(rank)
        routing, got = moe.new_routing(), moe.new_rows()
        sums = np.full((TOKENS, HIDDEN), 10, np.float32)
        moe.dispatch(rows, experts, weights, routing=routing, out=got)
        moe.dispatch_send(rows * 2, None, routing=routing)
        moe.dispatch_receive(routing, got)
        moe.combine_send(run_experts(moe.config, got), routing=routing)
        bias = np.ones((TOKENS, HIDDEN), np.float32)
        moe.combine_receive(routing, sums, biases=(bias, bias), accumulate=True)
        assert (sums == 2 * expected_sums(rank) + 12).all()

    open_ranks(2).run(body)


def test_rows_by_rank_have_their_experts_and_weights_beside_them(open_ranks):
    def body(moe):
        config = moe.config
        rows, experts, weights = tokens_of(config.rank)
        routing, got = moe.new_routing(), moe.new_rows()
        moe.dispatch(rows, experts.astype(np.int32), weights, routing=routing, out=got)
        factors = moe_rank.expert_factor(np.asarray(got.experts) + config.first_expert(config.rank))
        factors = (factors * np.asarray(got.weights)).sum(axis=1, keepdims=True)
        sums = np.empty((TOKENS, HIDDEN), np.float32)
        results = np.asarray(got.rows) * factors.astype(np.float32)
        moe.combine(results, routing=routing, out=sums)
        assert (sums == expected_sums(config.rank)).all()
        assert np.asarray(got.first_rows)[-1] <= 2 * TOKENS

    open_ranks(2, layout="by_rank").run(body)


def test_torch_tensors_and_scales_travel(open_ranks):
    torch = pytest.importorskip("torch")

    def body(moe):
        rows, experts, weights = tokens_of(moe.config.rank)
        small = torch.from_numpy(rows).to(torch.float8_e4m3fn)
        scales = torch.arange(TOKENS * 2, dtype=torch.float32).reshape(TOKENS, 2)
        routing, got = moe.new_routing(), moe.new_rows()
        tensors = (torch.from_numpy(experts), torch.from_numpy(weights))
        moe.dispatch(small.view(torch.uint8), *tensors, scales=scales, routing=routing, out=got)
        # The scales come with their rows: those of a token are 2 n and 2 n + 1.
        used = int(np.asarray(got.first_rows)[-1])
        came = np.asarray(got.scales)[:used].copy().view(np.float32)
        assert (came[:, 1] == came[:, 0] + 1).all()
        results = torch.zeros((moe.config.output_rows, HIDDEN), dtype=torch.bfloat16)
        results[:used] = torch.from_dlpack(got.rows).view(torch.float8_e4m3fn)[:used].to(torch.bfloat16)
        sums = torch.empty((TOKENS, HIDDEN), dtype=torch.bfloat16)
        moe.combine(results, routing=routing, out=sums)
        expected = rows * weights.sum(axis=1, keepdims=True)
        assert (sums.float().numpy() == expected).all()

    open_ranks(2, dtype="float8_e4m3fn", combine_dtype="bfloat16", scale_bytes=8).run(body)


def test_bfloat16_rows_are_cast_and_their_scales_come_by_column(open_ranks):
    torch = pytest.importorskip("torch")

    def body(moe):
        rank, hidden = moe.config.rank, 256
        random = torch.Generator().manual_seed(rank)
        rows = torch.randn((TOKENS, hidden), generator=random).to(torch.bfloat16)
        experts = torch.arange(TOKENS).reshape(TOKENS, 1) % EXPERTS
        routing, got = moe.new_routing(), moe.new_rows(column_scales=True)
        count = np.array([TOKENS - 3], np.int32)
        moe.dispatch(rows, experts, routing=routing, out=got, cast="float32", count=count)
        assert (routing.tokens, routing.given) == (TOKENS - 3, TOKENS)
        scales = torch.from_dlpack(got.scales).view(torch.float32)
        assert scales.shape == (hidden // 128, moe.config.output_rows)
        blocks = torch.from_dlpack(got.rows).to(torch.float32).reshape(-1, hidden // 128, 128)
        results = (blocks * scales.T[:, :, None]).reshape(-1, hidden).to(torch.bfloat16)
        sums = torch.full((TOKENS, hidden), 7, dtype=torch.bfloat16)
        moe.combine(results, routing=routing, out=sums)
        # A float8 has 4 bits: half of the last one, and the rounding of the sum.
        assert torch.allclose(sums[:-3].float(), rows[:-3].float(), rtol=0.07, atol=0.01)
        assert (sums[-3:] == 7).all()

    open_ranks(2, dtype="float8_e4m3fn", combine_dtype="bfloat16", hidden=256, scale_bytes=8, top_k=1).run(
        body
    )


def test_payloads_and_scales_of_any_stride_travel_beside_the_rows(open_ranks):
    def body(moe):
        rows, experts, weights = tokens_of(moe.config.rank)
        ids = np.arange(TOKENS, dtype=np.int64).reshape(TOKENS, 1) + 1
        names = np.frombuffer(b"".join(b"t%05d" % token for token in range(TOKENS)), np.uint8).reshape(
            TOKENS, 6
        )
        scales = np.asfortranarray(np.stack([ids[:, 0], -ids[:, 0]], axis=1).astype(np.float32))
        routing, got = moe.new_routing(), moe.new_rows()
        moe.dispatch(rows, experts, weights, routing=routing, out=got, scales=scales, payloads=(ids, names))
        came, named = (np.asarray(payload) for payload in got.payloads)
        for row, scale in enumerate(np.asarray(got.scales).view(np.float32)):
            token = came[row].view(np.int64)[0] - 1
            if token >= 0:
                assert scale.tolist() == [token + 1, -token - 1]
                assert named[row].tobytes() == b"t%05d" % token
        assert (came != 0).any()
        with pytest.raises(headrace.InvalidArgument, match="1 payloads are given, expected 2"):
            moe.dispatch_send(rows, experts, routing=routing, scales=scales, payloads=(ids,))
        with pytest.raises(headrace.InvalidArgument, match='cast is "int8": give None, "float32" or "ue8m0"'):
            moe.dispatch_send(rows, experts, routing=routing, cast="int8")

    open_ranks(2, scale_bytes=8, payload_bytes=[8, 6]).run(body)


def test_an_expert_writes_its_results_into_the_windows_of_the_sources(open_ranks):
    def body(moe):
        rows, experts, weights = tokens_of(moe.config.rank)
        routing, got = moe.new_routing(), moe.new_rows()
        moe.dispatch(rows, experts, weights, routing=routing, out=got)
        first = np.asarray(got.first_rows)
        for rank, memory in enumerate(moe.combine_memory(routing)):
            np.asarray(memory)[:] = np.asarray(got.rows)[first[rank] : first[rank + 1]]
        sums = np.empty((TOKENS, HIDDEN), np.float32)
        moe.combine(None, routing=routing, out=sums)
        ranks_of_token = [len({int(expert) // 3 for expert in of}) for of in experts]
        assert (sums == rows * np.array(ranks_of_token)[:, None]).all()

    open_ranks(2, layout="by_rank").run(body)


def test_a_plan_gives_ranks_their_share_of_a_hot_expert(open_ranks):
    # Two ranks with three places each, the last of which is free; most tokens name expert 0.
    places = [0, 1, -1, 2, 3, -1]
    named = [np.array([[0, 1 + token % 3] for token in range(TOKENS)]) for _ in range(2)]
    counts = [int((experts == expert).sum()) for experts in named for expert in range(4)]

    def body(moe):
        rows, _, _ = tokens_of(moe.config.rank)
        plan = headrace.moe_plan(moe.config, places, counts)
        assert plan.loads == [2 * TOKENS, 2 * TOKENS]
        routing, got = moe.new_routing(), moe.new_rows()
        experts = named[moe.config.rank]
        moe.dispatch(rows, experts, routing=routing, out=got, replicas=plan.replicas(moe.config))
        assert np.asarray(got.counts).sum() == plan.loads[moe.config.rank]
        first, results = np.asarray(got.first_rows), np.zeros_like(np.asarray(got.rows))
        for local in range(3):
            of = slice(first[local], first[local + 1])
            results[of] = np.asarray(got.rows)[of] * (plan.experts[3 * moe.config.rank + local] + 1)
        sums = np.empty((TOKENS, HIDDEN), np.float32)
        moe.combine(results, routing=routing, out=sums)
        assert (sums == rows * (experts.sum(axis=1) + 2)[:, None]).all()

    open_ranks(2).run(body)


def test_replicas_are_chosen_in_turn_and_wrong_ones_are_refused(open_ranks):
    (moe,) = open_ranks(1).moes
    rows, _, _ = tokens_of(0)
    routing, got = moe.new_routing(), moe.new_rows()
    experts = np.array([[0, 1]] * TOKENS)
    moe.dispatch(rows, experts, routing=routing, out=got, replicas=headrace.MoEReplicas([[0, 5], [3]]))
    assert np.asarray(got.counts).tolist() == [TOKENS // 2, 0, 0, TOKENS, 0, TOKENS // 2]
    for places, changes, sentence in (
        ([[0], [6]], {}, "expert 1 has place 6 in replicas, expected 0 to 5"),
        ([[0], []], {}, "expert 1 has 0 places in replicas, expected 1 to 6"),
        (
            [[0], [1]],
            {"choice": "least_loaded", "loads": [1, 2]},
            "replicas has 2 loads, expected one for each of 1",
        ),
        ([[0]], {}, "token 0 names expert 1 as its entry 1: expected -1 to 0"),
    ):
        replicas = headrace.MoEReplicas(places, **changes)
        with pytest.raises(headrace.InvalidArgument, match=sentence):
            moe.dispatch(rows, experts, routing=routing, out=got, replicas=replicas)
    with pytest.raises(headrace.InvalidArgument, match='choice is "best": give "in_turn" or "least_loaded"'):
        headrace.MoEReplicas([[0]], "best")
    with pytest.raises(headrace.InvalidArgument, match="5 places are given, expected those of the config"):
        headrace.moe_plan(moe.config, [0, 1, 2, 3, 4], [])


def test_sums_travel_as_float8_if_asked(open_ranks):
    def body(moe):
        routing, got = moe.new_routing(), moe.new_rows()
        sums, raised = moe_rank.step(moe, routing, got)
        expected = expected_sums(moe.config.rank)
        assert raised == []
        assert not (sums == expected).all()
        # Each of two sums is within 1/16 of the largest of its block.
        assert np.abs(sums - expected).max() <= 8 * (1 + EXPERTS) * 3 * 2 / 16

    open_ranks(2, float8_combine=True).run(body)


def test_rows_beyond_the_budget_raise_exhausted_with_both_numbers(open_ranks):
    (moe,) = open_ranks(1, row_budget=30).moes
    rows, experts, weights = tokens_of(0)
    with pytest.raises(headrace.Exhausted, match="got 40 rows in dispatch 1, and row_budget is 30"):
        moe.dispatch(rows, experts, weights, routing=moe.new_routing(), out=moe.new_rows())


def test_a_window_says_what_it_takes_before_it_is_taken():
    config = config_of(0, 2)
    assert config.window_bytes > 2 * 2 * TOKENS * HIDDEN * 4
    assert (config.output_rows, config.local_experts, config.first_expert(1)) == (2 * TOKENS * 2, 3, 3)
    with pytest.raises(headrace.InvalidArgument, match="top_k is 40, expected 1 to 32"):
        config_of(0, 2, top_k=40)
    with pytest.raises(headrace.InvalidArgument, match='layout is "flat": give one of "by_expert"'):
        config_of(0, 2, layout="flat")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"rows": np.zeros((TOKENS, 8), np.float32)},
         r"argument rows has shape \[20, 8\] of float32, expected \[any, 32\] of float32"),
        ({"rows": np.zeros((TOKENS, HIDDEN))}, "argument rows has shape .* of float64"),
        ({"rows": np.zeros((HIDDEN, TOKENS), np.float32).T}, "the elements of a row must lie side by side"),
        ({"rows": np.zeros((30, HIDDEN), np.float32)}, "experts has 20 rows, expected one for each of 30"),
        ({"experts": np.zeros((TOKENS, 3), np.int64)}, r"expected \[tokens, 2\] of int64, int32 or uint32"),
        ({"experts": np.zeros((TOKENS, 2), np.int16)}, "argument experts has shape .* of int16"),
        ({"experts": np.full((TOKENS, 2), EXPERTS)}, "token 0 names expert 6 as its entry 0"),
        ({"weights": np.zeros((TOKENS, 2))}, "argument weights has shape .* of float64"),
        ({"scales": np.zeros((TOKENS, 2))}, "argument scales has shape .* expected two dimensions, 0 bytes"),
        ({"count": np.array([21], np.int32)}, "count_at says 21 tokens, expected 0 to the 20 that are given"),
        ({"count": np.array([2])}, r"argument count has shape \[1\] of int64, expected \[1\] of int32"),
        ({"cast": "ue8m0"}, "argument rows has shape .* of float32, expected .* of bfloat16"),
        ({"rows": "rows"}, "argument rows"),
    ],
)  # fmt: skip
def test_a_wrong_tensor_is_named_and_nothing_is_sent(open_ranks, wrong, sentence):
    (moe,) = open_ranks(1).moes
    rows, experts, weights = tokens_of(0)
    given = {"rows": rows, "experts": experts, "weights": weights, "scales": None, **wrong}
    routing, got = moe.new_routing(), moe.new_rows()
    with pytest.raises(headrace.InvalidArgument, match=sentence):
        moe.dispatch(**given, routing=routing, out=got)
    sums, raised = moe_rank.step(moe, routing, got)
    assert raised == []
    assert (sums == expected_sums(0)).all()


def test_wrong_results_and_outputs_are_named(open_ranks):
    (moe,) = open_ranks(1).moes
    rows, experts, weights = tokens_of(0)
    routing, got = moe.new_routing(), moe.new_rows()
    sums = np.zeros((TOKENS, HIDDEN), np.float32)
    with pytest.raises(headrace.InvalidArgument, match="the routing has no dispatch that was received"):
        moe.combine(np.asarray(got.rows), routing=routing, out=np.zeros((0, HIDDEN), np.float32))
    moe.dispatch(rows, experts, weights, routing=routing, out=got)
    with pytest.raises(headrace.InvalidArgument, match="results has 3 rows, expected 40"):
        moe.combine(np.zeros((3, HIDDEN), np.float32), routing=routing, out=sums)
    with pytest.raises(headrace.InvalidArgument, match="out has 3 rows, expected one for each of 20 tokens"):
        moe.combine(np.asarray(got.rows), routing=routing, out=sums[:3])
    with pytest.raises(headrace.InvalidArgument, match="3 biases are given, expected at most 2"):
        moe.combine(np.asarray(got.rows), routing=routing, out=sums, biases=(sums, sums, sums))
    sums.flags.writeable = False
    with pytest.raises(headrace.InvalidArgument, match="out is read-only"):
        moe.combine(np.asarray(got.rows), routing=routing, out=sums)


def test_memory_of_another_moe_serves_only_if_it_is_the_same(open_ranks):
    (big,), (small,), (by_rank,), (same,) = (
        open_ranks(1, **changes).moes
        for changes in ({}, {"max_tokens": TOKENS - 1}, {"layout": "by_rank", "row_budget": 40}, {})
    )
    rows, experts, weights = tokens_of(0)
    for other in (small, by_rank):
        out, routing = other.new_rows(), big.new_routing()
        with pytest.raises(headrace.InvalidArgument, match="argument out was made by another MoE"):
            big.dispatch(rows, experts, weights, routing=routing, out=out)
        big.dispatch_send(rows, experts, weights, routing=routing)
        with pytest.raises(headrace.InvalidArgument, match="this one gives by_expert, 40 rows of 32 float32"):
            big.dispatch_receive(routing, out)
        big.dispatch_receive(routing, big.new_rows())
    sums, raised = moe_rank.step(big, big.new_routing(), same.new_rows())
    assert raised == []
    assert (sums == expected_sums(0)).all()


def test_experts_and_weights_need_not_lie_side_by_side(open_ranks):
    (moe,) = open_ranks(1).moes
    rows, experts, weights = tokens_of(0)
    routing, got = moe.new_routing(), moe.new_rows()
    wide = [np.repeat(np.pad(array, ((0, 0), (0, 3))), 2, axis=0)[::2, :2] for array in (experts, weights)]
    columns = [np.asfortranarray(array) for array in (experts, weights)]
    for strided in (wide, columns):
        assert not any(array.flags.c_contiguous for array in strided)
        moe.dispatch(rows, *strided, routing=routing, out=got)
        sums = np.zeros((TOKENS, HIDDEN), np.float32)
        moe.combine(run_experts(moe.config, got), routing=routing, out=sums)
        assert (sums == expected_sums(0)).all()


def test_calls_out_of_order_and_routings_of_others_are_refused(open_ranks):
    ranks = open_ranks(1)
    (moe,), (other,) = ranks.moes, open_ranks(1).moes
    rows, experts, weights = tokens_of(0)
    one, two, three = (moe.new_routing() for _ in range(3))
    got = moe.new_rows()
    sums = np.zeros((TOKENS, HIDDEN), np.float32)
    moe.dispatch_send(rows, experts, weights, routing=one)
    moe.dispatch_send(rows, experts, weights, routing=two)
    with pytest.raises(headrace.InvalidArgument, match="dispatch 3 cannot begin: 2 are under way"):
        moe.dispatch_send(rows, experts, weights, routing=three)
    with pytest.raises(headrace.InvalidArgument, match="the routing is not that of dispatch 1"):
        moe.dispatch_receive(two, got)
    with pytest.raises(
        headrace.InvalidArgument, match="dispatch 1 is under way: receive it before ranks regroup"
    ):
        moe.regroup(ranks.names, 1)
    moe.dispatch_receive(one, got)
    moe.dispatch_receive(two, got)
    with pytest.raises(headrace.InvalidArgument, match="the routing was made by another MoE"):
        other.combine(np.asarray(got.rows), routing=one, out=sums)
    big = np.zeros((TOKENS + 1, HIDDEN), np.float32)
    with pytest.raises(headrace.InvalidArgument, match="21 tokens are given, expected 0 to max_tokens = 20"):
        moe.dispatch_send(big, np.zeros((TOKENS + 1, 2), np.int64), routing=one)


def test_ranks_with_other_configurations_are_told_the_field_and_both_values():
    with ExitStack() as stack:
        names = [unique("moe") for _ in range(2)]
        agents = [stack.enter_context(headrace.Agent(name, backends=["shm"])) for name in names]
        moe = stack.enter_context(headrace.MoE(agents[0], config_of(0, 2)))
        other = stack.enter_context(headrace.MoE(agents[1], config_of(1, 2, payload_bytes=[8])))
        with pytest.raises(
            headrace.InvalidArgument, match="it has not joined the other ranks: call join first"
        ):
            moe.new_routing()
        agents[0].import_metadata(agents[1].export_metadata())
        agents[1].import_metadata(agents[0].export_metadata())
        sentence = r"rank 0 has payload_bytes \[\], rank 1 has \[8\]: give all ranks the same configuration"
        with pytest.raises(headrace.InvalidArgument, match=sentence):
            moe.join(names, timeout=10)
        with pytest.raises(
            headrace.InvalidArgument, match=r"rank 1 has payload_bytes \[8\], rank 0 has \[\]"
        ):
            other.join(names, timeout=10)


def test_ranks_and_plans_of_other_configurations_are_refused():
    config = config_of(0, 2, experts_of_ranks=[2, 4])
    assert [config.first_expert(rank) for rank in range(3)] == [0, 2, 6]
    for rank in (-1, 3, 2**31 - 1):
        with pytest.raises(headrace.InvalidArgument, match=f"rank is {rank}, expected 0 to ranks = 2"):
            config.first_expert(rank)
    plan = headrace.moe_plan(config, [0, 1, 2, 3, 4, -1], [7] * 10)
    for other in (config_of(63, 64), config_of(0, 2, experts=9), config_of(0, 2, group_size=2)):
        with pytest.raises(headrace.InvalidArgument, match="the plan is for 6 experts and 2 groups of ranks"):
            plan.replicas(other)
    with pytest.raises(headrace.InvalidArgument, match="a count is 9223372036854775807, expected 0 to"):
        headrace.moe_plan(config, [0, 1, 2, 3, 4, -1], [2**63 - 1] * 10)


def test_a_forked_child_is_refused(open_ranks):
    (moe,) = open_ranks(1).moes
    routing, got = moe.new_routing(), moe.new_rows()
    child = os.fork()
    if child == 0:
        try:
            assert moe.active == 0
            moe.dispatch(*tokens_of(0), routing=routing, out=got)
            os._exit(1)
        except headrace.InvalidArgument as error:
            os._exit(0 if "it was opened before this process was forked" in str(error) else 2)
        finally:
            os._exit(3)
    assert os.waitpid(child, 0)[1] == 0


def test_a_rank_that_is_given_in_another_order_is_refused():
    with ExitStack() as stack:
        names = [unique("moe") for _ in range(2)]
        agents = [stack.enter_context(headrace.Agent(name, backends=["shm"])) for name in names]
        moe = stack.enter_context(headrace.MoE(agents[0], config_of(0, 2)))
        with pytest.raises(headrace.InvalidArgument, match=r"agents\[0\] is .*, the agent of this rank"):
            moe.join(names[::-1])


def test_a_closed_one_and_a_pickled_one_say_so(open_ranks):
    (moe,) = open_ranks(1).moes
    with pytest.raises(TypeError, match="a MoE cannot be pickled"):
        pickle.dumps(moe)
    with pytest.raises(headrace.NotSupported, match="all ranks call regroup to take it back"):
        leave_out_and_take_back(open_ranks(2).moes[0])
    moe.close()
    with pytest.raises(headrace.InvalidArgument, match="the MoE is closed"):
        moe.new_routing()


def leave_out_and_take_back(moe):
    with pytest.raises(headrace.InvalidArgument, match="set_active names rank 7, expected 0 to 1"):
        moe.active = 0b10000001
    moe.active = 0b01
    moe.active = 0b11


def test_a_rank_that_was_left_out_comes_back(open_ranks):
    ranks = open_ranks(2)
    names = ranks.names
    ranks.moes[0].active = 0b01
    assert ranks.moes[1].active == 0b01
    with pytest.raises(headrace.Canceled, match="rank 0 has left rank 1 out"):
        ranks.moes[1].dispatch_send(*tokens_of(1), routing=ranks.moes[1].new_routing())
    with pytest.raises(headrace.TimedOut, match="rank 0 waited for rank 1 to regroup"):
        ranks.moes[0].regroup(names, 0b11, timeout=0.05)

    def body(moe):
        moe.regroup(names, 0b11, timeout=60)
        sums, raised = moe_rank.step(moe, moe.new_routing(), moe.new_rows())
        assert raised == []
        assert (sums == expected_sums(moe.config.rank)).all()

    ranks.run(body)


def test_ctrl_c_ends_a_wait(open_ranks):
    one, other = open_ranks(2).moes
    rows, experts, weights = tokens_of(0)
    routing, got = one.new_routing(), one.new_rows()
    timer = threading.Timer(1, signal.raise_signal, [signal.SIGINT])  # in the call, also on a busy machine
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        one.dispatch(rows, experts, weights, routing=routing, out=got)
    timer.join()
    assert other.active == 0b10
    with pytest.raises(headrace.Canceled, match="rank 0 was interrupted by its caller in dispatch 1"):
        one.dispatch(*tokens_of(0), routing=one.new_routing(), out=one.new_rows())


@pytest.mark.parametrize("end", ["join", "regroup"])
def test_ctrl_c_ends_a_wait_for_a_rank_that_is_stopped(tmp_path, end):
    store, options = f"file://{tmp_path}", {"shm.handshake_timeout": "3600s"}
    with (
        moe_rank.stopped_rank(1, 2, tmp_path),
        headrace.Agent("moe0", backends=["shm"], store=store, options=options) as agent,
        headrace.MoE(agent, config_of(0, 2)) as moe,
    ):
        names = ["moe0", "moe1"]
        wait = (
            moe.join if end == "join" else lambda *names, timeout: moe.regroup(*names, 0b11, timeout=timeout)
        )
        timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            wait(names, timeout=60)
        timer.join()
        moe.abort()
        with pytest.raises(
            headrace.Canceled, match=r"rank 1 .*: wait for peer .*: its caller interrupted it"
        ):
            wait(names, timeout=60)


def start(fate, folder):
    return [RankProcess(moe_rank.run_rank, rank, 3, folder, fate) for rank in range(3)]


def test_processes_go_on_without_a_rank_that_is_killed(tmp_path):
    ranks = start(signal.SIGKILL, tmp_path)
    told = [rank.hear() for rank in ranks]
    assert told[1] == "ends"
    for rank in (0, 2):
        steps, active = told[rank]
        assert active == 0b101
        assert steps[:3] == [(True, [])] * 3
        raised = [text for _, texts in steps[3:] for text in texts]
        assert len(raised) == 1
        assert raised[0].startswith("PeerLost: ")
        seen = f"rank {rank} waited for its counts in dispatch 4 (expected 4"
        assert any(
            f"rank 1 {how}: {seen}" in raised[0] for how in ("is gone", "was left out by another rank")
        )
    assert [rank.end() for rank in ranks] == [0, -signal.SIGKILL, 0]


def test_a_rank_that_stood_still_is_left_out_and_hears_it(tmp_path):
    ranks = start(signal.SIGSTOP, tmp_path)
    told = [rank.hear() for rank in ranks]
    for rank in (0, 2):
        steps, active = told[rank]
        assert active == 0b101
        (raised,) = steps[3][1]
        assert "rank 1" in raised
        assert "in dispatch 4" in raised
    texts = told[0][0][3][1] + told[2][0][3][1]
    assert any(text.startswith("TimedOut") for text in texts)
    os.kill(ranks[1].process.pid, signal.SIGCONT)
    steps, _ = ranks[1].hear()
    raised = [text for _, texts in steps[3:] for text in texts]
    assert any("left rank 1 out" in text or "is gone" in text for text in raised)
    # Once it has heard it, it hears it in each operation.
    canceled = [text.startswith("Canceled") for text in raised]
    assert canceled == sorted(canceled)
    assert [rank.end() for rank in ranks] == [0, 0, 0]


def test_an_argument_that_closes_the_moe_ends_the_call_with_a_sentence(open_ranks):
    moe = open_ranks(1).moes[0]
    routing, got = moe.new_routing(), moe.new_rows()
    rows, experts, weights = tokens_of(0)

    class Closes:
        """Rows that run code when they are asked for their memory."""

        def __dlpack__(self, **wanted):
            moe.close()
            self.others = [bytes(size) for size in range(1, 4000)]  # in the memory that it had
            return rows.__dlpack__()

        def __dlpack_device__(self):
            return rows.__dlpack_device__()

    with pytest.raises(headrace.InvalidArgument, match="the MoE is closed"):
        moe.dispatch(Closes(), experts, weights, routing=routing, out=got)


def test_a_dispatch_that_comes_between_does_not_let_a_combine_write_past_its_rows(open_ranks):
    moe = open_ranks(1).moes[0]
    routing, got = moe.new_routing(), moe.new_rows()
    few = [part[:2] for part in tokens_of(0)]
    moe.dispatch(*few, routing=routing, out=got)
    memory = np.zeros((TOKENS, HIDDEN), np.float32)

    class DispatchesMore:
        """Memory for two rows, which are asked for while another dispatch takes the routing."""

        def __dlpack__(self, **wanted):
            moe.dispatch(*tokens_of(0), routing=routing, out=got)
            return memory[:2].__dlpack__()

        def __dlpack_device__(self):
            return memory.__dlpack_device__()

    with pytest.raises(headrace.InvalidArgument, match="out has 2 rows, expected one for each of 20 tokens"):
        moe.combine(np.asarray(got.rows), routing=routing, out=DispatchesMore())
    assert not memory.any()


def test_reading_active_while_a_rank_waits_lets_the_other_ranks_of_the_process_run(open_ranks):
    moes = open_ranks(2, wait_limit=10).moes

    def body(moe):
        routing, got = moe.new_routing(), moe.new_rows()
        moe.dispatch(*tokens_of(moe.config.rank), routing=routing, out=got)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(body, moes[0])

        def look():
            while not first.done():
                assert moes[0].active == 3
                assert moes[0].failure is None

        looks = threads.submit(look)
        time.sleep(0.2)  # they are inside now: only then could they keep this rank from running
        body(moes[1])
        first.result(100)
        looks.result(100)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"device": "cuda:x"}, 'there is no device "cuda:x"'),
        ({"blocks": 4}, "blocks is 4, and device is -1"),
        ({"device": "cuda:0", "blocks": 129}, "blocks is 129, expected 0 to 128"),
    ],
)
def test_a_wrong_device_or_number_of_blocks_is_refused(fields, sentence):
    with pytest.raises(headrace.InvalidArgument, match=sentence):
        config_of(0, 1, **fields)


@pytest.mark.skipif(count_gpus() > 0, reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused_and_takes_nothing():
    config = config_of(0, 1, device="cuda:0")
    assert config.device == "cuda:0"
    with headrace.Agent(unique("moe"), backends=["shm"]) as agent:
        with pytest.raises(headrace.NotSupported):
            headrace.MoE(agent, config)
        assert agent.regions() == []


def test_a_moe_in_host_memory_has_no_streams(open_ranks):
    (moe,) = open_ranks(1).moes
    rows, experts, weights = tokens_of(0)
    routing, got = moe.new_routing(), moe.new_rows()
    assert got.host_counts is None
    with pytest.raises(headrace.InvalidArgument, match="stream is given, and this MoE moves host memory"):
        moe.dispatch(rows, experts, weights, routing=routing, out=got, stream=0)
    moe.set_active(1)
    moe.check()


def test_an_abort_ends_a_wait_of_another_thread(open_ranks):
    waits, other = open_ranks(2).moes
    rows, experts, weights = tokens_of(0)
    routing, got = waits.new_routing(), waits.new_rows()
    threading.Timer(0.3, waits.abort).start()
    with pytest.raises(headrace.Canceled, match="was interrupted by its caller in dispatch 1"):
        waits.dispatch(rows, experts, weights, routing=routing, out=got)
    assert other.active == 0b10
