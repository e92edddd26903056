# SPDX-License-Identifier: Apache-2.0
"""Models and the demo on GPUs."""

from __future__ import annotations

import datetime
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpu_steps import tree
from gpu_steps.compiling import COMPILER, compile_torch_runtime
from gpu_steps.endings import Failed
from gpu_steps.pytests import pytest
from gpu_steps.sitting import TAIL_LINES, Sitting, run_together
from gpu_steps.tree import ANY_LABEL, bare_loader


def runner(sitting: Sitting) -> bool:
    """Models and the demo on GPUs. The step makes libheadrace_torch.so and all packages for the torch and the
    GPU of this machine."""
    with ThreadPoolExecutor(1) as pool:
        compiled = pool.submit(compile_torch_runtime, sitting)
        compiler = compiler_that_works(sitting)
        done = compiled.result()
    if compiler is not None:
        done = compile_torch_runtime(sitting, compiler)
    if not done:
        return False
    chosen = {} if compiler is None else {"CXX": compiler}
    folders = {shape: tree.ROOT / "build" / "demo_gpu" / shape for shape in ("book", "experts", "8b")}
    if not export_models(sitting, folders, chosen):
        return False  # the tests would export again, and end as this did
    if not sitting.run([str(sitting.carried / "bin" / "headrace"), "doctor", "--device", "cuda:0"], tail=16):
        return False
    tested = pytest(
        sitting, ANY_LABEL, "-s", *sitting.options.pytest, file="test_gpu_runner.py", environment=chosen
    )
    return demo_at_size(sitting, folders["8b"]) and tested


def compiler_that_works(sitting: Sitting) -> str | None:
    """Returns a C++ compiler whose packages PyTorch's own loader loads; None if that is the default compiler.

    Raises Failed if the loader dies without Headrace: then nothing of this step can work.
    """
    outcome = try_bare_loader(sitting, None)
    if outcome.works:
        return None
    other: str | None = bare_loader.other_compiler()
    if other is not None and try_bare_loader(sitting, other).works:
        sitting.note(f"    using CXX={other}: with {COMPILER} PyTorch's own loader dies")
        return other
    raise Failed(
        f"PyTorch's own loader fails on this machine without Headrace: a bare program gave {outcome}"
    )


def try_bare_loader(sitting: Sitting, compiler: str | None) -> Any:
    """Runs PyTorch's own loader in a bare program. Returns its bare_loader.Outcome."""
    outcome = bare_loader.try_loader(
        "cuda", compiler, seconds=min(bare_loader.SECONDS, sitting.step_seconds_left())
    )
    with_compiler = f" with CXX={compiler}" if compiler else ""
    sitting.note(f"$ PyTorch's own loader{with_compiler}\n{outcome.printed}\n# {outcome}", show=False)
    lines = [] if outcome.works else outcome.printed.splitlines()[-TAIL_LINES:]
    sitting.show_end("\n".join(lines), TAIL_LINES, [f"PyTorch's own loader{with_compiler}: {outcome}"])
    return outcome


def export_models(sitting: Sitting, folders: dict[str, Path], environment: dict[str, str]) -> bool:
    """Exports the packages of the demo and of the tests."""
    export = [sys.executable, "-m", "headrace.demo_model.export", "--device", "cuda"]
    commands = {
        f"export_{shape}": [*export, "--shape", shape, "--output", str(folder)]
        for shape, folder in folders.items()
    }
    commands["export_tests"] = [
        sys.executable,
        "tests/support/gpu_models.py",
        str(tree.ROOT / "build" / "gpu_models"),
    ]
    # Without it each starts a process for each core.
    return run_together(sitting, commands, {"TORCHINDUCTOR_COMPILE_THREADS": "1", **environment})


def demo_at_size(sitting: Sitting, packages: Path) -> bool:
    """Runs `headrace demo --shape 8b`, compares its tokens with those of one process, and keeps its figures
    as rows."""
    command = [
        str(sitting.carried / "bin" / "headrace"),
        "demo",
        "--device",
        "cuda",
        "--shape",
        "8b",
        "--packages",
        str(packages),
    ]
    if not sitting.run(
        [*command, "--python", sys.executable, "--check", "--tokens", "100", "--json"], tail=0
    ):
        return False
    lines = sitting.file("stdout").read_text(errors="replace").splitlines()
    said = next((json.loads(line) for line in lines if line.startswith("{")), None)
    if said is None:
        return sitting.trouble("headrace demo printed no JSON")
    sitting.keep_rows(demo_rows(sitting, said))
    keys = (
        "prompt_tokens",
        "tokens",
        "tokens_per_second",
        "first_token_seconds",
        "bytes",
        "GB/s",
        "share_before_prefill_ended",
        "path",
    )
    sitting.note(
        "    "
        + ", ".join(
            f"{key} {said[key]:.4g}" if isinstance(said[key], float) else f"{key} {said[key]}" for key in keys
        )
    )
    return True


def demo_rows(sitting: Sitting, said: dict[str, Any]) -> str:
    """Returns the figures of `headrace demo --json` as rows."""
    values = [
        ("tokens_per_second", "1/s"),
        ("GB/s", "GB/s"),
        ("share_before_prefill_ended", "1"),
        ("first_token_seconds", "s"),
        ("bytes", "B"),
    ]
    about = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": sitting.commit,
        "machine": sitting.machine,
    }
    case = f"demo/{said['shape']}/{said['prefill_device']}-{said['decode_device']}/{said['prompt_tokens']}"
    rest = {"peer": None, "peer_value": None, "ratio": None, "checked": said["checked"]}
    command = f"headrace demo --device cuda --shape {said['shape']} --check --tokens {said['tokens']}"
    rows = [
        {
            **about,
            "command": command,
            "table": "misc",
            "case": case,
            "metric": name,
            "unit": unit,
            "value": said[name],
            **rest,
        }
        for name, unit in values
    ]
    return "\n".join(map(json.dumps, rows))
