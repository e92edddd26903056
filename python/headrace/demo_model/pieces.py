# SPDX-License-Identifier: Apache-2.0
"""What the three packages are exported from: modules, example inputs, the dimensions that vary; and the check of the pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

from ..errors import Corrupt
from ..exporting.request import ExportRequest
from .model import Embed, Head, Layer, Sizes

EXAMPLE_CHUNK, EXAMPLE_PAGES, EXAMPLE_PAGE, EXAMPLE_BEFORE = 5, 7, 4, 6


def request(piece: str) -> ExportRequest:
    """The export request of embed, layer or head. Weights are inputs, so that one layer.pt2 serves all layers."""
    return {"embed": _embed, "layer": _layer, "head": _head}[piece](Sizes())


def _chunk(sizes: Sizes) -> Any:
    return Dim("chunk", min=1, max=sizes.context)


def _embed(sizes: Sizes) -> ExportRequest:
    embedding = torch.randn(sizes.vocabulary, sizes.width)
    tokens = torch.randint(sizes.vocabulary, (EXAMPLE_CHUNK,))
    return ExportRequest(
        Embed(), (tokens, embedding), dynamic_shapes={"tokens": {0: _chunk(sizes)}, "embedding": None}, output_names=["x"]
    )


def _head(sizes: Sizes) -> ExportRequest:
    weights = (torch.randn(sizes.width), torch.randn(sizes.vocabulary, sizes.width))
    shapes = {"x": {0: _chunk(sizes)}, "norm": None, "embedding": None}
    return ExportRequest(Head(), (torch.randn(EXAMPLE_CHUNK, sizes.width), *weights), dynamic_shapes=shapes, output_names=["logits"])


def _layer(sizes: Sizes) -> ExportRequest:
    weights = layer_weights(sizes)
    before, pages, page = Dim("before", min=0, max=sizes.context), Dim("pages", min=1), Dim("page", min=1)
    shapes = {"x": {0: _chunk(sizes)}, "kv": {0: pages, 2: page}, "slots": {0: before}, **dict.fromkeys(sizes.layer_shapes())}
    example = {"chunk": EXAMPLE_CHUNK, "pages": EXAMPLE_PAGES, "page": EXAMPLE_PAGE, "before": EXAMPLE_BEFORE}

    def make_inputs(named: dict[str, int]) -> tuple[Tensor, ...]:
        x = torch.randn(named["chunk"], sizes.width)
        kv = torch.randn(named["pages"], 2, named["page"], sizes.kv_heads, sizes.head_width)
        slots = torch.randint(named["pages"] * named["page"], (named["before"],))
        return (x, kv, slots, *weights)

    return ExportRequest(
        Layer(sizes), make_inputs(example), dynamic_shapes=shapes, output_names=["x", "key", "value"], make_inputs=make_inputs
    )


def layer_weights(sizes: Sizes) -> tuple[Tensor, ...]:
    """Random weights of one layer, of about the size of trained ones."""
    return tuple(torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * 0.05 for shape in sizes.layer_shapes().values())


def check_pages(package: Path) -> None:
    """Raises corrupt unless layer.pt2 gives the same bits for the same tokens, however pages are sized and ordered."""
    layer = torch._inductor.aoti_load_package(str(package))
    sizes = Sizes()
    weights = layer_weights(sizes)
    for chunk, before in ((1, 0), (1, 1), (1, 150), (1, sizes.context - 1), (48, 150)):
        x = torch.randn(chunk, sizes.width)
        cached = torch.randn(2, before, sizes.kv_heads, sizes.head_width)
        results = [layer(x, *lay_out(cached, page, order), *weights) for page in (1, 16, 64) for order in (1, -1)]
        for result in results[1:]:
            if not all(torch.equal(ours, first) for ours, first in zip(result, results[0])):
                raise Corrupt(f"{package}: {chunk} tokens after {before} give other bits for another page size or order of pages")


def lay_out(cached: Tensor, page: int, order: int = 1) -> tuple[Tensor, Tensor]:
    """Keys and values [2, S, kv_heads, width] in pages, from the first page on or (-1) from the last; and their slots."""
    before = cached.shape[1]
    count = -(-before // page) + 1
    pages = list(range(count))[::order]
    slots = torch.tensor([pages[i // page] * page + i % page for i in range(before)], dtype=torch.int64)
    # What lies in the rest of the pages must not matter: NaN would show in every sum.
    kv = torch.full((count, 2, page, *cached.shape[2:]), torch.nan)
    kv[slots // page, 0, slots % page] = cached[0]
    kv[slots // page, 1, slots % page] = cached[1]
    return kv, slots
