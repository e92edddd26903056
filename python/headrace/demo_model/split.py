# SPDX-License-Identifier: Apache-2.0
"""A layer for one rank of several (tensor parallelism): each rank has some of the heads, with their keys and
values, and a part of the feed-forward width.

A layer is cut where the sums of all ranks meet. Each of its two halves takes x, the same on all ranks, and
gives the rank's part of the next x; the next x is the sum of all parts, in the order of the ranks. Rank 0
gives x as `residual` too, so that it is in the sum once; other ranks give zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING or __package__:
    from .model import attend, feed_forward, normalize
    from .shapes import Sizes
else:
    from model import attend, feed_forward, normalize
    from shapes import Sizes


class AttentionPart(nn.Module):
    """The first half of a layer, for the heads of one rank.

    x, residual  [T, D]
    kv, slots    as in Layer, with this rank's heads alone
    weights      this rank's, from `layer_part`
    returns      part [T, D]; key, value [T, kv_heads, head_width] of the chunk
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(
        self,
        x: Tensor,
        residual: Tensor,
        kv: Tensor,
        slots: Tensor,
        attention_norm: Tensor,
        qkv: Tensor,
        attention_out: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        mixed, key, value = attend(self.sizes, normalize(x, attention_norm), kv, slots, qkv)
        return residual + functional.linear(mixed, attention_out), key, value


class FeedForwardPart(nn.Module):
    """The second half of a layer: x, residual [T, D] and this rank's weights -> part [T, D]."""

    def forward(self, x: Tensor, residual: Tensor, mlp_norm: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        return residual + feed_forward(normalize(x, mlp_norm), gate_up, down)


def layer_part(sizes: Sizes, layer: list[Tensor], rank: int, ranks: int) -> list[Tensor]:
    """Returns one rank's part of a layer's weights, in their order.

    Queries, keys and values are rows of `qkv`, gate and up rows of `gate_up`: of each a rank has its share
    of rows. Of `attention_out` and `down` it has the columns that belong to its heads and its width.
    """
    attention_norm, qkv, attention_out, mlp_norm, gate_up, down = layer
    groups = qkv.split((sizes.query_width, sizes.kv_width, sizes.kv_width))
    return [
        attention_norm,
        torch.cat([group.chunk(ranks)[rank] for group in groups]),
        attention_out.chunk(ranks, dim=1)[rank].contiguous(),
        mlp_norm,
        torch.cat([group.chunk(ranks)[rank] for group in gate_up.chunk(2)]),
        down.chunk(ranks, dim=1)[rank].contiguous(),
    ]
