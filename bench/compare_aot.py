#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiled models: Headrace, PyTorch's bare C++ loader and PyTorch's Python runner, in turn on the same
packages.

The bare loader checks no input and is given the unpacked folder; Headrace checks every input and is given the
.pt2 with its cache filled. Every process uses one torch thread (OMP_NUM_THREADS). Outputs are compared byte
by byte. Rows go to bench/results, table `aot`.

    .venv/bin/python bench/compare_aot.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from comparison import ROOT, Rows, default_label, ended, median, table

PACKAGES = ROOT / "build" / "models"
CASES = {"add": ("1024", 20000), "mlp": ("32x256", 3000), "convolution": ("1x3x32x32", 3000)}

PYTHON = """
import json, sys, time
import numpy as np
which, package, shape, runs, output = sys.argv[1:]
shape = tuple(int(n) for n in shape.split("x"))
count = int(np.prod(shape))
x = ((np.arange(count) % 251).astype(np.float32) / np.float32(251) - np.float32(0.5)).reshape(shape)
begin = time.perf_counter()
import torch
torch.set_num_threads(1)
if which == "headrace":
    import headrace
    model = headrace.Model(package, threads=1).run
else:
    model = torch._inductor.aoti_load_package(package)
loaded = time.perf_counter() - begin
x = torch.from_numpy(x)
samples = []
with torch.no_grad():
    for _ in range(200):
        model(x)
    for _ in range(int(runs)):
        start = time.perf_counter_ns()
        outputs = model(x)
        samples.append(time.perf_counter_ns() - start)
outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
with open(output, "wb") as file:
    for one in outputs:
        file.write(np.from_dlpack(one).tobytes())
samples.sort()
print(json.dumps({"load_us": loaded * 1e6, "p50_us": samples[len(samples) // 2] / 1e3, "runs_per_second": 0}))
"""


def run(arguments: list[str]) -> dict[str, Any]:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{ended(arguments[0], done.returncode)}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


class Sitting:
    """Runs the programs in turn, so that a slower time of the machine affects all of them."""

    def __init__(self, folder: Path, programs: Path, rounds: int):
        self.folder, self.programs, self.rounds = folder, programs, rounds
        for name in CASES:
            with zipfile.ZipFile(PACKAGES / f"{name}.pt2") as package:
                package.extractall(folder / name)

    def measure(self, name: str, callers: int = 1) -> tuple[dict[str, dict[str, list[float]]], bool]:
        """Returns each program's figures, and whether the outputs of all were compared and are the same."""
        shape, runs = CASES[name]
        package = str(PACKAGES / f"{name}.pt2")
        commands = {
            "headrace": [str(self.programs / "bench_aot_model"), package, shape, str(runs), str(callers)],
            "loader": [
                str(self.programs / "bench_aot_loader"),
                str(self.folder / name),
                shape,
                str(runs),
                str(callers),
            ],
        }
        if callers == 1:
            commands["headrace python"] = [
                sys.executable,
                "-c",
                PYTHON,
                "headrace",
                package,
                shape,
                str(runs),
            ]
            commands["torch python"] = [sys.executable, "-c", PYTHON, "torch", package, shape, str(runs)]
        found: dict[str, dict[str, list[float]]] = {who: {} for who in commands}
        outputs: list[bytes] = []
        for _ in range(self.rounds):
            for who, command in commands.items():
                said, output = self.run(command)
                for key, value in said.items():
                    found[who].setdefault(key, []).append(value)
                outputs.append(output)
        return found, self.same(name, outputs)

    def run(self, command: list[str]) -> tuple[dict[str, Any], bytes]:
        """Returns a program's figures and its outputs."""
        output = self.folder / "output"
        output.unlink(missing_ok=True)  # those of the program before
        return run([*command, str(output)]), output.read_bytes()

    @staticmethod
    def same(name: str, outputs: list[bytes]) -> bool:
        """Compares the outputs of all runs; raises an error if they differ."""
        if len(set(outputs)) > 1:
            sys.exit(f"{name}: the outputs differ")
        return len(outputs) > 1 and len(outputs[0]) > 0

    def measure_load(self, name: str, rounds: int) -> tuple[float, float, bool]:
        """Returns the median microseconds of a first load in a fresh process, of Headrace and of the bare
        loader, and whether the outputs were compared and are the same."""
        shape, package = CASES[name][0], str(PACKAGES / f"{name}.pt2")
        ours, theirs, outputs = [], [], []
        for _ in range(rounds):
            for samples, program, path in (
                (ours, "bench_aot_model", package),
                (theirs, "bench_aot_loader", str(self.folder / name)),
            ):
                said, output = self.run([str(self.programs / program), path, shape, "1", "1"])
                samples.append(said["load_us"])
                outputs.append(output)
        return median(ours), median(theirs), self.same(name, outputs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--programs",
        type=Path,
        default=ROOT / "build" / "release" / "bench",
        help="folder of bench_aot_model and bench_aot_loader",
    )
    parser.add_argument("--rounds", type=int, default=5, help="processes per program")
    parser.add_argument("--load-rounds", type=int, default=41, help="processes per program that only load")
    parser.add_argument("--machine-label", default=default_label(), help="label in the file name of the rows")
    parser.add_argument("--no-rows", action="store_true", help="write no rows")
    options = parser.parse_args()
    subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "export_models.py"), str(PACKAGES)], check=True
    )
    rows = Rows("aot", options.machine_label)
    print(f"{rows.common['machine']}, commit {rows.common['commit']}", flush=True)

    shown: list[list[str]] = []

    def add(
        case: str,
        metric: str,
        unit: str,
        ours: float,
        peer: str,
        theirs: float,
        same: bool,
        lower: bool = True,
    ) -> None:
        rows.add(case, metric, unit, ours, peer=peer, peer_value=theirs, lower_is_better=lower, checked=same)
        shown.append(
            [
                case,
                metric,
                f"{ours:.3f} {unit}",
                f"{peer} {theirs:.3f} {unit}",
                f"{theirs / ours if lower else ours / theirs:.2f}",
            ]
        )

    with tempfile.TemporaryDirectory(prefix="headrace-aot-") as folder:
        os.environ["HEADRACE_CACHE_DIR"] = str(Path(folder) / "cache")
        os.environ["OMP_NUM_THREADS"] = "1"
        sitting = Sitting(Path(folder), options.programs, options.rounds)
        one_caller = {}
        for name in CASES:
            found, same = sitting.measure(name)
            middle = {
                who: {key: median(samples) for key, samples in values.items()}
                for who, values in found.items()
            }
            one_caller[name] = middle
            add(
                f"{name}/cpp",
                "p50_us",
                "us",
                middle["headrace"]["p50_us"],
                "bare C++ loader",
                middle["loader"]["p50_us"],
                same,
            )
            add(
                f"{name}/python",
                "p50_us",
                "us",
                middle["headrace python"]["p50_us"],
                "PyTorch's Python runner",
                middle["torch python"]["p50_us"],
                same,
            )
            ours, theirs, loaded_same = sitting.measure_load(
                name, options.load_rounds
            )  # the cache is filled by now
            add(
                f"load/{name}", "ms", "ms", ours / 1e3, "bare C++ loader, unpacked", theirs / 1e3, loaded_same
            )
            add(
                f"load/{name}/python",
                "ms",
                "ms",
                middle["headrace python"]["load_us"] / 1e3,
                "PyTorch's Python runner",
                middle["torch python"]["load_us"] / 1e3,
                same,
            )
        two, same = sitting.measure("mlp", callers=2)
        ours = median(two["headrace"]["runs_per_second"])
        add(
            "mlp/2 threads",
            "runs_per_second",
            "1/s",
            ours,
            "itself with 1 thread",
            one_caller["mlp"]["headrace"]["runs_per_second"],
            same,
            lower=False,
        )
        add(
            "mlp/2 threads/cpp",
            "runs_per_second",
            "1/s",
            ours,
            "bare C++ loader, 2 runners",
            median(two["loader"]["runs_per_second"]),
            same,
            lower=False,
        )
    print("\n" + table(["case", "metric", "headrace", "peer", "times better"], shown))
    if not options.no_rows:
        print(f"\nrows: {rows.write().relative_to(ROOT)}")


if __name__ == "__main__":
    main()
