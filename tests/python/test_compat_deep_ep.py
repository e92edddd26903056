# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""headrace.compat.deep_ep.Buffer: the cases of DeepEP's tests of its normal and its low-latency mode, with
ranks as threads, masks, and what it refuses."""

import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import headrace
from headrace.compat import deep_ep
from headrace.compat.deep_ep.utils.math import (
    align,
    calc_diff,
    hash_tensor,
    per_token_cast_back,
    per_token_cast_to_fp8,
)
from moe_threads import ThreadGroup, run_threads
from rank_process import RankProcess

Invalid = headrace.InvalidArgument
RANKS, TOKENS, HIDDEN, EXPERTS, TOP_K = 3, 20, 512, 12, 4
EACH = EXPERTS // RANKS
BUFFER_BYTES = 32 << 20
WHEEL = Path(__file__).resolve().parents[2] / "packaging" / "headrace_deep_ep"


@dataclass
class Tokens:
    """What a rank sends, the same whenever it is made."""

    random: torch.Tensor
    of_rank: torch.Tensor  # each element is the rank
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor

    @staticmethod
    def of(rank, masked=False):
        generator = torch.Generator().manual_seed(rank)
        scores = torch.rand(TOKENS, EXPERTS, generator=generator)
        topk_idx = scores.topk(TOP_K)[1]
        if masked:
            topk_idx[torch.rand(TOKENS, TOP_K, generator=generator) < 0.3] = -1
        return Tokens(
            torch.randn(TOKENS, HIDDEN, generator=generator).bfloat16(),
            torch.full((TOKENS, HIDDEN), rank, dtype=torch.bfloat16),
            topk_idx,
            torch.rand(TOKENS, TOP_K, generator=generator),
        )

    def is_in_rank(self):
        ranks = torch.where(self.topk_idx >= 0, self.topk_idx // EACH, -1)
        return torch.stack([(ranks == rank).any(1) for rank in range(RANKS)], dim=1)


def buffers(groups, **options):
    """A buffer for each rank, and its group."""

    def open_one(group):
        given = {"num_nvl_bytes": BUFFER_BYTES, "explicitly_destroy": True, "comm": group, **options}
        return deep_ep.Buffer(None, **given), group

    return run_threads(groups, open_one)


@pytest.fixture
def open_buffers():
    opened = []

    def open_them(**options):
        opened.extend(buffers(ThreadGroup.of(RANKS), **options))
        return opened

    yield open_them
    for buffer, _ in opened:
        buffer.destroy()


def bfloat16(x):
    return per_token_cast_back(*x) if isinstance(x, tuple) else x


# --- normal mode


def expected_rows(rank, of):
    """What a rank gets, by a function of tokens: in the order of ranks and tokens."""
    every = [Tokens.of(source) for source in range(RANKS)]
    return torch.cat([of(tokens)[tokens.is_in_rank()[:, rank]] for tokens in every])


def local(topk_idx, rank):
    there = (topk_idx >= 0) & (topk_idx // EACH == rank)
    return torch.where(there, topk_idx - rank * EACH, -1)


@pytest.mark.parametrize("with_topk", [False, True])
@pytest.mark.parametrize("kind", ["random", "of_rank", "fp8"])
def test_rows_go_to_ranks_and_come_back(open_buffers, kind, with_topk):
    def body(given):
        buffer, group = given
        tokens = Tokens.of(group.rank)
        x = per_token_cast_to_fp8(tokens.random) if kind == "fp8" else getattr(tokens, kind)
        per_rank, per_rdma_rank, per_expert, is_in_rank, event = buffer.get_dispatch_layout(
            tokens.topk_idx, EXPERTS
        )
        assert per_rdma_rank is None
        assert torch.equal(is_in_rank, tokens.is_in_rank())
        assert torch.equal(per_rank, is_in_rank.sum(0))
        assert torch.equal(per_expert, torch.bincount(tokens.topk_idx.flatten(), minlength=EXPERTS))
        given = {
            "x": x, "num_tokens_per_rank": per_rank, "is_token_in_rank": is_in_rank,
            "num_tokens_per_expert": per_expert, "previous_event": event, "async_finish": True,
        }  # fmt: skip
        if with_topk:
            given |= {"topk_idx": tokens.topk_idx, "topk_weights": tokens.topk_weights}
        got, experts, weights, counts, handle, event = buffer.dispatch(**given)
        event.current_stream_wait()

        wanted = expected_rows(group.rank, lambda of: getattr(of, "random" if kind == "fp8" else kind))
        wanted = bfloat16(per_token_cast_to_fp8(wanted)) if kind == "fp8" else wanted
        assert torch.equal(bfloat16(got), wanted)
        ends = handle[0][:, group.rank].tolist()
        sent = torch.tensor([int(Tokens.of(r).is_in_rank()[:, group.rank].sum()) for r in range(RANKS)])
        assert ends == sent.cumsum(0).tolist()
        wanted_experts = local(expected_rows(group.rank, lambda of: of.topk_idx), group.rank)
        assert counts == torch.bincount(wanted_experts[wanted_experts >= 0], minlength=EACH).tolist()
        if with_topk:
            assert torch.equal(experts, wanted_experts)
            wanted_weights = expected_rows(group.rank, lambda of: of.topk_weights)
            assert torch.equal(weights, wanted_weights.masked_fill(wanted_experts < 0, 0))
            _more_rows_than_came(buffer, given, got, experts)
        else:
            assert experts is None and weights is None
            again, *nothing, _ = buffer.dispatch(x, handle=handle)
            assert torch.equal(bfloat16(again), wanted) and nothing == [None] * 4
            backwards, *_ = buffer.dispatch(tokens.of_rank, handle=handle)  # rows of another type
            assert torch.equal(backwards, expected_rows(group.rank, lambda of: of.of_rank))
        bias = (tokens.random, tokens.random)
        sums, of_weights, _ = buffer.combine(bfloat16(got), handle, topk_weights=weights)
        assert calc_diff(sums, bfloat16(x).float() * is_in_rank.sum(1, keepdim=True)) < 5e-6
        added, _, _ = buffer.combine(bfloat16(got), handle, bias=bias)
        assert calc_diff(added, sums.float() + 2 * tokens.random.float()) < 5e-6
        if with_topk:
            assert torch.equal(of_weights, tokens.topk_weights)

    run_threads(open_buffers(), body)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("after_event", [False, True])
def test_calls_are_asynchronous_or_not_and_follow_an_event_or_not(open_buffers, asynchronous, after_event):
    """Of tokens whose experts are on two ranks at most, as routing with a limit of groups gives them."""

    def body(given):
        buffer, group = given
        tokens = Tokens.of(group.rank)
        ranks = torch.rand(TOKENS, RANKS, generator=torch.Generator().manual_seed(group.rank)).argsort(1)
        near = ranks[:, :2, None] * EACH + torch.arange(EACH)
        topk_idx = near.flatten(1)[:, 1 : 1 + TOP_K].contiguous()
        options = {"async_finish": asynchronous, "allocate_on_comm_stream": asynchronous and after_event}

        def before():
            return {"previous_event": buffer.capture() if after_event else None, **options}

        per_rank, _, per_expert, is_in_rank, event = buffer.get_dispatch_layout(topk_idx, EXPERTS, **before())
        assert (is_in_rank.sum(1) == 2).all()
        if asynchronous:
            event.current_stream_wait()
        got, experts, weights, counts, handle, event = buffer.dispatch(
            tokens.random,
            num_tokens_per_rank=per_rank,
            is_token_in_rank=is_in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=topk_idx,
            topk_weights=tokens.topk_weights,
            **before(),
        )
        if asynchronous:
            event.current_stream_wait()
        assert counts == torch.bincount(experts[experts >= 0], minlength=EACH).tolist()
        sums, of_weights, event = buffer.combine(got, handle, topk_weights=weights, **before())
        if asynchronous:
            event.current_stream_wait()
        assert calc_diff(sums, tokens.random.float() * 2) < 5e-6
        assert torch.equal(of_weights, tokens.topk_weights)

    run_threads(open_buffers(), body)


def _more_rows_than_came(buffer, given, got, experts):
    worst = TOKENS * RANKS
    padded, padded_experts, padded_weights, counts, handle, _ = buffer.dispatch(
        **given, num_worst_tokens=worst
    )
    came = experts.shape[0]
    assert counts == [] and padded_weights.shape[0] == worst
    assert torch.equal(bfloat16(padded)[:came], bfloat16(got))
    assert torch.equal(padded_experts[:came], experts) and (padded_experts[came:] == -1).all()
    sums, _, _ = buffer.combine(bfloat16(padded), handle)
    again, _, _ = buffer.combine(bfloat16(got), handle)
    assert torch.equal(sums, again)
    *_, counts, _, _ = buffer.dispatch(**given, expert_alignment=8)
    assert all(count % 8 == 0 for count in counts)


def test_what_the_normal_mode_refuses(open_buffers):
    (group,) = ThreadGroup.of(1)
    ((buffer, _),) = buffers([group])
    tokens = Tokens.of(0)
    per_rank, _, per_expert, is_in_rank, _ = buffer.get_dispatch_layout(tokens.topk_idx, EXPERTS)
    given = {
        "num_tokens_per_rank": per_rank, "is_token_in_rank": is_in_rank, "num_tokens_per_expert": per_expert,
    }  # fmt: skip
    *_, handle, _ = buffer.dispatch(tokens.random, **given)
    for call, error, sentence in (
        (lambda: buffer.dispatch(tokens.random), Invalid, "get_dispatch_layout gives them"),
        (lambda: buffer.dispatch(tokens.random[:3], **given), Invalid, "a row for each token"),
        (lambda: buffer.dispatch(tokens.random, handle=tuple(handle)), Invalid, "not a copy"),
        (lambda: buffer.dispatch(tokens.random.to("meta"), **given), Invalid, "x is on meta"),
        (lambda: buffer.dispatch(tokens.random, handle=handle, topk_idx=tokens.topk_idx),
         Invalid, "give no topk_idx"),
        (lambda: buffer.dispatch(tokens.random, **given, num_worst_tokens=3), headrace.Exhausted,
         "20 tokens came, and num_worst_tokens is 3"),
        (lambda: buffer.dispatch(tokens.random, **given, expert_alignment=0), Invalid, "expected 1 or more"),
        (lambda: buffer.get_dispatch_layout(tokens.topk_idx, 0), Invalid, "0 experts cannot be divided"),
        (lambda: buffer.get_dispatch_layout(tokens.topk_idx, 2), Invalid, "expected experts from 0 to 1"),
        (lambda: buffer.get_dispatch_layout(tokens.topk_idx[0], EXPERTS), Invalid,
         r"expected \[tokens, top_k\]"),
        (lambda: buffer.combine(tokens.random[:3], handle), Invalid, r"\[20, hidden\]"),
        (lambda: buffer.combine(tokens.random, handle, bias=tokens.random[:3]), Invalid,
         r"shapes \[\[3, 512\]\], expected at most 2 of \[20, 512\]"),
        (lambda: buffer.combine(tokens.random, handle, bias=(tokens.random,) * 3), Invalid, "at most 2"),
        (lambda: buffer.low_latency_query_mask_buffer(per_rank) or buffer.clean_low_latency_buffer(1, 1, 1),
         ValueError, "make it with low_latency_mode=True"),
        (buffer.get_comm_stream, headrace.NotSupported, "there is no stream"),
        (lambda: buffer.get_local_buffer_tensor(torch.uint8), headrace.NotSupported, "a layout of its own"),
        (lambda: deep_ep.Buffer.set_num_sms(3), ValueError, "expected an even number"),
        (lambda: deep_ep.Buffer(None), Invalid, "neither group nor comm is given"),
    ):  # fmt: skip
        with pytest.raises(error, match=sentence):
            call()
    sums, _, _ = buffer.combine(tokens.random, handle)  # nothing of those has left
    assert (sums == tokens.random).all()
    buffer.destroy()
    ((small, _),) = buffers([group], num_nvl_bytes=1000, explicitly_destroy=False)
    with pytest.raises(Invalid, match=r"the buffer has 1000 bytes, and one token of 1024"):
        small.dispatch(tokens.random, **given)
    with pytest.raises(ValueError, match="make it with explicitly_destroy=True"):
        small.destroy()


def test_hints_have_room_for_what_they_are_asked():
    config = deep_ep.Buffer.get_dispatch_config(RANKS)
    assert config == deep_ep.Buffer.get_combine_config(RANKS) == deep_ep.Config(deep_ep.Buffer.num_sms)
    few, more = (config.get_nvl_buffer_size_hint(1024, ranks) for ranks in (2, 4))
    assert 2 * 4096 * 1024 < few < more
    assert config.get_rdma_buffer_size_hint(1024, 2) == 0
    assert deep_ep.Buffer.get_low_latency_rdma_size_hint(128, 512, 2, 8) > 2 * 128 * 1024
    assert deep_ep.Buffer.is_sm90_compiled()


def test_a_group_of_torch_serves():
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert deep_ep.get_physical_domain_size(dist.group.WORLD) == (1, 1)
        buffer = deep_ep.Buffer(dist.group.WORLD, BUFFER_BYTES, explicitly_destroy=True)
        assert (buffer.rank, buffer.group_size) == (0, 1)
        tokens = Tokens.of(0)
        per_rank, _, per_expert, is_in_rank, _ = buffer.get_dispatch_layout(tokens.topk_idx, EXPERTS)
        got, *_ = buffer.dispatch(
            tokens.random,
            num_tokens_per_rank=per_rank,
            is_token_in_rank=is_in_rank,
            num_tokens_per_expert=per_expert,
        )
        assert torch.equal(got, tokens.random)
        buffer.destroy()
    finally:
        dist.destroy_process_group()


def in_a_process(rank, folder, parent):
    """A step of both modes, of two ranks that meet in a group of torch."""
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    buffer = deep_ep.Buffer(dist.group.WORLD, BUFFER_BYTES, low_latency_mode=True, explicitly_destroy=True)
    tokens = Tokens.of(rank)
    per_rank, _, per_expert, is_in_rank, _ = buffer.get_dispatch_layout(tokens.topk_idx, EXPERTS)
    got, *_, handle, _ = buffer.dispatch(
        tokens.random,
        num_tokens_per_rank=per_rank,
        is_token_in_rank=is_in_rank,
        num_tokens_per_expert=per_expert,
    )
    sums, *_ = buffer.combine(got, handle)
    normal = calc_diff(sums, tokens.random.float() * is_in_rank.sum(1, keepdim=True))
    rows, _, handle, _, hook = buffer.low_latency_dispatch(
        tokens.random, tokens.topk_idx, TOKENS, EXPERTS, use_fp8=False, return_recv_hook=True
    )
    hook()
    sums, *_ = buffer.low_latency_combine(rows, tokens.topk_idx, tokens.topk_weights, handle)
    parent.send((normal, calc_diff(sums, tokens.random.float() * tokens.topk_weights.sum(1, keepdim=True))))
    dist.barrier()
    buffer.destroy()
    dist.destroy_process_group()


@pytest.mark.slow
def test_ranks_are_processes_of_a_group_of_torch(tmp_path):
    ranks = [RankProcess(in_a_process, rank, tmp_path) for rank in range(2)]
    for normal, low_latency in [rank.hear() for rank in ranks]:
        assert normal < 5e-6 and low_latency < 1e-5
    assert [rank.end() for rank in ranks] == [0, 0]


# --- low-latency mode


def low_latency_tokens(rank, of_rank):
    """A rank's rows: the rank, and in the last elements the token; or random ones."""
    if not of_rank:
        return Tokens.of(rank).random
    x = torch.full((TOKENS, HIDDEN), rank - 128, dtype=torch.bfloat16)
    x[:, -128:] = torch.arange(TOKENS)[:, None]
    return x


def check_received(rank, got, counts, handle, is_exact):
    """As DeepEP's test does: counts, sources, places of each rank's rows, rows."""
    sources, layout, *_ = handle
    for expert in range(EACH):
        named = [(Tokens.of(r, True).topk_idx == rank * EACH + expert).any(1) for r in range(RANKS)]
        assert counts[expert] == sum(int(tokens.sum()) for tokens in named)
        for source in range(RANKS):
            begin, count = int(layout[expert, source] >> 32), int(layout[expert, source] & (1 << 32) - 1)
            there = slice(begin, begin + count)
            assert sources[expert, there].tolist() == named[source].nonzero()[:, 0].tolist()
            if is_exact:
                assert (got[expert, there, :-128] == source - 128).all()
                assert (got[expert, there, -1] == sources[expert, there]).all()


CASTS = [(False, False, False), (True, False, False), (True, True, False), (True, True, True)]


def test_rows_go_to_experts_and_weighted_sums_come_back(open_buffers):
    def body(given):
        buffer, group = given
        tokens = Tokens.of(group.rank, masked=True)
        weights = tokens.topk_weights.masked_fill(tokens.topk_idx == -1, 0).sum(1, keepdim=True)
        hashes = []
        for of_rank, hooks, cast in product((True, False), (False, True), CASTS):
            x = low_latency_tokens(group.rank, of_rank)
            stats = torch.zeros(EACH, dtype=torch.int32)
            got, counts, handle, event, hook = buffer.low_latency_dispatch(
                x, tokens.topk_idx, TOKENS, EXPERTS, stats, None, *cast, not hooks, hooks
            )
            hook() if hooks else event.current_stream_wait()
            assert torch.equal(stats, counts)
            rows = got
            if cast[0]:
                columns = HIDDEN // 512 if cast[2] else HIDDEN // 128
                assert got[1].shape == (EACH, RANKS * TOKENS, columns)
                assert got[1].stride(1) == 1  # column by column, as GEMMs take them
                rows = per_token_cast_back(got[0].view(-1, HIDDEN), got[1].reshape(-1, columns)).view(
                    got[0].shape
                )
            check_received(group.rank, rows, counts, handle, of_rank and not cast[1])
            bound = (2e-3 if cast[1] else 9e-4) if cast[0] else 1e-5
            for zero_copy in (False, True):
                if zero_copy:
                    buffer.get_next_low_latency_combine_buffer(handle)[:] = rows
                given_out = torch.empty(TOKENS, HIDDEN, dtype=torch.bfloat16)
                sums, event, hook = buffer.low_latency_combine(
                    torch.zeros_like(rows) if zero_copy else rows,
                    tokens.topk_idx, tokens.topk_weights, handle,
                    zero_copy=zero_copy, return_recv_hook=hooks, out=given_out,
                )  # fmt: skip
                hook() if hooks else event.current_stream_wait()
                assert sums is given_out and not sums.isnan().any()
                assert calc_diff(x.float() * weights, sums) < bound
                hashes.append(hash_tensor(sums))
        assert hashes[::2] == hashes[1::2]
        half = len(hashes) // 4  # of those without hooks
        assert hashes[:half] == hashes[half : 2 * half]

    run_threads(open_buffers(low_latency_mode=True), body)


def test_the_same_tokens_give_the_same_sums_however_often(open_buffers):
    """DeepEP's test under pressure: other tokens between, and each time the same bits."""

    def body(given):
        buffer, group = given
        hashes: dict[int, set] = {}
        for number in range(24):
            seed = number % 3
            tokens = Tokens.of(RANKS * seed + group.rank, masked=seed == 1)
            got, _, handle, _, hook = buffer.low_latency_dispatch(
                tokens.random, tokens.topk_idx, TOKENS, EXPERTS, return_recv_hook=number % 2 == 0
            )
            if hook is not None:
                hook()
            rows = per_token_cast_back(got[0].view(-1, HIDDEN), got[1].reshape(-1, HIDDEN // 128))
            sums, *_ = buffer.low_latency_combine(
                rows.view(got[0].shape), tokens.topk_idx, tokens.topk_weights, handle
            )
            hashes.setdefault(seed, set()).add(hash_tensor(sums))
        assert [len(each) for each in hashes.values()] == [1, 1, 1]

    run_threads(open_buffers(low_latency_mode=True), body)


def test_results_of_two_dispatches_stay(open_buffers):
    def body(given):
        buffer, group = given
        tokens = Tokens.of(group.rank)
        made = []
        for x in (tokens.random, tokens.of_rank):
            made.append(
                buffer.low_latency_dispatch(
                    x, tokens.topk_idx, TOKENS, EXPERTS, use_fp8=False, return_recv_hook=True
                )
            )
        for _, _, _, _, hook in made:
            hook()
        hooks = []
        for got, _, handle, _, _ in made:
            sums, _, hook = buffer.low_latency_combine(
                got, tokens.topk_idx, tokens.topk_weights, handle, return_recv_hook=True
            )
            hooks.append((sums, hook))
        for (sums, hook), x in zip(hooks, (tokens.random, tokens.of_rank)):
            hook()
            assert calc_diff(x.float() * tokens.topk_weights.sum(1, keepdim=True), sums) < 1e-5

    run_threads(open_buffers(low_latency_mode=True), body)


def test_a_rank_that_stays_away_is_masked_until_all_take_it_back(open_buffers, monkeypatch):
    monkeypatch.setattr(deep_ep.Buffer, "wait_limit", 2)
    lost = RANKS - 1

    def body(given):
        buffer, group = given
        tokens, mask = Tokens.of(group.rank), torch.full((RANKS,), 7, dtype=torch.int32)

        def step():
            got, _, handle, _, _ = buffer.low_latency_dispatch(
                tokens.random, tokens.topk_idx, TOKENS, EXPERTS, use_fp8=False
            )
            sums, _, _ = buffer.low_latency_combine(got, tokens.topk_idx, tokens.topk_weights, handle)
            buffer.low_latency_query_mask_buffer(mask)
            return sums

        step()
        assert mask.tolist() == [0] * RANKS
        for _ in range(2 if group.rank != lost else 0):
            sums = step()
            assert mask.nonzero().flatten().tolist() == [lost]
            there = tokens.topk_weights.masked_fill(tokens.topk_idx // EACH == lost, 0).sum(1, keepdim=True)
            assert calc_diff(tokens.random.float() * there, sums) < 1e-5
        buffer.clean_low_latency_buffer(TOKENS, HIDDEN, EXPERTS)
        group.barrier()
        buffer.low_latency_clean_mask_buffer()
        sums = step()
        assert mask.tolist() == [0] * RANKS
        assert calc_diff(tokens.random.float() * tokens.topk_weights.sum(1, keepdim=True), sums) < 1e-5

    run_threads(open_buffers(low_latency_mode=True, enable_shrink=True), body)


def test_a_rank_that_the_program_masks_is_left_out(open_buffers):
    def body(given):
        buffer, group = given
        tokens, mask = Tokens.of(group.rank), torch.zeros(RANKS, dtype=torch.int32)
        if group.rank == 1:
            return
        buffer.low_latency_update_mask_buffer(0)  # it is not left out
        buffer.low_latency_update_mask_buffer(1, True)
        buffer.low_latency_query_mask_buffer(mask)
        assert mask.tolist() == [0, 1, 0]
        with pytest.raises(Invalid, match="rank_to_mask is 9, expected 0 to 2"):
            buffer.low_latency_update_mask_buffer(9, True)
        with pytest.raises(headrace.NotSupported, match="rank 1 is left out, and ranks come back together"):
            buffer.low_latency_update_mask_buffer(1)
        del tokens

    run_threads(open_buffers(low_latency_mode=True), body)


def test_what_the_low_latency_mode_refuses(open_buffers):
    (group,) = ThreadGroup.of(1)
    ((buffer, _),) = buffers([group], low_latency_mode=True)
    tokens = Tokens.of(0)
    x, idx, weights = tokens.random, tokens.topk_idx, tokens.topk_weights
    rows, _, handle, _, hook = buffer.low_latency_dispatch(x, idx, TOKENS, EXPERTS, use_fp8=False)
    assert hook is None
    for call, error, sentence in (
        (lambda: buffer.low_latency_dispatch(x.float(), idx, TOKENS, EXPERTS), Invalid,
         "x is of torch.float32, expected torch.bfloat16"),
        (lambda: buffer.low_latency_dispatch(x, idx, TOKENS, EXPERTS, use_ue8m0=True),
         Invalid, "use_ue8m0 needs round_scale=True"),
        (lambda: buffer.low_latency_dispatch(x[:, :64], idx, TOKENS, EXPERTS), Invalid,
         "hidden is 64, expected a multiple of 128"),
        (lambda: buffer.low_latency_dispatch(x, idx, TOKENS, EXPERTS, dispatch_wait_recv_cost_stats=x),
         headrace.NotSupported, "waits are not measured"),
        (lambda: buffer.low_latency_combine(rows[:1], idx, weights, handle), Invalid,
         r"x has shape \[1, 20, 512\] .* expected \[12, 20, 512\]"),
        (lambda: buffer.low_latency_combine(rows, idx + 1, weights, handle), Invalid,
         "topk_idx is not that of the dispatch"),
        (lambda: buffer.low_latency_combine(rows, idx, weights, tuple(handle)), Invalid,
         "not a copy"),
        (lambda: buffer.low_latency_combine(rows, idx, weights, handle, out=x[:1]), Invalid,
         r"out has shape \[1, 512\] of torch.bfloat16, expected \[20, 512\] of torch.bfloat16"),
        (lambda: buffer.low_latency_combine(rows, idx, weights, handle, out=x.float()), Invalid,
         r"of torch.float32, expected \[20, 512\] of torch.bfloat16"),
        (lambda: buffer.low_latency_update_mask_buffer(-1, True), Invalid, "rank_to_mask is -1, expected 0"),
        (lambda: buffer.low_latency_combine(rows, idx, weights, handle, combine_wait_recv_cost_stats=x),
         headrace.NotSupported, "waits are not measured"),
    ):  # fmt: skip
        with pytest.raises(error, match=sentence):
            call()
    sums, _, _ = buffer.low_latency_combine(rows, idx, weights, handle)  # nothing of those has left
    assert sums.shape == x.shape
    buffer.destroy()


# --- events and names


def test_an_event_calls_its_hook_once():
    event, called = deep_ep.Buffer.capture(), []
    event.register_hook_after_wait(lambda: called.append(1))
    with pytest.raises(ValueError, match="the event has a hook already"):
        event.register_hook_after_wait(print)
    with event(release_handle=True) as same:
        assert same is event and called == []
    assert called == [1] and event.event is None
    with pytest.raises(ValueError, match="there is no event to wait for"):
        event.current_stream_wait()


NAMES = """
import deep_ep, deep_ep.buffers.legacy, deep_ep.utils.event
from deep_ep import Buffer, Config, ElasticBuffer, EPHandle, topk_idx_t
from deep_ep.utils import EventHandle, EventOverlap
import headrace.compat.deep_ep
assert Buffer is headrace.compat.deep_ep.Buffer is deep_ep.buffers.legacy.Buffer
print(deep_ep.__version__)
"""


def test_the_wheel_provides_the_name():
    command = [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(WHEEL / 'src')!r})\n{NAMES}"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "2.1.0\n"


def test_the_name_is_there_after_install():
    import headrace.compat.deep_ep.install  # noqa: F401

    exec(NAMES)


def test_casts_and_what_compares_are_as_their_names_say():
    x = torch.randn(3, 200, generator=torch.Generator().manual_seed(1)).bfloat16()
    small, scales = per_token_cast_to_fp8(x)
    assert (small.shape, scales.shape, small.dtype) == ((3, 200), (3, 2), torch.float8_e4m3fn)
    assert 0 < calc_diff(per_token_cast_back(small, scales), x) < 9e-4
    assert calc_diff(x, x) == 0
    assert align(13, 8) == 16
