# SPDX-License-Identifier: Apache-2.0
"""Operations of a MoE as operators of torch, `torch.ops.headrace.moe_dispatch` and others: headrace.torch_ops
has what programs call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

import headrace

_moes: dict[str, _Registered] = {}

_Rows = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class _Registered:
    """A MoE, the memory of its dispatches, and its routings, which serve in turn."""

    def __init__(self, moe: headrace.MoE, combine_dtype: torch.dtype, routings: int) -> None:
        self.moe = moe
        self.got = moe.new_rows()
        self.rows: Tensor = from_dlpack(self.got.rows)
        self.combine_dtype = combine_dtype
        self._routings = [moe.new_routing() for _ in range(routings)]
        self._entries: list[tuple[Tensor, Tensor | None]] = [(torch.empty(0), None)] * routings
        self._dispatches = 0

    @property
    def is_by_rank(self) -> bool:
        return self.got.experts is not None

    @property
    def on_stream(self) -> dict[str, Any]:
        """The stream of an operation: the current one of this MoE's GPU."""
        return {"stream": torch.cuda.current_stream(self.rows.device)} if self.rows.is_cuda else {}

    def range(self, end: int) -> Tensor:
        return torch.arange(end, device=self.rows.device)

    def begin(self, experts: Tensor, weights: Tensor | None) -> tuple[int, headrace.MoERouting]:
        """The number of a new dispatch, and the routing that learns it."""
        number, slot = self._dispatches, self._dispatches % len(self._routings)
        self._dispatches += 1
        self._entries[slot] = experts.clone(), None if weights is None else weights.clone()
        return number, self._routings[slot]

    def find(self, routing: Tensor) -> tuple[headrace.MoERouting, Tensor, Tensor | None]:
        """The routing of an earlier dispatch, its experts and its weights."""
        number, kept = int(routing[0]), len(self._routings)
        later = self._dispatches - 1 - number
        if not 0 <= later < kept:
            raise headrace.InvalidArgument(
                f"the routing of dispatch {number} is gone: {later} came after it, and {kept} are kept. "
                f"Call register_moe with more routings: one for each dispatch whose backward is to come"
            )
        slot = number % kept
        return self._routings[slot], *self._entries[slot]

    def used(self) -> Tensor:
        """Which rows the last dispatch has written."""
        at, first = self.range(self.rows.shape[0]), from_dlpack(self.got.first_rows)
        if self.is_by_rank:
            return at < first[-1]
        expert = self.experts_of_rows()
        last = first[:-1] + from_dlpack(self.got.counts)
        return (expert >= 0) & (at < torch.cat([last, last.new_zeros(1)])[expert])

    def experts_of_rows(self) -> Tensor:
        """Each row's expert among those of this rank; -1: behind the last."""
        at, first = self.range(self.rows.shape[0]), from_dlpack(self.got.first_rows)
        expert = torch.searchsorted(first[1:], at, right=True)
        return torch.where(expert < first.numel() - 1, expert, -1)

    def copy_rows(self, to: Tensor) -> None:
        """Copies the rows of the last dispatch. Those that it has not written are 0."""
        to.copy_(self.rows)
        to.view(torch.uint8).masked_fill_(~self.used()[:, None], 0)


def register_moe(
    moe: headrace.MoE, name: str, combine_dtype: torch.dtype = torch.bfloat16, routings: int = 8
) -> str:
    """Makes a MoE that has joined known to the operators, and keeps it. Returns the name.

    combine_dtype: that of its configuration.
    routings: so many dispatches may have a combine, or a backward, that is still to come.
    Errors: InvalidArgument (another MoE of this name is registered; routings is less than 1).
    """
    if routings < 1:
        raise headrace.InvalidArgument(f"routings is {routings}, expected 1 or more")
    if name in _moes and _moes[name].moe is not moe:
        raise headrace.InvalidArgument(
            f'another MoE "{name}" is registered: unregister it, or give this one another name'
        )
    if name not in _moes:
        _moes[name] = _Registered(moe, combine_dtype, routings)
    return name


def unregister_moe(name: str) -> None:
    """Forgets a MoE. Does nothing if the name is not registered."""
    _moes.pop(name, None)


def _moe(name: str) -> _Registered:
    if name not in _moes:
        known = ", ".join(_moes) or "none"
        raise headrace.NotFound(
            f'no MoE "{name}" is registered: call register_moe(moe, name). Registered: {known}'
        )
    return _moes[name]


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


# --- dispatch, and its repetition


@torch.library.custom_op("headrace::moe_dispatch", mutates_args=())
def moe_dispatch(
    rows: Tensor, experts: Tensor, weights: Tensor | None, scales: Tensor | None, moe: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns rows [output_rows, hidden], whose unused ones are 0; scales [output_rows, scale_bytes]; counts;
    first_rows; by_rank: experts and weights of each row, else without columns; and the routing, of
    [tokens + 1], for combine and for moe_dispatch_again."""
    outputs = _empty_outputs(rows, experts, moe)
    _dispatch_into(outputs, rows, experts, weights, scales, moe)
    return outputs


@moe_dispatch.register_fake
def _(rows: Tensor, experts: Tensor, weights: Tensor | None, scales: Tensor | None, moe: str) -> _Rows:
    return _empty_outputs(rows, experts, moe)


def _empty_outputs(rows: Tensor, experts: Tensor, moe: str) -> _Rows:
    of = _moe(moe)
    count, columns = of.rows.shape[0], experts.shape[1] if of.is_by_rank else 0
    return (
        rows.new_empty([count, rows.shape[1]]),
        rows.new_empty([count, _scale_bytes(of)], dtype=torch.uint8),
        rows.new_empty(list(of.got.counts.shape), dtype=torch.int32),
        rows.new_empty(list(of.got.first_rows.shape), dtype=torch.int64),
        rows.new_empty([count, columns], dtype=torch.int32),
        rows.new_empty([count, columns], dtype=torch.float32),
        # On the CPU, which reads it without a wait for the GPU.
        rows.new_empty([rows.shape[0] + 1], dtype=torch.int64, device="cpu"),
    )


def _scale_bytes(of: _Registered) -> int:
    return 0 if of.got.scales is None else of.got.scales.shape[1]


def _dispatch_into(
    outputs: Sequence[Tensor],
    rows: Tensor,
    experts: Tensor,
    weights: Tensor | None,
    scales: Tensor | None,
    moe: str,
) -> None:
    of = _moe(moe)
    number, routing = of.begin(experts, _detached(weights))
    of.moe.dispatch(
        rows.detach().contiguous(),
        experts.contiguous(),
        None if weights is None else weights.detach().contiguous(),
        scales=scales,
        routing=routing,
        out=of.got,
        **of.on_stream,
    )
    of.copy_rows(outputs[0])
    others = (of.got.scales, of.got.counts, of.got.first_rows, of.got.experts, of.got.weights)
    for output, value in zip(outputs[1:], others):
        if value is not None:
            output.copy_(from_dlpack(value))
    outputs[-1].fill_(number)


@torch.library.custom_op(
    "headrace::moe_dispatch_out",
    mutates_args=(
        "out_rows", "out_scales", "out_counts", "out_first_rows", "out_experts", "out_weights", "out_routing"
    ),
)  # fmt: skip
def moe_dispatch_out(
    rows: Tensor, experts: Tensor, weights: Tensor | None, scales: Tensor | None, out_rows: Tensor,
    out_scales: Tensor, out_counts: Tensor, out_first_rows: Tensor, out_experts: Tensor, out_weights: Tensor,
    out_routing: Tensor, moe: str,
) -> None:  # fmt: skip
    """moe_dispatch into tensors of the caller, which have the shapes of its results."""
    outputs = (out_rows, out_scales, out_counts, out_first_rows, out_experts, out_weights, out_routing)
    _check_outputs(outputs, _empty_outputs(rows, experts, moe))
    _dispatch_into(outputs, rows, experts, weights, scales, moe)


def _check_outputs(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for output, like in zip(outputs, expected):
        if output.shape != like.shape or output.dtype != like.dtype:
            raise headrace.InvalidArgument(
                f"an output of shape {list(output.shape)} of {output.dtype} is given, "
                f"expected {list(like.shape)} of {like.dtype}"
            )


@torch.library.custom_op("headrace::moe_dispatch_again", mutates_args=())
def moe_dispatch_again(rows: Tensor, routing: Tensor, moe: str) -> Tensor:
    """Other rows go where the tokens of an earlier dispatch went, without scales."""
    output = rows.new_empty([_moe(moe).rows.shape[0], rows.shape[1]])
    _again_into(output, rows, routing, moe)
    return output


@moe_dispatch_again.register_fake
def _(rows: Tensor, routing: Tensor, moe: str) -> Tensor:
    return rows.new_empty([_moe(moe).rows.shape[0], rows.shape[1]])


def _again_into(output: Tensor, rows: Tensor, routing: Tensor, moe: str) -> None:
    of = _moe(moe)
    found, *_ = of.find(routing)
    of.moe.dispatch(
        rows.detach().contiguous(),
        None,
        routing=found,
        out=of.got,
        scales=_no_scales(of, rows),
        **of.on_stream,
    )
    of.copy_rows(output)


def _no_scales(of: _Registered, rows: Tensor) -> Tensor | None:
    count = _scale_bytes(of)
    return rows.new_zeros(rows.shape[0], count, dtype=torch.uint8) if count else None


@torch.library.custom_op("headrace::moe_dispatch_again_out", mutates_args=("out_rows",))
def moe_dispatch_again_out(rows: Tensor, routing: Tensor, out_rows: Tensor, moe: str) -> None:
    _check_outputs([out_rows], [rows.new_empty([_moe(moe).rows.shape[0], rows.shape[1]])])
    _again_into(out_rows, rows, routing, moe)


# --- combine


@torch.library.custom_op("headrace::moe_combine", mutates_args=())
def moe_combine(
    results: Tensor, weights: Tensor | None, routing: Tensor, biases: list[Tensor], moe: str
) -> Tensor:
    """The weighted sum of each token's results.

    weights: those of the dispatch, so that they get their gradient; None: the results are weighted already,
    as they are in the layout by_rank.
    """
    sums = results.new_empty([routing.shape[0] - 1, results.shape[1]])
    _combine_into(sums, results, weights, routing, biases, moe, accumulate=False)
    return sums


@moe_combine.register_fake
def _(results: Tensor, weights: Tensor | None, routing: Tensor, biases: list[Tensor], moe: str) -> Tensor:
    return results.new_empty([routing.shape[0] - 1, results.shape[1]])


def _combine_into(
    sums: Tensor, results: Tensor, weights: Tensor | None, routing: Tensor, biases: list[Tensor], moe: str,
    *, accumulate: bool,
) -> None:  # fmt: skip
    of = _moe(moe)
    found, _, dispatched = of.find(routing)
    if weights is not None:
        _check_weights(of, weights.detach(), dispatched)
    of.moe.combine(
        results.detach().contiguous(),
        routing=found,
        out=sums,
        biases=tuple(bias.detach().contiguous() for bias in biases),
        weighted=weights is not None,
        accumulate=accumulate,
        **of.on_stream,
    )


def _check_weights(of: _Registered, weights: Tensor, dispatched: Tensor | None) -> None:
    if of.is_by_rank:
        raise headrace.InvalidArgument(
            "weights are given in the layout by_rank, where the caller weighs the rows: give None"
        )
    # The values of a GPU are not compared: the CPU would have to wait for them.
    if dispatched is None or not (weights.is_cuda or torch.equal(weights, dispatched)):
        raise headrace.InvalidArgument(
            "the weights are not those of the dispatch, which went to the ranks of the experts: "
            "give the same, or None"
        )


@torch.library.custom_op("headrace::moe_combine_out", mutates_args=("out",))
def moe_combine_out(
    results: Tensor, weights: Tensor | None, routing: Tensor, biases: list[Tensor], out: Tensor,
    accumulate: bool, moe: str,
) -> None:  # fmt: skip
    """moe_combine into a tensor of the caller; accumulate: adds what it holds."""
    _combine_into(out, results, weights, routing, biases, moe, accumulate=accumulate)


# --- gradients: each of the two is the other's


def _keep_dispatch(ctx: Any, inputs: tuple[Any, ...], output: _Rows) -> None:
    rows, _, weights, _, ctx.moe = inputs
    if weights is not None and weights.requires_grad and _moe(ctx.moe).is_by_rank:
        raise headrace.NotSupported(
            "weights have no gradient in the layout by_rank: give weights.detach(), or use by_expert"
        )
    ctx.dtype = rows.dtype
    ctx.save_for_backward(output[-1])
    ctx.mark_non_differentiable(*output[1:])


def _dispatch_gradient(ctx: Any, gradient: Tensor, *others: Any) -> tuple[Any, ...]:
    (routing,) = ctx.saved_tensors
    return _back(gradient, routing, ctx.dtype, ctx.moe), None, None, None, None


def _back(gradient: Tensor, routing: Tensor, dtype: torch.dtype, moe: str) -> Tensor:
    sums: Tensor = moe_combine(gradient.to(_moe(moe).combine_dtype), None, routing, [], moe)
    return sums.to(dtype)


moe_dispatch.register_autograd(_dispatch_gradient, setup_context=_keep_dispatch)


def _keep_again(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rows, routing, ctx.moe = inputs
    ctx.dtype = rows.dtype
    ctx.save_for_backward(routing)


def _again_gradient(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    (routing,) = ctx.saved_tensors
    return _back(gradient, routing, ctx.dtype, ctx.moe), None, None


moe_dispatch_again.register_autograd(_again_gradient, setup_context=_keep_again)


def _keep_combine(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    results, weights, routing, biases, ctx.moe = inputs
    ctx.biases = len(biases)
    ctx.top_k = None if weights is None else weights.shape[1]
    ctx.save_for_backward(results, routing)


def _combine_gradient(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    results, routing = ctx.saved_tensors
    rows = moe_dispatch_again(gradient.to(_gradient_dtype(ctx.moe)), routing, ctx.moe).to(results.dtype)
    of_biases = [gradient] * ctx.biases
    if ctx.top_k is None:
        return rows, None, None, of_biases, None
    k, weights = moe_entries(routing, ctx.moe)
    of_weights = None
    if ctx.needs_input_grad[1]:
        values = (results.float() * rows.float()).sum(1)
        of_weights = moe_of_weights(values, k, routing, ctx.top_k, ctx.moe)
    return rows * weights[:, None].to(rows.dtype), of_weights, None, of_biases, None


moe_combine.register_autograd(_combine_gradient, setup_context=_keep_combine)


def _gradient_dtype(moe: str) -> torch.dtype:
    dtype = _moe(moe).rows.dtype
    if not dtype.is_floating_point or dtype.itemsize < 2:
        raise headrace.NotSupported(
            f"rows of {dtype} cannot carry gradients: use a MoE whose dtype is float32, float16 or bfloat16"
        )
    return dtype


@torch.library.custom_op("headrace::moe_entries", mutates_args=())
def moe_entries(routing: Tensor, moe: str) -> tuple[Tensor, Tensor]:
    """Of each row of a dispatch: which of its token's entries it is (-1: the row is unused), and its weight.
    A dispatch of its own carries them, in the place of rows."""
    of = _moe(moe)
    found, experts, weights = of.find(routing)
    sent = _entries_as_rows(of, experts.long(), weights)
    of.moe.dispatch(sent, None, routing=found, out=of.got, scales=_no_scales(of, sent), **of.on_stream)
    return _entries_of_rows(of, experts.shape[1])


@moe_entries.register_fake
def _(routing: Tensor, moe: str) -> tuple[Tensor, Tensor]:
    count, device = _moe(moe).rows.shape[0], _moe(moe).rows.device
    return (
        torch.empty(count, dtype=torch.int64, device=device),
        torch.empty(count, dtype=torch.float32, device=device),
    )


def _entries_as_rows(of: _Registered, experts: Tensor, weights: Tensor | None) -> Tensor:
    """[rank, token, experts, weights] of each token, in the bytes of its row."""
    tokens, top_k = experts.shape
    room, needed = of.rows.shape[1] * of.rows.dtype.itemsize, 4 * (2 + 2 * top_k)
    if needed > room:
        raise headrace.NotSupported(
            f"a row has {room} bytes, and the experts and weights of a token have {needed}: "
            f"weigh the results yourself, and give combine no weights"
        )
    sent = experts.new_zeros(tokens, room // 4, dtype=torch.int32)
    sent[:, 0], sent[:, 1] = of.moe.config.rank, of.range(tokens)
    sent[:, 2 : 2 + top_k] = experts
    given = experts.new_ones(tokens, top_k, dtype=torch.float32) if weights is None else weights
    sent[:, 2 + top_k : 2 + 2 * top_k] = given.contiguous().view(torch.int32)
    return sent.view(of.rows.dtype)


def _entries_of_rows(of: _Registered, top_k: int) -> tuple[Tensor, Tensor]:
    got, used, local = of.rows.view(torch.int32), of.used(), of.experts_of_rows()
    # A token that names an expert twice has two rows there, side by side, in the order of its entries.
    same = used[1:] & used[:-1] & (local[1:] == local[:-1]) & (got[1:, :2] == got[:-1, :2]).all(1)
    at = of.range(got.shape[0])
    starts = torch.where(torch.cat([used.new_zeros(1), same]), 0, at).cummax(0).values
    config = of.moe.config
    is_entry = got[:, 2 : 2 + top_k] == (local + config.first_expert(config.rank))[:, None]
    is_this = is_entry & (is_entry.cumsum(1) == (at - starts + 1)[:, None])
    k = torch.where(used, is_this.int().argmax(1), -1)
    weights = got[:, 2 + top_k : 2 + 2 * top_k].contiguous().view(torch.float32)
    return k, torch.where(used, weights.gather(1, k.clamp(min=0)[:, None])[:, 0], 0)


@torch.library.custom_op("headrace::moe_of_weights", mutates_args=())
def moe_of_weights(values: Tensor, k: Tensor, routing: Tensor, top_k: int, moe: str) -> Tensor:
    """Brings a number of each row back to the entry of its token: [tokens, top_k]."""
    of = _moe(moe)
    rows = values.new_zeros(of.rows.shape, dtype=of.combine_dtype)
    there = torch.where(k >= 0, values, 0).to(rows.dtype)
    rows.scatter_(1, k.clamp(min=0)[:, None], there[:, None])
    sums: Tensor = moe_combine(rows, None, routing, [], moe)
    return sums[:, :top_k].float().clone()


@moe_of_weights.register_fake
def _(values: Tensor, k: Tensor, routing: Tensor, top_k: int, moe: str) -> Tensor:
    return values.new_empty([routing.shape[0] - 1, top_k])
