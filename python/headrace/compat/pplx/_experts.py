# SPDX-License-Identifier: Apache-2.0
"""An all-to-all of pplx-garden on headrace.MoE: rows by expert, aligned to the padding of experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import headrace

from .._moe_ranks import MoEWindow, as_bytes, dtype_name


@dataclass(frozen=True)
class Shape:
    """What travels."""

    max_tokens: int
    experts: int
    padding: int
    hidden: int
    scales: int
    in_dtype: torch.dtype
    out_dtype: torch.dtype
    scale_dtype: torch.dtype
    top_k: int
    dp_size: int

    def local_experts(self, ranks: int) -> int:
        return -(-self.experts // ranks)

    def config(self, ranks: int) -> dict[str, object]:
        """Fields of headrace.MoEConfig. Ranks behind the last expert have none."""
        each = self.local_experts(ranks)
        return {
            "group_size": self.dp_size,
            "experts": self.experts,
            "experts_of_ranks": [min(each, max(0, self.experts - rank * each)) for rank in range(ranks)],
            "top_k": self.top_k,
            "hidden": self.hidden,
            "max_tokens": self.max_tokens,
            "dtype": dtype_name(self.in_dtype),
            "scale_bytes": self.scales * self.scale_dtype.itemsize,
            "combine_dtype": dtype_name(self.out_dtype),
            "row_alignment": self.padding,
        }


class Exchange:
    """Dispatch and combine of one rank, each in two halves."""

    def __init__(self, window: MoEWindow, shape: Shape) -> None:
        self._window, self._shape = window, shape
        self._routing = window.lend_routing()
        self._weights = torch.empty(0)

    def dispatch_send(
        self,
        rows: Tensor,
        scales: Tensor | None,
        indices: Tensor,
        weights: Tensor,
        count: Tensor | None,
    ) -> None:
        """count: one int32: so many of the rows are tokens."""
        self._window.moe.dispatch_send(
            as_bytes(rows),
            indices,
            weights,
            routing=self._routing,
            scales=scales,
            count=count,
        )
        self._weights = weights.clone()

    def dispatch_receive(self, counts: Tensor, rows: Tensor | None, scales: Tensor | None) -> int:
        """Returns the rows that came, with padding. Tensors: those of the caller, or None."""
        window = self._window
        window.moe.dispatch_receive(self._routing, window.got)
        counts.zero_()
        counts[: window.counts.numel()].copy_(window.counts)
        used = int(window.first_rows[-1])
        if rows is not None:
            _copy("out_expert_x", rows, self.rows, used)
        if scales is not None and window.scales is not None:
            _copy("out_expert_x_scale", scales, window.scales.view(self._shape.scale_dtype), used)
        return used

    @property
    def used_rows(self) -> int:
        return int(self._window.first_rows[-1])

    @property
    def rows(self) -> Tensor:
        return self._window.rows.view(self._shape.in_dtype)

    @property
    def scales(self) -> Tensor | None:
        scales = self._window.scales
        return None if scales is None else scales.view(self._shape.scale_dtype)

    def combine_send(self, results: Tensor) -> None:
        as_sent = results.to(self._shape.out_dtype)
        self._window.moe.combine_send(self._window.as_results(as_sent), routing=self._routing)

    def check_weights(self, weights: Tensor) -> None:
        if not torch.equal(weights, self._weights):
            raise headrace.NotSupported(
                "combine was given other weights than dispatch, which took them to the experts: give the same"
            )

    def combine_receive(self, out: Tensor, accumulate: bool) -> None:
        self._window.moe.combine_receive(self._routing, out, accumulate=accumulate)


def _copy(name: str, to: Tensor, source: Tensor, used: int) -> None:
    if to.shape[0] < used:
        raise headrace.Exhausted(
            f"{used} rows came, with padding, and {name} has {to.shape[0]}: give a larger one"
        )
    to[:used].copy_(source[:used])
