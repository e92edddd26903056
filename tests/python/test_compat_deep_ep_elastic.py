# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""headrace.compat.deep_ep.ElasticBuffer: the cases of DeepEP's test_ep.py, with ranks as threads."""

import importlib.util
from itertools import product

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import headrace
from headrace.compat import deep_ep
from headrace.compat.deep_ep.utils.math import align, calc_diff, per_token_cast_back, per_token_cast_to_fp8
from moe_threads import ThreadGroup, run_threads

Invalid = headrace.InvalidArgument
RANKS, MOST, HIDDEN, EXPERTS, TOP_K = 3, 20, 256, 12, 4
EACH = EXPERTS // RANKS


def tokens_of(rank):
    """Rows, experts and weights of a rank, the same whenever they are made. Ranks have different numbers."""
    generator, count = torch.Generator().manual_seed(rank), MOST - rank
    weights, experts = torch.rand(count, EXPERTS, generator=generator).topk(TOP_K)
    none = torch.rand(count, TOP_K, generator=generator) < 0.2
    rows = torch.randn(count, HIDDEN, generator=generator).bfloat16()
    return rows, experts.masked_fill(none, -1), weights.masked_fill(none, 0)


def of_experts(rows, experts):
    """What expert e makes of a row: e + 1 times as much; nothing without an expert."""
    return (rows.float()[:, None] * (experts + 1)[..., None]).bfloat16()


class Expected:
    """What a rank gets, in the order of ranks and tokens."""

    def __init__(self, rank):
        every = [tokens_of(source) for source in range(RANKS)]
        there = [((experts >= 0) & (experts // EACH == rank)) for _, experts, _ in every]
        chosen = [each.any(1) for each in there]
        self.sources = torch.cat([source * MOST + each.nonzero()[:, 0] for source, each in enumerate(chosen)])
        self.ends = torch.tensor([int(each.sum()) for each in chosen]).cumsum(0)
        self.rows = torch.cat([rows[each] for (rows, _, _), each in zip(every, chosen)])
        local = [torch.where(each, experts - rank * EACH, -1) for (_, experts, _), each in zip(every, there)]
        self.experts = torch.cat([each[keep] for each, keep in zip(local, chosen)])
        weights = torch.cat([weights[keep] for (_, _, weights), keep in zip(every, chosen)])
        self.weights = weights.masked_fill(self.experts < 0, 0)
        self.counts = torch.bincount(self.experts[self.experts >= 0], minlength=EACH)


@pytest.fixture
def open_buffers():
    opened = []

    def open_them(**options):
        given = {"num_max_tokens_per_rank": MOST, "hidden": HIDDEN, "explicitly_destroy": True, **options}
        opened.extend(
            run_threads(
                ThreadGroup.of(RANKS), lambda group: (deep_ep.ElasticBuffer(group, **given), group.rank)
            )
        )
        return opened

    yield open_them
    for buffer, _ in opened:
        buffer.destroy()


def bfloat16(x):
    return per_token_cast_back(*x) if isinstance(x, tuple) else x


def check_rows_by_rank(rank, buffer, given, x, sync):
    """Returns the handle, and the rows that came."""
    expected = Expected(rank)
    came = expected.rows.shape[0]
    stats = torch.zeros(EACH, dtype=torch.int32)
    got, experts, weights, handle, event = buffer.dispatch(**given, cumulative_local_expert_recv_stats=stats)
    event.current_stream_wait()
    assert bfloat16(got).shape[0] == (came if sync else RANKS * MOST) == experts.shape[0]
    wanted = bfloat16(per_token_cast_to_fp8(expected.rows)) if isinstance(x, tuple) else expected.rows
    assert torch.equal(bfloat16(got)[:came], wanted)
    assert torch.equal(experts[:came], expected.experts) and (experts[came:] == -1).all()
    assert torch.equal(weights[:came], expected.weights)
    assert torch.equal(stats, expected.counts)
    assert torch.equal(handle.psum_num_recv_tokens_per_scaleup_rank, expected.ends)
    alignment = given["expert_alignment"]
    aligned = [align(count, alignment) for count in expected.counts.tolist()]
    assert handle.num_recv_tokens_per_expert_list == (aligned if sync else [])
    assert torch.equal(handle.psum_num_recv_tokens_per_expert, torch.tensor(aligned).cumsum(0))
    assert torch.equal(handle.recv_src_metadata[:came, 0], expected.sources)
    again, experts_again, no_weights, same, _ = buffer.dispatch(x, handle=handle)
    assert same is handle and no_weights is None
    assert torch.equal(bfloat16(again), bfloat16(got)) and torch.equal(experts_again, experts)
    return handle, got, experts, weights


def check_rows_by_expert(rank, buffer, given, x):
    expected, alignment = Expected(rank), given["expert_alignment"]
    got, experts, weights, handle, _ = buffer.dispatch(
        **given, do_expand=True, use_tma_aligned_col_major_sf=True
    )
    assert experts is None and weights.dim() == 1
    if isinstance(got, tuple):
        assert got[1].stride(0) == 1 and got[1].stride(1) % 4 == 0
    ends = handle.psum_num_recv_tokens_per_expert.tolist()
    starts = [0, *(align(end, alignment) for end in ends[:-1])]
    assert [end - start for start, end in zip(starts, ends)] == expected.counts.tolist()
    assert torch.equal(handle.num_unaligned_recv_tokens_per_expert, expected.counts)
    slots = handle.recv_src_metadata[: expected.rows.shape[0], 2:]
    there = slots >= 0
    assert torch.equal(there, expected.experts >= 0)
    starts_of_slots = torch.tensor(starts)[expected.experts[there]]
    counts_of_slots = expected.counts[expected.experts[there]]
    assert ((slots[there] >= starts_of_slots) & (slots[there] < starts_of_slots + counts_of_slots)).all()
    assert slots[there].unique().numel() == there.sum()  # each entry has a row of its own
    wanted = bfloat16(per_token_cast_to_fp8(expected.rows)) if isinstance(x, tuple) else expected.rows
    assert torch.equal(bfloat16(got)[slots[there]], wanted[there.nonzero()[:, 0]])
    assert torch.equal(weights[slots[there]], expected.weights[there])
    for end in ends:  # rows between are 0
        assert (bfloat16(got)[end : align(end, alignment)] == 0).all()
        assert (weights[end : align(end, alignment)] == 0).all()
    again, _, weights_again, _, _ = buffer.dispatch(
        x, topk_weights=given["topk_weights"], handle=handle, do_zero_padding=True
    )
    assert torch.equal(bfloat16(again), bfloat16(got)) and torch.equal(weights_again, weights)
    return handle, got, weights


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("multiple", [True, False])
def test_the_cases_of_deep_ep(open_buffers, sync, multiple):
    def body(opened):
        buffer, rank = opened
        rows, topk_idx, topk_weights = tokens_of(rank)
        first = rank * EACH
        modes = list(product((16, 1), (True, False), (0, 1, 2)))
        for number, (alignment, fp8, biases) in enumerate(modes if sync and multiple else modes[::5]):
            copies = number % 2 == 0
            x = per_token_cast_to_fp8(rows) if fp8 else rows
            given = {
                "x": x, "topk_idx": topk_idx, "topk_weights": topk_weights, "num_experts": EXPERTS,
                "expert_alignment": alignment, "do_handle_copy": copies, "do_cpu_sync": sync,
            }  # fmt: skip
            handle, got, experts, weights = check_rows_by_rank(rank, buffer, given, x, sync)
            assert (handle.topk_idx.data_ptr() != topk_idx.data_ptr()) == copies
            expanded, by_expert, of_rows = check_rows_by_expert(rank, buffer, given, x)

            bias = {0: None, 1: rows, 2: (rows, rows)}[biases]
            wanted = of_experts(bfloat16(x), topk_idx).float().sum(1) + biases * rows.float()
            factors = torch.where(experts >= 0, experts + first + 1, 0).sum(1, keepdim=True)
            results = (bfloat16(got).float() * factors).bfloat16()
            sums, back, _ = buffer.combine(results, handle, topk_weights=weights, bias=bias)
            assert calc_diff(sums, wanted) < 2e-5
            assert torch.equal(back, topk_weights)

            slots = expanded.recv_src_metadata[: expanded.num_recv_tokens, 2:]
            made = torch.zeros_like(bfloat16(by_expert))
            there = slots >= 0
            token, k = there.nonzero(as_tuple=True)
            local = experts[: expanded.num_recv_tokens][token, k]
            made[slots[there]] = (
                bfloat16(by_expert)[slots[there]].float() * (local + first + 1)[:, None]
            ).bfloat16()
            sums, back, _ = buffer.combine(made, expanded, topk_weights=of_rows, bias=bias)
            assert calc_diff(sums, wanted) < 2e-5
            assert torch.equal(back, topk_weights)
            if not multiple and biases == 0:  # rounded once, behind all sums
                assert torch.equal(sums, of_experts(bfloat16(x), topk_idx).double().sum(1).bfloat16())

    run_threads(open_buffers(allow_multiple_reduction=multiple), body)


def test_what_a_buffer_says_of_itself(open_buffers):
    (buffer, _), *_ = open_buffers()
    (group, *_) = ThreadGroup.of(RANKS)
    assert buffer.get_logical_domain_size() == buffer.get_physical_domain_size() == (1, RANKS)
    sms = buffer.get_theoretical_num_sms(EXPERTS, TOP_K)
    assert sms > 0 and buffer.get_theoretical_num_qps(sms) == buffer.num_allocated_qps
    hint = deep_ep.ElasticBuffer.get_buffer_size_hint(group, MOST, HIDDEN)
    assert buffer.num_bytes == hint and hint % (2 << 20) == 0
    with pytest.raises(headrace.NotSupported, match="there is no stream"):
        buffer.get_comm_stream()
    assert isinstance(buffer.capture(), deep_ep.EventHandle)


def test_a_barrier_waits_for_all_ranks(open_buffers):
    come = []

    def body(opened):
        buffer, rank = opened
        come.append(rank)
        buffer.barrier()
        assert sorted(come) == list(range(RANKS))

    run_threads(open_buffers(), body)


@pytest.mark.parametrize(
    "name",
    ["engram_write", "engram_fetch", "pp_set_config", "pp_send", "pp_recv", "create_agrs_session",
     "all_gather", "agrs_set_config", "get_pp_buffer_size_hint", "get_engram_storage_size_hint"],
)  # fmt: skip
def test_engrams_pipelines_and_all_gathers_are_not_there(name):
    (group,) = ThreadGroup.of(1)
    buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=1, explicitly_destroy=True)
    with pytest.raises(headrace.NotSupported, match="engrams, pipelines and all-gathers"):
        getattr(buffer, name)(1, 2)
    buffer.destroy()


def test_what_is_refused():
    (group,) = ThreadGroup.of(1)
    buffer = deep_ep.ElasticBuffer(group)
    rows, topk_idx, _ = tokens_of(0)
    given = {"topk_idx": topk_idx, "num_experts": EXPERTS}
    *_, handle, _ = buffer.dispatch(rows, **given, num_max_tokens_per_rank=MOST)
    for call, error, sentence in (
        (lambda: buffer.dispatch(rows), Invalid, "topk_idx and num_experts are needed"),
        (lambda: buffer.dispatch(rows, **given), Invalid, "num_max_tokens_per_rank is not given"),
        (lambda: buffer.dispatch(rows, topk_idx, handle=handle), Invalid, "give no topk_idx"),
        (lambda: buffer.dispatch(rows, handle=handle, do_cpu_sync=True), Invalid,
         "do_cpu_sync cannot be True"),
        (lambda: buffer.dispatch(rows, handle=handle, num_experts=3), Invalid,
         "num_experts is 3, and 12 in the handle"),
        (lambda: buffer.combine(rows[:3], handle), Invalid, "x has 3 rows, expected 20"),
        (lambda: buffer.dispatch(rows.to("meta"), handle=handle), Invalid, "x is on meta"),
        (buffer.destroy, ValueError, "make it with explicitly_destroy=True"),
    ):  # fmt: skip
        with pytest.raises(error, match=sentence):
            call()
