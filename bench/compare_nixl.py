#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NIXL and Headrace in turn: two processes, random pages of a 256 MiB buffer on both sides, in host memory or
on GPUs.

The same code drives both from Python (bench/page_worker.py): the same buffers, the same pages, the clock from
post to completion. Every byte that moved is compared after each transfer: `checked` in the rows says so. All
cases begin with `python/`. Each library has the machine to itself: its two processes start, run every case,
and end before those of the other start; as often as --rounds says. NIXL runs at its defaults and with each of
the settings of NIXL_SETTINGS; ratios are to the best of them at the case. Rows go to bench/results.

    python bench/compare_nixl.py --install      once: puts the nixl wheel into build/nixl-venv
    .venv/bin/python bench/compare_nixl.py      needs the package headrace in the interpreter that runs it
    .venv/bin/python bench/compare_nixl.py --through-dropin
        the program written for NIXL, unchanged, on NIXL and on headrace.compat.nixl, beside the same on
        Headrace's own API
    python bench/compare_nixl.py --device cuda --nixl-path FOLDER
        between two GPUs, with an interpreter that has torch; FOLDER holds the package nixl, on a machine
        without network; --kinds vram-dram between a GPU and host memory, --over tcp through sockets alone;
        --target-gpu 0 on a machine with one GPU
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
import venv
from collections import defaultdict
from pathlib import Path
from typing import Any

import through_dropin
from comparison import (
    PYTHON,
    RESULTS,
    ROOT,
    Measured,
    Rows,
    Stuck,
    Worker,
    default_label,
    median,
    percentile,
    rounded,
    table,
)

VENV = ROOT / "build" / "nixl-venv"
VERSION = "1.5.1"

BUFFER = 256 << 20
MOST_PAGES = 16384
PAGES = [4096, 16384, 65536, 262144, 1 << 20, 16 << 20]
SINGLES = [64, 4096]
SINGLE_COUNT, SINGLE_ROUNDS = 256, 8
REGIONS = 100_000
METADATA_METRICS = (
    ("bytes_per_region", "bytes", "bytes", 1 / REGIONS),
    ("register_us_per_region", "us", "register", 1e6 / REGIONS),
    ("export_ms", "ms", "export", 1e3),
    ("load_ms", "ms", "load", 1e3),
)

# What its documentation offers for this job, beside the defaults: a pool of threads that share a request's
# pages, and no thread of its own beside the caller's polling.
NIXL_SETTINGS: dict[str, dict[str, Any]] = {
    "nixl": {},
    "nixl 2 threads": {"num_threads": 2},
    "nixl no progress thread": {"enable_prog_thread": False},
}
# What might help it beside host memory and over sockets, asked for by --tuned: several workers, each with
# connections of its own; longer segments than its 8 KiB, for it sends through segments what no transport of
# its can read or write in place; another scheme of its rendezvous, by more rails. Settings of the agent, and
# of the environment. (Without tcp among its transports its agent does not start.)
EIGHT_THREADS = {"num_threads": 8}
LONG_SEGMENTS_OF_MEMORY = {"UCX_POSIX_SEG_SIZE": "256k", "UCX_SYSV_SEG_SIZE": "256k"}
LONG_SEGMENTS_OF_TCP = {
    "UCX_TCP_TX_SEG_SIZE": "256k",
    "UCX_TCP_RX_SEG_SIZE": "256k",
    "UCX_TCP_SNDBUF": "8m",
    "UCX_TCP_RCVBUF": "8m",
}
RENDEZVOUS = {"UCX_RNDV_SCHEME": "put_ppln", "UCX_MAX_RNDV_RAILS": "4", "UCX_MEMTYPE_CACHE": "n"}
Tuned = dict[str, tuple[dict[str, Any], dict[str, str]]]


def tuned_settings(long_segments: dict[str, str]) -> Tuned:
    return {
        "nixl 8 threads": (EIGHT_THREADS, {}),
        "nixl long segments": ({}, long_segments),
        "nixl 8 threads and long segments": (EIGHT_THREADS, long_segments),
        "nixl rendezvous": ({}, RENDEZVOUS),
    }


OURS = {"registered": False, "allocated": True}
# What each library is told to go by sockets alone; NIXL has as many as its defaults make, Headrace those that
# the goals are about.
OVER_TCP = {
    "nixl": {"UCX_TLS": "tcp,cuda_copy,self"},
    "headrace": {
        "HEADRACE_BACKENDS": "tcp",
        "HEADRACE_TCP_SOCKETS": str(min(8, len(os.sched_getaffinity(0)))),
    },
}

# The GPUs of initiator and target, and the single pages that are timed between them.
INITIATOR, TARGET = 0, 1
Places = tuple[int | None, int | None]  # the GPUs of initiator and target; None: host memory
HOST_MEMORY: Places = (None, None)
KINDS: dict[str, Places] = {
    "vram-vram": (INITIATOR, TARGET),
    "vram-dram": (INITIATOR, None),
    "dram-vram": (None, INITIATOR),
    "dram-dram": HOST_MEMORY,
}
GPU_SINGLES = [4096]
GPU_PATIENCE = 40  # seconds for an answer: NIXL's slowest transfer takes 0.1

Samples = dict[str, dict[str, Measured]]  # case -> contender -> seconds


def install() -> None:
    """Installs the wheel and NumPy, without torch: NIXL uses torch only to recognise tensors."""
    if not (VENV / "bin" / "python").exists():
        print(f"making {VENV.relative_to(ROOT)}")
        venv.create(VENV, with_pip=True)
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "numpy", "setuptools"], check=True)
    subprocess.run([*pip, "--no-deps", f"nixl=={VERSION}", f"nixl-cu12=={VERSION}"], check=True)
    print(f"NIXL {VERSION} is in {VENV.relative_to(ROOT)}")


Interpreter = tuple[str, dict[str, str]]  # a Python, and what its environment has beside ours
OF_VENV: Interpreter = (str(VENV / "bin" / "python"), {})


def interpreter_of(options: argparse.Namespace) -> Interpreter:
    """Returns the Python with NIXL: the one of --install, or of --python, or this one with the folder of
    --nixl-path."""
    if options.python is None and options.nixl_path is None:
        return OF_VENV
    if options.nixl_path is None:
        return options.python, {}
    return options.python or sys.executable, {
        "PYTHONPATH": os.pathsep.join([str(options.nixl_path), os.environ.get("PYTHONPATH", "")])
    }


class Pair:
    """Two processes of one library that have each other's metadata."""

    def __init__(
        self,
        library: str,
        settings: dict[str, Any],
        allocated: bool,
        places: Places = HOST_MEMORY,
        nixl: Interpreter = OF_VENV,
        over_tcp: bool = False,
        more_environment: dict[str, str] | None = None,
    ):
        python, environment = nixl if library == "nixl" else (sys.executable, {})
        environment = {**environment, **(more_environment or {}), **(OVER_TCP[library] if over_tcp else {})}
        if library == through_dropin.LIBRARY:
            environment = through_dropin.environment()
        patience = 120 if places == HOST_MEMORY else GPU_PATIENCE
        self.here, self.there = Worker(python, environment, patience), Worker(python, environment, patience)
        seed = random.getrandbits(60)
        library = "nixl" if library == through_dropin.LIBRARY else library  # the same program
        try:
            for worker, name, gpu in ((self.here, "initiator", places[0]), (self.there, "target", places[1])):
                worker.begin(
                    "open",
                    library=library,
                    name=f"{library}-{name}-{seed:x}",
                    settings=settings,
                    buffer_bytes=BUFFER,
                    allocated=allocated,
                    seed=seed,
                    device=gpu,
                )
            ours, theirs = self.here.end(), self.there.end()
            self.here.ask("connect", metadata=theirs["metadata"], own=theirs["own"])
            self.there.ask("connect", metadata=ours["metadata"], own=ours["own"])
        except BaseException:
            self.stop()
            raise

    def transfer(self, op: str, page: int, count: int, posts: int = 1) -> dict[str, Any]:
        source, target = self._source_and_target(op)
        delta, seed, slots = random.getrandbits(63), random.getrandbits(60), BUFFER // page
        self._refresh(source, target, delta)
        result = self.here.ask("transfer", op=op, slots=slots, count=count, seed=seed, posts=posts)
        result["right"] = self._check(target, page, count, seed, delta)
        return result

    def singles(self, op: str, page: int) -> tuple[list[float], bool]:
        """The seconds, and whether the data is right."""
        source, target = self._source_and_target(op)
        delta, seed, slots = random.getrandbits(63), random.getrandbits(60), BUFFER // page
        self._refresh(source, target, delta)
        seconds = self.here.ask(
            "singles", op=op, slots=slots, count=SINGLE_COUNT, seed=seed, rounds=SINGLE_ROUNDS
        )
        right = self._check(target, page, SINGLE_COUNT, seed, delta)
        return seconds[SINGLE_COUNT:], right  # the first round is a warm-up

    def _source_and_target(self, op: str) -> tuple[Worker, Worker]:
        return (self.there, self.here) if op == "read" else (self.here, self.there)

    @staticmethod
    def _refresh(source: Worker, target: Worker, delta: int) -> None:
        source.begin("stamp", delta=delta)
        target.begin("wipe")
        source.end()
        target.end()

    @staticmethod
    def _check(target: Worker, page: int, count: int, seed: int, delta: int) -> bool:
        """True: all pages were compared. Data that is wrong is an error."""
        found = target.ask("check", page=page, slots=BUFFER // page, count=count, seed=seed, delta=delta)
        if found["wrong"]:
            raise RuntimeError(f"the data that was moved is wrong: {found['wrong']}")
        return found["compared"] == count

    def stop(self) -> None:
        self.here.stop()
        self.there.stop()


def run_cases(pair: Pair, contender: str, options: argparse.Namespace, samples: Samples) -> None:
    for page in options.pages:
        count = min(BUFFER // page, MOST_PAGES)
        # No data moves while lists and requests are made: False.
        prepare = pair.here.ask("prepare", page=page, slots=BUFFER // page) / (BUFFER // page)
        samples[f"prepare/{page}"][contender].take([prepare], False)
        for op in ("read", "write"):
            for i in range(options.warm_up + options.iterations):
                result = pair.transfer(op, page, count, options.posts)
                if i == 0 and op == "read" and page == options.pages[0]:
                    print(f"  {contender} uses the path {result['path']}", flush=True)
                if i >= options.warm_up:
                    samples[f"{op}/{page}x{count}"][contender].take([result["seconds"]], result["right"])
        if page == 4096:
            # What is to be within a few percent of something needs more samples than what is many times
            # something.
            rounds = 100 if options.through_dropin else 20
            for dtype in ("int32", "uint32", "int64"):
                made = pair.here.ask("make", slots=BUFFER // page, count=count, dtype=dtype, rounds=rounds)
                samples[f"make/{count}"][f"{contender} {dtype}"].take(made, False)
                if contender == "drop-in":
                    in_turn = pair.here.ask(
                        "make_in_turn", slots=BUFFER // page, count=count, dtype=dtype, rounds=rounds
                    )
                    for name, seconds in in_turn.items():
                        samples[f"{through_dropin.IN_TURN}/{count}/{dtype}"][name].take(seconds, False)
            if options.through_dropin:
                for order in ("regular", "shuffled"):
                    prepared = pair.here.ask(
                        "prepare_rows", page=page, slots=count, shuffled=order == "shuffled", rounds=rounds
                    )
                    samples[f"prepare-rows/{page}x{count}/{order}"][contender].take(prepared, False)
        pair.here.ask("drop")
    for page in GPU_SINGLES if options.as_gpus else SINGLES:
        pair.here.ask("prepare", page=page, slots=BUFFER // page)
        for op in ("read", "write"):
            samples[f"single/{op}/{page}"][contender].take(*pair.singles(op, page))
        pair.here.ask("drop")


def run_metadata(library: str) -> dict[str, float]:
    pair = Pair(library, {}, False)
    try:
        made = pair.there.ask("register_many", count=REGIONS)
        # A third process that has never heard of it, as a peer that joins would be.
        fresh = Pair(library, {}, False)
        try:
            load = fresh.here.ask("load", metadata=pair.there.ask("exported_metadata"))
        finally:
            fresh.stop()
        return {**made, "load": load}
    finally:
        pair.stop()


def report_gpus(samples: Samples, rows: Rows, options: argparse.Namespace) -> None:
    """Prints the figures and adds the rows of GPUs or sockets; of Headrace alone if NIXL could not be
    measured."""
    usual = (
        options.kinds == "vram-vram" and not options.over
    )  # the table that had no others beside it at first
    here, there = options.kinds.split("-")
    arrows = {"read": f"{here}<-{there}", "write": f"{here}->{there}"}

    def spelt(measured: str, ours: str) -> str:
        """As the other tables spell it."""
        if not usual:
            kind, *rest = measured.split("/")
            measured = "/".join([arrows.get(kind, kind), *rest])
        return (
            PYTHON
            + ("allocated/" if "allocated" in ours else "")
            + measured.replace("single/read/", "single/")
        )

    def compare(
        measured: str, ours_is: str, metric: str, unit: str, value_of: Any, lower_is_better: bool
    ) -> list[str]:
        case = spelt(measured, ours_is)
        contenders = samples[measured]
        ours = value_of(contenders[ours_is]) if contenders[ours_is] else None
        peers = {
            name: value_of(seconds)
            for name, seconds in contenders.items()
            if not name.startswith("headrace") and seconds
        }
        if ours is None or not peers:
            if ours is not None:
                rows.add(
                    case,
                    metric,
                    unit,
                    ours,
                    lower_is_better=lower_is_better,
                    checked=contenders[ours_is].checked,
                )
            return [
                case,
                metric,
                f"{rounded(ours)}",
                ", ".join(f"{rounded(value)}" for value in peers.values()),
                "",
                ", ".join(peers),
            ]
        best = (min if lower_is_better else max)(peers, key=lambda name: peers[name])
        for name in dict.fromkeys([best, *(name for name in peers if name == "nixl")]):
            rows.add(
                case,
                metric,
                unit,
                ours,
                peer=f"{name} {VERSION}",
                peer_value=peers[name],
                lower_is_better=lower_is_better,
                checked=contenders[ours_is].checked and contenders[name].checked,
            )
        ratio = peers[best] / ours if lower_is_better else ours / peers[best]
        return [case, metric, f"{rounded(ours)}", f"{rounded(peers[best])}", f"{ratio:.1f}x", best]

    lines = []
    for case in list(samples):
        kind, *rest = case.split("/")
        for ours_is in [f"headrace {kind}" for kind in OURS if f"headrace {kind}" in samples[case]]:
            if kind in ("read", "write"):
                page, count = map(int, rest[0].split("x"))
                bytes_ = page * count
                lines.append(
                    compare(
                        case,
                        ours_is,
                        "GB/s",
                        "GB/s",
                        lambda seconds, bytes_=bytes_: bytes_ / median(seconds) / 1e9,
                        False,
                    )
                )
            elif kind == "single":
                for metric, percent in (("p50_us", 50), ("p99_us", 99)):
                    lines.append(
                        compare(
                            case,
                            ours_is,
                            metric,
                            "us",
                            lambda seconds, percent=percent: percentile(seconds, percent) * 1e6,
                            True,
                        )
                    )
    print(
        table(
            ["case", "metric", "headrace", "nixl, its best", "ratio", "which was"],
            sorted(lines, key=lambda line: "single" in line[0]),
        ),
        "\n",
    )
    if options.tuned:
        print_every_setting(samples)
    for case in [name for name in samples if name.startswith("make/")] if usual else []:
        kinds = {name: seconds for name, seconds in samples[case].items() if seconds}
        ours, theirs = (
            min(
                (median(seconds) for name, seconds in kinds.items() if name.startswith("headrace") == mine),
                default=None,
            )
            for mine in (True, False)
        )
        if ours is None:
            continue
        peer = f"nixl {VERSION}" if theirs else None
        rows.add(
            PYTHON + case, "ms", "ms", ours * 1e3, peer=peer, peer_value=theirs * 1e3 if theirs else None,
            lower_is_better=True, checked=False,
        )  # fmt: skip
        print(
            f"{case}: {ours * 1e3:.4f} ms"
            + (f", nixl {theirs * 1e3:.4f} ms, {theirs / ours:.1f}x" if theirs else "")
        )


def print_every_setting(samples: Samples) -> None:
    """Prints each case with each of NIXL's settings; rows have the best setting and the defaults."""
    names = list(
        dict.fromkeys(
            name
            for contenders in samples.values()
            for name in contenders
            if name.startswith("nixl") and "int" not in name
        )
    )
    lines = []
    for case, contenders in samples.items():
        kind, *rest = case.split("/")
        if kind in ("read", "write"):
            page, count = map(int, rest[0].split("x"))
            values = [
                f"{page * count / median(contenders[name]) / 1e9:.3f}" if contenders.get(name) else "-"
                for name in names
            ]
        elif kind == "single":
            values = [
                f"{median(contenders[name]) * 1e6:.1f} us" if contenders.get(name) else "-" for name in names
            ]
        else:
            continue
        lines.append([case, *values])
    print(table(["NIXL: GB/s or p50", *names], lines), "\n")


def best_of(contenders: dict[str, Measured], ours: bool, kind: str = "") -> tuple[str, Measured]:
    """Returns the contender of that library with the lowest median."""
    chosen = {
        name: s for name, s in contenders.items() if name.startswith("headrace") == ours and kind in name
    }
    return min(chosen.items(), key=lambda item: median(item[1]))


def report(samples: Samples, rows: Rows, options: argparse.Namespace) -> None:
    shown = []
    for page in options.pages:
        count = min(BUFFER // page, MOST_PAGES)
        for op in ("read", "write"):
            contenders = samples[f"{op}/{page}x{count}"]
            peer, theirs = best_of(contenders, ours=False)
            for kind in OURS:
                _, ours = best_of(contenders, ours=True, kind=kind)
                rate, peer_rate = (count * page / median(s) / 1e9 for s in (ours, theirs))
                memory = "allocated/" if kind == "allocated" else ""
                case = f"{PYTHON}{memory}{op}/{page}x{count}{'/stride' if options.posts > 1 else ''}"
                mean = sum(ours) / len(ours)
                default = count * page / median(contenders["nixl"]) / 1e9
                for name, value in {peer: peer_rate, "nixl": default}.items():
                    checked = ours.checked and contenders[name].checked
                    rows.add(
                        case,
                        "GB/s",
                        "GB/s",
                        rate,
                        peer=f"{name} {VERSION}",
                        peer_value=value,
                        checked=checked,
                    )
                shown.append(
                    [
                        case,
                        f"{rate:.2f}",
                        f"{count * page / mean / 1e9:.2f}",
                        f"{default:.2f}",
                        f"{peer_rate:.2f}",
                        f"{rate / peer_rate:.1f}x",
                        peer,
                    ]
                )
    print(table(["case", "GB/s", "of mean", "nixl", "its best", "ratio", "which was"], shown), "\n")

    shown = []
    for op in ("read", "write"):
        for page in SINGLES:
            contenders = samples[f"single/{op}/{page}"]
            peer, theirs = best_of(contenders, ours=False)
            for kind in OURS:
                _, ours = best_of(contenders, ours=True, kind=kind)
                memory = "allocated/" if kind == "allocated" else ""
                case = f"{PYTHON}{memory}single/{'' if op == 'read' else 'write/'}{page}"
                for metric, value, peer_value in (
                    ("p50_us", median(ours) * 1e6, median(theirs) * 1e6),
                    ("p99_us", percentile(ours, 99) * 1e6, percentile(theirs, 99) * 1e6),
                ):
                    rows.add(
                        case,
                        metric,
                        "us",
                        value,
                        peer=f"{peer} {VERSION}",
                        peer_value=peer_value,
                        lower_is_better=True,
                        checked=ours.checked and theirs.checked,
                    )
                shown.append(
                    [
                        case,
                        f"{median(ours) * 1e6:.2f}",
                        f"{percentile(ours, 99) * 1e6:.2f}",
                        f"{median(theirs) * 1e6:.2f}",
                        f"{percentile(theirs, 99) * 1e6:.2f}",
                        f"{median(theirs) / median(ours):.1f}x",
                    ]
                )
    print(table(["one page, from Python", "p50 us", "p99 us", "nixl p50", "nixl p99", "ratio"], shown), "\n")

    for case in sorted(name for name in samples if name.startswith("make/")):
        peer, theirs = best_of(samples[case], ours=False)
        _, ours = best_of(samples[case], ours=True)
        rows.add(
            PYTHON + case,
            "ms",
            "ms",
            median(ours) * 1e3,
            peer=f"{peer} {VERSION}",
            peer_value=median(theirs) * 1e3,
            lower_is_better=True,
            checked=False,
        )
        print(
            f"{case}: {median(ours) * 1e3:.4f} ms, nixl {median(theirs) * 1e3:.4f} ms, "
            f"{median(theirs) / median(ours):.1f}x"
        )
    for page in options.pages[:1]:
        contenders = samples[f"prepare/{page}"]
        peer, theirs = best_of(contenders, ours=False)
        _, ours = best_of(contenders, ours=True)
        rows.add(
            f"{PYTHON}prepare/{page}", "us_per_page", "us", median(ours) * 1e6, peer=f"{peer} {VERSION}",
            peer_value=median(theirs) * 1e6, lower_is_better=True, checked=False,
        )  # fmt: skip
        print(f"prepare, both lists: {median(ours) * 1e6:.5f} us a page, nixl {median(theirs) * 1e6:.5f} us")


def report_metadata(rows: Rows) -> None:
    ours, theirs = run_metadata("headrace"), run_metadata("nixl")
    shown = []
    for metric, unit, key, factor in METADATA_METRICS:
        value, peer_value = ours[key] * factor, theirs[key] * factor
        rows.add(
            f"{PYTHON}metadata/{REGIONS}", metric, unit, value, peer=f"nixl {VERSION}", peer_value=peer_value,
            lower_is_better=True, table="misc", checked=False,
        )  # fmt: skip
        shown.append([metric, f"{rounded(value)}", f"{rounded(peer_value)}", f"{peer_value / value:.1f}x"])
    print("\n" + table([f"metadata of {REGIONS} regions", "headrace", "nixl", "ratio"], shown))


def table_of(options: argparse.Namespace) -> str:
    """Returns the table of bench/results for the rows."""
    if not options.as_gpus:
        return "tcp-cpu" if options.over else "pages-cpu"
    if options.over:
        return "tcp-cpu" if options.kinds == "dram-dram" else "tcp-gpu"
    return "pages-gpu" if options.kinds == "vram-vram" else "pages-host"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--install", action="store_true", help="install the nixl wheel into build/nixl-venv and exit"
    )
    parser.add_argument("--rounds", type=int, help="turns of each library (default: 3; between GPUs: 2)")
    parser.add_argument(
        "--iterations", type=int, help="timed transfers per case and turn (default: 7; between GPUs: 5)"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after this time no turn begins")
    parser.add_argument(
        "--posts",
        type=int,
        default=1,
        metavar="N",
        help="posts of each request without a pause; cases of the rows end in /stride",
    )
    parser.add_argument("--warm-up", type=int, default=2, help="transfers before the timed ones")
    parser.add_argument(
        "--pages",
        type=lambda text: [int(part) for part in text.split(",")],
        default=PAGES,
        help="page sizes in bytes",
    )
    parser.add_argument(
        "--without",
        default="",
        help="settings of NIXL to skip: their printed names, separated by commas",
    )
    parser.add_argument(
        "--tuned",
        action="store_true",
        help="with --device cuda: run NIXL with more settings, also of its environment",
    )
    parser.add_argument(
        "--through-dropin",
        action="store_true",
        help="compare headrace.compat.nixl with NIXL and with Headrace's own API",
    )
    parser.add_argument("--no-metadata", action="store_true", help="skip the metadata of 100,000 regions")
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="host memory, or memory of GPUs"
    )
    parser.add_argument(
        "--kinds",
        choices=list(KINDS),
        default="vram-vram",
        help="with --device cuda: the initiator's memory and the target's",
    )
    parser.add_argument(
        "--target-gpu",
        type=int,
        metavar="N",
        help=f"with --kinds vram-vram: GPU of the target's memory (default: {TARGET}; the initiator's is on "
        f"{INITIATOR})",
    )
    parser.add_argument(
        "--over", choices=["tcp"], help="through sockets only, eight of Headrace's, or as many as cores"
    )
    parser.add_argument("--python", help="interpreter with NIXL (default: of --install)")
    parser.add_argument(
        "--nixl-path", type=Path, metavar="FOLDER", help="folder with the package nixl; added to PYTHONPATH"
    )
    parser.add_argument("--machine-label", default=default_label(), help="label in the file name of the rows")
    parser.add_argument("--machine", help="machine in the rows (default: its processor)")
    parser.add_argument("--commit", help="commit in the rows (default: from git)")
    parser.add_argument(
        "--results",
        type=Path,
        default=RESULTS,
        metavar="FOLDER",
        help="folder for the rows (default: bench/results)",
    )
    parser.add_argument("--no-rows", action="store_true", help="write no rows")
    options = parser.parse_args()
    if options.install:
        return install()
    gpus = options.as_gpus = options.device == "cuda"
    if options.posts < 1 or (options.posts > 1 and (gpus or options.through_dropin)):
        parser.error("--posts is 1 or more, and goes with neither --device cuda nor --through-dropin")
    if gpus and options.through_dropin:
        parser.error("--through-dropin compares in host memory")
    if not gpus and (options.tuned or options.kinds != "vram-vram"):
        parser.error("--kinds and --tuned go with --device cuda")
    if options.target_gpu is not None and not (gpus and options.kinds == "vram-vram"):
        parser.error("--target-gpu goes with --device cuda and --kinds vram-vram")
    places = KINDS[options.kinds] if gpus else HOST_MEMORY
    if options.target_gpu is not None:
        places = (INITIATOR, options.target_gpu)
    # NIXL takes 0.1 s for 16384 pages between GPUs.
    options.rounds, options.iterations = (
        options.rounds or (2 if gpus else 3),
        options.iterations or (5 if gpus else 7),
    )
    nixl = interpreter_of(options)
    if nixl == OF_VENV and not Path(nixl[0]).exists():
        sys.exit(
            f"{VENV.relative_to(ROOT)} is not there: run `python bench/compare_nixl.py --install` first, or "
            f"name NIXL with --nixl-path"
        )

    rows = Rows(table_of(options), options.machine_label, options.machine, options.commit)
    print(f"{rows.common['machine']}, commit {rows.common['commit']}; NIXL {VERSION}", flush=True)
    samples: Samples = defaultdict(lambda: defaultdict(Measured))
    left_out = options.without.split(",")
    if gpus:
        left_out.append(
            "nixl no progress thread"
        )  # its target does not answer here, which takes the patience to find out
    tuned: Tuned = (
        {}
        if not options.tuned
        else tuned_settings(LONG_SEGMENTS_OF_TCP if options.over else LONG_SEGMENTS_OF_MEMORY)
    )
    environments = {name: environment for name, (_, environment) in tuned.items()}
    contenders = {**NIXL_SETTINGS, **{name: settings for name, (settings, _) in tuned.items()}}
    turns = [("nixl", name, settings, False) for name, settings in contenders.items() if name not in left_out]
    allocatable = None in places  # GPU memory is registered alone
    turns += [
        ("headrace", f"headrace {kind}", {}, allocated)
        for kind, allocated in OURS.items()
        if allocatable or not allocated
    ]
    if options.through_dropin:
        turns = through_dropin.TURNS
    if gpus:
        turns.sort(
            key=lambda turn: turn[1] != "nixl" and turn[0] == "nixl"
        )  # its defaults and ours, should the time not suffice for all
    begun, failed = time.monotonic(), False
    for turn in range(options.rounds):
        # Drift is nobody's advantage: each is first in its turn.
        first = turn % len(turns) if options.through_dropin else 0
        for library, contender, settings, allocated in turns[first:] + turns[:first]:
            if time.monotonic() - begun > options.seconds:
                print(f"round {turn + 1} of {options.rounds}: no time for {contender}")
                continue
            print(f"round {turn + 1} of {options.rounds}: {contender}", flush=True)
            pair = None
            try:
                pair = Pair(
                    library,
                    settings,
                    allocated,
                    places,
                    nixl,
                    options.over == "tcp",
                    environments.get(contender),
                )
                run_cases(pair, contender, options, samples)
            except RuntimeError as error:
                if not gpus and (library != "nixl" or not isinstance(error, Stuck)):
                    raise
                # Seen without its progress thread: a target that nobody polls does not answer. Between GPUs
                # what was measured before is kept, and the others go on: there may not be another sitting.
                print(f"  {contender} is skipped: {error}", flush=True)
                turns.remove((library, contender, settings, allocated))
                failed = failed or library != "nixl"
                for measured in samples.values() if not gpus else []:
                    for name in ("", " int32", " uint32", " int64"):
                        measured.pop(contender + name, None)
            finally:
                if pair is not None:
                    pair.stop()
    print()
    if gpus:
        report_gpus(samples, rows, options)
    elif options.through_dropin:
        through_dropin.report(samples, rows)
    else:
        report(samples, rows, options)
    if not options.no_metadata and not options.through_dropin and not gpus:
        report_metadata(rows)
    if not options.no_rows:
        print(f"\nrows: {os.path.relpath(rows.write(options.results), ROOT)}")
    if failed:
        sys.exit("Headrace's own turns were not finished")


if __name__ == "__main__":
    main()
