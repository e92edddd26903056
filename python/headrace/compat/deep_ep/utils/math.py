# SPDX-License-Identifier: Apache-2.0
"""deep_ep.utils.math: rows as 8 bits with scales, and how tests compare."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 128  # elements that share a scale
_LARGEST = torch.finfo(torch.float8_e4m3fn).max
_SMALLEST = 1e-4  # of the largest element of a block, so that no scale is 0


def ceil_div(x: int, y: int) -> int:
    return -(-x // y)


def align(x: int, y: int) -> int:
    return ceil_div(x, y) * y


def calc_diff(x: Tensor, y: Tensor) -> float:
    """How far two tensors are from being equal: 0 for equal ones."""
    one, other = x.double() + 1, y.double() + 1
    return float(1 - 2 * (one * other).sum() / (one * one + other * other).sum())


def hash_tensor(t: Tensor) -> int:
    return int(t.contiguous().view(torch.int32).sum())


def per_token_cast_to_fp8(x: Tensor, round_scale: bool = False) -> tuple[Tensor, Tensor]:
    """Rows of [any, hidden] as float8_e4m3fn, and a float32 scale for each 128 elements.

    round_scale: scales are powers of 2.
    """
    rows, hidden = x.shape
    blocks = torch.nn.functional.pad(x.float(), (0, align(hidden, BLOCK) - hidden)).view(rows, -1, BLOCK)
    scales = blocks.abs().amax(2).clamp(min=_SMALLEST) / _LARGEST
    if round_scale:
        scales = torch.exp2(torch.ceil(torch.log2(scales)))
    small = (blocks / scales[..., None]).to(torch.float8_e4m3fn)
    return small.view(rows, -1)[:, :hidden].contiguous(), scales


def per_token_cast_back(x_fp8: Tensor, x_scales: Tensor) -> Tensor:
    """The bfloat16 rows that rows of 8 bits and their scales stand for; scales may be packed exponents."""
    scales = unpack_exponents(x_scales) if x_scales.dtype == torch.int32 else x_scales
    rows, hidden = x_fp8.shape
    padded = torch.nn.functional.pad(x_fp8.float(), (0, align(hidden, BLOCK) - hidden)).view(rows, -1, BLOCK)
    back = padded * scales.reshape(rows, -1, 1)
    return back.view(rows, -1)[:, :hidden].to(torch.bfloat16).contiguous()


def unpack_exponents(packed: Tensor) -> Tensor:
    exponents = torch.stack([packed >> 8 * byte & 0xFF for byte in range(4)], dim=-1).flatten(-2)
    return (exponents << 23).view(torch.float32)
