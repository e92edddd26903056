# SPDX-License-Identifier: Apache-2.0
"""Rows that go once to each rank with an expert of their token, as DeepEP's normal mode sends them: a MoE
whose experts are the ranks. Scales, experts, weights and the number of the token travel beside a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import headrace

from .._moe_ranks import MoERanks, MoEWindow, as_bytes, check_host, dtype_name
from ._config import MOST_RANKS_OF_A_TOKEN


def experts_of_a_rank(num_experts: int, ranks: int) -> int:
    if num_experts < 1 or num_experts % ranks:
        raise headrace.InvalidArgument(
            f"{num_experts} experts cannot be divided among {ranks} ranks: give a multiple"
        )
    return num_experts // ranks


def check_experts(topk_idx: Tensor, num_experts: int, ranks: int) -> None:
    """Checks that topk_idx is [tokens, top_k] of experts, or -1."""
    experts_of_a_rank(num_experts, ranks)
    if topk_idx.dim() != 2 or topk_idx.is_floating_point():
        raise headrace.InvalidArgument(
            f"topk_idx has shape {list(topk_idx.shape)} of {topk_idx.dtype}, expected [tokens, top_k] of "
            f"int64"
        )
    if topk_idx.numel() and not -1 <= int(topk_idx.min()) <= int(topk_idx.max()) < num_experts:
        raise headrace.InvalidArgument(
            f"topk_idx has {int(topk_idx.min())} to {int(topk_idx.max())}, expected experts from 0 to "
            f"{num_experts - 1}, or -1"
        )


class Route:
    """Where the tokens of a dispatch go: to which ranks, for which experts. Windows learn it once."""

    def __init__(
        self, ranks_of_tokens: Tensor, experts: Tensor, num_experts: int, max_tokens: int, combine_dtype: str
    ) -> None:
        """ranks_of_tokens: bool, [tokens, ranks]. experts: [tokens, top_k], -1: none; top_k may be 0."""
        self.ranks_of_tokens, self.experts, self.num_experts = ranks_of_tokens, experts, num_experts
        self.max_tokens, self.combine_dtype = max_tokens, combine_dtype
        self.last: MoEWindow | None = None  # of the rows that came last
        self.rows = 0  # that came to this rank
        self._known: dict[MoEWindow, headrace.MoERouting] = {}

    @property
    def tokens(self) -> int:
        return self.ranks_of_tokens.shape[0]

    @property
    def top_k(self) -> int:
        return self.experts.shape[1]

    def send(
        self, window: MoEWindow, rows: Tensor, scales: Tensor | None = None, words: Tensor | None = None
    ) -> None:
        is_new = window not in self._known
        if is_new:
            self._known[window] = window.lend_routing()
        window.moe.dispatch_send(
            rows,
            self._table() if is_new else None,
            routing=self._known[window],
            scales=scales,
            payloads=() if words is None else (words,),
        )

    def receive(self, window: MoEWindow) -> None:
        window.moe.dispatch_receive(self._known[window], window.got)

    def _table(self) -> Tensor:
        """The ranks of each token as the experts of a MoE: [tokens, most ranks of a token], -1: no more."""
        size = self.ranks_of_tokens.shape[1]
        most = min(size, MOST_RANKS_OF_A_TOKEN)
        numbers = torch.where(self.ranks_of_tokens, torch.arange(size), size).sort(1).values[:, :most]
        if size > most and bool((self.ranks_of_tokens.sum(1) > most).any()):
            raise headrace.NotSupported(f"a token goes to more than {most} ranks: give it fewer experts")
        return torch.where(numbers < size, numbers, -1)

    def combine(
        self, window: MoEWindow, results: Tensor, biases: tuple[Tensor, ...] = ()
    ) -> Callable[[], Tensor]:
        """Sends the results. Returns what receives the sums."""
        routing = self._known[window]
        window.moe.combine_send(window.as_results(results), routing=routing, weighted=False)

        def receive() -> Tensor:
            out = results.new_empty(self.tokens, results.shape[1])
            window.moe.combine_receive(routing, out, biases=biases)
            return out

        return receive

    @staticmethod
    def to_experts(
        experts: Tensor, num_experts: int, ranks: int, max_tokens: int, combine_dtype: str = "bfloat16"
    ) -> Route:
        """Of tokens whose experts are known: [tokens, top_k], -1: none."""
        check_experts(experts, num_experts, ranks)
        numbers = torch.where(experts >= 0, experts.long() // experts_of_a_rank(num_experts, ranks), ranks)
        is_in_rank = torch.zeros(experts.shape[0], ranks + 1, dtype=torch.bool)
        is_in_rank = is_in_rank.scatter_(1, numbers, True)[:, :-1].contiguous()
        return Route(is_in_rank, experts, num_experts, max_tokens, combine_dtype)

    def __del__(self) -> None:
        for window, routing in getattr(self, "_known", {}).items():
            window.take_back(routing)


@dataclass
class Received:
    """What came to a rank, in the order of source ranks and tokens."""

    rows: Tensor
    scales: Tensor | None
    experts: Tensor  # [rows, top_k], among those of this rank; -1: none of this rank
    weights: Tensor  # [rows, top_k]; 0 where there is no expert
    sources: Tensor  # the rank of each row
    tokens: Tensor  # the number of each row among the tokens of its rank
    first_rows: Tensor  # of each source rank, and the end

    def counts(self, local_experts: int) -> Tensor:
        named = self.experts[self.experts >= 0]
        return torch.bincount(named, minlength=local_experts)[:local_experts].to(torch.int32)


class RankRows:
    """Dispatches and combines of one rank."""

    def __init__(self, ranks: MoERanks) -> None:
        self._ranks = ranks

    def dispatch(self, route: Route, rows: Tensor, scales: Tensor | None, weights: Tensor | None) -> Received:
        return self.send(route, rows, scales, weights)()

    def send(
        self, route: Route, rows: Tensor, scales: Tensor | None, weights: Tensor | None
    ) -> Callable[[], Received]:
        """The first half of dispatch. Returns the second one."""
        for name, tensor in (("x", rows), ("x_scales", scales), ("topk_weights", weights)):
            if tensor is not None:
                check_host(name, tensor)
        if rows.dim() != 2 or rows.shape[0] != route.tokens:
            raise headrace.InvalidArgument(
                f"x has shape {list(rows.shape)}, expected [{route.tokens}, hidden]: a row for each token"
            )
        beside = _Payload(scales, route.top_k)
        window = self._window(route, rows.shape[1], rows.dtype, beside)
        route.send(window, as_bytes(rows), beside.scales(scales), beside.words(route.experts, weights))
        return lambda: self._receive(route, window, beside, rows.dtype)

    def _receive(self, route: Route, window: MoEWindow, beside: _Payload, dtype: torch.dtype) -> Received:
        route.receive(window)
        count = int(window.first_rows[-1])
        route.last, route.rows = window, count
        got = beside.read(window, count)
        experts = self._local(got.experts, route.num_experts)
        first = window.first_rows.clone()
        return Received(
            rows=window.rows[:count].view(dtype).clone(),
            scales=got.scales,
            experts=experts,
            weights=got.weights.masked_fill(experts < 0, 0),
            sources=torch.repeat_interleave(torch.arange(self._ranks.size), first.diff()),
            tokens=got.tokens,
            first_rows=first,
        )

    def _window(self, route: Route, hidden: int, dtype: torch.dtype, beside: _Payload) -> MoEWindow:
        return self._ranks.window(
            experts=self._ranks.size,
            top_k=min(self._ranks.size, MOST_RANKS_OF_A_TOKEN),
            hidden=hidden,
            max_tokens=route.max_tokens,
            dtype=dtype_name(dtype) if dtype.itemsize > 1 else "uint8",
            scale_bytes=beside.scale_bytes,
            payload_bytes=[beside.word_bytes],
            combine_dtype=route.combine_dtype,
            layout="by_rank",
        )

    def _local(self, experts: Tensor, num_experts: int) -> Tensor:
        each = max(1, num_experts // self._ranks.size)
        local = experts.long() - self._ranks.rank * each
        return torch.where((experts >= 0) & (local >= 0) & (local < each), local, -1)

    def combine(self, route: Route, results: Tensor, biases: tuple[Tensor, ...] = ()) -> Tensor:
        return self.combine_send(route, results, biases)()

    def combine_send(
        self, route: Route, results: Tensor, biases: tuple[Tensor, ...] = ()
    ) -> Callable[[], Tensor]:
        """The first half of combine. Returns the second one."""
        if route.last is None or results.dim() != 2 or results.shape[0] < route.rows:
            raise headrace.InvalidArgument(
                f"x has shape {list(results.shape)}, expected [{route.rows}, hidden]: a row for each that "
                f"came"
            )
        check_host("x", results)
        expected = [route.tokens, results.shape[1]]
        if len(biases) > 2 or any(list(bias.shape) != expected for bias in biases):
            raise headrace.InvalidArgument(
                f"biases have shapes {[list(bias.shape) for bias in biases]}, expected at most 2 of "
                f"{expected}"
            )
        dtype = getattr(torch, route.combine_dtype)
        sent = results[: route.rows].to(dtype)
        receive = route.combine(route.last, sent, tuple(bias.to(dtype) for bias in biases))
        return lambda: receive().to(results.dtype)

    def combine_weights(self, route: Route, weights: Tensor) -> Tensor:
        """The sum over ranks of [rows, top_k], for the tokens of this rank. A dispatch of nothing tells where
        they go."""
        width = max(4, -(-route.top_k // 4) * 4)
        window = self._ranks.window(
            experts=self._ranks.size,
            top_k=min(self._ranks.size, MOST_RANKS_OF_A_TOKEN),
            hidden=width,
            max_tokens=route.max_tokens,
            dtype="float32",
            combine_dtype="float32",
            layout="by_rank",
        )
        route.send(window, torch.zeros(route.tokens, width))
        route.receive(window)
        wide = torch.nn.functional.pad(weights[: route.rows].float(), (0, width - route.top_k))
        return route.combine(window, wide)()[:, : route.top_k].contiguous()

    def sum_counts(self, counts: Tensor) -> Tensor:
        """Of [num_experts] on each rank: the sums for the experts of this rank."""
        size, each = self._ranks.size, counts.numel() // self._ranks.size
        width = -(-each // 4) * 4
        window = self._ranks.window(
            experts=size, top_k=1, hidden=width, max_tokens=size, dtype="int32", combine_dtype="float32",
            layout="by_rank",
        )  # fmt: skip
        sent = torch.nn.functional.pad(counts.view(size, each).to(torch.int32), (0, width - each))
        routing = window.lend_routing()
        window.moe.dispatch(sent, torch.arange(size)[:, None], routing=routing, out=window.got)
        window.take_back(routing)
        return window.rows[: int(window.first_rows[-1]), :each].sum(0, dtype=torch.int32)


@dataclass
class _Beside:
    scales: Tensor | None
    experts: Tensor
    weights: Tensor
    tokens: Tensor


class _Payload:
    """What travels beside a row: its scales, and words: experts (int32), weights (float32), token (int32)."""

    def __init__(self, scales: Tensor | None, top_k: int) -> None:
        self._top_k = top_k
        self._scale_dtype = torch.float32 if scales is None else scales.dtype
        self._columns = 0 if scales is None else scales.shape[1]
        self.scale_bytes = -(-self._columns * self._scale_dtype.itemsize // 4) * 4
        self.word_bytes = 4 * (2 * top_k + 1)

    def scales(self, given: Tensor | None) -> Tensor | None:
        """Those of a row in a multiple of 4 bytes."""
        if given is None:
            return None
        of_rows = given.contiguous().view(torch.uint8)
        return torch.nn.functional.pad(of_rows, (0, self.scale_bytes - of_rows.shape[1]))

    def words(self, experts: Tensor, weights: Tensor | None) -> Tensor:
        tokens = experts.shape[0]
        made = torch.zeros(tokens, 2 * self._top_k + 1, dtype=torch.int32)
        made[:, : self._top_k] = experts.to(torch.int32)
        if weights is not None and self._top_k:
            made[:, self._top_k : -1] = weights.float().contiguous().view(torch.int32)
        made[:, -1] = torch.arange(tokens)
        return made

    def read(self, window: MoEWindow, count: int) -> _Beside:
        words = window.payload[:count].view(torch.int32)
        scales = None
        if window.scales is not None:
            used = window.scales[:count, : self._columns * self._scale_dtype.itemsize]
            scales = used.contiguous().view(self._scale_dtype)
        return _Beside(
            scales=scales,
            experts=words[:, : self._top_k].clone(),
            weights=words[:, self._top_k : -1].contiguous().view(torch.float32),
            tokens=words[:, -1].clone(),
        )
