# SPDX-License-Identifier: Apache-2.0
"""Compares a package with the module in PyTorch, on the example inputs and at other sizes that its dimensions
allow.

Two runners run the package: Headrace's runner, which users of the package use, and PyTorch's own loader.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..errors import InvalidArgument
from . import io_spec
from .package import Program
from .request import ExportRequest, move_tensors
from .runners import (
    HEADRACE,
    NAMES,
    TORCH,
    Failure,
    Inputs,
    Result,
    clone_with_strides,
    run_here,
    run_in_children,
)

# Allowed |difference| / (1 + |value|): compiled code adds in another order and fuses multiply-adds.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}
TOLERANCES |= {
    torch.complex64: 1e-4,
    torch.complex128: 1e-9,
    torch.float8_e4m3fn: 0.15,
    torch.float8_e5m2: 0.3,
}
LARGEST_GROWTH = 4
_SEED = 20


@dataclass(frozen=True)
class Difference:
    """The difference between one output of one run and PyTorch's."""

    case: str
    output: str
    dtype: str
    shape: tuple[int, ...]
    absolute: float
    relative: float
    within: bool
    runner: str = HEADRACE

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        verdict = "ok" if self.within else "DIFFERS"
        return (
            f"{self.case}, {NAMES[self.runner]}: {self.output} {self.dtype} {shape}: "
            f"largest difference {self.absolute:.3g}, relative {self.relative:.3g}: {verdict}"
        )


@dataclass
class Verification:
    """The differences of each runner, and the failures of runners without results."""

    differences: list[Difference] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def loader_crashed(self) -> bool:
        """Returns whether PyTorch's own loader crashed."""
        return any(failure.runner == TORCH and failure.crashed for failure in self.failures)

    @property
    def is_whole(self) -> bool:
        """Returns whether at least one runner has results and Headrace's runner did not crash."""
        dead = any(failure.runner == HEADRACE and failure.error is None for failure in self.failures)
        return len(self.failures) < len(NAMES) and not dead


def verify(
    program: Program, request: ExportRequest, package: Path, device: str, tolerance: float | None = None
) -> Verification:
    """Runs the package and the module on the same inputs. Returns one difference per runner and output, and
    per input that is written to.

    If a signal ends a runner, or this machine does not have it, the runner is among the failures, and the
    other one is compared.
    errors   invalid_argument (the module or the package fails at a size that the dynamic dimensions allow)
    """
    mutated = [
        i for i, entry in enumerate(program.spec["inputs"]) if entry["name"] in program.spec["mutated"]
    ]
    names = [output["name"] for output in program.spec["outputs"]]
    names += [f"{program.spec['inputs'][i]['name']} (written)" for i in mutated]
    all_inputs: list[Inputs] = []
    expected: list[Result] = []
    for case, args, kwargs in _cases(program, request, device):
        all_inputs.append(Inputs(case, _tensors((args, in_order_of(request.kwargs, kwargs))), mutated))
        expected.append(_run_module(case, request.module, args, kwargs, mutated))
    # In the folder of the package: it has space for these files; the temporary folder may not.
    with tempfile.TemporaryDirectory(
        prefix="verify-", dir=package.parent, ignore_cleanup_errors=True
    ) as folder:
        found = run_in_children(package, device, all_inputs, Path(folder))
    verification = Verification()
    for runner, results in found.items():
        if isinstance(results, Failure) and results.code > 0:
            results = _run_again(runner, package, device, all_inputs)
        if isinstance(results, Failure):
            verification.failures.append(results)
            continue
        for inputs, right, actual in zip(all_inputs, expected, results):
            pairs = zip([*right.outputs, *right.mutated], [*actual.outputs, *actual.mutated])
            for name, (wanted, given) in zip(names, pairs):
                verification.differences.append(compare(inputs.case, name, wanted, given, tolerance, runner))
    return verification


def _run_again(runner: str, package: Path, device: str, all_inputs: list[Inputs]) -> list[Result]:
    """Runs again in this process, which has the operators that the user's code registered. Its error is
    raised with the case in its text."""
    case = ""

    def begin(step: str) -> None:
        nonlocal case
        case = step.removeprefix("run ")

    try:
        return run_here(runner, package, device, all_inputs, begin)
    except Exception as error:
        raise InvalidArgument(_failure_text(f"the package in {NAMES[runner]}", case, error)) from error


def _run_module(case: str, module: torch.nn.Module, args: Any, kwargs: Any, mutated: list[int]) -> Result:
    """Returns the module's results in PyTorch. The caller's inputs do not change."""
    args, kwargs = pytree.tree_map_only(torch.Tensor, clone_with_strides, (args, kwargs))
    try:
        with torch.no_grad():
            outputs = copy.deepcopy(module)(*args, **kwargs)
    except Exception as error:
        raise InvalidArgument(_failure_text("the module itself", case, error)) from error
    inputs = _tensors((args, kwargs))
    return Result(_tensors(outputs), [inputs[i] for i in mutated])


def _failure_text(what: str, case: str, error: Exception) -> str:
    return (
        f"{what} fails {case}: {type(error).__name__}: {error}. If this size need not work, "
        "narrow the dynamic dimensions; "
        "if random inputs do not fit together, give make_inputs"
    )


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def in_order_of(example: Mapping[str, Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keyword inputs in the order of the example's: the package has that order, make_inputs may
    return another."""
    return {name: kwargs[name] for name in example} if set(example) == set(kwargs) else dict(kwargs)


def compare(
    case: str,
    name: str,
    expected: Tensor,
    actual: Tensor,
    tolerance: float | None = None,
    runner: str = HEADRACE,
) -> Difference:
    """Compares one output.

    Absolute is the largest |actual - expected|. Relative is the largest |actual - expected| / |expected| over
    the elements with |expected| above the tolerance.
    """
    dtype = str(expected.dtype).removeprefix("torch.")
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return Difference(
            case,
            name,
            f"{dtype} for {actual.dtype}",
            tuple(actual.shape),
            float("inf"),
            float("inf"),
            False,
            runner,
        )
    exact = not (expected.is_floating_point() or expected.is_complex())
    allowed = 0.0 if exact else tolerance if tolerance is not None else TOLERANCES.get(expected.dtype, 0.3)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    left, right = expected.cpu().to(wide), actual.cpu().to(wide)
    # Equal infinities and two NaNs count as no difference; other infinities and NaNs count as an infinite
    # one.
    difference = torch.where(
        (left == right) | (left.isnan() & right.isnan()), torch.zeros((), dtype=wide), left - right
    ).abs()
    difference = torch.where(difference.isnan(), torch.inf, difference)
    size = left.abs().nan_to_num(posinf=0)
    relative = torch.where(size > allowed, difference / size, 0.0)
    within = bool((difference <= allowed * (1 + size)).all())
    return Difference(
        case, name, dtype, tuple(actual.shape), _largest(difference), _largest(relative), within, runner
    )


def _largest(values: Tensor) -> float:
    return values.max().item() if values.numel() else 0.0


def _cases(
    program: Program, request: ExportRequest, device: str
) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    yield "on the example", request.args, request.kwargs
    example = _example_sizes(program, request)
    seen = [example]
    for sizes in _other_sizes(program.names, example):
        if sizes in seen:
            continue
        seen.append(sizes)
        named = {program.names.name(symbol): size for symbol, size in sizes.items()}
        args, kwargs = _make_inputs(program, request, sizes, named, device)
        yield "with " + ", ".join(f"{name}={size}" for name, size in named.items()), args, kwargs


def _example_sizes(program: Program, request: ExportRequest) -> dict[Any, int]:
    """Returns the sizes in the example of the symbols that follow from one dimension each."""
    tensors = [
        leaf for leaf in pytree.tree_leaves((request.args, request.kwargs)) if isinstance(leaf, Tensor)
    ]
    sizes: dict[Any, int] = {}
    for tensor, value in zip(tensors, io_spec.input_values(program.exported).values()):
        for number, size in zip(tensor.shape, value.shape):
            if isinstance(size, torch.SymInt) and len(size.node.expr.free_symbols) == 1:
                sizes.setdefault(*_solve(size.node.expr, number))
    return sizes


def _solve(expression: Any, number: int) -> tuple[Any, int]:
    """Returns the symbol of an expression, and the value with which the expression equals `number`."""
    import sympy

    symbol = next(iter(expression.free_symbols))
    return symbol, number if expression.is_Symbol else int(sympy.solve(expression - number, symbol)[0])


def _other_sizes(names: io_spec.DimensionNames, example: dict[Any, int]) -> Iterator[dict[Any, int]]:
    """Yields the smallest sizes that are not empty, the largest (at most four times the example), and sizes
    between them, odd if the range allows it."""
    if not example:
        return
    bounds = {}
    for symbol, size in example.items():
        low, high = names.range(symbol)
        low = max(low, 1)
        bounds[symbol] = (
            low,
            max(low, min(high if high is not None else size * LARGEST_GROWTH, size * LARGEST_GROWTH)),
        )
    yield {symbol: low for symbol, (low, _) in bounds.items()}
    yield {symbol: high for symbol, (_, high) in bounds.items()}
    yield {symbol: min(high, (low + high) // 2 | 1) for symbol, (low, high) in bounds.items()}


def _make_inputs(
    program: Program, request: ExportRequest, sizes: dict[Any, int], named: dict[str, int], device: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if request.make_inputs is not None:
        made = request.make_inputs(named)
        args, kwargs = made if _is_args_and_kwargs(made) else (made, request.kwargs)
        moved: tuple[tuple[Any, ...], dict[str, Any]] = move_tensors((tuple(args), dict(kwargs)), device)
        return moved
    leaves, tree = pytree.tree_flatten((request.args, request.kwargs))
    values = iter(io_spec.input_values(program.exported).values())
    generator = torch.Generator().manual_seed(_SEED)
    resized = [
        _resize(leaf, next(values), sizes, generator) if isinstance(leaf, Tensor) else leaf for leaf in leaves
    ]
    inputs: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(resized, tree)
    return inputs


def _is_args_and_kwargs(made: Any) -> bool:
    return (
        isinstance(made, tuple)
        and len(made) == 2
        and isinstance(made[0], (tuple, list))
        and isinstance(made[1], dict)
    )


def _resize(example: Tensor, value: Tensor, sizes: dict[Any, int], generator: torch.Generator) -> Tensor:
    """Returns random values with the example's distribution and order of strides, in the shape that the sizes
    give."""
    shape = [
        int(size.node.expr.subs(sizes)) if isinstance(size, torch.SymInt) else size for size in value.shape
    ]
    if list(example.shape) == shape:
        return example
    order = sorted(range(example.dim()), key=lambda i: -example.stride()[i])
    empty = torch.empty_permuted(shape, order, dtype=example.dtype, device=example.device)
    return empty.copy_(_random_like(example.cpu(), shape, generator))


def _random_like(example: Tensor, shape: list[int], generator: torch.Generator) -> Tensor:
    if example.dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if example.is_complex():
        return torch.randn(shape, generator=generator, dtype=example.dtype)
    if example.is_floating_point():
        wide = example.float()
        spread = wide.std().item() if wide.numel() > 1 else 1.0
        return torch.randn(shape, generator=generator) * spread + wide.mean().item()
    low, high = (int(example.min()), int(example.max())) if example.numel() else (0, 0)
    return torch.randint(low, high + 1, shape, generator=generator)
