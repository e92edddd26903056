# SPDX-License-Identifier: Apache-2.0
"""Compiles a PyTorch module into a package that Headrace's runner takes.

    python -m headrace.export models.py:resnet --output resnet.pt2 --device cpu --verify

The function returns the module and example inputs: (module, args), (module, args, kwargs), or a dict with the
keys module and args, and as wanted kwargs, dynamic_shapes, input_names, output_names and make_inputs. The
package also says what its inputs and outputs are: names, dtypes, sizes and their ranges, strides, and which
inputs are written to. With --verify it is compared with PyTorch first, on the example and at other sizes
within the ranges, and is not written when it differs.

Standard output tells the differences, standard error what is being done. Exits with 0, with 1 after an error
or a difference beyond the tolerance, with 2 when called wrongly.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__
from .errors import Error, InvalidArgument, NotSupported
from .exporting.output import check_output

if TYPE_CHECKING:
    from .exporting.package import Program
    from .exporting.request import ExportRequest


def require_torch() -> None:
    """Raises not_supported with what to install when torch cannot be imported."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise NotSupported(
            f"exporting needs torch, 2.11 or newer ({error}): install it (pip install torch), or "
            f"headrace[model]"
        ) from error


def export_package(
    request: ExportRequest,
    output: str | Path,
    device: str = "cpu",
    verify: bool = False,
    tolerance: float | None = None,
    cache: Path | None = None,
    note: dict[str, Any] | None = None,
    check: Callable[[Path], None] | None = None,
) -> list[str]:
    """Compiles, compares if asked, and writes. Returns a line for each comparison.

    note     further keys for the io spec
    check    sees the package before it appears under its name, and raises if it must not
    owns     moves the request's module and inputs to the device
    errors   those of exporting.output, exporting.package and exporting.verify; corrupt when the package
             differs from the module
    """
    check_output(Path(output))
    import torch

    from .exporting import package

    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise NotSupported(
            f"device {device}: torch {torch.__version__} finds no GPU here: export where there is one, or "
            f"with --device cpu"
        )
    request.move_to(device)
    began = time.monotonic()
    name = Path(output).name
    cache = cache or package.default_cache()
    _say(f"{name}: tracing {type(request.module).__name__}")
    # torch's own use of what torch will drop, told once a program: nothing for the caller to mend.
    warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)", category=FutureWarning)
    with package.compiler_cache(cache):
        program = package.export_program(request, device, __version__)
    program.spec.update(note or {})
    lines: list[str] = []

    def look(candidate: Path) -> None:
        _say(
            f"{name}: compiled after {time.monotonic() - began:.0f} s"
            + (", comparing with PyTorch" if verify else "")
        )
        if verify:
            lines.extend(_compare(program, request, candidate, device, tolerance))
        if check is not None:
            check(candidate)

    _say(f"{name}: compiling")
    package.write_package(program, Path(output), cache, look)
    return lines


def _compare(
    program: Program, request: ExportRequest, candidate: Path, device: str, tolerance: float | None
) -> list[str]:
    from .exporting.verify import verify

    differences = verify(program, request, candidate, device, tolerance)
    lines = [str(difference) for difference in differences]
    if not all(difference.within for difference in differences):
        raise Different(lines)
    return lines


class Different(InvalidArgument):
    """The package gives other numbers than the module."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(
            "the package differs from PyTorch by more than the tolerance and was not written: --tolerance "
            "allows more"
        )
        self.lines = lines


def _say(text: str) -> None:
    print(f"export: {text}", file=sys.stderr, flush=True)


def _fail(error: BaseException) -> int:
    """What went wrong in a sentence; where in the user's code it did, if it did there."""
    if error.__cause__ is not None and not isinstance(error.__cause__, (ImportError, OSError)):
        traceback.print_exception(error.__cause__, limit=-4)
    _say(str(error))
    return 1


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.export",
        description="Compiles a PyTorch module into a package that Headrace's runner takes.",
        epilog="The function returns (module, args), (module, args, kwargs), or a dict with the keys module "
        "and args, and as wanted "
        "kwargs, dynamic_shapes, input_names, output_names, make_inputs.",
    )
    parser.add_argument(
        "target",
        metavar="module.py:function",
        help="the file, and the function in it that returns what to export",
    )
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="the package to write; its name ends in .pt2",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument(
        "--verify", action="store_true", help="compare with PyTorch first, on the example and at other sizes"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        help="largest difference allowed, of 1 + the value (default: by dtype, 1e-4 for float32)",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="where the compiler keeps its work (default: the user's cache)",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns its exit code."""
    options = _parse(arguments)
    try:
        check_output(options.output)  # before the user's code runs, which may take long too
        require_torch()
        from .exporting.request import read_request

        lines = export_package(
            read_request(options.target),
            options.output,
            options.device,
            options.verify,
            options.tolerance,
            options.cache,
        )
    except Different as error:
        print(*error.lines, sep="\n")
        return _fail(error)
    except Error as error:
        return _fail(error)
    for line in lines:
        print(line)
    _say(f"wrote {options.output}, {options.output.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
