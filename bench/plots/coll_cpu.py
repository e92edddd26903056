#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the time of collectives over size between processes of one host: Headrace and gloo.

Usage: coll_cpu.py [OUTPUT.svg]      (bench/plots/coll_cpu.svg without one)

Every point is a row of bench/results: of each case the latest. Both are the two sides of one row, which
bench/compare_coll.py measured in turn (`python/all_reduce/8KiB/2`). Needs matplotlib (`pip install
matplotlib`), which nothing else here does.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "bench" / "results"
PICTURE = Path(__file__).with_suffix(".svg")
RANKS = 2
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}
CASE = re.compile(rf"python/({'|'.join(OPERATIONS)})/(\d+)(KiB|MiB)?/{RANKS}")

# Okabe and Ito's colours, which most people can tell apart; marks differ as well.
STYLES = {
    "headrace": {"color": "#0072B2", "linewidth": 2.2, "marker": "o", "label": "Headrace"},
    "gloo": {"color": "#D55E00", "linewidth": 2.2, "marker": "s", "label": "gloo"},
}

Row = dict[str, Any]
Points = dict[int, float]  # bytes of a rank's input: us


def rows(folder: Path = RESULTS) -> list[tuple[str, Row]]:
    """(file, row) of table coll on two cores, the oldest first."""
    found = [
        (path.name, row)
        for path in sorted(folder.glob("*-cpu2-coll.jsonl"))
        for row in map(json.loads, path.read_text().splitlines())
    ]
    return sorted(found, key=lambda pair: pair[1]["date"])


class Picture:
    """The picture's points for each operation and contender, and the files of their rows."""

    def __init__(self, folder: Path = RESULTS):
        self.points: dict[str, dict[str, Points]] = {op: {name: {} for name in STYLES} for op in OPERATIONS}
        self.sources: dict[tuple[str, int], tuple[str, str]] = {}  # of each point: file and commit
        self.machine = ""
        for file, row in rows(folder):
            match = CASE.fullmatch(row["case"])
            if not match or row["metric"] != "time" or row["peer"] != "gloo":
                continue
            op, size = match[1], int(match[2]) * UNITS.get(match[3], 1)
            self.points[op]["headrace"][size] = row["value"]
            self.points[op]["gloo"][size] = row["peer_value"]
            self.sources[op, size] = (file, row["commit"][:7])
            self.machine = row["machine"]

    def small_print(self) -> str:
        files = ", ".join(f"{file} ({commit})" for file, commit in sorted(set(self.sources.values())))
        return (
            f"{self.machine}. {RANKS} processes, from Python and in turn, median of the slowest rank, data "
            f"compared.\nRows of bench/results: {files}."
        )

    def description(self) -> str:
        """The points as JSON, for who reads the file instead of looking at it."""
        return json.dumps(self.points, sort_keys=True)


def size_name(size: int) -> str:
    for unit, factor in reversed(UNITS.items()):
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def draw(picture: Picture, output: Path) -> None:
    import matplotlib  # here: the rows can be read without it

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams.update(
        {"svg.fonttype": "path", "svg.hashsalt": "headrace", "font.family": "DejaVu Sans", "font.size": 10}
    )
    figure, panels = pyplot.subplots(2, 3, figsize=(11, 6.8), sharex=True, sharey=True)
    for panel, op in zip(panels.flat, OPERATIONS, strict=True):
        draw_panel(panel, op, picture.points[op])
    for panel in panels[:, 0]:
        panel.set_ylabel("us (logarithmic)")
    for panel in panels[1]:
        panel.set_xlabel("input of a rank (logarithmic)", fontsize=9)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="upper center", ncols=len(labels), frameon=False, bbox_to_anchor=(0.5, 0.95)
    )
    figure.suptitle("Collectives between two processes of one host", fontsize=13, y=0.985)
    small = {"ha": "center", "va": "bottom", "fontsize": 7.5, "color": "#444444", "linespacing": 1.5}
    figure.text(0.5, 0.012, picture.small_print(), **small)
    figure.subplots_adjust(left=0.075, right=0.985, top=0.86, bottom=0.185, wspace=0.06, hspace=0.2)
    title = "Collectives between two processes, time over size"
    figure.savefig(output, metadata={"Date": None, "Title": title, "Description": picture.description()})


def draw_panel(panel: Any, op: str, contenders: dict[str, Points]) -> None:
    for name, style in STYLES.items():
        points = sorted(contenders[name].items())
        panel.plot([size for size, _ in points], [us for _, us in points], markersize=5, zorder=3, **style)
    sizes = sorted(contenders["headrace"])
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(sizes, [size_name(size) for size in sizes], rotation=45, fontsize=8)
    panel.minorticks_off()
    panel.set_title(op, fontsize=11)
    panel.grid(axis="y", color="#dddddd", linewidth=0.8)
    panel.spines[["top", "right"]].set_visible(False)


def main(arguments: list[str]) -> int:
    output = Path(arguments[0]) if arguments else PICTURE
    picture = Picture()
    if not picture.sources:
        print(f"{RESULTS} holds no row of table coll: run bench/compare_coll.py", file=sys.stderr)
        return 1
    try:
        draw(picture, output)
    except ModuleNotFoundError as error:
        print(f"{error}: pip install matplotlib", file=sys.stderr)
        return 1
    print(f"{output}: {len(picture.sources)} points of {len(OPERATIONS)} operations")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
