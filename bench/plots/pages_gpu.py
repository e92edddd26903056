#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws GB/s over page size for pages between two GPUs, read and write: Headrace, NIXL, and a bare kernel.

Usage: pages_gpu.py [OUTPUT.svg]      (bench/plots/pages_gpu.svg without one)

Every point is a row of bench/results: of each case the latest. Headrace and NIXL are the two sides of one
row, which bench/compare_nixl.py measured in turn (`python/read/...`); of NIXL's settings the better one
counts at each point. The ceiling is the best of the bare kernels and copy engines of
bench/compare_ceilings.py (`read/.../bare_...`). Needs matplotlib (`pip install matplotlib`), which nothing
else here does.
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
MACHINE = "h200x2"
OPERATIONS = ("read", "write")

# Okabe and Ito's colours, which most people can tell apart; lines and marks differ as well.
STYLES = {
    "ceiling": {
        "color": "#555555",
        "linestyle": (0, (4, 3)),
        "linewidth": 1.4,
        "marker": "",
        "label": "ceiling: a bare kernel or copy engine",
    },
    "headrace": {"color": "#0072B2", "linestyle": "-", "linewidth": 2.2, "marker": "o", "label": "Headrace"},
    "nixl": {
        "color": "#D55E00",
        "linestyle": "-",
        "linewidth": 2.2,
        "marker": "s",
        "label": "NIXL, the better of its settings",
    },
}

Row = dict[str, Any]
Points = dict[int, float]  # page size in bytes: GB/s


def rows(table: str, folder: Path = RESULTS) -> list[tuple[str, Row]]:
    """(file, row) of that table, the oldest first."""
    found = []
    for path in sorted(folder.glob(f"*-{MACHINE}-*.jsonl")):
        found += [
            (path.name, row)
            for row in map(json.loads, path.read_text().splitlines())
            if row["table"] == table
        ]
    return sorted(found, key=lambda pair: pair[1]["date"])


class Picture:
    """The picture's points for each operation and contender, and the files of their rows."""

    def __init__(self, folder: Path = RESULTS):
        self.points: dict[str, dict[str, Points]] = {op: {name: {} for name in STYLES} for op in OPERATIONS}
        self.sources: dict[tuple[str, str, str, int], tuple[str, str]] = {}  # of each point: file and commit
        self.machine = ""
        self.peer = ""  # with its version
        self._add_contenders(folder)
        self._add_ceiling(folder)

    def _add_contenders(self, folder: Path) -> None:
        sittings: dict[tuple[str, int], str] = {}
        case = re.compile(r"python/(read|write)/(\d+)x\d+")
        for file, row in rows("pages-gpu", folder):
            match = case.fullmatch(row["case"])
            if not match or row["metric"] != "GB/s" or row["peer_value"] is None:
                continue
            op, page = match[1], int(match[2])
            ours, theirs = self.points[op]["headrace"], self.points[op]["nixl"]
            same_sitting = sittings.get((op, page)) == row["date"]
            theirs[page] = max(theirs[page], row["peer_value"]) if same_sitting else row["peer_value"]
            ours[page] = row["value"]
            sittings[op, page] = row["date"]
            self._note(file, row, "nixl", op, page)

    def _add_ceiling(self, folder: Path) -> None:
        case = re.compile(r"(read|write)/(\d+)x\d+/(bare_.*)")
        ways: dict[tuple[str, int], dict[str, float]] = {}
        for file, row in rows("ceilings-gpu", folder):
            match = case.fullmatch(row["case"])
            if not match or row["metric"] != "GB/s" or int(match[2]) not in self.points[match[1]]["headrace"]:
                continue
            ways.setdefault((match[1], int(match[2])), {})[match[3]] = row["value"]  # the latest of each way
            self._note(file, row, match[3], match[1], int(match[2]))
        for (op, page), values in ways.items():
            self.points[op]["ceiling"][page] = max(values.values())

    def _note(self, file: str, row: Row, way: str, op: str, page: int) -> None:
        self.machine = row["machine"]
        if row["peer"]:
            self.peer = "NIXL " + row["peer"].rsplit(" ", 1)[-1]  # "nixl 2 threads 1.5.1"
        self.sources[row["table"], way, op, page] = (file, row["commit"][:7])

    def small_print(self) -> str:
        files = ", ".join(f"{file} ({commit})" for file, commit in sorted(set(self.sources.values())))
        return (
            f"{self.machine}. Two processes, pages at random places on both sides, 64 MiB at 4 KiB and 256 "
            "MiB else, from post to the end of wait,\n"
            f"Headrace and {self.peer} from Python and in turn, data compared after every transfer.\n"
            f"Rows of bench/results: {files}."
        )

    def description(self) -> str:
        """The points as JSON, for who reads the file instead of looking at it."""
        return json.dumps(self.points, sort_keys=True)


def page_name(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def draw(picture: Picture, output: Path) -> None:
    import matplotlib  # here: the rows can be read without it

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams.update(
        {"svg.fonttype": "path", "svg.hashsalt": "headrace", "font.family": "DejaVu Sans", "font.size": 11}
    )
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4.9), sharey=True)
    for panel, op in zip(panels, OPERATIONS, strict=True):
        draw_panel(panel, op, picture.points[op])
    panels[0].set_ylabel("GB/s")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="upper center", ncols=len(labels), frameon=False, bbox_to_anchor=(0.5, 0.925)
    )
    figure.suptitle("Scattered pages from GPU memory to another process's GPU memory", fontsize=13, y=0.985)
    figure.text(
        0.5,
        0.012,
        picture.small_print(),
        ha="center",
        va="bottom",
        fontsize=7.5,
        color="#444444",
        linespacing=1.5,
    )
    figure.subplots_adjust(left=0.065, right=0.985, top=0.79, bottom=0.255, wspace=0.06)
    figure.savefig(
        output,
        metadata={
            "Date": None,
            "Title": "Pages between two GPUs, GB/s over page size",
            "Description": picture.description(),
        },
    )


def draw_panel(panel: Any, op: str, contenders: dict[str, Points]) -> None:
    for name, style in STYLES.items():
        points = sorted(contenders[name].items())
        panel.plot(
            [size for size, _ in points],
            [value for _, value in points],
            markersize=6,
            clip_on=False,
            zorder=3,
            **style,
        )
    for name in ("headrace", "nixl"):
        for size, value in contenders[name].items():
            text = f"{value:.1f}" if value < 10 else f"{value:.0f}"
            away, side = (
                ((0, -15), "center")
                if name == "headrace"
                else ((0, 9), "center")
                if value < 50
                else ((-7, 6), "right")
            )
            panel.annotate(
                text,
                (size, value),
                away,
                textcoords="offset points",
                ha=side,
                fontsize=9,
                color=STYLES[name]["color"],
            )
    sizes = sorted(contenders["headrace"])
    panel.set_xscale("log", base=2)
    panel.set_xticks(sizes, [page_name(size) for size in sizes])
    panel.minorticks_off()
    panel.set_xlim(sizes[0] / 1.6, sizes[-1] * 1.6)
    panel.set_ylim(0, 400)
    panel.set_xlabel("page size (logarithmic)")
    panel.set_title(
        {"read": "read: the other GPU's pages into ours", "write": "write: our pages into the other GPU"}[op],
        fontsize=11,
    )
    panel.grid(axis="y", color="#dddddd", linewidth=0.8)
    panel.spines[["top", "right"]].set_visible(False)


def main(arguments: list[str]) -> int:
    output = Path(arguments[0]) if arguments else PICTURE
    picture = Picture()
    if not picture.points["read"]["headrace"]:
        print(
            f"{RESULTS} holds no row of pages-gpu that a peer was measured in: run bench/compare_nixl.py "
            f"--device cuda",
            file=sys.stderr,
        )
        return 1
    try:
        draw(picture, output)
    except ModuleNotFoundError as error:
        print(f"{error}: pip install matplotlib", file=sys.stderr)
        return 1
    print(
        f"{output}: "
        + ", ".join(
            f"{len(points)} points {op} {name}"
            for op in OPERATIONS
            for name, points in picture.points[op].items()
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
