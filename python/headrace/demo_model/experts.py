# SPDX-License-Identifier: Apache-2.0
"""A layer with experts for ranks that each have some of them (expert parallelism).

A layer is cut at its experts. `AttentionPart` of split.py, with all heads and x as `residual`, gives the next
x. `Route` makes the row of each token that its experts get, and chooses them. The row goes to the ranks of
these experts, `Expert` runs there, and the weighted sum of its results comes back: x + sum is the next x.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING or __package__:
    from .model import feed_forward, normalize, route
    from .shapes import Sizes
else:
    from model import feed_forward, normalize, route
    from shapes import Sizes


class Route(nn.Module):
    """x [T, D] and weights -> row [T, D], experts int64 [T, top_k], weights [T, top_k]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(self, x: Tensor, mlp_norm: Tensor, router: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        row = normalize(x, mlp_norm)
        experts, weights, _ = route(row, router, self.sizes.top_k)
        return row, experts, weights


class Expert(nn.Module):
    """One expert: row [T, D] and its weights gate_up [2 * hidden, D], down [D, hidden] -> result [T, D]."""

    def forward(self, row: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        return feed_forward(row, gate_up, down)
