# SPDX-License-Identifier: Apache-2.0
"""deep_ep.Buffer: rows to ranks (normal mode) and rows to experts (low-latency mode), in host memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch import Tensor

import headrace

from ..._moe_ranks import MoERanks
from .._config import Config, rank_config, tokens_that_fit
from .._groups import group_of
from .._low_latency import Call, Cast, LowLatency
from .._rank_rows import RankRows, Received, Route, experts_of_a_rank
from ..utils.event import EventHandle, EventOverlap
from ..utils.math import align

Bias = Tensor | tuple[Tensor, Tensor] | None
Rows = Tensor | tuple[Tensor, Tensor]


class _Handle(tuple):  # type: ignore[type-arg]  # the tuple is DeepEP's, of tensors
    """What DeepEP's handle holds, and the route of the dispatch."""

    route: Route


class _LowLatencyHandle(tuple):  # type: ignore[type-arg]
    """What DeepEP's handle of the low-latency mode holds, and the call."""

    call: Call


class Buffer:
    """Dispatch and combine of one rank.

    wait_limit: seconds of each wait for another rank; None: 10. Headrace's own: set it on the class before.
    Threads: one call at a time.
    """

    num_sms: int = 20
    wait_limit: float | timedelta | None = None

    def __init__(
        self,
        group: Any,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
    ) -> None:
        """group: of torch.distributed. comm: in its place a communicator of mpi4py.

        num_nvl_bytes, num_rdma_bytes: their sum says how many tokens a dispatch of the normal mode may have.
        enable_shrink: a rank that is late or gone is left out of the low-latency mode, without an error.
        """
        met = group_of(group, comm)
        self.rank, self.group_size = met.rank, met.size
        self.group = comm if group is None else group
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.explicitly_destroy, self.enable_shrink = explicitly_destroy, enable_shrink
        self.runtime: MoERanks | None = MoERanks(met.rank, met.size, met.gather, self.wait_limit)
        self._rows = RankRows(self.runtime)
        self._low_latency = LowLatency(self.runtime, enable_shrink)
        self._combine_buffers: dict[tuple[int, ...], Tensor] = {}
        self._tokens_that_fit: dict[int, int] = {}

    def destroy(self) -> None:
        """Leaves the other ranks.

        Errors: ValueError (the buffer was not made with explicitly_destroy=True).
        """
        if not self.explicitly_destroy:
            raise ValueError("the buffer ends by itself: make it with explicitly_destroy=True to end it here")
        self._close()

    def _close(self) -> None:
        if getattr(self, "runtime", None) is not None:
            assert self.runtime is not None
            self.runtime.close()
            self.runtime = None

    def __del__(self) -> None:
        self._close()

    # --- what programs ask before they begin

    @staticmethod
    def is_sm90_compiled() -> bool:
        """True: rows of 8 bits are taken."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        if new_num_sms % 2:
            raise ValueError(f"new_num_sms is {new_num_sms}, expected an even number")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Bytes of the window that a dispatch with bfloat16 rows takes."""
        return rank_config(2 * hidden, num_ranks, num_max_dispatch_tokens_per_rank).window_bytes

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        return Config(Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        return Config(Buffer.num_sms)

    def get_comm_stream(self) -> NoReturn:
        raise headrace.NotSupported("there is no stream: operations in host memory run in the call")

    def get_local_buffer_tensor(
        self,
        dtype: torch.dtype,
        size: torch.Size | None = None,
        offset: int = 0,
        use_rdma_buffer: bool = False,
    ) -> NoReturn:
        raise headrace.NotSupported(
            "a MoE's window has a layout of its own: for results in place use "
            "get_next_low_latency_combine_buffer"
        )

    # --- normal mode

    def get_dispatch_layout(
        self,
        topk_idx: Tensor,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, None, Tensor, Tensor, EventOverlap]:
        """Tokens for each rank, None, tokens for each expert, and which token goes to which rank."""
        is_in_rank = Route.to_experts(topk_idx, num_experts, self.group_size, 0).ranks_of_tokens
        named = topk_idx[topk_idx >= 0]
        per_expert = torch.bincount(named.long(), minlength=num_experts).to(torch.int32)
        return is_in_rank.sum(0, dtype=torch.int32), None, per_expert, is_in_rank, self.capture()

    def dispatch(
        self,
        x: Rows,
        handle: Any = None,
        num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None,
        is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Rows, Tensor | None, Tensor | None, list[int] | None, Any, EventOverlap]:
        """Sends each token's row once to each of its ranks.

        x: [tokens, hidden] of bfloat16, or float8_e4m3fn with scales.
        Returns rows in the order of ranks and tokens; experts of each among those of this rank, or -1;
        weights; aligned counts of each expert; the handle; an event that has come.
        Errors: InvalidArgument (which argument; more tokens than the buffer has room for), as MoE.dispatch.
        """
        rows, scales = x if isinstance(x, tuple) else (x, None)
        if handle is not None:
            if topk_idx is not None or topk_weights is not None:
                raise headrace.InvalidArgument("a handle is given: it has the experts, so give no topk_idx")
            got = self._rows.dispatch(_route_of(handle), rows, scales, None)
            return _rows_of(got, num_worst_tokens), None, None, None, None, self.capture()
        if is_token_in_rank is None or num_tokens_per_expert is None or num_tokens_per_rank is None:
            raise headrace.InvalidArgument(
                "num_tokens_per_rank, is_token_in_rank and num_tokens_per_expert are needed without a "
                "handle: get_dispatch_layout gives them"
            )
        if expert_alignment < 1:
            raise headrace.InvalidArgument(f"expert_alignment is {expert_alignment}, expected 1 or more")
        num_experts = num_tokens_per_expert.numel()
        each = experts_of_a_rank(num_experts, self.group_size)
        experts = rows.new_empty(rows.shape[0], 0, dtype=torch.int64) if topk_idx is None else topk_idx
        route = Route(
            is_token_in_rank.clone(),
            experts.clone(),
            num_experts,
            self._max_tokens(rows),
            _combine_dtype(rows),
        )
        got = self._rows.dispatch(route, rows, scales, topk_weights)
        counts = self._rows.sum_counts(num_tokens_per_expert) if topk_idx is None else got.counts(each)
        aligned = [] if num_worst_tokens else [align(count, expert_alignment) for count in counts.tolist()]
        has_experts = topk_idx is not None
        return (
            _rows_of(got, num_worst_tokens),
            _padded(got.experts.to(experts.dtype), num_worst_tokens, -1) if has_experts else None,
            _padded(got.weights, num_worst_tokens, 0) if topk_weights is not None else None,
            aligned,
            self._handle(route, got),
            self.capture(),
        )

    def _max_tokens(self, rows: Tensor) -> int:
        """The tokens for which the buffer has room, if rows were bfloat16: the same for all kinds of rows."""
        row_bytes = rows.shape[1] * max(2, rows.dtype.itemsize)
        if row_bytes not in self._tokens_that_fit:
            room = self.num_nvl_bytes + self.num_rdma_bytes
            self._tokens_that_fit[row_bytes] = tokens_that_fit(room, row_bytes, self.group_size)
        return self._tokens_that_fit[row_bytes]

    def _handle(self, route: Route, got: Received) -> _Handle:
        prefixes = torch.zeros(self.group_size, self.group_size, dtype=torch.int32)
        prefixes[:, self.rank] = got.first_rows[1:]
        none = torch.empty(self.group_size, 0, dtype=torch.int32)
        sources = got.tokens if got.tokens.numel() else got.tokens.new_empty(0)
        handle = _Handle((prefixes, none, none, sources, route.ranks_of_tokens, none))
        handle.route = route
        return handle

    def combine(
        self,
        x: Tensor,
        handle: Any,
        topk_weights: Tensor | None = None,
        bias: Bias = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, EventOverlap]:
        """The sum over ranks of each token's rows, without weights, and the sum of topk_weights if given."""
        route = _route_of(handle)
        sums = self._rows.combine(route, x, biases_of(bias))
        weights = None if topk_weights is None else self._rows.combine_weights(route, topk_weights)
        return sums, weights, self.capture()

    # --- low-latency mode

    def clean_low_latency_buffer(
        self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int
    ) -> None:
        """Does nothing: epochs take the place of memory that must be zero."""
        self._check_low_latency()

    def _check_low_latency(self) -> None:
        if not self.low_latency_mode:
            raise ValueError("the buffer has no low-latency mode: make it with low_latency_mode=True")

    def low_latency_dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        dispatch_wait_recv_cost_stats: Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[Rows, Tensor, Any, EventOverlap, Callable[[], None] | None]:
        """Sends each token's row to its experts, in rows [local experts, ranks * max tokens, hidden].

        The results stay until the second dispatch of the same shape after this one.
        """
        self._check_low_latency()
        if dispatch_wait_recv_cost_stats is not None:
            raise headrace.NotSupported("dispatch_wait_recv_cost_stats: waits are not measured; give None")
        rows, scales, counts, call, layout, hook = self._low_latency.dispatch(
            x,
            topk_idx,
            num_max_dispatch_tokens_per_rank,
            num_experts,
            Cast(use_fp8, round_scale, use_ue8m0),
            cumulative_local_expert_recv_stats,
            return_recv_hook,
        )
        sources = call.words[:, 1].view(rows.shape[:2])
        handle = _LowLatencyHandle(
            (sources, layout, num_max_dispatch_tokens_per_rank, x.shape[1], num_experts)
        )
        handle.call = call
        received = rows if scales is None else (rows, scales)
        return received, counts, handle, self.capture(), hook if return_recv_hook else None

    def low_latency_combine(
        self,
        x: Tensor,
        topk_idx: Tensor,
        topk_weights: Tensor,
        handle: Any,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Tensor | None = None,
        combine_wait_recv_cost_stats: Tensor | None = None,
    ) -> tuple[Tensor, EventOverlap, Callable[[], None] | None]:
        """The weighted sum of each token's results. zero_copy: they are in the buffer of
        get_next_low_latency_combine_buffer, and x is not read. use_logfmt: taken; bfloat16 travels."""
        self._check_low_latency()
        if combine_wait_recv_cost_stats is not None:
            raise headrace.NotSupported("combine_wait_recv_cost_stats: waits are not measured; give None")
        results = self.get_next_low_latency_combine_buffer(handle) if zero_copy else x
        sums, hook = self._low_latency.combine(
            _call_of(handle), results, topk_idx, topk_weights, out, return_recv_hook
        )
        return sums, self.capture(), hook if return_recv_hook else None

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Leaves a rank out.

        Errors: NotSupported (a rank that was left out is to come back: low_latency_clean_mask_buffer).
        """
        self._low_latency.mask(rank_to_mask, mask)

    def low_latency_query_mask_buffer(self, mask_status: Tensor) -> None:
        """Writes 1 for each rank that is left out, else 0."""
        mask_status.copy_(torch.tensor(self._low_latency.masked(), dtype=mask_status.dtype))

    def low_latency_clean_mask_buffer(self) -> None:
        """Takes all ranks back. All ranks call it between two operations, also those that were left out.

        Errors: those of MoE.regroup.
        """
        self._low_latency.unmask_all()

    def get_next_low_latency_combine_buffer(self, handle: Any) -> Tensor:
        """[local experts, ranks * max tokens, hidden] of bfloat16: memory of which combine(zero_copy=True)
        takes the results."""
        call = _call_of(handle)
        config = call.window.config
        shape = (config.local_experts, config.rows_of_expert, call.got.rows.shape[1])
        if shape not in self._combine_buffers:
            self._combine_buffers[shape] = torch.zeros(shape, dtype=torch.bfloat16)
        return self._combine_buffers[shape]


def _route_of(handle: Any) -> Route:
    if not isinstance(handle, _Handle):
        raise headrace.InvalidArgument("handle is none that dispatch returned: give that itself, not a copy")
    return handle.route


def _call_of(handle: Any) -> Call:
    if not isinstance(handle, _LowLatencyHandle):
        raise headrace.InvalidArgument(
            "handle is none that low_latency_dispatch returned: give that itself, not a copy"
        )
    return handle.call


def biases_of(bias: Bias) -> tuple[Tensor, ...]:
    if bias is None:
        return ()
    return bias if isinstance(bias, tuple) else (bias,)


def _combine_dtype(rows: Tensor) -> str:
    names = {torch.float32: "float32", torch.float16: "float16"}
    return names.get(rows.dtype, "bfloat16")


def _rows_of(got: Received, worst: int) -> Rows:
    rows = _padded(got.rows, worst, 0)
    return rows if got.scales is None else (rows, _padded(got.scales, worst, 0))


def _padded(tensor: Tensor, rows: int, value: int) -> Tensor:
    """The tensor with so many rows; 0: as it is."""
    if rows == 0:
        return tensor
    if rows < tensor.shape[0]:
        raise headrace.Exhausted(f"{tensor.shape[0]} tokens came, and num_worst_tokens is {rows}: give more")
    padded = tensor.new_zeros(rows, *tensor.shape[1:])
    padded[: tensor.shape[0]] = tensor
    if value:
        padded[tensor.shape[0] :] = value
    return padded
