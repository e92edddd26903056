# SPDX-License-Identifier: Apache-2.0
"""A decoder of bytes: grouped-query attention, rotary positions, SwiGLU, RMS norms, the embedding tied to the
output. The feed-forward part of a layer is one, or a mixture of experts.

The arithmetic is in functions. `LanguageModel` combines them for training, on batches of whole texts.
`Embed`, `Layer` and `Head` combine them for running, on one text with its cache in pages; they take their
weights as inputs, so that one package of a layer serves all layers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING or __package__:
    from .shapes import Sizes
else:
    from shapes import Sizes


ROTARY_BASE = 10000.0
NORM_EPSILON = 1e-5


def normalize(x: Tensor, weight: Tensor) -> Tensor:
    """Root-mean-square norm over the last dimension, computed in f32 for every dtype of x."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPSILON)
    return (wide * scale * weight.float()).to(x.dtype)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotates each pair (x[i], x[i + half]) of every head by an angle that grows with the position.

    shapes   x [..., T, heads, width], positions [T]
    """
    half = x.shape[-1] // 2
    frequencies = torch.exp(
        torch.arange(half, device=x.device, dtype=torch.float32) * (-math.log(ROTARY_BASE) / half)
    )
    angles = (positions.to(torch.float32)[:, None] * frequencies)[:, None, :]
    cosine, sine = angles.cos(), angles.sin()
    left, right = x[..., :half].float(), x[..., half:].float()
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1).to(x.dtype)


def project_qkv(sizes: Sizes, x: Tensor, qkv: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns queries [..., T, heads, width], keys and values [..., T, kv_heads, width]; queries and keys are
    rotated."""
    projected = functional.linear(x, qkv)
    query, key, value = projected.split((sizes.query_width, sizes.kv_width, sizes.kv_width), dim=-1)
    query = query.unflatten(-1, (sizes.heads, sizes.head_width))
    key = key.unflatten(-1, (sizes.kv_heads, sizes.head_width))
    value = value.unflatten(-1, (sizes.kv_heads, sizes.head_width))
    return rotate(query, positions), rotate(key, positions), value


def feed_forward(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = functional.linear(x, gate_up).chunk(2, dim=-1)
    return functional.linear(functional.silu(gate) * up, down)


def route(x: Tensor, router: Tensor, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Chooses the experts of each token: those of the largest logits.

    returns  experts int64 [..., top_k], their weights [..., top_k], whose sum is 1, and the logits
    """
    logits = functional.linear(x, router)
    largest, experts = logits.topk(top_k, dim=-1)
    return experts, torch.softmax(largest, dim=-1), logits


def mixed_feed_forward(x: Tensor, experts: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """The weighted sum of the experts of each token. It computes every expert for every token, with weight 0
    where the token does not use it: two products of matrices, whatever the routing is.

    shapes   x [..., D], experts and weights [..., top_k], gate_up [experts, 2 * hidden, D],
             down [experts, D, hidden]
    """
    count, width = down.shape[0], down.shape[1]
    shares = torch.zeros((*x.shape[:-1], count), dtype=weights.dtype, device=x.device)
    shares = shares.scatter(-1, experts, weights)
    both = functional.linear(x, gate_up.flatten(0, 1)).unflatten(-1, (count, -1))
    gate, up = both.chunk(2, dim=-1)
    hidden = functional.silu(gate) * up * shares.unsqueeze(-1)
    return functional.linear(hidden.flatten(-2), down.transpose(0, 1).reshape(width, -1))


def attend(sizes: Sizes, x: Tensor, kv: Tensor, slots: Tensor, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of a chunk of T tokens to itself and to the S tokens before it, whose keys and values are in
    pages; see `Layer`.

    returns  the heads' results [T, heads * width]; key, value [T, kv_heads, width] of the chunk
    """
    length, before, page = x.shape[0], slots.shape[0], kv.shape[2]
    positions = torch.arange(length, device=x.device) + before
    query, key, value = project_qkv(sizes, x, qkv, positions)
    pages, places = slots // page, slots % page
    keys = torch.cat((kv[pages, 0, places], key))
    values = torch.cat((kv[pages, 1, places], value))
    return _mix(sizes, query, keys, values, positions), key, value


def _mix(sizes: Sizes, query: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """query [T, heads, width], keys and values [S + T, kv_heads, width] -> [T, heads * width].

    The queries that share a head of the cache are rows of one matrix, so that keys are not copied for each
    query.
    """
    length = query.shape[0]
    group = sizes.heads // sizes.kv_heads
    rows = (
        query.view(length, sizes.kv_heads, group, sizes.head_width)
        .transpose(0, 1)
        .reshape(sizes.kv_heads, -1, sizes.head_width)
    )
    scores = torch.bmm(rows, keys.permute(1, 2, 0)) / math.sqrt(sizes.head_width)
    scores = scores.view(sizes.kv_heads, length, group, -1)
    later = torch.arange(keys.shape[0], device=query.device) > positions[:, None]
    scores = scores.masked_fill(later[None, :, None, :], -math.inf)
    weights = torch.softmax(scores, dim=-1).view(sizes.kv_heads, length * group, -1)
    mixed = torch.bmm(weights, values.transpose(0, 1))
    mixed = mixed.view(sizes.kv_heads, length, group, sizes.head_width).transpose(0, 1)
    return mixed.reshape(length, sizes.query_width)


class Block(nn.Module):
    """One layer for training."""

    attention_norm: Tensor
    qkv: Tensor
    attention_out: Tensor
    mlp_norm: Tensor
    router: Tensor
    gate_up: Tensor
    down: Tensor

    def __init__(self, sizes: Sizes, dropout: float) -> None:
        super().__init__()
        self.sizes, self.dropout = sizes, dropout
        for name, shape in sizes.layer_shapes().items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Returns x, and what `_use_experts` returns of a layer that has some."""
        sizes = self.sizes
        query, key, value = project_qkv(sizes, normalize(x, self.attention_norm), self.qkv, positions)
        group = sizes.heads // sizes.kv_heads
        key, value = key.repeat_interleave(group, dim=-2), value.repeat_interleave(group, dim=-2)
        mixed = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True
        )
        x = x + self._drop(functional.linear(mixed.transpose(1, 2).flatten(2), self.attention_out))
        row = normalize(x, self.mlp_norm)
        if not sizes.experts:
            return x + self._drop(feed_forward(row, self.gate_up, self.down)), []
        results, use = self._use_experts(row)
        return x + self._drop(results), [use]

    def _use_experts(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the results and how tokens use the experts [2, experts]: the share of all choices that each
        expert has, and the mean of its probability over the tokens."""
        count, top_k = self.sizes.experts, self.sizes.top_k
        with torch.autocast(row.device.type, enabled=False):  # bf16 would choose others than f32 does
            experts, weights, logits = route(row.float(), self.router, top_k)
            chosen = functional.one_hot(experts.flatten(), count).float().mean(0)
            likely = torch.softmax(logits, dim=-1).flatten(0, -2).mean(0)
        results = mixed_feed_forward(row, experts, weights, self.gate_up, self.down)
        return results, torch.stack((chosen, likely))

    def _drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training)


class LanguageModel(nn.Module):
    """The whole model for training: tokens [B, T] to logits [B, T, vocabulary]."""

    def __init__(self, sizes: Sizes | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.sizes, self.dropout = sizes or Sizes(), dropout
        self.embedding = nn.Parameter(torch.empty(self.sizes.vocabulary, self.sizes.width))
        self.layers = nn.ModuleList(Block(self.sizes, dropout) for _ in range(self.sizes.layers))
        self.norm = nn.Parameter(torch.empty(self.sizes.width))

    def initialize(self, seed: int) -> None:
        """Sets normally distributed weights. Weights that add to the residual stream are smaller for more
        layers."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                nn.init.ones_(parameter)
                continue
            adds_to_stream = name.endswith(("attention_out", "down"))
            spread = 0.02 / math.sqrt(2 * self.sizes.layers) if adds_to_stream else 0.02
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.run(tokens)[0]

    def run(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the logits, and how the tokens use the experts of each layer [layers, 2, experts] (see
        `Block`); without experts [0]."""
        positions = torch.arange(tokens.shape[-1], device=tokens.device)
        x = functional.dropout(functional.embedding(tokens, self.embedding), self.dropout, self.training)
        uses: list[Tensor] = []
        for layer in self.layers:
            x, use = layer(x, positions)
            uses += use
        logits = functional.linear(normalize(x, self.norm), self.embedding)
        return logits, torch.stack(uses) if uses else torch.zeros(0, device=x.device)


class Embed(nn.Module):
    """tokens int64 [T], embedding [vocabulary, D] -> x [T, D]."""

    def forward(self, tokens: Tensor, embedding: Tensor) -> Tensor:
        return functional.embedding(tokens, embedding)


class Layer(nn.Module):
    """One layer over a chunk of T tokens that follows S tokens whose keys and values are in pages.

      x        [T, D] result of the layer before
      kv       [P, 2, page, kv_heads, head_width] this layer's pages: keys, then values
      slots    int64 [S] slots of the tokens before the chunk, oldest first: page index * page + place in the
               page
      returns  x [T, D]; key, value [T, kv_heads, head_width] of the chunk: the caller stores them in pages

    There is no padding: S is exactly the number of tokens before the chunk. So the result depends on the
    tokens alone, bit for bit, and not on the page size or the choice of pages. Padding to whole pages and
    masking the rest would change the length, and so the order, of the sums.
    """

    def __init__(self, sizes: Sizes | None = None) -> None:
        super().__init__()
        self.sizes = sizes or Sizes()

    def forward(
        self,
        x: Tensor,
        kv: Tensor,
        slots: Tensor,
        attention_norm: Tensor,
        qkv: Tensor,
        attention_out: Tensor,
        mlp_norm: Tensor,
        gate_up: Tensor,
        down: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        mixed, key, value = attend(self.sizes, normalize(x, attention_norm), kv, slots, qkv)
        x = x + functional.linear(mixed, attention_out)
        x = x + feed_forward(normalize(x, mlp_norm), gate_up, down)
        return x, key, value


class LayerOfExperts(nn.Module):
    """The same as `Layer`, for a layer with experts, all of which it computes."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(
        self,
        x: Tensor,
        kv: Tensor,
        slots: Tensor,
        attention_norm: Tensor,
        qkv: Tensor,
        attention_out: Tensor,
        mlp_norm: Tensor,
        router: Tensor,
        gate_up: Tensor,
        down: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        mixed, key, value = attend(self.sizes, normalize(x, attention_norm), kv, slots, qkv)
        x = x + functional.linear(mixed, attention_out)
        row = normalize(x, mlp_norm)
        experts, weights, _ = route(row, router, self.sizes.top_k)
        return x + mixed_feed_forward(row, experts, weights, gate_up, down), key, value


class Store(nn.Module):
    """Stores the keys and values of a chunk of T tokens in their pages, in place.

      kv          [P, 2, page, kv_heads, head_width] as in Layer; written
      slots       int64 [T] slot of each token, all different
      key, value  [T, kv_heads, head_width] as Layer returns them

    One assignment to all of kv: for an assignment through a slice of kv the compiler copies all pages.
    """

    def forward(self, kv: Tensor, slots: Tensor, key: Tensor, value: Tensor) -> tuple[()]:
        page = kv.shape[2]
        pages, places = slots // page, slots % page
        sides = torch.arange(2, device=kv.device)
        kv.index_put_((pages[:, None], sides[None, :], places[:, None]), torch.stack((key, value), dim=1))
        return ()


class Head(nn.Module):
    """x [T, D], norm [D], embedding [vocabulary, D] -> logits [T, vocabulary]."""

    def forward(self, x: Tensor, norm: Tensor, embedding: Tensor) -> Tensor:
        return functional.linear(normalize(x, norm), embedding)
