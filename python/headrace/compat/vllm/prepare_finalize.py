# SPDX-License-Identifier: Apache-2.0
"""vLLM's prepare/finalize objects on headrace.MoE: rows of tokens (Standard) and batches of experts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from torch import Tensor
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceDelegate
from vllm.model_executor.layers.fused_moe.utils import (
    moe_kernel_quantize_input,
    normalize_batched_scales_shape,
)
from vllm.v1.worker.ubatching import dbo_current_ubatch_id

import headrace

from ..deep_ep._low_latency import Call, Cast
from ..deep_ep._rank_rows import Received, Route
from ..deep_ep.utils.math import BLOCK
from ._handle import ExpertHandle

Prepared = tuple[Tensor, Tensor | None, Any, Tensor | None, Tensor | None]
Hook = Callable[[], None]


class _Both(mk.FusedMoEPrepareAndFinalizeModular):  # type: ignore[misc]  # vLLM has no types here
    """What both kinds have: a dispatch and a combine in two halves, for two batches that alternate."""

    def __init__(
        self,
        handle: ExpertHandle,
        max_tokens_per_rank: int,
        num_dispatchers: int,
        moe_config: Any = None,
        quant_config: Any = None,
    ) -> None:
        # Versions of vLLM differ in what the base takes.
        takes = inspect.signature(mk.FusedMoEPrepareAndFinalizeModular.__init__).parameters
        super().__init__(*((moe_config, quant_config) if "moe_config" in takes else ()))
        self._handle = handle
        self._max_tokens, self._num_dispatchers = max_tokens_per_rank, num_dispatchers
        self._under_way: dict[int, Any] = {}

    def num_dispatchers(self) -> int:
        return self._num_dispatchers

    def max_num_tokens_per_rank(self) -> int | None:
        return self._max_tokens

    def topk_indices_dtype(self) -> torch.dtype | None:
        return torch.int64

    def output_is_reduced(self) -> bool:
        return True

    def supports_async(self) -> bool:
        return True

    def prepare(self, *args: Any, **named: Any) -> Prepared:
        hook, receiver = self.prepare_async(*args, **named)
        hook()
        prepared: Prepared = receiver()
        return prepared

    def finalize(self, *args: Any, **named: Any) -> None:
        hook, receiver = self.finalize_async(*args, **named)
        hook()
        receiver()

    def _keep(self, value: Any) -> None:
        self._under_way[dbo_current_ubatch_id()] = value

    def _kept(self) -> Any:
        value = self._under_way.get(dbo_current_ubatch_id())
        if value is None:
            raise headrace.InvalidArgument("finalize was called before prepare")
        return value


def _weighed_input(a1: Tensor, topk_weights: Tensor, apply_router_weight_on_input: bool) -> Tensor:
    if not apply_router_weight_on_input:
        return a1
    if topk_weights.shape[1] != 1:
        raise headrace.NotSupported(
            f"apply_router_weight_on_input with {topk_weights.shape[1]} experts a token: a row travels once, "
            f"so it cannot have several weights; top-k must be 1"
        )
    return a1 * topk_weights.to(a1.dtype)


class HeadracePrepareAndFinalize(_Both):
    """Rows of tokens: a row goes once to each rank with an expert of its token."""

    def max_num_tokens_per_rank(self) -> int | None:
        return None  # of a batch: there is none

    @property
    def activation_format(self) -> Any:
        return mk.FusedMoEActivationFormat.Standard

    def prepare_async(
        self,
        a1: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        num_experts: int,
        expert_map: Tensor | None,
        apply_router_weight_on_input: bool,
        quant_config: Any,
        defer_input_quant: bool = False,
    ) -> tuple[Hook, Callable[[], Prepared]]:
        """The rows have left when it returns. The hook receives; the receiver gives rows, scales, counts,
        experts and weights of the rows that came. Blocks with scales travel quantized; else the receiver
        quantizes, unless that is deferred."""
        rows = _weighed_input(a1, topk_weights, apply_router_weight_on_input)
        scales = None
        is_before = bool(quant_config.is_block_quantized) and not defer_input_quant
        if is_before:
            rows, scales = _quantized(rows, quant_config, quant_config.a1_scale)
        dtype = str(a1.dtype).removeprefix("torch.")
        route = Route.to_experts(topk_ids, num_experts, self._handle.ranks.size, self._max_tokens, dtype)
        receive = self._handle.rows.send(route, rows, scales, topk_weights)
        self._keep(route)
        got: list[Received] = []

        def receiver() -> Prepared:
            return self._prepared(got[0], num_experts, quant_config, is_before or defer_input_quant)

        return (lambda: got.append(receive())), receiver

    def _prepared(self, got: Received, num_experts: int, quant_config: Any, is_done: bool) -> Prepared:
        rank, ranks = self._handle.ranks.rank, self._handle.ranks.size
        each = num_experts // ranks
        # Kernels of experts take no -1: an expert of another rank stands for it, and expert_map takes it out.
        elsewhere = num_experts - 1 if rank == 0 else 0
        experts = torch.where(got.experts < 0, elsewhere, got.experts + rank * each)
        counts = mk.ExpertTokensMetadata.make_from_list(got.counts(each).tolist(), device=got.rows.device)
        rows, scales = got.rows, got.scales
        if not is_done and quant_config.quant_dtype is not None and rows.numel():
            rows, scales = _quantized(rows, quant_config, quant_config.a1_scale)
        return rows, scales, counts, experts, got.weights

    def finalize_async(
        self,
        output: Tensor,
        fused_expert_output: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        apply_router_weight_on_input: bool,
        weight_and_reduce_impl: Any,
    ) -> tuple[Hook, Hook]:
        """The sums of this rank's experts have left when it returns. The hook receives into output."""
        rows = fused_expert_output
        if isinstance(weight_and_reduce_impl, TopKWeightAndReduceDelegate):
            rows = _weighed_sums(rows, topk_weights, apply_router_weight_on_input)
        elif rows.numel():
            rows = weight_and_reduce_impl.apply(
                output=None,
                fused_expert_output=rows,
                topk_weights=topk_weights,
                topk_ids=topk_ids,
                apply_router_weight_on_input=apply_router_weight_on_input,
            )
        route: Route = self._kept()
        receive = self._handle.rows.combine_send(route, rows.view(-1, output.shape[1]))
        return (lambda: _into(output, receive())), _nothing


class HeadraceBatchedPrepareAndFinalize(_Both):
    """Batches of experts: [local experts, ranks * max tokens, hidden].

    use_fp8_dispatch: rows travel in 8 bits with a scale for each 128 elements; by itself so where the experts
    take such rows.
    global_to_physical: the expert that is asked for each that a router names.
    """

    def __init__(
        self,
        handle: ExpertHandle,
        max_tokens_per_rank: int,
        num_dispatchers: int,
        moe_config: Any = None,
        quant_config: Any = None,
        use_fp8_dispatch: bool | None = None,
        global_to_physical: Tensor | None = None,
    ) -> None:
        super().__init__(handle, max_tokens_per_rank, num_dispatchers, moe_config, quant_config)
        blocks = getattr(quant_config, "quant_dtype", None) == torch.float8_e4m3fn and (
            quant_config.block_shape == [BLOCK, BLOCK]
        )
        self.use_fp8_dispatch = bool(blocks) if use_fp8_dispatch is None else use_fp8_dispatch
        self._packs_exponents = False
        self._physical = None if global_to_physical is None else global_to_physical.to(torch.int64)

    def post_init_setup(self, fused_experts: Any) -> None:
        """Scales are powers of 2, four in an int32, if the experts take them so."""
        takes = getattr(fused_experts, "supports_packed_ue8m0_act_scales", lambda: False)
        self._packs_exponents = self.use_fp8_dispatch and bool(takes())

    @property
    def activation_format(self) -> Any:
        return mk.FusedMoEActivationFormat.BatchedExperts

    def _asked(self, topk_ids: Tensor) -> Tensor:
        return topk_ids if self._physical is None else self._physical[topk_ids]

    def prepare_async(
        self,
        a1: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        num_experts: int,
        expert_map: Tensor | None,
        apply_router_weight_on_input: bool,
        quant_config: Any,
        defer_input_quant: bool = False,
    ) -> tuple[Hook, Callable[[], Prepared]]:
        """The rows have left when it returns. The hook receives; the receiver gives batches, scales and
        counts."""
        rows = _weighed_input(a1, topk_weights, apply_router_weight_on_input)
        in_8_bits = self.use_fp8_dispatch and not defer_input_quant
        packs = in_8_bits and self._packs_exponents
        batches, scales, counts, call, _, receive = self._handle.batches.dispatch(
            rows,
            self._asked(topk_ids),
            self._max_tokens,
            num_experts,
            Cast(in_8_bits, packs, packs),
            None,
            halves=True,
        )
        self._keep(call)
        is_done = in_8_bits or defer_input_quant or quant_config.quant_dtype is None

        def receiver() -> Prepared:
            x, x_scales = (batches, scales) if is_done else _quantized_batches(batches, quant_config)
            meta = mk.ExpertTokensMetadata(expert_num_tokens=counts, expert_num_tokens_cpu=None)
            return x, x_scales, meta, None, None

        return receive, receiver

    def finalize_async(
        self,
        output: Tensor,
        fused_expert_output: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        apply_router_weight_on_input: bool,
        weight_and_reduce_impl: Any,
    ) -> tuple[Hook, Hook]:
        """The results of this rank's experts have left when it returns. The hook receives into output."""
        if not isinstance(weight_and_reduce_impl, TopKWeightAndReduceDelegate):
            raise headrace.InvalidArgument(
                f"weight_and_reduce_impl is {type(weight_and_reduce_impl).__name__}, expected "
                f"TopKWeightAndReduceDelegate: the sums of batches are made here"
            )
        weights = torch.ones_like(topk_weights) if apply_router_weight_on_input else topk_weights
        call: Call = self._kept()
        _, receive = self._handle.batches.combine(
            call, fused_expert_output, self._asked(topk_ids), weights, output, halves=True
        )
        return receive, _nothing


def _nothing() -> None:
    """What is left to do after a hook that received in place."""


def _into(output: Tensor, sums: Tensor) -> None:
    output.copy_(sums)


def _weighed_sums(results: Tensor, weights: Tensor, is_weighed: bool) -> Tensor:
    """Of [rows, top_k, hidden], or of that many rows: the weighted sum for each row, in float32."""
    by_entry = results.view(*weights.shape, results.shape[-1]).float()
    there = weights != 0  # entries of other ranks have no weight, and anything as their result
    weighed = by_entry if is_weighed else by_entry * weights[..., None].float()
    return torch.where(there[..., None], weighed, 0).sum(1).to(results.dtype)


def _quantized(rows: Tensor, quant_config: Any, scale: Tensor | None) -> tuple[Tensor, Tensor | None]:
    quantized, scales = moe_kernel_quantize_input(
        rows,
        scale,
        quant_dtype=quant_config.quant_dtype,
        per_act_token_quant=quant_config.per_act_token_quant,
        block_shape=quant_config.block_shape,
    )
    return quantized, scales


def _quantized_batches(batches: Tensor, quant_config: Any) -> tuple[Tensor, Tensor | None]:
    experts, _, hidden = batches.shape
    rows, scales = _quantized(batches.view(-1, hidden), quant_config, quant_config.a1_scale)
    return rows.view(experts, -1, hidden), normalize_batched_scales_shape(scales, experts)
