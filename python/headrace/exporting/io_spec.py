# SPDX-License-Identifier: Apache-2.0
"""The io spec describes a package's inputs and outputs for the runner: names, dtypes, sizes and their ranges,
strides.

AOTInductor does not store these facts in a form that can be read back, and does not check its inputs: without
the io spec a wrong shape gives wrong numbers.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from ..errors import InvalidArgument, NotSupported
from .index_bounds import Range, index_bounds
from .request import ExportRequest

VERSION = 1


class DimensionNames:
    """Maps the symbols that torch.export creates (s77, ...) to the names that the user gave to the
    dimensions."""

    def __init__(self, program: ExportedProgram, request: ExportRequest) -> None:
        self._ranges = program.range_constraints
        self._names: dict[Any, str] = {}
        wanted: dict[int, list[Any]] = {}
        for tensor, dimensions in _pair_tensors_with_dimensions(request):
            wanted.setdefault(id(tensor), []).append(dimensions)
        tensors = [
            leaf
            for leaf in pytree.tree_leaves((request.args, request.kwargs))
            if isinstance(leaf, torch.Tensor)
        ]
        for tensor, value in zip(tensors, input_values(program).values()):
            if queue := wanted.get(id(tensor)):
                self._learn(queue.pop(0), value)

    def _learn(self, dimensions: Any, value: torch.Tensor) -> None:
        pairs = dimensions.items() if isinstance(dimensions, dict) else enumerate(dimensions or ())
        for index, dimension in pairs:
            size: Any = value.shape[index]  # torch's stubs know no SymInt here
            if isinstance(dimension, Dim) and isinstance(size, torch.SymInt):
                symbols = size.node.expr.free_symbols
                root = getattr(dimension, "root", dimension)
                if len(symbols) == 1 and isinstance(root, Dim):
                    self._names.setdefault(next(iter(symbols)), root.__name__)

    def encode(self, size: int | torch.SymInt) -> int | dict[str, Any]:
        """Returns a size in the form of the spec: a number, a name with its range, or an expression of
        names."""
        if not isinstance(size, torch.SymInt):
            return int(size)
        expression = size.node.expr
        if expression.is_Integer:
            return int(expression)
        if not expression.is_Symbol:
            return {
                "expr": str(
                    expression.subs({symbol: self.name(symbol) for symbol in expression.free_symbols})
                )
            }
        low, high = self.range(expression)
        return {"name": self.name(expression), "min": low, "max": high}

    def name(self, symbol: Any) -> str:
        return self._names.get(symbol, str(symbol))

    def range(self, symbol: Any) -> tuple[int, int | None]:
        """Returns the smallest and the largest size; None if there is no largest."""
        if symbol not in self._ranges:
            return 0, None
        found = self._ranges[symbol]
        unbounded = not found.upper.is_Integer or int(found.upper) >= sys.maxsize - 1
        return int(found.lower), None if unbounded else int(found.upper)

    def symbols(self) -> list[Any]:
        """Returns all symbols that the sizes of the inputs depend on."""
        return list(self._ranges)


def _pair_tensors_with_dimensions(request: ExportRequest) -> Iterator[tuple[torch.Tensor, Any]]:
    shapes = request.dynamic_shapes
    if hasattr(shapes, "dynamic_shapes"):  # a torch.export.ShapesCollection
        shapes = shapes.dynamic_shapes(request.module, request.args, request.kwargs)
    if not shapes:
        return
    bound = inspect.signature(request.module.forward).bind(*request.args, **request.kwargs).arguments
    names = list(bound) if not isinstance(shapes, dict) else list(shapes)
    for name, dimensions in zip(names, shapes.values() if isinstance(shapes, dict) else shapes):
        yield from _pair(bound.get(name), dimensions)


def _pair(value: Any, dimensions: Any) -> Iterator[tuple[torch.Tensor, Any]]:
    if isinstance(value, torch.Tensor):
        yield value, dimensions
    elif isinstance(value, (list, tuple)) and isinstance(dimensions, (list, tuple)):
        for part, its_dimensions in zip(value, dimensions):
            yield from _pair(part, its_dimensions)
    elif isinstance(value, dict) and isinstance(dimensions, dict):
        for key, part in value.items():
            yield from _pair(part, dimensions.get(key))


def input_values(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Returns the program's input tensors with their symbolic sizes, in order, by placeholder name.

    errors   not_supported (an input is a number that varies)
    """
    user = {
        spec.arg.name for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT
    }
    found = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in user:
            value = node.meta["val"]
            if isinstance(value, torch.Tensor):
                found[node.name] = value
            elif isinstance(value, torch.SymInt):
                raise NotSupported(
                    f"the input {node.name} is a number that varies: pass it as a tensor of one element"
                )
    return found


def _output_values(program: ExportedProgram) -> list[Any]:
    output = next(node for node in program.graph.nodes if node.op == "output")
    specs = program.graph_signature.output_specs
    return [argument for argument, spec in zip(output.args[0], specs) if spec.kind == OutputKind.USER_OUTPUT]


def describe(program: ExportedProgram, request: ExportRequest, device: str, version: str) -> dict[str, Any]:
    """Returns the io spec of a functional program, the result of `run_decompositions({})`: only a functional
    program lists the inputs that it writes to.

    errors   invalid_argument (names do not fit), not_supported (an input or output is not a tensor)
    """
    names = DimensionNames(program, request)
    bounds = index_bounds(program)
    values = input_values(program)
    inputs = _check_names("input", request.input_names, list(values))
    renamed = dict(zip(values, inputs))
    output_tensors = [_output_tensor(i, output) for i, output in enumerate(_output_values(program))]
    outputs = _check_names("output", request.output_names, _default_output_names(program))
    mutated = [
        spec.target
        for spec in program.graph_signature.output_specs
        if spec.kind == OutputKind.USER_INPUT_MUTATION
    ]
    return {
        "headrace_io": VERSION,
        "headrace": version,
        "torch": torch.__version__,
        "device": torch.device(device).type,
        "inputs": [
            _describe_input(name, value, names, bounds.get(placeholder))
            for name, (placeholder, value) in zip(inputs, values.items())
        ],
        "outputs": [_describe_tensor(name, value, names) for name, value in zip(outputs, output_tensors)],
        "mutated": [renamed[target] for target in mutated],
    }


def _output_tensor(index: int, output: Any) -> torch.Tensor:
    value = output.meta["val"] if isinstance(output, torch.fx.Node) else output
    if not isinstance(value, torch.Tensor):
        raise NotSupported(f"output {index} of the module is {value!r}: a package can return only tensors")
    return value


def _describe_tensor(name: str, value: torch.Tensor, names: DimensionNames) -> dict[str, Any]:
    return {
        "name": name,
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": [names.encode(size) for size in value.shape],
    }


def _describe_input(
    name: str, value: torch.Tensor, names: DimensionNames, bounds: Range | None
) -> dict[str, Any]:
    strides = None if value.is_contiguous() else [names.encode(stride) for stride in value.stride()]
    described = {**_describe_tensor(name, value, names), "strides": strides, "optional": False}
    if bounds is not None:
        described["values"] = {"min": bounds[0], "max": bounds[1]}
    return described


def _check_names(what: str, given: Sequence[str] | None, default: list[str]) -> list[str]:
    names = list(given) if given is not None else default
    if len(names) != len(default):
        raise InvalidArgument(
            f"{len(names)} {what}_names for {len(default)} {what} tensors ({', '.join(default)}): give one "
            f"for each"
        )
    if len(set(names)) != len(names):
        raise InvalidArgument(f"the {what}_names {', '.join(names)} are not all different")
    return names


def _default_output_names(program: ExportedProgram) -> list[str]:
    """Names outputs by their position: logits for {"logits": x}, output1 for the second of a tuple, hidden.0
    for the first of a list under the key hidden."""
    out_spec = program.call_spec.out_spec
    assert out_spec is not None
    tree = pytree.tree_unflatten(list(range(out_spec.num_leaves)), out_spec)
    paths = [path for path, _ in pytree.tree_flatten_with_path(tree)[0]]
    return [_path_name(path) for path in paths]


def _path_name(path: tuple[Any, ...]) -> str:
    if not path:
        return "output"
    parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
    return ("output" if parts[0].isdigit() else "") + ".".join(parts)
