# SPDX-License-Identifier: Apache-2.0
"""Tests whether PyTorch's own loader of packages works on this machine without Headrace, and puts the exit
status of a child process into words.

Run as a program, this file exports, compiles, loads and runs a module of one addition, and prints each step
as it begins. It imports nothing of Headrace, so that Headrace cannot cause a crash of it. tools/test_gpu.py
loads this file by its path.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SYSTEM_COMPILER = "/usr/bin/g++"
SECONDS = 180
STEPS = ("import", "export", "compile", "load", "run")
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP}


def ending(code: int) -> str:
    """Returns subprocess's return code as words: "exit code 1", "signal 11 (SIGSEGV)"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def ended(code: int) -> str:
    """Returns it with a verb: "ended with exit code 1", "ended by signal 11 (SIGSEGV)"."""
    return f"ended {'with' if code >= 0 else 'by'} {ending(code)}"


def is_crash(code: int) -> bool:
    """Returns whether the process crashed. A signal from a person or from the system's out-of-memory killer
    is no crash."""
    return -code in _CRASHES


@dataclass(frozen=True)
class Outcome:
    """The bare program's last step and return code."""

    step: str
    code: int | None  # None: it took too long and was killed
    printed: str

    @property
    def works(self) -> bool:
        return self.code == 0

    def __str__(self) -> str:
        how = "without an end" if self.code is None else ending(self.code)
        return f"{how} in step {self.step}"


def try_loader(
    device: str, compiler: str | None = None, python: str = sys.executable, seconds: float = SECONDS
) -> Outcome:
    """Runs the bare program in a child process, in a temporary folder of its own.

    compiler  the C++ compiler for the package; None: the compiler that PyTorch chooses
    seconds   time after which the child is killed
    """
    with tempfile.TemporaryDirectory(prefix="headrace-bare-", ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        if compiler is not None:
            environment["CXX"] = compiler
        command = [python, "-X", "faulthandler", str(Path(__file__).resolve()), device, folder]
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, text=True,
                capture_output=True, errors="replace", timeout=seconds, check=False,
            )  # fmt: skip
            code, said, errors = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            code, said, errors = None, _text(late.stdout), _text(late.stderr)
    begun = re.findall(r"^step (\w+)$", said, re.MULTILINE)
    return Outcome(begun[-1] if begun else STEPS[0], code, errors)


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def chosen_compiler() -> str:
    """Returns the C++ compiler that PyTorch uses."""
    return os.environ.get("CXX") or "g++"


def other_compiler() -> str | None:
    """Returns the system's C++ compiler if PyTorch uses another one, else None."""
    chosen = shutil.which(chosen_compiler()) or chosen_compiler()
    same = os.path.realpath(chosen) == os.path.realpath(SYSTEM_COMPILER)
    return None if same or not Path(SYSTEM_COMPILER).exists() else SYSTEM_COMPILER


def explain_crash(device: str) -> str:
    """Returns one or two sentences: whether PyTorch's own loader also crashes without Headrace, and whether
    another compiler helps."""
    outcome = try_loader(device)
    if outcome.works:
        return "PyTorch's own loader works: a bare program without Headrace loads and runs a package"
    if outcome.code is None or not is_crash(outcome.code):
        last = (outcome.printed.strip().splitlines() or ["nothing was printed"])[-1]
        return f"a bare program without Headrace fails as well, with {outcome}: {last}"
    text = f"PyTorch's own loader dies too, without Headrace: a bare program ended by {outcome}"
    if outcome.step not in ("load", "run"):
        text = f"PyTorch dies too, without Headrace: a bare program ended by {outcome}"
    if (compiler := other_compiler()) is not None and try_loader(device, compiler).works:
        text += f". With CXX={compiler} instead of {chosen_compiler()} it works: set that, and export again"
    return text


def _bare_program(device: str, folder: Path) -> None:
    def begin(step: str) -> None:
        print(f"step {step}", flush=True)

    begin("import")
    import torch

    class Addition(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    begin("export")
    x = torch.zeros(8, device=device)
    exported = torch.export.export(Addition(), (x,))
    begin("compile")
    from torch._inductor import config

    if hasattr(config.aot_inductor, "precompile_headers"):
        config.aot_inductor.precompile_headers = (
            False  # precompiling takes as long as all other steps together
        )
    package = torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / "addition.pt2"))
    begin("load")
    loaded = torch._inductor.aoti_load_package(package)
    begin("run")
    if not torch.equal(loaded(x), x + 1):
        sys.exit("the package gives other numbers than the module")


if __name__ == "__main__":
    # Python puts this folder first on the path, where its modules would hide others of the same names.
    sys.path[:] = [
        entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent
    ]
    _bare_program(sys.argv[1], Path(sys.argv[2]))
