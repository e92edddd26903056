# SPDX-License-Identifier: Apache-2.0
"""The MoEs of one rank for the shapes of other libraries, which open them when a shape is first used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

import headrace

JOIN_LIMIT = timedelta(seconds=60)


class MoERanks:
    """The agent of a rank, which opens a MoE for each shape of rows.

    gather: takes an object, returns those of all ranks in their order, on all ranks. Every opening calls it.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        gather: Callable[[Any], Sequence[Any]],
        wait_limit: float | timedelta | None = None,
    ) -> None:
        self.rank, self.size, self.wait_limit = rank, size, wait_limit
        self._gather = gather
        self._agent = headrace.Agent(f"moe-{rank}-{uuid4().hex[:12]}", backends=["shm"])
        self._agents: list[str] = []
        self._windows: dict[tuple[Any, ...], MoEWindow] = {}

    @property
    def windows(self) -> list[MoEWindow]:
        return list(self._windows.values())

    def window(self, **shape: Any) -> MoEWindow:
        """The MoE of a shape: fields of headrace.MoEConfig. All ranks ask for the same shapes in the same
        order."""
        key = tuple(sorted((name, _as_key(value)) for name, value in shape.items()))
        if key not in self._windows:
            self._windows[key] = self._open(shape)
        return self._windows[key]

    def _open(self, shape: dict[str, Any]) -> MoEWindow:
        name = f"moe{len(self._windows)}"
        config = headrace.MoEConfig(
            rank=self.rank, ranks=self.size, wait_limit=self.wait_limit, name=name, **shape
        )
        moe = headrace.MoE(self._agent, config)
        try:
            self._join(moe)
        except BaseException:
            moe.close()  # the next attempt takes its name
            raise
        return MoEWindow(moe, config)

    def _join(self, moe: headrace.MoE) -> None:
        exported = self._gather((self._agent.name, self._agent.export_metadata()))
        for agent, metadata in exported:
            if agent != self._agent.name:
                self._agent.import_metadata(metadata)
        self._agents = [agent for agent, _ in exported]
        moe.join(self._agents, timeout=JOIN_LIMIT)

    def take_all_back(self) -> None:
        """Ranks that were left out take part again. All ranks call it between two operations."""
        for window in self.windows:
            window.moe.regroup(self._agents, (1 << self.size) - 1, timeout=JOIN_LIMIT)

    def close(self) -> None:
        for window in self.windows:
            window.moe.close()
        self._windows.clear()
        self._agent.close()


def _as_key(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _tensor(of_headrace: headrace.Tensor) -> Tensor:
    tensor: Tensor = from_dlpack(of_headrace)
    return tensor


class MoEWindow:
    """A MoE that has joined, with memory for what its dispatches give, and routings to lend."""

    def __init__(self, moe: headrace.MoE, config: headrace.MoEConfig) -> None:
        self.moe, self.config = moe, config
        self._routings: list[headrace.MoERouting] = []
        self._results: Tensor | None = None

    @cached_property
    def got(self) -> headrace.MoERows:
        """Memory for what dispatches give, which is taken when it is first asked for."""
        return self.moe.new_rows()

    @cached_property
    def rows(self) -> Tensor:
        return _tensor(self.got.rows)

    @cached_property
    def counts(self) -> Tensor:
        return _tensor(self.got.counts)

    @cached_property
    def first_rows(self) -> Tensor:
        return _tensor(self.got.first_rows)

    @cached_property
    def scales(self) -> Tensor | None:
        return None if self.got.scales is None else _tensor(self.got.scales)

    @cached_property
    def payload(self) -> Tensor:
        return _tensor(self.got.payloads[0])

    def lend_routing(self) -> headrace.MoERouting:
        return self._routings.pop() if self._routings else self.moe.new_routing()

    def take_back(self, routing: headrace.MoERouting) -> None:
        self._routings.append(routing)

    def as_results(self, tensor: Tensor) -> Tensor:
        """The tensor, with as many rows as a combine asks for. Rows behind those that came are not read."""
        if tensor.shape[0] >= self.config.output_rows:
            return tensor
        if self._results is None or self._results.dtype != tensor.dtype:
            self._results = tensor.new_empty(self.config.output_rows, tensor.shape[1])
        self._results[: tensor.shape[0]].copy_(tensor)
        return self._results


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def as_bytes(rows: Tensor) -> Tensor:
    """Rows of 8 bits as integers: DLPack has no name for all of their types."""
    return rows.view(torch.uint8) if rows.dtype.itemsize == 1 else rows


def check_host(name: str, tensor: Tensor) -> None:
    """Refuses a tensor that no MoE takes yet, before it is copied."""
    if tensor.device.type != "cpu":
        raise headrace.InvalidArgument(
            f"the argument {name} is on {tensor.device}: this MoE moves host memory; give a copy there, as "
            f"tensor.cpu() makes"
        )
