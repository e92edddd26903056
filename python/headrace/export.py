# SPDX-License-Identifier: Apache-2.0
"""Compiles a PyTorch module into a package that Headrace's runner loads.

    python -m headrace.export models.py:resnet --output resnet.pt2 --device cpu --verify

The function returns the module and example inputs: (module, args), (module, args, kwargs), or a dict. The
dict has the keys module and args; the keys kwargs, dynamic_shapes, input_names, output_names and make_inputs
are optional. The package also describes its inputs and outputs: names, dtypes, sizes and their ranges,
strides, and the inputs that the module writes to.

With --verify the package is first compared with PyTorch, on the example and at other sizes within the ranges;
it is not written if it differs. Headrace's runner and PyTorch's own loader run it, both in a child process.
If the loader crashes, the export prints that, tests whether the loader also crashes without Headrace, and
decides by the results of Headrace's runner alone.

Standard output gets the differences, standard error the progress. The exit code is 0 for success, 1 for an
error or a difference above the tolerance, 2 for wrong arguments.
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
from .errors import BackendFailed, Error, InvalidArgument, NotSupported
from .exporting.output import check_output

if TYPE_CHECKING:
    from .exporting.package import Program
    from .exporting.request import ExportRequest


def require_torch() -> None:
    """Raises not_supported, with the package to install, if torch cannot be imported."""
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
    progress: Callable[[str], None] = lambda step: None,
    explain: bool = True,
) -> list[str]:
    """Compiles the package, compares it if `verify` is set, and writes it. Returns one line per comparison.

    note      further keys for the io spec
    check     called with the package before it gets its name; raises if the package must not appear
    progress  called with each step as it begins: trace, compile, verify, check, write
    explain   after a crash of PyTorch's loader, test whether the loader also crashes without Headrace; the
              test compiles one more package
    owns      moves the request's module and inputs to the device
    errors    those of exporting.output, exporting.package and exporting.verify; invalid_argument (the package
              differs from the module by more than the tolerance), backend_failed (no runner could run the
              package, or Headrace's runner crashed)
    """
    check_output(Path(output))
    import torch

    from .exporting import package

    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise NotSupported(
            f"device {device}: torch {torch.__version__} finds no GPU: export on a machine with a GPU, or "
            "with --device cpu"
        )
    request.move_to(device)
    began = time.monotonic()
    name = Path(output).name
    cache = cache or package.default_cache()
    progress("trace")
    _say(f"{name}: tracing {type(request.module).__name__}")
    # torch itself calls a function that torch has deprecated and warns about it; the caller cannot correct
    # that.
    warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)", category=FutureWarning)
    with package.compiler_cache(cache):
        program = package.export_program(request, device, __version__)
    program.spec.update(note or {})
    lines: list[str] = []

    def look(candidate: Path) -> None:
        _say(
            f"{name}: compiled in {time.monotonic() - began:.0f} s"
            + (", comparing with PyTorch" if verify else "")
        )
        if verify:
            progress("verify")
            lines.extend(_compare(program, request, candidate, device, tolerance, explain))
        if check is not None:
            progress("check")
            check(candidate)
        progress("write")

    progress("compile")
    _say(f"{name}: compiling")
    package.write_package(program, Path(output), cache, look)
    return lines


def _compare(
    program: Program,
    request: ExportRequest,
    candidate: Path,
    device: str,
    tolerance: float | None,
    explain: bool,
) -> list[str]:
    from .exporting.bare_loader import explain_crash
    from .exporting.verify import verify

    found = verify(program, request, candidate, device, tolerance)
    for failure in found.failures:
        _say(f"{candidate.name}: {failure}")
    cause = explain_crash(device) if explain and found.loader_crashed else ""
    if not found.is_whole:
        what = "; ".join(map(str, found.failures))
        raise Crashed(f"{candidate.name} was not written: {what}" + (f". {cause}" if cause else ""))
    if cause:
        _say(f"{candidate.name}: {cause}")
    lines = [str(difference) for difference in found.differences]
    if not all(difference.within for difference in found.differences):
        raise Different(lines)
    return lines


class Crashed(BackendFailed):
    """Headrace's runner crashed on the package, or no runner could run it."""


class Different(InvalidArgument):
    """The results of the package differ from those of the module by more than the tolerance."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(
            "the package differs from PyTorch by more than the tolerance and was not written: --tolerance "
            "raises the limit"
        )
        self.lines = lines


def _say(text: str) -> None:
    print(f"export: {text}", file=sys.stderr, flush=True)


def _fail(error: BaseException) -> int:
    """Prints the error; prints the traceback too if the user's code raised it. Returns the exit code."""
    if error.__cause__ is not None and not isinstance(error.__cause__, (ImportError, OSError)):
        traceback.print_exception(error.__cause__, limit=-4)
    _say(str(error))
    return 1


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.export",
        description="Compiles a PyTorch module into a package that Headrace's runner loads.",
        epilog="The function returns (module, args), (module, args, kwargs), or a dict. The dict has the "
        "keys module and args; the keys kwargs, dynamic_shapes, input_names, output_names and make_inputs "
        "are optional.",
    )
    parser.add_argument(
        "target",
        metavar="module.py:function",
        help="the file, and the function in it that returns the module and example inputs",
    )
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="the package to write; its name ends in .pt2",
    )
    parser.add_argument("--force", action="store_true", help="replace a package that exists")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument(
        "--verify", action="store_true", help="first compare with PyTorch, on the example and at other sizes"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        help="largest allowed |difference| / (1 + |value|) (default: by dtype, 1e-4 for float32)",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="folder for the compiler's cache (default: headrace/inductor in the user's cache folder)",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns its exit code."""
    options = _parse(arguments)
    try:
        check_output(options.output, options.force)  # before the user's code runs: that may take long
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
