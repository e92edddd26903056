# SPDX-License-Identifier: Apache-2.0
"""The two runners of a package that verification compares: PyTorch's own loader and Headrace's runner.

Both run in a child process, so that a crash of one ends neither the export nor the other runner. The child is
this file:

    python -m headrace.exporting.runners FOLDER PACKAGE DEVICE RUNNER...

It reads FOLDER/inputs.pt, prints each step as it begins, and writes FOLDER/RUNNER.pt.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from ..errors import NotSupported
from .bare_loader import ended, is_crash

TORCH, HEADRACE = "torch", "headrace"
NAMES = {HEADRACE: "Headrace's runner", TORCH: "PyTorch's loader"}
_STEP = "step "

Run = Callable[[list[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class Inputs:
    """The input tensors of one run, in the order of the package's inputs, and the indices of those it writes
    to."""

    case: str
    tensors: list[Tensor]
    mutated: list[int]


@dataclass(frozen=True)
class Result:
    """The results of one run: its outputs, and the inputs that it wrote to."""

    outputs: list[Tensor]
    mutated: list[Tensor]


@dataclass(frozen=True)
class Failure:
    """The reason why a runner has no results: an error, or the step and return code at which its child
    ended."""

    runner: str
    step: str = ""
    code: int = 0
    error: Exception | None = None

    @property
    def crashed(self) -> bool:
        return is_crash(self.code)

    def __str__(self) -> str:
        if self.error is not None:
            return f"{NAMES[self.runner]} cannot be used: {self.error}"
        return f"{NAMES[self.runner]} {ended(self.code)} in step {self.step}"


def open_torch(package: Path, device: str) -> Run:
    """Opens the package with PyTorch's loader. torch._inductor.aoti_load_package is the same loader behind
    Python code whose import takes seconds."""
    index = torch.device(device).index
    loader = torch._C._aoti.AOTIModelPackageLoader(
        str(package), "model", False, 1, -1 if index is None else index
    )
    return lambda tensors: loader.boxed_run(list(tensors))


def open_headrace(package: Path, device: str) -> Run:
    """Opens the package with Headrace's runner.

    errors   not_supported (no runtime for the installed torch), and those of Model
    """
    from .. import Model

    model = Model(package, device=device)
    return lambda tensors: [from_dlpack(output) for output in model.run(*tensors)]


OPEN: dict[str, Callable[[Path, str], Run]] = {HEADRACE: open_headrace, TORCH: open_torch}


def run_here(
    runner: str,
    package: Path,
    device: str,
    all_inputs: Sequence[Inputs],
    begin: Callable[[str], None] = lambda step: None,
) -> list[Result]:
    """Loads the package and runs it on each of the inputs, in this process.

    begin    called with each step as it begins
    """
    begin("load")
    run = OPEN[runner](package, device)
    results = []
    for inputs in all_inputs:
        begin(f"run {inputs.case}")
        tensors = [clone_with_strides(tensor) for tensor in inputs.tensors]
        with torch.no_grad():
            outputs = run(tensors)
        results.append(Result(outputs, [tensors[i] for i in inputs.mutated]))
    return results


def clone_with_strides(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(
        tensor
    )


def run_in_children(
    package: Path,
    device: str,
    all_inputs: Sequence[Inputs],
    folder: Path,
    runners: Sequence[str] = tuple(OPEN),
) -> dict[str, list[Result] | Failure]:
    """Returns the results of each runner. One child runs them all; if it ends too early, another child
    continues with the next runner.

    folder   for the files that parent and child exchange; they can be as large as all inputs
    """
    _save_inputs(all_inputs, folder / "inputs.pt")
    found: dict[str, list[Result] | Failure] = {}
    while left := [runner for runner in runners if runner not in found]:
        at, step, code = _run_child([str(folder), str(package), device, *left], left[0])
        for runner in left[: left.index(at) + 1]:
            if (folder / f"{runner}.pt").exists():
                found[runner] = _read(runner, folder / f"{runner}.pt")
        if at not in found:
            found[at] = Failure(at, step, code)
    return found


def _save_inputs(all_inputs: Sequence[Inputs], path: Path) -> None:
    """Saves the inputs. A tensor that several runs share, such as weights, is saved once."""
    clones: dict[int, Tensor] = {}
    for inputs in all_inputs:
        for tensor in inputs.tensors:
            if id(tensor) not in clones:
                clones[id(tensor)] = clone_with_strides(tensor.detach())
    torch.save(
        [(one.case, [clones[id(tensor)] for tensor in one.tensors], one.mutated) for one in all_inputs], path
    )


def _read(runner: str, path: Path) -> list[Result] | Failure:
    found = torch.load(path)
    if isinstance(found, str):
        return Failure(runner, error=NotSupported(found))
    return [Result(outputs, mutated) for outputs, mutated in found]


def child_command(arguments: list[str]) -> list[str]:
    """Returns the command that starts the child."""
    return [sys.executable, "-X", "faulthandler", "-m", __name__, *arguments]


def _run_child(arguments: list[str], first: str) -> tuple[str, str, int]:
    """Runs a child. Returns the runner and the step at which it ended, and its return code."""
    runner, step = first, "start"
    search = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]))
    # The child unpacks the package into the exchange folder: the user's cache gets nothing of a package that
    # may not be written.
    environment = {**os.environ, "PYTHONPATH": search, "HEADRACE_CACHE_DIR": arguments[0]}
    with subprocess.Popen(
        child_command(arguments),
        env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace",
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(_STEP):
                    runner, step = line.removeprefix(_STEP).rstrip("\n").split(" ", 1)
                else:
                    sys.stderr.write(line)
            return runner, step, process.wait()
        except BaseException:
            process.kill()
            raise


def main(arguments: list[str]) -> None:
    """Runs in the child."""
    folder, package, device, *runners = arguments
    all_inputs = [Inputs(*one) for one in torch.load(Path(folder) / "inputs.pt")]
    for runner in runners:

        def begin(step: str, runner: str = runner) -> None:
            print(f"{_STEP}{runner} {step}", flush=True)

        try:
            results = run_here(runner, Path(package), device, all_inputs, begin)
            found: object = [(result.outputs, result.mutated) for result in results]
        except NotSupported as error:
            found = str(error)
        except Exception:
            # The parent runs it again and raises the error: it may have operators that this process lacks.
            sys.exit(1)
        unfinished = Path(folder) / f"{runner}.unfinished"
        torch.save(found, unfinished)
        os.replace(unfinished, Path(folder) / f"{runner}.pt")


if __name__ == "__main__":
    main(sys.argv[1:])
