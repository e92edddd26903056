# SPDX-License-Identifier: Apache-2.0
"""deep_ep.ElasticBuffer: rows to ranks, or to experts (`do_expand`), in host memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

import headrace

from ..._moe_ranks import MoERanks
from .._config import rank_config
from .._groups import group_of
from .._rank_rows import RankRows, Received, Route
from ..utils.envs import get_logical_domain_size, get_physical_domain_size
from ..utils.event import EventHandle, EventOverlap
from ..utils.math import align
from .legacy import Bias, Rows, biases_of

ALIGNMENT = 2 << 20  # of buffer sizes
NUM_SMS = 24  # what is answered where DeepEP counts multiprocessors; host memory needs none


@dataclass
class EPHandle:
    """What a dispatch has learnt. Attributes are DeepEP's; docs/compat-deep-ep.md says which are empty."""

    do_expand: bool
    num_experts: int
    expert_alignment: int
    num_max_tokens_per_rank: int
    num_sms: int
    topk_idx: Tensor
    num_recv_tokens: int
    num_expanded_tokens: int
    num_recv_tokens_per_expert_list: list[int]
    psum_num_recv_tokens_per_scaleup_rank: Tensor
    psum_num_recv_tokens_per_expert: Tensor
    num_unaligned_recv_tokens_per_expert: Tensor
    recv_src_metadata: Tensor
    dst_buffer_slot_idx: Tensor
    route: Route
    rows: int  # of the tensors that dispatch returns
    token_metadata_at_forward: None = None
    channel_linked_list: None = None

    @property
    def slots(self) -> Tensor:
        """The row of each entry of each token that came, if rows are by expert; -1: none."""
        return self.recv_src_metadata[: self.num_recv_tokens, 2:]


class ElasticBuffer:
    """Dispatch and combine of one rank.

    Threads: one call at a time.
    """

    def __init__(
        self,
        group: Any,
        num_bytes: int | None = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
    ) -> None:
        """group: of torch.distributed, or a communicator of mpi4py.

        num_max_tokens_per_rank: the default of dispatch. num_gpu_timeout_secs: bounds each wait for a rank.
        allow_multiple_reduction: False: sums of a rank's experts travel in float32, so that all is rounded
        once.
        """
        met = group_of(group)
        self.group = group
        self.rank_idx, self.num_ranks = met.rank, met.size
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.deterministic = deterministic
        self.allow_hybrid_mode = allow_hybrid_mode
        self.allow_multiple_reduction = allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        self.explicitly_destroy = explicitly_destroy
        self.num_allocated_qps = num_allocated_qps or 17
        self.num_scaleout_ranks, self.num_scaleup_ranks = 1, met.size
        self.scaleout_rank_idx, self.scaleup_rank_idx = 0, met.rank
        self.num_rdma_ranks, self.num_nvlink_ranks = 1, met.size
        if num_bytes is None:
            num_bytes = _window_bytes(met.size, max(1, num_max_tokens_per_rank), max(8, hidden))
        self.num_bytes = num_bytes
        self._gather = met.gather
        self.runtime: MoERanks | None = MoERanks(met.rank, met.size, met.gather, num_gpu_timeout_secs)
        self._rows = RankRows(self.runtime)

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

    # --- what programs ask

    @staticmethod
    def get_buffer_size_hint(
        group: Any,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """Bytes of the window that a dispatch with bfloat16 rows takes."""
        return _window_bytes(group_of(group).size, num_max_tokens_per_rank, hidden)

    def get_physical_domain_size(self) -> tuple[int, int]:
        return get_physical_domain_size(self.group)

    def get_logical_domain_size(self) -> tuple[int, int]:
        return get_logical_domain_size(self.group, self.allow_hybrid_mode)

    def get_theoretical_num_sms(self, num_experts: int, num_topk: int, *options: Any, **named: Any) -> int:
        """A number that DeepEP's callers may give back to dispatch, which does not use it."""
        return NUM_SMS

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        return self.num_allocated_qps

    def barrier(
        self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True
    ) -> None:
        """Waits for all ranks, over the group."""
        self._gather(None)

    @staticmethod
    def capture() -> EventHandle:
        return EventHandle()

    def get_comm_stream(self) -> NoReturn:
        raise headrace.NotSupported("there is no stream: operations in host memory run in the call")

    # --- dispatch

    def dispatch(
        self,
        x: Rows,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        previous_event_before_epilogue: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> tuple[Rows, Tensor | None, Tensor | None, EPHandle, EventOverlap]:
        """Sends each token's row once to each of its ranks.

        x: [tokens, hidden] of bfloat16, or float8_e4m3fn with scales.
        do_expand: a row for each entry, by expert, whose first is a multiple of expert_alignment.
        do_cpu_sync: False: tensors have room for all that can come. Unused rows are 0, experts there -1.
        Returns rows; experts among those of this rank, -1: none (None if expanded); weights, if given; the
        handle; an event that has come.
        Errors: InvalidArgument (which argument), as MoE.dispatch.
        """
        rows, scales = x if isinstance(x, tuple) else (x, None)
        if handle is None:
            route = self._route(topk_idx, num_experts, num_max_tokens_per_rank, do_handle_copy)
        else:
            _check_handle(
                handle, topk_idx, num_experts, expert_alignment, num_max_tokens_per_rank, do_cpu_sync
            )
            route, do_expand = handle.route, handle.do_expand
        got = self._rows.dispatch(route, rows, scales, topk_weights)
        if handle is None:
            sync = do_cpu_sync is None or do_cpu_sync
            handle = self._handle(route, got, expert_alignment or 1, do_expand, sync, num_sms or NUM_SMS)
        if cumulative_local_expert_recv_stats is not None:
            cumulative_local_expert_recv_stats.add_(got.counts(route.num_experts // self.num_ranks))
        by_rows = _expanded if do_expand else _folded
        out_rows = by_rows(got.rows, handle)
        out_weights = None
        if topk_weights is not None:
            out_weights = (
                _weights_of_slots(got.weights, handle) if do_expand else _folded(got.weights, handle)
            )
        experts = None
        if not do_expand:
            experts = torch.full((handle.rows, route.top_k), -1, dtype=route.experts.dtype)
            experts[: got.experts.shape[0]] = got.experts
        if got.scales is not None:
            of_scales = by_rows(got.scales, handle)
            return (
                (out_rows, _by_columns(of_scales) if use_tma_aligned_col_major_sf else of_scales),
                experts, out_weights, handle, EventOverlap(EventHandle()),
            )  # fmt: skip
        return out_rows, experts, out_weights, handle, EventOverlap(EventHandle())

    def _route(
        self,
        topk_idx: Tensor | None,
        num_experts: int | None,
        num_max_tokens_per_rank: int | None,
        do_handle_copy: bool,
    ) -> Route:
        if topk_idx is None or num_experts is None:
            raise headrace.InvalidArgument("topk_idx and num_experts are needed without a handle")
        tokens = num_max_tokens_per_rank or self.num_max_tokens_per_rank
        if tokens < 1:
            raise headrace.InvalidArgument(
                "num_max_tokens_per_rank is not given: give it to dispatch or to the buffer"
            )
        return Route.to_experts(
            topk_idx.clone() if do_handle_copy else topk_idx,
            num_experts,
            self.num_ranks,
            tokens,
            "bfloat16" if self.allow_multiple_reduction else "float32",
        )

    def _handle(
        self, route: Route, got: Received, alignment: int, do_expand: bool, sync: bool, num_sms: int
    ) -> EPHandle:
        each = route.num_experts // self.num_ranks
        counts = got.counts(each)
        aligned = (counts + alignment - 1) // alignment * alignment
        ends = aligned.cumsum(0, dtype=torch.int32)
        starts = ends - aligned
        slots = _slots(got.experts, starts)
        received = got.experts.shape[0]
        most_rows = route.max_tokens * self.num_ranks
        most_expanded = most_rows * min(route.top_k, each) + each * (alignment - 1)
        rows = (
            (int(ends[-1]) if do_expand else received) if sync else most_expanded if do_expand else most_rows
        )
        metadata = torch.full((received if sync else most_rows, 2 + route.top_k), -1, dtype=torch.int32)
        metadata[:received, 0] = got.sources * route.max_tokens + got.tokens
        metadata[:received, 1] = torch.arange(received)
        metadata[:received, 2:] = slots
        return EPHandle(
            do_expand=do_expand,
            num_experts=route.num_experts,
            expert_alignment=alignment,
            num_max_tokens_per_rank=route.max_tokens,
            num_sms=num_sms,
            topk_idx=route.experts,
            num_recv_tokens=received,
            num_expanded_tokens=int(ends[-1]),
            num_recv_tokens_per_expert_list=aligned.tolist() if sync else [],
            psum_num_recv_tokens_per_scaleup_rank=got.first_rows[1:].to(torch.int32),
            psum_num_recv_tokens_per_expert=starts + counts if do_expand else ends,
            num_unaligned_recv_tokens_per_expert=counts,
            recv_src_metadata=metadata,
            dst_buffer_slot_idx=_slots_there(route, each),
            route=route,
            rows=rows,
        )

    # --- combine

    def combine(
        self,
        x: Tensor,
        handle: EPHandle,
        topk_weights: Tensor | None = None,
        bias: Bias = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        previous_event_before_epilogue: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, EventOverlap]:
        """The sum of each token's rows, without weights, and topk_weights brought back to the tokens.

        x: with the rows that dispatch gave. topk_weights: [rows, top_k]; expanded: [rows].
        """
        if x.shape[0] < (handle.num_expanded_tokens if handle.do_expand else handle.num_recv_tokens):
            raise headrace.InvalidArgument(
                f"x has {x.shape[0]} rows, expected {handle.rows}, as dispatch gave"
            )
        rows = x[: handle.num_recv_tokens]
        if handle.do_expand:
            rows = _sums_of_slots(x, handle, torch.float32)
            rows = rows.to(x.dtype) if self.allow_multiple_reduction else rows
        sums = self._rows.combine(handle.route, rows, biases_of(bias)).to(x.dtype)
        weights = None
        if topk_weights is not None:
            of_tokens = topk_weights
            if handle.do_expand:
                at = handle.slots.long()
                of_tokens = topk_weights[at.clamp(min=0)] * (at >= 0)
            else:
                of_tokens = topk_weights[: handle.num_recv_tokens] * self._has_entry(handle)
            weights = self._rows.combine_weights(handle.route, of_tokens)
        return sums, weights, EventOverlap(EventHandle())

    @staticmethod
    def _has_entry(handle: EPHandle) -> Tensor:
        return handle.slots >= 0

    # --- what Headrace has elsewhere, or not

    def _refuse(self, *given: Any, **named: Any) -> NoReturn:
        raise headrace.NotSupported(
            "engrams, pipelines and all-gathers of ElasticBuffer are not there: headrace.Comm has all_gather,"
            " send and recv, headrace.Agent reads remote memory"
        )

    engram_write = engram_fetch = pp_set_config = pp_send = pp_recv = _refuse
    create_agrs_session = destroy_agrs_session = agrs_new_session = agrs_set_config = _refuse
    agrs_get_inplace_tensor = all_gather = _refuse
    get_engram_storage_size_hint = get_pp_buffer_size_hint = _refuse
    get_agrs_num_max_session_bytes = get_agrs_buffer_size_hint = _refuse


def _window_bytes(ranks: int, tokens: int, hidden: int) -> int:
    return align(rank_config(2 * hidden, ranks, tokens).window_bytes, ALIGNMENT)


def _check_handle(
    handle: EPHandle,
    topk_idx: Tensor | None,
    num_experts: int | None,
    expert_alignment: int | None,
    num_max_tokens_per_rank: int | None,
    do_cpu_sync: bool | None,
) -> None:
    if topk_idx is not None:
        raise headrace.InvalidArgument("a handle is given: it has the experts, so give no topk_idx")
    if do_cpu_sync:
        raise headrace.InvalidArgument("a handle is given: it has the counts, so do_cpu_sync cannot be True")
    for name, given in (
        ("num_experts", num_experts),
        ("expert_alignment", expert_alignment),
        ("num_max_tokens_per_rank", num_max_tokens_per_rank),
    ):
        if given is not None and given != getattr(handle, name):
            raise headrace.InvalidArgument(f"{name} is {given}, and {getattr(handle, name)} in the handle")


def _slots(experts: Tensor, starts: Tensor) -> Tensor:
    """The row of each entry if rows are by expert, in the order of the tokens; -1: no entry."""
    flat = experts.flatten()
    order = torch.argsort(torch.where(flat >= 0, flat, starts.numel()), stable=True)
    order = order[: int((flat >= 0).sum())]
    counts = torch.bincount(flat[order], minlength=starts.numel())
    firsts = counts.cumsum(0) - counts
    slots = torch.full_like(flat, -1)
    slots[order] = starts[flat[order]] + torch.arange(order.numel()) - firsts[flat[order]]
    return slots.view(experts.shape)


def _slots_there(route: Route, each: int) -> Tensor:
    """Of each entry of this rank's tokens: which of the rows that this rank sends there it is; -1: none."""
    number = route.ranks_of_tokens.cumsum(0) - 1
    if route.top_k == 0 or route.tokens == 0:
        return torch.full(route.experts.shape, -1, dtype=torch.int32)
    ranks = route.experts.long().clamp(min=0) // each
    return torch.where(route.experts >= 0, number.gather(1, ranks), -1).to(torch.int32)


def _folded(of_tokens: Tensor, handle: EPHandle) -> Tensor:
    """With as many rows as the handle says, those behind what came 0."""
    if of_tokens.shape[0] == handle.rows:
        return of_tokens
    made = of_tokens.new_zeros(handle.rows, of_tokens.shape[1])
    made[: of_tokens.shape[0]] = of_tokens
    return made


def _expanded(of_tokens: Tensor, handle: EPHandle) -> Tensor:
    """A row for each entry; rows between are 0."""
    token, _ = (handle.slots >= 0).nonzero(as_tuple=True)
    made = of_tokens.new_zeros(handle.rows, of_tokens.shape[1])
    made.view(torch.uint8)[handle.slots[handle.slots >= 0].long()] = of_tokens.view(torch.uint8)[token]
    return made


def _weights_of_slots(weights: Tensor, handle: EPHandle) -> Tensor:
    made = weights.new_zeros(handle.rows)
    made[handle.slots[handle.slots >= 0].long()] = weights[handle.slots >= 0]
    return made


def _sums_of_slots(x: Tensor, handle: EPHandle, dtype: torch.dtype) -> Tensor:
    """The sum of each token's rows, in the order of its entries."""
    sums = torch.zeros(handle.num_recv_tokens, x.shape[1], dtype=dtype)
    for slots in handle.slots.T:
        there = (slots >= 0).nonzero()[:, 0]
        sums[there] += x[slots[there].long()].to(dtype)
    return sums


def _by_columns(scales: Tensor) -> Tensor:
    """The same numbers, those of a column side by side, columns 16 bytes apart or a multiple."""
    rows, columns = scales.shape
    made = scales.new_zeros(columns, align(rows, max(1, 16 // scales.itemsize)))
    made[:, :rows] = scales.T
    return made.T[:rows]
