# SPDX-License-Identifier: Apache-2.0
"""Random weights. Every process makes them on its own device; the same seed gives the same weights.

So a model of sixteen gigabytes is neither written to a file nor sent. The weights are computed from integers
below 2**62 alone, so they do not depend on the device or the number of threads.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .shapes import Sizes

SPREAD = 0.02
_MASK = (1 << 31) - 1
_EVEN = math.sqrt(3)  # an even distribution from -1 to 1 has the standard deviation 1 / sqrt(3)


def even_numbers(
    seed: Tensor, number: int, shape: tuple[int, ...], spread: float, dtype: torch.dtype
) -> Tensor:
    """Returns evenly distributed numbers of mean 0 and standard deviation `spread`.

    seed     int64 [1]
    number   another one for each tensor of a seed
    """
    # The range is added to the seed before it is multiplied: the compiler may keep a pure index in 32 bits,
    # in which the product does not fit.
    bits = (
        torch.arange(math.prod(shape), device=seed.device) + (seed * 0x2545F49 + number * 0x119DE1F3)
    ) & _MASK
    for shift, factor in ((31, 0x45D9F3B), (16, 0x45D9F3B), (15, 0x2C1B3C6D)):
        bits = ((bits ^ (bits >> shift)) * factor) & _MASK
    bits = bits ^ (bits >> 16)
    return ((bits.to(torch.float32) * 2.0**-30 - 1.0) * (spread * _EVEN)).to(dtype).view(shape)


class RandomLayer(nn.Module):
    """seed int64 [1], another one for each layer -> the layer's weights, in the order of
    Sizes.layer_shapes()."""

    def __init__(self, sizes: Sizes, dtype: torch.dtype) -> None:
        super().__init__()
        self.sizes, self.dtype = sizes, dtype

    def forward(self, seed: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            self._weight(seed, i, name, shape)
            for i, (name, shape) in enumerate(self.sizes.layer_shapes().items())
        )

    def _weight(self, seed: Tensor, number: int, name: str, shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 1:
            return torch.ones(shape, dtype=self.dtype, device=seed.device)
        adds_to_stream = name in ("attention_out", "down")
        return even_numbers(
            seed,
            number,
            shape,
            SPREAD / math.sqrt(2 * self.sizes.layers) if adds_to_stream else SPREAD,
            self.dtype,
        )


class RandomEnds(nn.Module):
    """seed int64 [1] -> embedding [vocabulary, D], norm [D]."""

    def __init__(self, sizes: Sizes, dtype: torch.dtype) -> None:
        super().__init__()
        self.sizes, self.dtype = sizes, dtype

    def forward(self, seed: Tensor) -> tuple[Tensor, Tensor]:
        embedding = even_numbers(seed, 0, (self.sizes.vocabulary, self.sizes.width), SPREAD, self.dtype)
        return embedding, torch.ones(self.sizes.width, dtype=self.dtype, device=seed.device)
