# SPDX-License-Identifier: Apache-2.0
"""vLLM's manager of an expert-parallel group, on headrace.MoE."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.distributed.device_communicators.base_device_communicator import All2AllManagerBase

import headrace

from .._moe_ranks import MoERanks
from ..deep_ep._groups import group_of
from ._handle import ExpertHandle


class HeadraceAll2AllManager(All2AllManagerBase):  # type: ignore[misc]  # vLLM has no types here
    """One rank's end of its expert-parallel group.

    The handle belongs to the process and outlives a manager: vLLM makes another manager when the group grows.
    Ranks are on one host, tensors on the CPU.
    """

    is_batched: ClassVar[bool] = False
    support_fault_tolerance = False
    _handle: ClassVar[ExpertHandle | None] = None
    _group_of_handle: ClassVar[Any] = None

    def __init__(self, cpu_group: Any, tcp_store_group: Any = None) -> None:
        super().__init__(cpu_group, tcp_store_group)
        if getattr(self, "internode", False):
            raise headrace.NotSupported(
                "the ranks of this group are on several hosts, and a MoE joins those of one: take another "
                "backend"
            )
        met = group_of(cpu_group if tcp_store_group is None else _Gathering(tcp_store_group))
        self.rank, self.world_size = met.rank, met.size
        self._met = met
        self._group = cpu_group if tcp_store_group is None else tcp_store_group
        self._num_sms = 0
        self._mask: Tensor | None = None
        self._known_mask = [0] * met.size

    # --- the handle

    def get_handle(self, kwargs: dict[str, Any]) -> ExpertHandle:
        """The handle of this process. `stage`: keep the ranks of this manager's group at hand, and go on with
        those before until commit_staged_state(); without it they take part from now on.

        Errors: InvalidArgument (there is nothing to go on with).
        """
        cls, stage = type(self), bool(kwargs.get("stage", False))
        if cls._handle is None:
            if stage:
                raise headrace.InvalidArgument(
                    "stage needs a handle to go on with: get one without stage first"
                )
            cls._handle = ExpertHandle(self._new_ranks(), self.support_fault_tolerance)
        elif cls._group_of_handle is not self._group:
            cls._handle.stage(self._new_ranks())
            if not stage:
                cls._handle.commit()
        cls._group_of_handle = self._group
        return cls._handle

    def _new_ranks(self) -> MoERanks:
        return MoERanks(self._met.rank, self._met.size, self._met.gather)

    def commit_staged_state(self) -> None:
        """The ranks of this manager's group take part from now on. Each rank calls it between two steps."""
        self.get_handle({}).commit()

    def destroy(self) -> None:
        """Does nothing: the handle goes on with the next manager. destroy_handle() ends it."""

    @classmethod
    def destroy_handle(cls) -> None:
        """Leaves the other ranks. Headrace's own."""
        if cls._handle is not None:
            cls._handle.close()
            cls._handle = cls._group_of_handle = None

    def _current(self) -> ExpertHandle:
        return type(self)._handle or self.get_handle({})

    # --- multiprocessors

    def set_num_sms(self, num_sms: int) -> None:
        """Kept for max_sms_used: host memory needs none."""
        self._num_sms = num_sms

    def max_sms_used(self) -> int | None:
        return 0

    # --- ranks that are left out

    def update_mask(self, rank: int, masked: bool = True) -> None:
        """Leaves a rank out.

        Errors: NotSupported (a rank that was left out is to come back).
        """
        self._current().batches.mask(rank, masked)

    def query_active_mask(self) -> Tensor:
        """[world_size] of int32: 1 for a rank that is left out. Each call writes the same tensor again."""
        if self._mask is None:
            self._mask = torch.zeros(self.world_size, dtype=torch.int32)
        self._mask.copy_(torch.tensor(self._masked(), dtype=torch.int32))
        return self._mask

    def _masked(self) -> list[int]:
        return self._current().batches.masked()

    def query_fault(self) -> Tensor:
        """Whether a rank was left out since the last clean_buffers()."""
        return torch.tensor(self._masked() != self._known_mask)

    def clean_buffers(self) -> None:
        """Ranks that are left out now are no fault any more. No memory must be cleaned."""
        self._known_mask = self._masked()

    # --- what vLLM's prepare/finalize objects do

    def dispatch(self, *args: Any, **named: Any) -> Any:
        raise headrace.NotSupported("rows go by the prepare/finalize object of a layer, not by the manager")

    combine = dispatch_router_logits = dispatch


class HeadraceStandardManager(HeadraceAll2AllManager):
    """Of layers whose experts take rows of tokens: backend deepep_high_throughput."""

    is_batched = False


class HeadraceBatchedManager(HeadraceAll2AllManager):
    """Of layers whose experts take a batch each: backend deepep_low_latency. A lost rank is left out."""

    is_batched = True
    support_fault_tolerance = True


class _Gathering:
    """vLLM's group over a TCP store, as group_of takes one."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def Get_rank(self) -> int:
        return int(self._group.rank)

    def Get_size(self) -> int:
        return int(self._group.world_size)

    def allgather(self, value: Any) -> list[Any]:
        gathered: list[Any] = self._group.all_gather_obj(value)
        return gathered
