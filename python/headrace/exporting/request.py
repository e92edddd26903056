# SPDX-License-Identifier: Apache-2.0
"""The module to export, its example inputs, and the dimensions of these that may vary, as a user's function
returns them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..errors import InvalidArgument, NotFound

EXPECTED = (
    "a tuple (module, args) or (module, args, kwargs), or a dict with the keys module and args, and "
    "optionally kwargs, dynamic_shapes, input_names, output_names, make_inputs"
)


@dataclass
class ExportRequest:
    """One module to export.

    module          a torch.nn.Module; exported in eval mode
    args, kwargs    example inputs; tensors may be inside lists and dicts; numbers become constants of the
                    package
    dynamic_shapes  in the form of torch.export.export; the names of the Dims appear in the package
    input_names     one per tensor, in order; default: the names of forward's parameters
    output_names    one per tensor, in order; default: dict keys, or output0, output1, ...
    make_inputs     makes inputs to verify other sizes: takes {name of a Dim: size}, returns args or (args,
                    kwargs); needed if random inputs are not valid, such as indices that must fit another
                    input
    """

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None
    input_names: Sequence[str] | None = None
    output_names: Sequence[str] | None = None
    make_inputs: Callable[[dict[str, int]], Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.module, torch.nn.Module):
            raise InvalidArgument(
                f"the module to export is a {_kind(self.module)}: it must be a torch.nn.Module"
            )
        if isinstance(self.args, torch.Tensor):
            self.args = (self.args,)
        if not isinstance(self.args, (tuple, list)):
            raise InvalidArgument(
                f"args is a {_kind(self.args)}: it must be a tuple of example inputs; a tuple of one is (x,)"
            )
        if (dimension := _find_dimension(self.kwargs)) is not None:
            raise InvalidArgument(
                f"kwargs, the third item of the tuple, has the dynamic dimension {dimension}, but takes "
                "example inputs by name: "
                'return a dict, as in {"module": module, "args": args, "dynamic_shapes": ...}'
            )
        if not isinstance(self.kwargs, Mapping):
            raise InvalidArgument(
                f"kwargs is a {_kind(self.kwargs)}: it must be a dict of example inputs by name"
            )
        self.args, self.kwargs = tuple(self.args), dict(self.kwargs)

    def move_to(self, device: str) -> None:
        """Moves the module and the example inputs to the device, and puts the module into eval mode."""
        self.module.to(device).eval()
        self.args, self.kwargs = move_tensors((self.args, self.kwargs), device)


def _find_dimension(value: Any) -> str | None:
    """Returns the name of the first dynamic dimension in nested lists and dicts, or None."""
    if isinstance(value, torch.export.Dim):
        return value.__name__
    if isinstance(value, type(torch.export.Dim.AUTO)):
        return str(value)
    parts = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    )
    return next((found for part in parts if (found := _find_dimension(part)) is not None), None)


def move_tensors(tree: Any, device: str) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), tree)


def read_request(target: str) -> ExportRequest:
    """Calls the function that `target` ("module.py:function") names, and returns its result as a request.

    errors   not_found (no such file or function), invalid_argument (the form of `target` or of the result is
             wrong, or the user's code raised: that exception is the cause)
    """
    path_text, colon, name = target.rpartition(":")
    if not colon or not path_text or not name:
        raise InvalidArgument(
            f"{target!r} names no function to export: expected module.py:function, such as models.py:resnet"
        )
    module = _load_file(Path(path_text))
    function = getattr(module, name, None)
    if not callable(function):
        own = [
            key
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", None) == module.__name__
        ]
        raise NotFound(f"{path_text} has no function {name!r}: it has {', '.join(own) or 'none'}")
    try:
        result = function()
    except Exception as error:
        raise InvalidArgument(f"{target} raised {type(error).__name__}: {error}") from error
    return _to_request(target, result)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise NotFound(f"{path} is not a file: expected a Python file with the function to export")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidArgument(f"{path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    # As in `python module.py`: files next to it can be imported, and classes find their module.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidArgument(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _to_request(target: str, result: Any) -> ExportRequest:
    if isinstance(result, ExportRequest):
        return result
    if isinstance(result, Mapping):
        known = {entry.name for entry in fields(ExportRequest)}
        if unknown := sorted(set(result) - known):
            raise InvalidArgument(
                f"{target} returned a dict with the key {unknown[0]!r}: expected {EXPECTED}"
            )
        if missing := sorted({"module", "args"} - set(result)):
            raise InvalidArgument(
                f"{target} returned a dict without the key {missing[0]!r}: expected {EXPECTED}"
            )
        return ExportRequest(**result)
    if isinstance(result, tuple) and 2 <= len(result) <= 3:
        return ExportRequest(*result)
    raise InvalidArgument(f"{target} returned a {_kind(result)}: expected {EXPECTED}")


def _kind(value: Any) -> str:
    return f"tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__
