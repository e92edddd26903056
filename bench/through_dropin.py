# SPDX-License-Identifier: Apache-2.0
"""The part of compare_nixl.py for --through-dropin: how much of Headrace's speed reaches a program written
for NIXL."""

from __future__ import annotations

import os
from typing import Any

from comparison import PYTHON, ROOT, Measured, Rows, median, percentile, table

LIBRARY = "dropin"
IN_TURN = "make-in-turn"  # in one process, call by call
PACKAGES = ROOT / "packaging" / "headrace_nixl" / "src"

# Registered memory alone: NIXL has no other.
TURNS: list[tuple[str, str, dict[str, Any], bool]] = [
    ("nixl", "nixl", {}, False),
    (LIBRARY, "drop-in", {}, False),
    ("headrace", "headrace registered", {}, False),
]

Samples = dict[str, dict[str, Measured]]


def environment() -> dict[str, str]:
    """Makes `import nixl` give the drop-in, as the wheel headrace-nixl does."""
    path = [str(PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path), "NIXL_LOG_LEVEL": "WARN"}


def report(samples: Samples, rows: Rows) -> None:
    """Adds a row for each case: the drop-in against the native API, and against NIXL.

    Preparing is compared only from arrays of rows on all sides, (address, length, device) or (region, offset,
    length): a native program with base and stride does other work.
    """
    shown = []
    for case in (case for case in samples if not case.startswith(("make/", "prepare/", IN_TURN))):
        contenders = samples[case]
        shown.append(
            _line(rows, case, *(contenders[name] for name in ("drop-in", "headrace registered", "nixl")))
        )
    for case in (case for case in samples if case.startswith("make/")):
        for dtype in ("int32", "uint32", "int64"):
            times = (samples[case][f"{name} {dtype}"] for name in ("drop-in", "headrace registered", "nixl"))
            shown.append(_line(rows, f"{case}/{dtype}", *times))
    for case in (case for case in samples if case.startswith(IN_TURN)):
        value, own = (median(samples[case][name]) * 1e6 for name in ("drop-in", "native"))
        rows.add(
            f"{PYTHON}dropin/{case}", "p50_us", "us", value, peer="headrace, native", peer_value=own,
            lower_is_better=True, checked=False,
        )  # fmt: skip
        shown.append(
            [
                case,
                f"{value:.2f}",
                f"{percentile(samples[case]['drop-in'], 99) * 1e6:.2f}",
                f"{own:.2f}",
                "",
                f"{own / value:.3f}",
                "",
            ]
        )
    print(
        table(
            ["median", "drop-in us", "p99", "native us", "nixl us", "native / drop-in", "nixl / drop-in"],
            shown,
        ),
        "\n",
    )


def _line(rows: Rows, case: str, ours: Measured, native: Measured, theirs: Measured) -> list[str]:
    value, own, peer = (median(times) * 1e6 for times in (ours, native, theirs))
    for name, other in (("headrace, native", native), ("nixl 1.5.1", theirs)):
        rows.add(
            f"{PYTHON}dropin/{case}", "p50_us", "us", value, peer=name, peer_value=median(other) * 1e6,
            lower_is_better=True, checked=ours.checked and other.checked,
        )  # fmt: skip
    return [
        case,
        f"{value:.2f}",
        f"{percentile(ours, 99) * 1e6:.2f}",
        f"{own:.2f}",
        f"{peer:.2f}",
        f"{own / value:.3f}",
        f"{peer / value:.2f}",
    ]
