# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""headrace.compat.pplx.kernels and native.p2p_all_to_all: the configurations of pplx-garden's test, with
ranks as threads, and what they refuse."""

import importlib.util
from dataclasses import dataclass, replace

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import headrace
from headrace.compat.pplx.kernels.p2p_all_to_all import P2PAllToAll
from headrace.compat.pplx.native.p2p_all_to_all import AllToAllContext
from headrace.compat.pplx.utils.math import round_up
from moe_threads import ThreadGroup, run_threads

CPU = torch.device("cpu")
FP32, BF16, FP8 = torch.float32, torch.bfloat16, torch.float8_e4m3fn


@dataclass(frozen=True)
class Config:
    ranks: int
    tokens: int
    experts: int
    hidden: int
    top_k: int
    dtypes: tuple = (FP32, FP32)
    scales: int = 0
    dp: int = 1
    nvlink: int = 0
    private: int | None = None
    padding: int = 1


# pplx-garden's, by its names. Rows of 7168 elements have 256 here, with as many scales for each.
CONFIGS = {
    "TP2-NIC1-FP32": Config(2, 128, 16, 128, 2),
    "TP2-NIC1-FP32-MIXED": Config(2, 128, 16, 128, 2, private=8),
    "TP2-NIC1-FP32-NVL": Config(2, 128, 16, 128, 2, private=8, nvlink=2),
    "TP2-NIC1-BF16": Config(2, 128, 16, 128, 2, (BF16, BF16)),
    "TP2-NIC1-BF16-PADDED": Config(2, 8, 16, 16, 2, (BF16, BF16), padding=16),
    "TP2-NIC1-FP8": Config(2, 2, 16, 128, 2, (BF16, BF16), scales=16),
    "TP4-NIC1-FP32": Config(4, 128, 128, 128, 8),
    "TP4-NIC2-BF16": Config(4, 128, 256, 256, 8, (BF16, BF16)),
    "TP4-DP2-NIC1-BF16": Config(4, 1, 4, 8, 1, (BF16, BF16), dp=2),
    "TP8-BF16": Config(8, 128, 128, 256, 8, (BF16, BF16)),
    "TP8-FP8": Config(8, 256, 128, 256, 8, (FP8, BF16), scales=2),
    "TP4-FP8-NVL2": Config(4, 128, 128, 256, 8, (FP8, BF16), scales=2, nvlink=2),
    "TP4-DP2-NVL2": Config(4, 8, 4, 4, 4, dp=2, nvlink=2),
    "TP2-EMPTY": Config(2, 1, 2, 4, 1, private=32),
}
SMALL = Config(2, 6, 5, 8, 2)


class Part:
    """A group of which only the size is asked."""

    def __init__(self, size):
        self.size = size


def open_kernel(config, group, **changes):
    has_scales = config.scales > 0
    return P2PAllToAll(**{
        "max_num_tokens": config.tokens,
        "num_experts": config.experts,
        "expert_padding": config.padding,
        "hidden_dim": config.hidden,
        "hidden_dim_scale": config.scales or None,
        "in_dtype": config.dtypes[0],
        "out_dtype": config.dtypes[1],
        "scale_dtype": FP32 if has_scales else None,
        "num_experts_per_token": config.top_k,
        "nets_per_gpu": 1,
        "max_private_tokens": config.private,
        "device": CPU,
        "dp_group": Part(config.dp) if config.dp > 1 else None,
        "node_group": Part(config.nvlink) if config.nvlink else None,
        "global_group": group,
        **changes,
    })  # fmt: skip


@dataclass
class Tokens:
    """Those of a rank, and what an all-to-all writes for it."""

    x: torch.Tensor
    scales: torch.Tensor | None
    indices: torch.Tensor
    weights: torch.Tensor
    counts: torch.Tensor
    out_x: torch.Tensor
    out_scales: torch.Tensor | None
    out: torch.Tensor

    @staticmethod
    def of(config, group):
        random = torch.Generator().manual_seed(group.rank // config.dp)
        local = -(-config.experts // config.ranks)
        rows = config.tokens * config.ranks // config.dp * local + local * config.padding
        weights = torch.rand(config.tokens, config.top_k, generator=random)
        scores = torch.rand(config.tokens, config.experts, generator=random)
        return Tokens(
            x=torch.randn(config.tokens, config.hidden, generator=random).to(config.dtypes[0]),
            scales=torch.randn(config.tokens, config.scales, generator=random) if config.scales else None,
            indices=scores.topk(config.top_k)[1].to(torch.uint32),
            weights=weights / weights.sum(1, keepdim=True),
            counts=torch.full((local,), 77, dtype=torch.int32),
            out_x=torch.zeros(rows, config.hidden, dtype=config.dtypes[0]),
            out_scales=torch.zeros(rows, config.scales) if config.scales else None,
            out=torch.full((config.tokens, config.hidden), 9, dtype=config.dtypes[1]),
        )

    def dispatch(self, kernel, **changes):
        kernel.dispatch(**{
            "out_expert_num_tokens": self.counts,
            "out_expert_x": self.out_x,
            "out_expert_x_scale": self.out_scales,
            "dp_x": self.x,
            "dp_x_scale": self.scales,
            "indices": self.indices,
            "weights": self.weights,
            **changes,
        })  # fmt: skip

    def combine(self, kernel, results, **changes):
        kernel.combine(**{
            "out_tokens": self.out,
            "indices": self.indices,
            "weights": self.weights,
            "expert_y": results,
            **changes,
        })  # fmt: skip


def doubled(x, scales):
    """What each expert makes of its rows."""
    if scales is None:
        return x * 2
    return x.float() * scales.repeat(1, x.shape[1] // scales.shape[1]) * 2


def rows_of_experts(config, counts, x):
    """The bytes of the rows of each expert, which begin at multiples of the padding."""
    first, rows = 0, []
    for count in counts.tolist():
        part = x[first : first + count].reshape(count, config.hidden)
        rows.append(sorted(bytes(row) for row in part.view(torch.uint8).numpy()))
        first = round_up(first + count, config.padding)
    return rows


def expected_rows(config, rank):
    """The same from what all ranks sent."""
    every = [Tokens.of(config, Member(rank)) for rank in range(0, config.ranks, config.dp)]
    local = -(-config.experts // config.ranks)
    return [
        sorted(
            bytes(tokens.x.view(torch.uint8)[token].numpy())
            for tokens in every
            for token in (tokens.indices.int() == expert).nonzero()[:, 0]
        )
        for expert in range(rank * local, (rank + 1) * local)
    ]


@dataclass
class Member:
    rank: int


@pytest.mark.parametrize("name", CONFIGS)
def test_the_configurations_of_pplx_garden(name):
    config = CONFIGS[name]

    def body(group):
        kernel, tokens = open_kernel(config, group), Tokens.of(config, group)
        rows = expected_rows(config, group.rank)
        for _ in range(2):
            tokens.dispatch(kernel)
            assert rows_of_experts(config, tokens.counts, tokens.out_x) == rows
            tokens.combine(kernel, doubled(tokens.out_x, tokens.out_scales))
            expected = doubled(tokens.x, tokens.scales).to(config.dtypes[1])
            torch.testing.assert_close(tokens.out, expected)
        kernel.destroy()
        kernel.destroy()

    run_threads(ThreadGroup.of(config.ranks), body)


# As wide as pplx-garden's own.
WIDE = {
    "TP4-NIC2-BF16": replace(CONFIGS["TP4-NIC2-BF16"], hidden=7168),
    "TP8-BF16": replace(CONFIGS["TP8-BF16"], hidden=7168),
    "TP8-FP8": replace(CONFIGS["TP8-FP8"], hidden=7168, scales=56),
    "TP4-FP8-NVL2": replace(CONFIGS["TP4-FP8-NVL2"], hidden=7168, scales=56),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDE)
def test_the_wide_configurations_of_pplx_garden(name):
    config = WIDE[name]

    def body(group):
        kernel, tokens = open_kernel(config, group), Tokens.of(config, group)
        tokens.dispatch(kernel)
        assert rows_of_experts(config, tokens.counts, tokens.out_x) == expected_rows(config, group.rank)
        came = int(tokens.counts.sum())
        scales = tokens.out_scales[:came] if config.scales else None
        tokens.combine(kernel, doubled(tokens.out_x[:came], scales))
        expected = doubled(tokens.x, tokens.scales).to(config.dtypes[1])
        torch.testing.assert_close(tokens.out, expected)
        kernel.destroy()

    run_threads(ThreadGroup.of(config.ranks), body)


def test_halves_a_bound_and_a_sum_that_is_added():
    def body(group):
        kernel, tokens = open_kernel(SMALL, group), Tokens.of(SMALL, group)
        bound = torch.tensor([4], dtype=torch.int32)
        tokens.dispatch(kernel, bound_m=bound, do_recv=False)
        assert (tokens.counts == 77).all()
        tokens.dispatch(kernel, bound_m=bound, do_send=False)
        total = group.all_gather_object(tokens.counts.sum().item())
        assert sum(total) == 2 * 4 * SMALL.top_k
        results = doubled(tokens.out_x, None).double()  # any type of real numbers
        tokens.combine(kernel, results, bound_m=bound, do_recv=False)
        tokens.combine(kernel, results, bound_m=bound, do_send=False, accumulate=True)
        torch.testing.assert_close(tokens.out[:4], tokens.x[:4] * 2 + 9)
        assert (tokens.out[4:] == 9).all()
        kernel.destroy()

    run_threads(ThreadGroup.of(2), body)


def test_results_with_fewer_rows_than_could_come_serve():
    (group,) = ThreadGroup.of(1)
    config = replace(SMALL, ranks=1, padding=8)
    kernel, tokens = open_kernel(config, group), Tokens.of(config, group)
    tokens.dispatch(kernel)
    used = sum(round_up(count, 8) for count in tokens.counts.tolist())
    tokens.combine(kernel, tokens.out_x[:used])
    torch.testing.assert_close(tokens.out, tokens.x)
    kernel.destroy()


def test_what_is_refused():
    (group,) = ThreadGroup.of(1)
    config = replace(SMALL, ranks=1)
    kernel, tokens = open_kernel(config, group), Tokens.of(config, group)
    bound = torch.tensor([7], dtype=torch.int32)
    for changes, error, sentence in (
        ({"out_expert_x": tokens.out_x.half()}, ValueError, r"out_expert_x has shape .* of torch.float16"),
        ({"dp_x": tokens.x[:, :4]}, ValueError, r"dp_x has shape \[6, 4\] .* expected \[any, 8\]"),
        ({"dp_x_scale": tokens.x}, ValueError, "give dp_x_scale and out_expert_x_scale if"),
        ({"bound_m": bound}, headrace.InvalidArgument, "says 7 tokens, expected 0 to the 6"),
        ({"bound_m": bound.long()}, ValueError, "expected one torch.int32"),
        ({"do_send": False, "do_recv": False}, ValueError, "one of them must be True"),
        ({"indices": tokens.indices.int() + 4}, headrace.InvalidArgument, "token .* names expert"),
        ({"dp_x": tokens.x.to("meta")}, headrace.InvalidArgument, "dp_x is on meta: this MoE moves host"),
    ):
        with pytest.raises(error, match=sentence):
            tokens.dispatch(kernel, **changes)
    with pytest.raises(headrace.Exhausted, match="12 rows came, with padding, and out_expert_x has 3"):
        tokens.dispatch(kernel, out_expert_x=tokens.out_x[:3])
    with pytest.raises(headrace.NotSupported, match="other weights than dispatch"):
        tokens.combine(kernel, tokens.out_x, weights=tokens.weights + 1)
    with pytest.raises(ValueError, match="out_tokens has shape"):
        tokens.combine(kernel, tokens.out_x, out_tokens=tokens.out.double(), do_send=False)
    kernel.destroy()
    with pytest.raises(headrace.InvalidArgument, match="the all-to-all is destroyed"):
        tokens.dispatch(kernel)
    for changes, error, sentence in (
        ({"hidden_dim_scale": 4}, ValueError, "hidden_dim_scale is 4 and scale_dtype is None"),
        ({"max_private_tokens": -1}, ValueError, "max_private_tokens is -1, expected 0 or more"),
        ({"device": "cuda:0"}, headrace.InvalidArgument, "device is cuda:0: this MoE moves host memory"),
        ({"hidden_dim": 3}, headrace.InvalidArgument, "hidden"),
    ):
        with pytest.raises(error, match=sentence):
            open_kernel(config, group, **changes)


class Address:
    """What a context asks of an address and of a descriptor."""

    def __init__(self, value):
        self._value = value

    def as_bytes(self):
        return self._value


def open_context(config, group, **changes):
    peers = group.all_gather_object(bytes([group.rank]) + b"address")
    addresses = [tuple(map(Address, (peer, b"routed", b"received"))) for peer in peers]
    return AllToAllContext.create(**{
        "hidden_dim": config.hidden, "hidden_dim_scale": config.scales or None,
        "in_elemsize": config.dtypes[0].itemsize, "out_elemsize": config.dtypes[1].itemsize,
        "out_dtype": config.dtypes[1], "scale_elemsize": 4 if config.scales else None,
        "max_num_tokens": config.tokens, "max_recv_tokens": 1000, "max_private_tokens": 0,
        "num_experts": config.experts, "expert_padding": config.padding,
        "num_experts_per_token": config.top_k, "rank": group.rank, "dp_size": 1, "node_size": 1,
        "world_size": group.size, "num_routed_ptr": 0, "num_routed_mr": None, "send_buffer_ptr": 0,
        "send_buffer_mr": None, "recv_buffer_ptr": 0, "recv_buffer_mr": None, "sync_ptrs": [],
        "send_ptrs": [], "recv_ptrs": [], "device": None, "imm_base": 1, "ranks": addresses,
        "transfer_engine": None, "worker_cpu": None, **changes,
    })  # fmt: skip


def test_a_context_takes_addresses_and_strides(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    config = replace(SMALL, dtypes=(FP8, BF16), hidden=16, scales=2)

    def body(group):
        context, tokens = open_context(config, group), Tokens.of(config, group)
        wide = torch.zeros(config.tokens, 48, dtype=FP8)
        wide[:, :16] = tokens.x
        bound = torch.tensor([config.tokens], dtype=torch.int32)
        columns = tokens.scales.T.contiguous()  # the scales of a token are not side by side
        context.dispatch_send(
            config.tokens, wide.data_ptr(), 48, columns.data_ptr(), config.tokens, 1,
            tokens.indices.data_ptr(), config.top_k, tokens.weights.data_ptr(), config.top_k,
            bound.data_ptr(), 0,
        )  # fmt: skip
        context.dispatch_recv(
            tokens.counts.data_ptr(), tokens.out_x.data_ptr(), 16, tokens.out_scales.data_ptr(), 1, 2, 0
        )
        assert rows_of_experts(config, tokens.counts, tokens.out_x) == expected_rows(config, group.rank)
        results = doubled(tokens.out_x, tokens.out_scales).bfloat16()
        context.combine_send(results.data_ptr(), 32, 0)
        combine_recv = (
            config.tokens, results.shape[0], BF16, tokens.out.data_ptr(), 16, tokens.indices.data_ptr(),
            config.top_k, tokens.weights.data_ptr(), config.top_k, bound.data_ptr(), False, 0,
        )  # fmt: skip
        with pytest.raises(headrace.NotSupported, match=r"expert_y_dtype is torch.float32"):
            context.combine_recv(*combine_recv[:2], FP32, *combine_recv[3:])
        context.combine_recv(*combine_recv)
        torch.testing.assert_close(tokens.out, doubled(tokens.x, tokens.scales).bfloat16())
        group.barrier()
        context.close()

    run_threads(ThreadGroup.of(2), body)


def test_a_context_refuses_what_does_not_fit():
    (group,) = ThreadGroup.of(1)
    config = replace(SMALL, ranks=1)
    for changes, error, sentence in (
        ({"device": 0}, headrace.NotSupported, "device is 0: this MoE moves host memory"),
        ({"world_size": 2}, ValueError, "rank 0 of 2 has addresses of 1 ranks"),
        ({"in_elemsize": 3}, ValueError, r"in_elemsize is 3, expected one of \[1, 2, 4, 8\]"),
    ):
        with pytest.raises(error, match=sentence):
            open_context(config, group, **changes)
