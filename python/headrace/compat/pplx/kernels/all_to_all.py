# SPDX-License-Identifier: Apache-2.0
"""pplx_garden.kernels.all_to_all: what every all-to-all kernel has."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class AllToAllKernel(Protocol):
    """Rows of tokens go to the ranks of their experts, and weighted sums come back."""

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
    ) -> None: ...

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
    ) -> None: ...

    def destroy(self) -> None: ...
