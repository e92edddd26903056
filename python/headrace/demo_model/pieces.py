# SPDX-License-Identifier: Apache-2.0
"""The export requests of the packages (modules, example inputs, dynamic dimensions), and the checks of the
packages."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

from ..errors import Corrupt, NotSupported
from ..exporting.request import ExportRequest
from ..exporting.runners import Run, open_headrace, open_torch
from .experts import Expert, Route
from .model import Embed, Head, Layer, LayerOfExperts, Store
from .random_weights import SPREAD, RandomEnds, RandomLayer
from .shapes import SHAPES, Shape, Sizes
from .split import AttentionPart, FeedForwardPart

EXAMPLE_CHUNK, EXAMPLE_PAGES, EXAMPLE_PAGE, EXAMPLE_BEFORE = 5, 7, 4, 6


def request(piece: str, shape: Shape = SHAPES["book"], device: str = "cpu") -> ExportRequest:
    """Returns the export request of a package, with its examples on the device. Weights are inputs, so that
    one layer.pt2 serves all layers."""
    makers = {
        "embed": _embed,
        "layer": _layer,
        "head": _head,
        "store": _store,
        "random_layer": _random,
        "random_ends": _random,
        "attention": _attention_part,
        "feed_forward": _feed_forward_part,
        "route": _route,
        "expert": _expert,
    }
    name, _, ranks = piece.partition("_of_")  # "attention_of_2": of one of two ranks
    sizes = shape.sizes.split(int(ranks)) if ranks else shape.sizes
    with torch.device(device):
        return makers[name](name, sizes, dtype_of(shape))


def dtype_of(shape: Shape) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, shape.dtype)
    return dtype


def _chunk(sizes: Sizes) -> Any:
    return Dim("chunk", min=1, max=sizes.context)


def _embed(_: str, sizes: Sizes, dtype: torch.dtype) -> ExportRequest:
    embedding = torch.randn(sizes.vocabulary, sizes.width, dtype=dtype)
    tokens = torch.randint(sizes.vocabulary, (EXAMPLE_CHUNK,))
    return ExportRequest(
        Embed(),
        (tokens, embedding),
        dynamic_shapes={"tokens": {0: _chunk(sizes)}, "embedding": None},
        output_names=["x"],
    )


def _head(_: str, sizes: Sizes, dtype: torch.dtype) -> ExportRequest:
    weights = (
        torch.randn(sizes.width, dtype=dtype),
        torch.randn(sizes.vocabulary, sizes.width, dtype=dtype) * (16 / math.sqrt(sizes.width)),
    )
    shapes = {"x": {0: _chunk(sizes)}, "norm": None, "embedding": None}
    example = torch.randn(EXAMPLE_CHUNK, sizes.width, dtype=dtype)
    return ExportRequest(Head(), (example, *weights), dynamic_shapes=shapes, output_names=["logits"])


LAYER_EXAMPLE = {
    "chunk": EXAMPLE_CHUNK, "pages": EXAMPLE_PAGES, "page": EXAMPLE_PAGE, "before": EXAMPLE_BEFORE,
}  # fmt: skip


def _layer(_: str, sizes: Sizes, dtype: torch.dtype) -> ExportRequest:
    weights = layer_weights(sizes, dtype)

    def make_inputs(named: dict[str, int]) -> tuple[Tensor, ...]:
        return (*_layer_inputs(sizes, dtype, named), *weights)

    return ExportRequest(
        LayerOfExperts(sizes) if sizes.experts else Layer(sizes),
        make_inputs(LAYER_EXAMPLE),
        dynamic_shapes={
            "x": {0: _chunk(sizes)},
            **_cache_dimensions(sizes),
            **dict.fromkeys(sizes.layer_shapes()),
        },
        output_names=["x", "key", "value"],
        make_inputs=make_inputs,
    )


def _layer_inputs(sizes: Sizes, dtype: torch.dtype, named: dict[str, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns x, kv and slots."""
    x = torch.randn(named["chunk"], sizes.width, dtype=dtype)
    kv = torch.randn(named["pages"], 2, named["page"], sizes.kv_heads, sizes.head_width, dtype=dtype)
    slots = torch.randint(named["pages"] * named["page"], (named["before"],))
    return x, kv, slots


def _cache_dimensions(sizes: Sizes) -> dict[str, dict[int, Any]]:
    before, pages, page = Dim("before", min=0, max=sizes.context), Dim("pages", min=1), Dim("page", min=1)
    return {"kv": {0: pages, 2: page}, "slots": {0: before}}


def _attention_part(_: str, sizes: Sizes, dtype: torch.dtype) -> ExportRequest:
    names = ("attention_norm", "qkv", "attention_out")
    weights = layer_weights(sizes, dtype)[: len(names)]

    def make_inputs(named: dict[str, int]) -> tuple[Tensor, ...]:
        x, kv, slots = _layer_inputs(sizes, dtype, named)
        return (x, torch.randn_like(x), kv, slots, *weights)

    chunk = {0: _chunk(sizes)}
    return ExportRequest(
        AttentionPart(sizes),
        make_inputs(LAYER_EXAMPLE),
        dynamic_shapes={"x": chunk, "residual": chunk, **_cache_dimensions(sizes), **dict.fromkeys(names)},
        output_names=["part", "key", "value"],
        make_inputs=make_inputs,
    )


def _feed_forward_part(_: str, sizes: Sizes, dtype: torch.dtype) -> ExportRequest:
    names = ("mlp_norm", "gate_up", "down")
    weights = layer_weights(sizes, dtype)[-len(names) :]
    x, residual = (torch.randn(EXAMPLE_CHUNK, sizes.width, dtype=dtype) for _ in range(2))
    chunk = {0: _chunk(sizes)}
    return ExportRequest(
        FeedForwardPart(),
        (x, residual, *weights),
        dynamic_shapes={"x": chunk, "residual": chunk, **dict.fromkeys(names)},
        output_names=["part"],
    )


def _route(_: str, sizes: Sizes, dtype: torch.dtype) -> ExportRequest:
    names = ("mlp_norm", "router")
    weights = dict(zip(sizes.layer_shapes(), layer_weights(sizes, dtype)))
    x = torch.randn(EXAMPLE_CHUNK, sizes.width, dtype=dtype)
    return ExportRequest(
        Route(sizes),
        (x, *(weights[name] for name in names)),
        dynamic_shapes={"x": {0: _chunk(sizes)}, **dict.fromkeys(names)},
        output_names=["row", "experts", "weights"],
    )


def _expert(_: str, sizes: Sizes, dtype: torch.dtype) -> ExportRequest:
    shapes = sizes.expert_shapes()
    weights = (torch.randn(shape, dtype=dtype) * _spread(sizes) for shape in shapes.values())
    row = torch.randn(EXAMPLE_CHUNK, sizes.width, dtype=dtype)
    return ExportRequest(
        Expert(),
        (row, *weights),
        dynamic_shapes={"row": {0: _chunk(sizes)}, **dict.fromkeys(shapes)},
        output_names=["result"],
    )


def _store(_: str, sizes: Sizes, dtype: torch.dtype) -> ExportRequest:
    chunk, pages, page = _chunk(sizes), Dim("pages", min=1), Dim("page", min=1)
    shapes = {"kv": {0: pages, 2: page}, "slots": {0: chunk}, "key": {0: chunk}, "value": {0: chunk}}

    def make_inputs(named: dict[str, int]) -> tuple[Tensor, ...]:
        kv = torch.randn(named["pages"], 2, named["page"], sizes.kv_heads, sizes.head_width, dtype=dtype)
        slots = torch.randperm(named["pages"] * named["page"])[: named["chunk"]]
        key, value = torch.randn(2, named["chunk"], sizes.kv_heads, sizes.head_width, dtype=dtype)
        return (kv, slots, key.clone(), value.clone())

    example = make_inputs({"chunk": EXAMPLE_CHUNK, "pages": EXAMPLE_PAGES, "page": EXAMPLE_PAGE})
    return ExportRequest(Store(), example, dynamic_shapes=shapes, make_inputs=make_inputs)


def _random(piece: str, sizes: Sizes, dtype: torch.dtype) -> ExportRequest:
    names = [*sizes.layer_shapes()] if piece == "random_layer" else ["embedding", "norm"]
    module = (RandomLayer if piece == "random_layer" else RandomEnds)(sizes, dtype)
    return ExportRequest(module, (torch.tensor([7]),), output_names=names)


def _spread(sizes: Sizes) -> float:
    """Returns the standard deviation of weights with which a matrix keeps the magnitude of its input."""
    return 0.8 / math.sqrt(sizes.width)


def layer_weights(sizes: Sizes, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Returns random weights of one layer, of about the magnitude of trained ones."""
    spread = _spread(sizes)
    shapes = sizes.layer_shapes().values()
    return tuple(
        torch.ones(shape, dtype=dtype) if len(shape) == 1 else torch.randn(shape, dtype=dtype) * spread
        for shape in shapes
    )


def open_package(package: Path, device: str) -> Run:
    """Headrace's runner, which runs the demo; PyTorch's loader where there is no runner for the torch that
    is installed."""
    try:
        return open_headrace(package, device)
    except NotSupported:
        return open_torch(package, device)


def check_pages(package: Path, shape: Shape = SHAPES["book"], device: str = "cpu", ranks: int = 0) -> None:
    """Raises corrupt unless the package gives the same bits for the same tokens, for every page size and
    order of pages.

    ranks   0: the package is layer.pt2; else it is the attention of one of so many ranks
    """
    layer = open_package(package, device)
    sizes, dtype = shape.sizes.split(max(ranks, 1)), dtype_of(shape)
    with torch.device(device):
        weights = layer_weights(sizes, dtype)[: 3 if ranks else None]
        for chunk, before in ((1, 0), (1, 1), (1, 150), (1, sizes.context - 1), (48, 150)):
            x = torch.randn(chunk, sizes.width, dtype=dtype)
            cached = torch.randn(2, before, sizes.kv_heads, sizes.head_width, dtype=dtype)
            xs = [x, x] if ranks else [x]  # the residual
            results = [
                layer([*xs, *lay_out(cached, page, order), *weights])
                for page in (1, 16, 64)
                for order in (1, -1)
            ]
            for result in results[1:]:
                if not all(torch.equal(ours, first) for ours, first in zip(result, results[0])):
                    raise Corrupt(
                        f"{package}: {chunk} tokens after {before} give different bits for another page size "
                        "or order of pages"
                    )


def check_random(package: Path, shape: Shape, device: str) -> None:
    """Raises corrupt unless the package gives the same weights as PyTorch, up to the rounding of the last
    bit."""
    found = open_package(package, device)
    with torch.device(device):
        module = request(package.stem, shape, device).module
        for seed in (torch.tensor([1]), torch.tensor([1 << 20])):
            weights = found([seed])
            for name, ours, expected in zip(range(len(weights)), weights, module(seed)):
                if not torch.allclose(ours, expected, rtol=2.0**-7, atol=SPREAD * 1e-3):
                    raise Corrupt(f"{package}: output {name} differs from PyTorch for seed {seed.item()}")


def lay_out(cached: Tensor, page: int, order: int = 1) -> tuple[Tensor, Tensor]:
    """Lays keys and values [2, S, kv_heads, width] out in pages, in order of pages (1) or in reverse order
    (-1). Returns the pages and the slots."""
    before = cached.shape[1]
    count = -(-before // page) + 1
    pages = list(range(count))[::order]
    slots = torch.tensor(
        [pages[i // page] * page + i % page for i in range(before)], dtype=torch.int64, device=cached.device
    )
    # The unused parts of the pages must have no effect: NaN would appear in every sum.
    kv = torch.full((count, 2, page, *cached.shape[2:]), torch.nan, dtype=cached.dtype, device=cached.device)
    kv[slots // page, 0, slots % page] = cached[0]
    kv[slots // page, 1, slots % page] = cached[1]
    return kv, slots
