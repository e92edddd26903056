# SPDX-License-Identifier: Apache-2.0
"""Runs GoogleTest programs, many cases in one process, and counts every case.

A program's cases are cut into shards; as many shards as there are cores run at once. A case that ends its
process, or that takes too long, fails by its own name, and the cases behind it run in a new process.

Results are stored by part: a program, or one row of a program whose rows load different plugins.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from testing import seen, store
from testing.stage import BUILD, REPORTS, ROOT, Runner, Stage, inherited, signal_sentence

CASE_SECONDS = 120
SLOW_CASE_SECONDS = 1800
# Of a process whose leak check crashed by itself, as clang 16's does at times while threads end: such a check
# has found nothing out. A check that finds leaks says so in other words.
LEAK_CHECK_DIED = "LeakSanitizer has encountered a fatal error"
SHARD_SECONDS = 15  # aimed at, from the times of the last run
SHARD_CASES = 150  # where no times are known

READ = (
    "fixtures",
    "lsan.supp",
    "tsan.supp",
    "allowed_skips.txt",
)  # of tests/, by the programs and by this tool


@dataclass(frozen=True)
class Apart:
    """Cases of a program that load what its other cases need not. They are a part of their own, so that a
    change in what they load does not run the others again."""

    part: str
    cases: tuple[str, ...]  # patterns of names
    backends_of_others: str = ""  # what the agents of the other cases open where results are stored; "": all

    def has(self, case: str) -> bool:
        return any(fnmatchcase(case, pattern) for pattern in self.cases)


APART = {
    "unit_collectives": Apart(
        "tcp",
        (
            "FarRanks.*", "CommProcesses.*", "WindowProcesses.*", "*far*", "*over_tcp*", "*/tcp*",
            "WindowHooks.see_every_operation_and_may_refuse_it",
            "WindowEnd.a_window_may_be_let_go_by_a_hook_on_its_own_thread",
        ),
        backends_of_others="shm",
    ),
    "unit_engine": Apart("plugins", ("PluginHostTest.*",)),
}  # fmt: skip


@dataclass
class Suite:
    """One test program of a build."""

    name: str
    label: str
    program: Path
    data: list[Path]  # files that it may read or run; each counts for every result
    loads: list[Path]  # shared objects that it may load; those that a part loads count for its result
    environment: dict[str, str] = field(default_factory=dict)  # what its sanitizers need
    seconds: dict[str, float] = field(default_factory=dict)  # of each case, in the last run

    def part_of(self, case: str) -> str:
        """Returns the part to which a case belongs."""
        if (apart := APART.get(self.name)) and apart.has(case):
            return f"{self.name}@{apart.part}"
        by_row = self.label in ("contract", "system") and "/" in case.partition(".")[2]
        return f"{self.name}@{case.rpartition('/')[2]}" if by_row else self.name

    def opened(self, part: str) -> dict[str, str]:
        """Returns the variable that names the backends that agents open in a part, if not all."""
        apart = APART.get(self.name)
        others = apart.backends_of_others if apart and part == self.name else ""
        return {"HEADRACE_BACKENDS": others} if others else {}

    def loaded(self, names: set[str]) -> list[Path]:
        """Returns what a process and its children loaded of `loads`; all of it where that is not known."""
        if self.program.name not in names:
            return self.loads
        return [path for path in self.loads if path.name in names]


@dataclass
class Part:
    """Cases of a suite whose result is stored."""

    name: str
    suite: Suite
    cases: list[str]
    key: str = ""
    results: list[Result] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.key = key_of(self.suite, self.cases)


@dataclass
class Shard:
    suite: Suite
    cases: list[str]
    number: int
    part: str = ""


@dataclass
class Result:
    passed: list[str] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # not run, since the process ended before
    loaded: list[Path] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    leak_check_died: bool = False  # behind cases that all passed


def read_suites(build: Path) -> list[Suite]:
    """Returns the programs of a configured build (cmake/tests.cmake writes suites.json)."""
    listed = json.loads((build / "suites.json").read_text())
    tests = build / "tests"
    library = store.files_below(build / "lib", tests / "test_backends")
    loads = [path for path in library if ".so" in path.suffixes]
    common = [*sorted(set(library) - set(loads)), *store.files_below(build / "bin", tests / "plugins")]
    common += store.files_below(*(ROOT / "tests" / name for name in READ))
    suites = []
    for row in listed["suites"]:
        data = [*common, *sorted(tests.glob(f"{row['name']}_*"))]
        if row["name"] == "model":
            data += store.files_below(BUILD / "models")
        suites.append(
            Suite(row["name"], row["label"], build / row["program"], data, loads, row["environment"])
        )
    return suites


def list_cases(suite: Suite, wrapper: list[str], filter_text: str) -> list[str]:
    """Returns the names of the cases that the filter selects."""
    command = [*wrapper, str(suite.program), "--gtest_list_tests", f"--gtest_filter={filter_text}"]
    listing = subprocess.run(
        command,
        cwd=suite.program.parent,
        env={**inherited(), **suite.environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    cases: list[str] = []
    group = ""
    for line in listing.splitlines():
        name = line.split("#")[0].rstrip()
        if line.startswith("  "):
            cases.append(group + name.strip())
        elif name.endswith("."):
            group = name
    return cases


def filter_without(labels: Iterable[str]) -> str:
    """Returns a filter for every case without one of these labels at the end of its suite's name or its
    own."""
    return "-" + ":".join(f"*_{label}.*:*_{label}:*_{label}/*" for label in labels)


def filter_with(label: str) -> str:
    return f"*_{label}.*:*_{label}:*_{label}/*"


def parts_of(suite: Suite, cases: list[str]) -> dict[str, list[str]]:
    """Returns the cases of each part."""
    parts: dict[str, list[str]] = {}
    for case in cases:
        parts.setdefault(suite.part_of(case), []).append(case)
    return parts


def cut(suite: Suite, cases: list[str]) -> list[Shard]:
    """Returns shards of one part and of about SHARD_SECONDS each; cases of one GoogleTest suite stay in
    order."""
    shards: list[Shard] = []
    for part, its_cases in parts_of(suite, cases).items():
        current: list[str] = []
        seconds = 0.0
        for case in its_cases:
            current.append(case)
            unknown = SHARD_SECONDS if case_seconds(case) > CASE_SECONDS else SHARD_SECONDS / SHARD_CASES
            seconds += suite.seconds.get(case, unknown)
            if seconds >= SHARD_SECONDS:
                shards.append(Shard(suite, current, len(shards), part))
                current, seconds = [], 0.0
        if current:
            shards.append(Shard(suite, current, len(shards), part))
    return shards


RUN_LINE = re.compile(r"^\[ RUN      \] (\S+)", re.M)
END_LINE = re.compile(r"^\[  (     OK|FAILED |SKIPPED) \] (\S+?),? .*\(\d+ ms\)", re.M)


class Log:
    """A log that grows: the case that runs now, and its start."""

    def __init__(self, path: Path):
        self.path = path
        self.position = 0
        self.case = ""
        self.since = time.monotonic()

    def look(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self.position)
            new = file.read().decode(errors="replace")
        end = new.rfind("\n") + 1
        self.position += len(new[:end].encode(errors="replace")) if "�" not in new else len(new.encode())
        begun = RUN_LINE.findall(new)
        if begun:
            self.case, self.since = begun[-1], time.monotonic()


def case_seconds(name: str) -> float:
    return SLOW_CASE_SECONDS if re.search(r"_slow([./]|$)", name) else CASE_SECONDS


def run_shard(runner: Runner, shard: Shard, stem: str, wrapper: list[str]) -> Result:
    """Runs the shard's cases in one process; once more if all passed and the leak check behind them
    crashed."""
    result = run_process(runner, shard, stem, wrapper)
    if result.leak_check_died:
        print(f"  {shard.suite.name}: the leak check crashed by itself; its cases run again", flush=True)
        result = run_process(runner, shard, stem, wrapper)
    return result


def run_process(runner: Runner, shard: Shard, stem: str, wrapper: list[str]) -> Result:
    base = REPORTS / "gtest" / f"{stem}.{shard.suite.name}.{shard.number}"
    base.parent.mkdir(parents=True, exist_ok=True)
    log, report, flags = (base.with_suffix(base.suffix + end) for end in (".log", ".xml", ".flags"))
    report.unlink(missing_ok=True)
    loads = base.with_suffix(base.suffix + ".loads")
    flags.write_text(f"--gtest_filter={':'.join(shard.cases)}\n")
    command = [
        *wrapper,
        str(shard.suite.program),
        f"--gtest_flagfile={flags}",
        f"--gtest_output=xml:{report}",
    ]
    opened = shard.suite.opened(shard.part) if runner.use_store else {}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=shard.suite.program.parent,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**inherited(), **shard.suite.environment, **opened, **seen.environment(loads)},
        )
        late = watch(runner, process, Log(log))
    text = log.read_text(errors="replace")
    if report.exists() and not late:
        result = read_report(report, text, process.returncode, shard, log)
    else:
        result = read_log(text, process.returncode, shard, late)
    result.loaded = shard.suite.loaded(seen.names(loads))
    shutil.rmtree(loads)
    return result


def watch(runner: Runner, process: subprocess.Popen[bytes], log: Log) -> bool:
    """Waits for the process. Returns True if a case took too long and the process was killed for it."""
    pause = 0.01
    try:
        while process.poll() is None:
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)
            runner.seconds_left()
            log.look()
            if time.monotonic() - log.since > case_seconds(log.case):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return True
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return False


def read_report(report: Path, text: str, code: int, shard: Shard, log: Path) -> Result:
    result = Result()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        failures = [failure.text or failure.get("message") or "" for failure in case.findall("failure")]
        skipped = case.find("skipped")
        if failures:
            result.failed.append((name, "\n".join([*failures, output_of(text, name)])))
        elif skipped is not None or case.get("result") == "skipped":
            message = (skipped.get("message") or "") if skipped is not None else ""
            reason = " ".join(re.sub(r"^\S*:\d+\n", "", message).split())
            result.skipped.append((name, reason or "no reason given"))
        elif case.get("status") == "run":
            result.passed.append(name)
            result.seconds[name] = float(case.get("time") or 0)
    done = {*result.passed, *(name for name, _ in result.failed), *(name for name, _ in result.skipped)}
    for name in shard.cases:
        if name not in done:
            result.failed.append((name, "the program does not report this case"))
    if code != 0 and not result.failed:
        result.leak_check_died = LEAK_CHECK_DIED in text
        words = f"{signal_sentence(code)} after its {len(done)} cases had passed: {log.relative_to(ROOT)}"
        result.failed.append(
            (f"process of shard {shard.number}", "\n".join([*text.splitlines()[-50:], words]))
        )
    return result


def read_log(text: str, code: int, shard: Shard, late: bool) -> Result:
    """Reads the log of a process that wrote no report. The cases after the one that ended the process are
    left to run."""
    result = Result()
    endings = {name: word.strip() for word, name in END_LINE.findall(text)}
    for name, word in endings.items():
        if word == "OK":
            result.passed.append(name)
        elif word == "SKIPPED":
            result.skipped.append((name, skip_reason(output_of(text, name))))
        else:
            result.failed.append((name, output_of(text, name)))
    begun = RUN_LINE.findall(text)
    why = f"it ran for more than {CASE_SECONDS} s and was killed" if late else signal_sentence(code)
    if begun and begun[-1] not in endings:
        result.failed.append((begun[-1], "\n".join([output_of(text, begun[-1]), f"its process: {why}"])))
    else:
        result.failed.append((f"process of shard {shard.number}", "\n".join([*text.splitlines()[-50:], why])))
    # A process that began no case would do the same again.
    result.left = [case for case in shard.cases if case not in begun] if begun else []
    return result


def skip_reason(output: str) -> str:
    """Returns the text after GoogleTest's `Skipped`."""
    match = re.search(r"^\S*:\d+: Skipped\n(.*?)\n?^\[  SKIPPED", output, re.M | re.S)
    return " ".join(match[1].split()) if match else "no reason given"


def output_of(text: str, name: str) -> str:
    """Returns the output of a case."""
    begin = text.find(f"[ RUN      ] {name}\n")
    if begin < 0:
        return ""
    end = text.find("\n[ RUN      ]", begin + 1)
    return "\n".join(text[begin : end if end > 0 else len(text)].splitlines()[1:][-80:])


def key_of(suite: Suite, cases: list[str]) -> str:
    """Returns the hash of what decides the results of these cases, but for what they load."""
    names = [str(path) for path in (*suite.data, *suite.loads)]
    environment = json.dumps(suite.environment, sort_keys=True)
    return store.hash_of([suite.program, *suite.data], *names, *cases, environment)


def run_suites(
    runner: Runner,
    stage: Stage,
    suites: list[Suite],
    *,
    wrapper: list[str],
    filter_text: str,
    without: dict[str, list[str]] | None = None,
    jobs: int,
) -> None:
    """Runs the suites' cases and counts them in the stage. A part that passed before with the same hash is
    not run again."""
    begin = time.monotonic()
    times_file = BUILD / "passed" / f"{stage.name}.seconds.json"
    known: dict[str, dict[str, float]] = json.loads(times_file.read_text()) if times_file.exists() else {}
    shards: list[Shard] = []
    parts: dict[str, Part] = {}
    before: dict[str, str] = {}  # what the suites may load, as it is now

    def list_suite(suite: Suite) -> list[str]:
        left_out = "".join(f":{name}" for name in (without or {}).get(suite.name, []))
        return list_cases(suite, wrapper, filter_text + left_out)

    with ThreadPoolExecutor(jobs) as pool:
        listings = list(pool.map(list_suite, suites))
    for suite, cases in zip(suites, listings):
        suite.seconds = {case: s for case, s in known.get(suite.name, {}).items() if case in set(cases)}
        before |= store.hashes_of(suite.loads)
        its_parts = {name: Part(name, suite, its) for name, its in parts_of(suite, cases).items()}
        parts |= its_parts
        shards += cut(suite, cases_to_run(runner, stage, its_parts.values()))
    lock = threading.Lock()

    def work(shard: Shard) -> None:
        rest: Shard | None = shard
        again = 0
        while rest:
            result = run_shard(runner, rest, stage.name, wrapper)
            with lock:
                parts[shard.part].results.append(result)
                if runner.resume and not result.failed:
                    ended = {**dict.fromkeys(result.passed, ""), **dict(result.skipped)}
                    store.keep_cases(stage, shard.part, parts[shard.part].key + runner.resume, ended)
            again += 1
            number = shard.number + 1000 * again
            rest = Shard(shard.suite, result.left, number, shard.part) if result.left else None

    # The longest first, so that no core waits for a long shard at the end.
    shards.sort(key=lambda s: -sum(s.suite.seconds.get(c, 0.1) for c in s.cases))
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, shards))
    for suite in suites:
        ran = [part for part in parts.values() if part.suite is suite and part.results]
        for part in ran:
            count(runner, stage, part, before)
        if ran:
            seconds = {k: v for part in ran for r in part.results for k, v in r.seconds.items()}
            known[suite.name] = {**suite.seconds, **seconds}
            print(f"  {suite.name}: {len(seconds)} passed, {sum(seconds.values()):.0f} s", flush=True)
    store.write(times_file.stem, known)
    stage.took("run", begin)


def cases_to_run(runner: Runner, stage: Stage, parts: Iterable[Part]) -> list[str]:
    """Counts the results that are stored, and returns the cases of the others."""
    cases: list[str] = []
    for part in parts:
        if runner.use_store and store.recall(stage, part.name, part.key):
            continue
        cases += without_kept(runner, stage, part) if runner.resume else part.cases
    return cases


def without_kept(runner: Runner, stage: Stage, part: Part) -> list[str]:
    """Counts the cases that an interrupted run of this tree has kept, and returns the others."""
    kept = store.recall_cases(stage, part.name, part.key + runner.resume)
    for name, reason in ((name, kept[name]) for name in part.cases if name in kept):
        if reason:
            stage.skip(f"{part.suite.name}.{name}", reason, runner.allowed_skips)
        else:
            stage.passed += 1
            stage.stored += 1
    return [name for name in part.cases if name not in kept]


def count(runner: Runner, stage: Stage, part: Part, before: dict[str, str]) -> None:
    """Counts the results of a part. Stores them if nothing failed, and if no file changed meanwhile."""
    counted = Stage(stage.name, "")
    for result in part.results:
        for name, text in result.failed:
            counted.check(False, f"{part.suite.name}.{name}", text)
        for name, reason in result.skipped:
            counted.skip(f"{part.suite.name}.{name}", reason, runner.allowed_skips)
        counted.passed += len(result.passed)
    if runner.use_store:
        for name in beside(part):
            text = f"a case of it loads {name}: add the case to the part of its own in tools/testing/gtest.py"
            counted.check(False, part.name, text)
    files = {str(path): before[str(path)] for result in part.results for path in result.loaded}
    same = part.key == key_of(part.suite, part.cases) and store.unchanged(files)
    if same and not counted.failures and not runner.resume:
        store.keep(stage, part.name, part.key, counted.passed, counted.skips, files)
    stage.add(counted)


def beside(part: Part) -> list[str]:
    """Returns the backends that a part has loaded though cases that need them have a part of their own: a
    change in one of these would run the whole part again."""
    opened = part.suite.opened(part.name).get("HEADRACE_BACKENDS")
    if opened is None:
        return []
    loaded = {path for result in part.results for path in result.loaded if path.parent.name == "backends"}
    own = {f"headrace_backend_{name}.so" for name in opened.split(",")}
    return sorted({path.name for path in loaded} - own)
