# SPDX-License-Identifier: Apache-2.0
"""pplx_garden.kernels.p2p_all_to_all: dispatch and combine over memory that ranks map from one another."""

from __future__ import annotations

import torch
from torch import Tensor

import headrace

from ..._moe_ranks import MoERanks, check_host
from .._experts import Exchange, Shape
from ..distributed.parallel_group import ParallelGroup
from .all_to_all import AllToAllKernel


class P2PAllToAll(AllToAllKernel):
    """Dispatch and combine of a rank, on headrace.MoE.

    dp_group: ranks in a row that hold the same tokens.
    node_group, nets_per_gpu, max_private_tokens: taken and checked; a MoE maps the memory of all ranks, and
    no row waits until its routing is known elsewhere.
    Threads: one call at a time.
    """

    def __init__(
        self,
        *,
        max_num_tokens: int,
        num_experts: int,
        expert_padding: int,
        hidden_dim: int,
        hidden_dim_scale: int | None,
        in_dtype: torch.dtype,
        out_dtype: torch.dtype,
        scale_dtype: torch.dtype | None,
        num_experts_per_token: int,
        nets_per_gpu: int,
        max_private_tokens: int | None,
        device: torch.device,
        dp_group: ParallelGroup | None,
        node_group: ParallelGroup | None,
        global_group: ParallelGroup,
    ) -> None:
        if (hidden_dim_scale is None) != (scale_dtype is None):
            raise ValueError(
                f"hidden_dim_scale is {hidden_dim_scale} and scale_dtype is {scale_dtype}: give both or none"
            )
        if max_private_tokens is not None and max_private_tokens < 0:
            raise ValueError(f"max_private_tokens is {max_private_tokens}, expected 0 or more, or None")
        self._shape = Shape(
            max_tokens=max_num_tokens,
            experts=num_experts,
            padding=expert_padding,
            hidden=hidden_dim,
            scales=hidden_dim_scale or 0,
            in_dtype=in_dtype,
            out_dtype=out_dtype,
            scale_dtype=scale_dtype or torch.float32,
            top_k=num_experts_per_token,
            dp_size=1 if dp_group is None else dp_group.size,
        )
        if torch.device(device).type != "cpu":
            raise headrace.InvalidArgument(
                f"device is {device}: this MoE moves host memory; give torch.device('cpu')"
            )
        self._group = global_group
        self._ranks: MoERanks | None = MoERanks(
            global_group.rank, global_group.size, global_group.all_gather_object
        )
        self._local_experts = self._shape.local_experts(global_group.size)
        self._exchange = Exchange(self._ranks.window(**self._shape.config(global_group.size)), self._shape)

    def dispatch(
        self,
        out_expert_num_tokens: Tensor,
        out_expert_x: Tensor,
        out_expert_x_scale: Tensor | None,
        dp_x: Tensor,
        dp_x_scale: Tensor | None,
        indices: Tensor,
        weights: Tensor,
        bound_m: Tensor | None = None,
        do_send: bool = True,
        do_recv: bool = True,
    ) -> None:
        """Sends the rows of the tokens, and takes those for the experts of this rank.

        out_expert_num_tokens: [local experts] of int32. out_expert_x: [rows, hidden]; rows of an expert begin
        at a multiple of the padding. bound_m: one int32: so many tokens, instead of all of dp_x.
        Errors: ValueError (a shape), headrace.Exhausted (more rows came than out_expert_x has), as
        MoE.dispatch.
        """
        self._check_open(do_send, do_recv)
        has_scales = self._shape.scales > 0
        self._check("out_expert_num_tokens", out_expert_num_tokens, [self._local_experts], torch.int32)
        self._check("out_expert_x", out_expert_x, [None, self._shape.hidden], self._shape.in_dtype)
        if (dp_x_scale is not None) != has_scales or (out_expert_x_scale is not None) != has_scales:
            raise ValueError(
                "give dp_x_scale and out_expert_x_scale if hidden_dim_scale was given, else neither"
            )
        if do_send:
            self._check("dp_x", dp_x, [None, self._shape.hidden], self._shape.in_dtype)
            self._exchange.dispatch_send(dp_x, dp_x_scale, indices, weights, _count(bound_m))
        if do_recv:
            self._exchange.dispatch_receive(out_expert_num_tokens, out_expert_x, out_expert_x_scale)

    def combine(
        self,
        out_tokens: Tensor,
        indices: Tensor,
        weights: Tensor,
        expert_y: Tensor,
        bound_m: Tensor | None = None,
        do_send: bool = True,
        do_recv: bool = True,
        accumulate: bool = False,
    ) -> None:
        """Sends the experts' results back, and makes the weighted sums of the last dispatch's tokens.

        expert_y: of any type of real numbers, with the rows of out_expert_x. accumulate: adds to what
        out_tokens holds. bound_m: that of the dispatch, whose tokens get their sums.
        Errors: ValueError (a shape), headrace.NotSupported (other weights than those of dispatch), as
        MoE.combine.
        """
        self._check_open(do_send, do_recv)
        self._check("expert_y", expert_y, [None, self._shape.hidden], None)
        _count(bound_m)
        self._exchange.check_weights(weights)
        if do_send:
            self._exchange.combine_send(expert_y)
        if do_recv:
            self._check("out_tokens", out_tokens, [None, self._shape.hidden], self._shape.out_dtype)
            self._exchange.combine_receive(out_tokens, accumulate)

    def destroy(self) -> None:
        """Ends the exchange once all ranks are here. A second call does nothing."""
        if self._ranks is not None:
            self._group.barrier()
            self._ranks.close()
            self._ranks = None

    def _check_open(self, do_send: bool, do_recv: bool) -> None:
        if self._ranks is None:
            raise headrace.InvalidArgument("the all-to-all is destroyed: make another one")
        if not (do_send or do_recv):
            raise ValueError("do_send and do_recv are both False: one of them must be True")

    @staticmethod
    def _check(name: str, tensor: Tensor, shape: list[int | None], dtype: torch.dtype | None) -> None:
        check_host(name, tensor)
        fits = len(shape) == tensor.dim() and all(
            wanted in (None, given) for wanted, given in zip(shape, tensor.shape)
        )
        if not fits or dtype not in (None, tensor.dtype):
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            raise ValueError(
                f"{name} has shape {list(tensor.shape)} of {tensor.dtype}, expected [{wanted}] of "
                f"{dtype or 'any type'}"
            )


def _count(bound_m: Tensor | None) -> Tensor | None:
    if bound_m is None:
        return None
    if bound_m.numel() != 1 or bound_m.dtype != torch.int32:
        raise ValueError(
            f"bound_m has shape {list(bound_m.shape)} of {bound_m.dtype}, expected one torch.int32"
        )
    return bound_m.reshape(1)
