# SPDX-License-Identifier: Apache-2.0
"""DeepEP's low-latency mode: rows by expert in fixed places, weights that are known at combine alone, halves,
and ranks that are left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

import headrace

from .._moe_ranks import MoERanks, MoEWindow, as_bytes, check_host, dtype_name
from .utils.math import BLOCK, per_token_cast_to_fp8

Hook = Callable[[], None]


@dataclass
class Cast:
    """How rows become smaller on the way."""

    use_fp8: bool
    round_scale: bool
    use_ue8m0: bool

    def check(self, hidden: int) -> None:
        if self.use_ue8m0 and not self.round_scale:
            raise headrace.InvalidArgument("use_ue8m0 needs round_scale=True: exponents are powers of 2")
        step = 4 * BLOCK if self.use_ue8m0 else BLOCK
        if self.use_fp8 and hidden % step:
            raise headrace.InvalidArgument(
                f"hidden is {hidden}, expected a multiple of {step}, the elements of a number of scales"
            )

    def scale_bytes(self, hidden: int) -> int:
        return (hidden // BLOCK * (1 if self.use_ue8m0 else 4)) if self.use_fp8 else 0

    @property
    def scale_dtype(self) -> torch.dtype:
        return torch.int32 if self.use_ue8m0 else torch.float32

    @property
    def name(self) -> str | None:
        """The cast of MoE.dispatch; None: there is none, or none such."""
        if not self.use_fp8 or (self.round_scale and not self.use_ue8m0):
            return None
        return "ue8m0" if self.use_ue8m0 else "float32"

    def of(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows and scales as they are given to MoE.dispatch."""
        if not self.use_fp8 or self.name is not None:
            return x, None
        small, scales = per_token_cast_to_fp8(x, self.round_scale)
        return as_bytes(small), scales


class Call:
    """A dispatch, until its combine: what the handle of DeepEP stands for."""

    def __init__(
        self,
        window: MoEWindow,
        got: headrace.MoERows,
        topk_idx: Tensor,
        max_tokens: int,
        num_experts: int,
    ) -> None:
        self.window, self.got = window, got
        self.max_tokens, self.num_experts = max_tokens, num_experts
        self.routing = window.lend_routing()
        self.topk_idx = topk_idx.clone()
        # Of each row its rank, its token there, and that one's experts.
        self.words: Tensor = from_dlpack(got.payloads[0]).view(torch.int32)
        self.counts: Tensor = from_dlpack(got.counts)

    def __del__(self) -> None:
        if hasattr(self, "routing"):
            self.window.take_back(self.routing)

    def used(self) -> tuple[Tensor, Tensor]:
        """The rows that came, and each one's expert among those of this rank."""
        each = self.window.config.rows_of_expert
        counts = self.counts.clamp(max=each).long()
        experts = torch.repeat_interleave(torch.arange(counts.numel()), counts)
        starts = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        return experts * each + torch.arange(experts.numel()) - starts, experts


class LowLatency:
    """Dispatches and combines of one rank.

    goes_on: a rank that is late or gone is left out, and no error is raised.
    """

    def __init__(self, ranks: MoERanks, goes_on: bool) -> None:
        self._ranks, self._goes_on = ranks, goes_on
        self._memory: dict[MoEWindow, list[headrace.MoERows]] = {}
        self._left_out = 0  # ranks that the program masks, a bit for each

    def dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor,
        max_tokens: int,
        num_experts: int,
        cast: Cast,
        stats: Tensor | None,
        halves: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor, Call, Tensor, Hook]:
        """Returns rows, scales, counts, the call, [experts, ranks] of where the rows of a rank lie, and what
        receives. All tensors but the call are filled when that has run."""
        check_host("x", x)
        if x.dtype != torch.bfloat16:
            raise headrace.InvalidArgument(f"x is of {x.dtype}, expected torch.bfloat16")
        cast.check(x.shape[1])
        dtype = torch.float8_e4m3fn if cast.use_fp8 else torch.bfloat16
        top_k = topk_idx.shape[1]
        window = self._window(
            x.shape[1], top_k, max_tokens, num_experts, dtype_name(dtype),
            cast.scale_bytes(x.shape[1]), [4 * (2 + top_k)],
        )  # fmt: skip
        memory = self._next_memory(window, by_columns=cast.use_fp8)
        call = Call(window, memory, topk_idx, max_tokens, num_experts)
        sent, scales = cast.of(x)
        words = self._words(topk_idx)
        self._run(
            lambda: window.moe.dispatch_send(
                sent, topk_idx, routing=call.routing, scales=scales, payloads=(words,), cast=cast.name
            )
        )
        layout = torch.zeros(window.config.local_experts, self._ranks.size, dtype=torch.int64)

        def receive() -> None:
            self._run(lambda: window.moe.dispatch_receive(call.routing, call.got))
            layout.copy_(self._layout(call))
            if stats is not None:
                stats.add_(call.counts)

        if not halves:
            receive()
        shape = (window.config.local_experts, window.config.rows_of_expert)
        rows = from_dlpack(call.got.rows).view(dtype).view(*shape, -1)
        return rows, self._scales(call, cast), call.counts, call, layout, receive

    def _window(
        self,
        hidden: int,
        top_k: int,
        max_tokens: int,
        experts: int,
        dtype: str,
        scale_bytes: int,
        payload_bytes: list[int],
    ) -> MoEWindow:
        window = self._ranks.window(
            experts=experts, top_k=top_k, hidden=hidden, max_tokens=max_tokens, dtype=dtype,
            scale_bytes=scale_bytes, payload_bytes=payload_bytes,
            combine_dtype="float32" if dtype == "float32" else "bfloat16",
            layout="batched",
        )  # fmt: skip
        self._agree()
        return window

    def _next_memory(self, window: MoEWindow, by_columns: bool) -> headrace.MoERows:
        """One of two, in turn: the results of the last two dispatches of a shape stay."""
        if window not in self._memory:
            self._memory[window] = [window.moe.new_rows(column_scales=by_columns) for _ in range(2)]
        memory = self._memory[window]
        memory.reverse()
        return memory[0]

    def _words(self, topk_idx: Tensor) -> Tensor:
        tokens = topk_idx.shape[0]
        words = torch.empty(tokens, 2 + topk_idx.shape[1], dtype=torch.int32)
        words[:, 0], words[:, 1], words[:, 2:] = self._ranks.rank, torch.arange(tokens), topk_idx
        return words

    @staticmethod
    def _scales(call: Call, cast: Cast) -> Tensor | None:
        """[local experts, rows, scales], whose columns lie side by side."""
        if not cast.use_fp8:
            return None
        by_columns: Tensor = from_dlpack(call.got.scales).view(cast.scale_dtype)
        return by_columns.transpose(1, 2)

    def _layout(self, call: Call) -> Tensor:
        """Of each expert and source rank: the first row there << 32 | rows."""
        used, experts = call.used()
        size, local = self._ranks.size, call.counts.numel()
        counts = torch.bincount(experts * size + call.words[used, 0], minlength=local * size).view(
            local, size
        )
        return ((counts.cumsum(1) - counts) << 32) | counts

    def combine(
        self,
        call: Call,
        x: Tensor,
        topk_idx: Tensor,
        topk_weights: Tensor,
        out: Tensor | None,
        halves: bool,
    ) -> tuple[Tensor, Hook]:
        check_host("x", x)
        window = call.window
        config = window.config
        expected = [config.local_experts, config.rows_of_expert, call.got.rows.shape[1]]
        if list(x.shape) != expected or x.dtype != torch.bfloat16:
            raise headrace.InvalidArgument(
                f"x has shape {list(x.shape)} of {x.dtype}, expected {expected} of torch.bfloat16"
            )
        left = topk_idx != -1
        if topk_idx.shape != call.topk_idx.shape or bool((left & (topk_idx != call.topk_idx)).any()):
            raise headrace.InvalidArgument(
                "topk_idx is not that of the dispatch: give the same, or -1 for entries that do not count"
            )
        sums = [topk_idx.shape[0], x.shape[2]]
        if out is not None and (list(out.shape) != sums or out.dtype != x.dtype):
            raise headrace.InvalidArgument(
                f"out has shape {list(out.shape)} of {out.dtype}, expected {sums} of {x.dtype}"
            )
        self._agree()
        used, weights = self._weights_of_rows(call, topk_weights.masked_fill(~left, 0))
        rows = x.reshape(-1, x.shape[2])
        results = torch.empty_like(rows)
        results[used] = (rows[used].float() * weights[:, None]).to(x.dtype)
        out = x.new_empty(sums) if out is None else out
        self._run(lambda: window.moe.combine_send(results, routing=call.routing, weighted=False))

        def receive() -> None:
            self._run(lambda: window.moe.combine_receive(call.routing, out))

        if not halves:
            receive()
        return out, receive

    def _weights_of_rows(self, call: Call, topk_weights: Tensor) -> tuple[Tensor, Tensor]:
        """The rows that came, and their weights, which a small dispatch of the same tokens brings."""
        config, top_k = call.window.config, call.topk_idx.shape[1]
        width = -(-top_k // 4) * 4
        window = self._window(width, top_k, call.max_tokens, call.num_experts, "float32", 0, [])
        wide = torch.nn.functional.pad(topk_weights.float(), (0, width - top_k))
        routing = window.lend_routing()
        self._run(lambda: window.moe.dispatch(wide, call.topk_idx, routing=routing, out=window.got))
        window.take_back(routing)
        used, experts = call.used()
        first = config.first_expert(self._ranks.rank)
        k = (call.words[used, 2:] == (experts + first)[:, None]).int().argmax(1)
        return used, window.rows[used].gather(1, k[:, None])[:, 0]

    # --- ranks that are left out

    def mask(self, rank: int, is_left_out: bool) -> None:
        if not 0 <= rank < self._ranks.size:
            raise headrace.InvalidArgument(f"rank_to_mask is {rank}, expected 0 to {self._ranks.size - 1}")
        bit = 1 << rank
        if is_left_out:
            self._left_out |= bit
            self._agree()
        elif ~self._active() & bit:
            raise headrace.NotSupported(
                f"rank {rank} is left out, and ranks come back together: call low_latency_clean_mask_buffer "
                f"on all ranks, also on those that were left out"
            )

    def unmask_all(self) -> None:
        """Takes all ranks back, which all call it."""
        self._left_out = 0
        self._ranks.take_all_back()

    def masked(self) -> list[int]:
        active = self._active()
        return [0 if active >> rank & 1 else 1 for rank in range(self._ranks.size)]

    def _active(self) -> int:
        active = (1 << self._ranks.size) - 1 & ~self._left_out
        for window in self._ranks.windows:
            active &= window.moe.active
        return active

    def _agree(self) -> None:
        """A rank that one window has lost is left out of all."""
        active = self._active()
        for window in self._ranks.windows:
            if window.moe.active != active:
                window.moe.active = active

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except (headrace.TimedOut, headrace.PeerLost):
            if not self._goes_on:
                raise
