#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NIXL and Headrace in turn: two processes, DRAM to DRAM, random pages of a 256 MiB buffer on both sides.

Both are driven from Python by the same code (bench/page_worker.py): the same buffers, the same pages, the clock from post to
done, every byte that moved compared after each transfer. Each library has the machine to itself: its two processes start,
run every case, and end before the other's start; so often as --rounds says. NIXL runs at its defaults and with each of the
settings of NIXL_SETTINGS; ratios are to whichever of them was best at the case. Rows go to bench/results.

    python bench/compare_nixl.py --install      once: puts the nixl wheel into build/nixl-venv
    .venv/bin/python bench/compare_nixl.py      needs the package headrace in the interpreter that runs it
    .venv/bin/python bench/compare_nixl.py --through-dropin
        the program written for NIXL, unchanged, on NIXL and on headrace.compat.nixl, beside the same on Headrace's own API
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import venv
from collections import defaultdict
from typing import Any

import through_dropin
from comparison import ROOT, Rows, Stuck, Worker, default_label, median, percentile, rounded, table

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

# What its documentation offers for this job, beside the defaults: a pool of threads that share a request's pages, and no
# thread of its own beside the caller's polling.
NIXL_SETTINGS: dict[str, dict[str, Any]] = {
    "nixl": {},
    "nixl 2 threads": {"num_threads": 2},
    "nixl no progress thread": {"enable_prog_thread": False},
}
OURS = {"registered": False, "allocated": True}

Samples = dict[str, dict[str, list[float]]]  # case -> contender -> seconds


def install() -> None:
    """The wheel and NumPy, and no torch: NIXL asks for it only to recognise tensors."""
    if not (VENV / "bin" / "python").exists():
        print(f"making {VENV.relative_to(ROOT)}")
        venv.create(VENV, with_pip=True)
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "numpy", "setuptools"], check=True)
    subprocess.run([*pip, "--no-deps", f"nixl=={VERSION}", f"nixl-cu12=={VERSION}"], check=True)
    print(f"NIXL {VERSION} is in {VENV.relative_to(ROOT)}")


class Pair:
    """Two processes of one library that know each other."""

    def __init__(self, library: str, settings: dict[str, Any], allocated: bool):
        python = str(VENV / "bin" / "python") if library == "nixl" else sys.executable
        environment = through_dropin.environment() if library == through_dropin.LIBRARY else {}
        self.here, self.there = Worker(python, environment), Worker(python, environment)
        seed = random.getrandbits(60)
        library = "nixl" if library == through_dropin.LIBRARY else library  # the same program
        for worker, name in ((self.here, "initiator"), (self.there, "target")):
            worker.begin(
                "open", library=library, name=f"{library}-{name}-{seed:x}", settings=settings, buffer_bytes=BUFFER,
                allocated=allocated, seed=seed,
            )  # fmt: skip
        ours, theirs = self.here.end(), self.there.end()
        self.here.ask("connect", metadata=theirs["metadata"], own=theirs["own"])
        self.there.ask("connect", metadata=ours["metadata"], own=ours["own"])

    def transfer(self, op: str, page: int, count: int) -> dict[str, Any]:
        source, target = self._source_and_target(op)
        delta, seed, slots = random.getrandbits(63), random.getrandbits(60), BUFFER // page
        self._refresh(source, target, delta)
        result = self.here.ask("transfer", op=op, slots=slots, count=count, seed=seed)
        self._check(target, page, count, seed, delta)
        return result

    def singles(self, op: str, page: int) -> list[float]:
        source, target = self._source_and_target(op)
        delta, seed, slots = random.getrandbits(63), random.getrandbits(60), BUFFER // page
        self._refresh(source, target, delta)
        seconds = self.here.ask("singles", op=op, slots=slots, count=SINGLE_COUNT, seed=seed, rounds=SINGLE_ROUNDS)
        self._check(target, page, SINGLE_COUNT, seed, delta)
        return seconds[SINGLE_COUNT:]  # the first round is a warm-up

    def _source_and_target(self, op: str) -> tuple[Worker, Worker]:
        return (self.there, self.here) if op == "read" else (self.here, self.there)

    @staticmethod
    def _refresh(source: Worker, target: Worker, delta: int) -> None:
        source.begin("stamp", delta=delta)
        target.begin("wipe")
        source.end()
        target.end()

    @staticmethod
    def _check(target: Worker, page: int, count: int, seed: int, delta: int) -> None:
        if wrong := target.ask("check", page=page, slots=BUFFER // page, count=count, seed=seed, delta=delta):
            raise RuntimeError(f"the data that was moved is wrong: {wrong}")

    def stop(self) -> None:
        self.here.stop()
        self.there.stop()


def run_cases(pair: Pair, contender: str, options: argparse.Namespace, samples: Samples) -> None:
    for page in options.pages:
        count = min(BUFFER // page, MOST_PAGES)
        samples[f"prepare/{page}"][contender].append(pair.here.ask("prepare", page=page, slots=BUFFER // page) / (BUFFER // page))
        for op in ("read", "write"):
            for i in range(options.warm_up + options.iterations):
                result = pair.transfer(op, page, count)
                if i >= options.warm_up:
                    samples[f"{op}/{page}x{count}"][contender].append(result["seconds"])
        if page == 4096:
            for dtype in ("int32", "uint32", "int64"):
                samples[f"make/{count}"][f"{contender} {dtype}"] += pair.here.ask(
                    "make", slots=BUFFER // page, count=count, dtype=dtype, rounds=20
                )
        pair.here.ask("drop")
    for page in SINGLES:
        pair.here.ask("prepare", page=page, slots=BUFFER // page)
        for op in ("read", "write"):
            samples[f"single/{op}/{page}"][contender] += pair.singles(op, page)
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


def best_of(contenders: dict[str, list[float]], ours: bool, kind: str = "") -> tuple[str, list[float]]:
    """The contender of that side with the lowest median."""
    chosen = {name: s for name, s in contenders.items() if name.startswith("headrace") == ours and kind in name}
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
                case = f"{'allocated/' if kind == 'allocated' else ''}{op}/{page}x{count}"
                rows.add(case, "GB/s", "GB/s", rate, peer=f"{peer} {VERSION}", peer_value=peer_rate)
                mean = sum(ours) / len(ours)
                default = count * page / median(contenders["nixl"]) / 1e9
                if peer != "nixl":
                    rows.add(case, "GB/s", "GB/s", rate, peer=f"nixl {VERSION}", peer_value=default)
                shown.append([
                    case, f"{rate:.2f}", f"{count * page / mean / 1e9:.2f}", f"{default:.2f}", f"{peer_rate:.2f}", f"{rate / peer_rate:.1f}x",
                    peer,
                ])  # fmt: skip
    print(table(["case", "GB/s", "of mean", "nixl", "its best", "ratio", "which was"], shown), "\n")

    shown = []
    for op in ("read", "write"):
        for page in SINGLES:
            contenders = samples[f"single/{op}/{page}"]
            peer, theirs = best_of(contenders, ours=False)
            for kind in OURS:
                _, ours = best_of(contenders, ours=True, kind=kind)
                case = f"{'allocated/' if kind == 'allocated' else ''}single/{'' if op == 'read' else 'write/'}{page}"
                for metric, value, peer_value in (
                    ("p50_us", median(ours) * 1e6, median(theirs) * 1e6),
                    ("p99_us", percentile(ours, 99) * 1e6, percentile(theirs, 99) * 1e6),
                ):
                    rows.add(case, metric, "us", value, peer=f"{peer} {VERSION}", peer_value=peer_value, lower_is_better=True)
                shown.append([
                    case, f"{median(ours) * 1e6:.2f}", f"{percentile(ours, 99) * 1e6:.2f}", f"{median(theirs) * 1e6:.2f}",
                    f"{percentile(theirs, 99) * 1e6:.2f}", f"{median(theirs) / median(ours):.1f}x",
                ])  # fmt: skip
    print(table(["one page, from Python", "p50 us", "p99 us", "nixl p50", "nixl p99", "ratio"], shown), "\n")

    for case in sorted(name for name in samples if name.startswith("make/")):
        peer, theirs = best_of(samples[case], ours=False)
        _, ours = best_of(samples[case], ours=True)
        rows.add(case, "ms", "ms", median(ours) * 1e3, peer=f"{peer} {VERSION}", peer_value=median(theirs) * 1e3, lower_is_better=True)
        print(f"{case}: {median(ours) * 1e3:.4f} ms, nixl {median(theirs) * 1e3:.4f} ms, {median(theirs) / median(ours):.1f}x")
    for page in options.pages[:1]:
        contenders = samples[f"prepare/{page}"]
        peer, theirs = best_of(contenders, ours=False)
        _, ours = best_of(contenders, ours=True)
        rows.add(
            f"prepare/{page}", "us_per_page", "us", median(ours) * 1e6, peer=f"{peer} {VERSION}", peer_value=median(theirs) * 1e6,
            lower_is_better=True,
        )  # fmt: skip
        print(f"prepare, both lists: {median(ours) * 1e6:.5f} us a page, nixl {median(theirs) * 1e6:.5f} us")


def report_metadata(rows: Rows) -> None:
    ours, theirs = run_metadata("headrace"), run_metadata("nixl")
    shown = []
    for metric, unit, key, factor in METADATA_METRICS:
        value, peer_value = ours[key] * factor, theirs[key] * factor
        rows.add(
            f"metadata/{REGIONS}", metric, unit, value, peer=f"nixl {VERSION}", peer_value=peer_value, lower_is_better=True, table="misc", checked=False,
        )  # fmt: skip
        shown.append([metric, f"{rounded(value)}", f"{rounded(peer_value)}", f"{peer_value / value:.1f}x"])
    print("\n" + table([f"metadata of {REGIONS} regions", "headrace", "nixl", "ratio"], shown))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="install the nixl wheel into build/nixl-venv and exit")
    parser.add_argument("--rounds", type=int, default=3, help="how often each library's turn comes")
    parser.add_argument("--iterations", type=int, default=7, help="timed transfers a case and turn")
    parser.add_argument("--warm-up", type=int, default=2, help="transfers before those")
    parser.add_argument("--pages", type=lambda text: [int(part) for part in text.split(",")], default=PAGES, help="page sizes in bytes")
    parser.add_argument("--without", default="", help="settings of NIXL to leave out, by the names printed, with commas between")
    parser.add_argument("--through-dropin", action="store_true", help="compare headrace.compat.nixl with NIXL and with Headrace's own API")
    parser.add_argument("--no-metadata", action="store_true", help="leave the 100,000 regions out")
    parser.add_argument("--machine-label", default=default_label(), help="of the file in bench/results")
    parser.add_argument("--no-rows", action="store_true", help="write nothing into bench/results")
    options = parser.parse_args()
    if options.install:
        return install()
    if not (VENV / "bin" / "python").exists():
        sys.exit(f"{VENV.relative_to(ROOT)} is not there: run `python bench/compare_nixl.py --install` first")

    rows = Rows("pages-cpu", options.machine_label)
    print(f"{rows.common['machine']}, commit {rows.common['commit']}; NIXL {VERSION}", flush=True)
    samples: Samples = defaultdict(lambda: defaultdict(list))
    left_out = options.without.split(",")
    turns = [("nixl", name, settings, False) for name, settings in NIXL_SETTINGS.items() if name not in left_out]
    turns += [("headrace", f"headrace {kind}", {}, allocated) for kind, allocated in OURS.items()]
    if options.through_dropin:
        turns = through_dropin.TURNS
    for turn in range(options.rounds):
        for library, contender, settings, allocated in list(turns):
            print(f"round {turn + 1} of {options.rounds}: {contender}", flush=True)
            pair = Pair(library, settings, allocated)
            try:
                run_cases(pair, contender, options, samples)
            except Stuck as stuck:
                if library != "nixl":
                    raise
                # Seen without its progress thread: a target that nobody polls does not answer.
                print(f"  {contender} is left out: {stuck}", flush=True)
                turns.remove((library, contender, settings, allocated))
                for contenders in samples.values():
                    for name in ("", " int32", " uint32", " int64"):
                        contenders.pop(contender + name, None)
            finally:
                pair.stop()
    print()
    if options.through_dropin:
        through_dropin.report(samples, rows)
    else:
        report(samples, rows, options)
    if not options.no_metadata and not options.through_dropin:
        report_metadata(rows)
    if not options.no_rows:
        print(f"\nrows: {rows.write().relative_to(ROOT)}")


if __name__ == "__main__":
    main()
