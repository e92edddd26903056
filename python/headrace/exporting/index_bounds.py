# SPDX-License-Identifier: Apache-2.0
"""Finds the inputs whose values a program uses as indices, and the range that these must have.

Compiled code checks an index inside a parallel region and ends the process if it is out of range. The runner
checks the values of such inputs first. A range is known where an input reaches an operator of `_INDEXED` as
it is, and the indexed dimension has a fixed size. Values that are computed from inputs, and sizes that vary,
have no range here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.export import ExportedProgram

Range = tuple[int, int]
"""The least and the greatest index that is allowed."""

_aten = torch.ops.aten

# They give every value of their first argument, and no other value.
_SAME_VALUES = {
    _aten.alias.default,
    _aten.clone.default,
    _aten.expand.default,
    _aten.permute.default,
    _aten.reshape.default,
    _aten.squeeze.default,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
    _aten.t.default,
    _aten.transpose.int,
    _aten.unsqueeze.default,
    _aten.view.default,
    _aten._unsafe_view.default,
}
# They may also change the type; an integer keeps its value in a type that is as wide.
_CONVERSIONS = {_aten._to_copy.default, _aten.to.dtype, _aten.to.dtype_layout}
_WIDTHS = {torch.int8: 1, torch.int16: 2, torch.int32: 4, torch.int64: 8}

Bounds = Iterator[tuple[Any, Range | None]]


def _of_dimension(node: torch.fx.Node) -> Bounds:
    """f(self, dim, index, ...): negative indices are not allowed."""
    dimension: Any = node.args[1]
    size = _size(node.args[0], dimension)
    yield node.args[2], None if size is None else (0, size - 1)


def _of_rows(node: torch.fx.Node) -> Bounds:
    """embedding(weight, indices, ...)"""
    size = _size(node.args[0], 0)
    yield node.args[1], None if size is None else (0, size - 1)


def _of_several(node: torch.fx.Node) -> Bounds:
    """index(self, indices): an index a dimension; negative ones count from the end."""
    indices: Any = node.args[1]
    if any(isinstance(index, torch.fx.Node) and _dtype(index) not in _WIDTHS for index in indices):
        return  # a mask takes the place of several dimensions
    for dimension, index in enumerate(indices):
        size = _size(node.args[0], dimension)
        yield index, None if size is None else (-size, size - 1)


_INDEXED: dict[Any, Callable[[torch.fx.Node], Bounds]] = {
    _aten.embedding.default: _of_rows,
    _aten.index.Tensor: _of_several,
    _aten.index_put.default: _of_several,
    _aten.index_select.default: _of_dimension,
    _aten.gather.default: _of_dimension,
    _aten.scatter.src: _of_dimension,
    _aten.scatter.value: _of_dimension,
    _aten.scatter_add.default: _of_dimension,
    _aten.index_add.default: _of_dimension,
    _aten.index_copy.default: _of_dimension,
}


def index_bounds(program: ExportedProgram) -> dict[str, Range]:
    """Returns the range of each placeholder whose values are used as indices, if it is known."""
    bounds: dict[str, Range] = {}
    for node in program.graph.nodes:
        for index, bound in _INDEXED[node.target](node) if node.target in _INDEXED else ():
            source = _source(index)
            if source is None or bound is None:
                continue
            low, high = bounds.get(source, bound)
            bounds[source] = (max(low, bound[0]), min(high, bound[1]))
    return bounds


def _source(node: Any) -> str | None:
    """Returns the placeholder that has the same values as the node."""
    while isinstance(node, torch.fx.Node):
        if node.op == "placeholder":
            return node.name if _dtype(node) in _WIDTHS else None
        if node.target in _CONVERSIONS:
            if _WIDTHS.get(_dtype(node.args[0]), 9) > _WIDTHS.get(_dtype(node), 0):
                return None
        elif node.target not in _SAME_VALUES:
            return None
        node = node.args[0]
    return None


def _dtype(node: Any) -> Any:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value.dtype if isinstance(value, torch.Tensor) else None


def _size(node: Any, dimension: int) -> int | None:
    """Returns the size of a dimension if it is fixed and not 0."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or not -value.dim() <= dimension < value.dim():
        return None
    size: Any = value.shape[dimension]
    if isinstance(size, torch.SymInt):
        size = int(size.node.expr) if size.node.expr.is_Integer else 0
    return int(size) or None
