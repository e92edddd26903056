#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests and measures on a machine with GPUs, which needs no network. The steps run one after another, each
with a time limit of its own, and a failed step does not stop the later ones.

If the build's dependencies are installed, `make test-gpu` builds first. If they are not, a release build of
another machine is copied here, and only the Python extension is compiled on the GPU machine, for the
interpreter that runs this program:

    tools/test_gpu.py --collect FOLDER BUILD    on the machine that builds, after `make build`: copies the
                                                needed files of BUILD (build/release) into FOLDER
    tools/test_gpu.py --carried FOLDER          on the GPU machine: in the same checkout, with a Python that
                                                has torch, NumPy and pytest

--steps names some of the steps, in the order in which they run; the files of an earlier step `extension` are
used again. The output of all steps goes to test_gpu.log in --out, rows go to files as in bench/results. A
step that ran no test, or measured nothing, says `nothing run` with the reason, and counts as failed. A step
for which the build has no test says `no test of this kind in this build`; it fails the run only if --steps
names it or no other step ran.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from gpu_steps import tree
from gpu_steps.collecting import build_here, collect
from gpu_steps.sitting import Sitting
from gpu_steps.steps import BUDGET, EVERY_TIME, STEPS, run_steps


def main() -> int:
    started = time.monotonic()  # a build here counts, too
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--collect",
        nargs=2,
        type=Path,
        metavar=("FOLDER", "BUILD"),
        help="copy the files that a GPU machine needs into FOLDER, and end",
    )
    parser.add_argument(
        "--carried", type=Path, metavar="FOLDER", help="folder of --collect (default: build on this machine)"
    )
    parser.add_argument(
        "--nixl",
        type=Path,
        metavar="FOLDER",
        help="folder with NIXL's package, or an archive or wheel of it, to compare with",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(os.environ.get("OUT") or tree.ROOT / "build" / "reports" / "gpu"),
        help="folder for log, reports and rows",
    )
    parser.add_argument("--steps", metavar="A,B", help=f"run only these steps, of: {', '.join(STEPS)}")
    parser.add_argument(
        "--budget",
        type=float,
        default=BUDGET,
        metavar="SECONDS",
        help=f"limit of the whole run, the build included (default: {BUDGET})",
    )
    parser.add_argument(
        "--soak-seconds", type=float, default=60, metavar="SECONDS", help="limit of the soak (default: 60)"
    )
    parser.add_argument(
        "--pytest",
        action="append",
        default=[],
        metavar="ARGUMENT",
        help="argument for pytest in the step `tests`, such as --pytest=-x; can be repeated",
    )
    parser.add_argument("--jobs", type=int, default=0, help="compilers at once (default: one per core)")
    options = parser.parse_args()
    if options.collect:
        collect(*options.collect)
        return 0
    names = options.steps.split(",") if options.steps else EVERY_TIME
    if unknown := [name for name in names if name not in STEPS]:
        parser.error(f"there is no step {', '.join(unknown)}: the steps are {', '.join(STEPS)}")
    options.built_here = options.carried is None
    if options.built_here:
        options.carried = build_here()
    elif not (options.carried / "lib" / "libheadrace.so.0").exists():
        sys.exit(f"{options.carried} is not a folder of --collect: it has no lib/libheadrace.so.0")
    return run_steps(Sitting(options, started), names)


if __name__ == "__main__":
    sys.exit(main())
