# SPDX-License-Identifier: Apache-2.0
"""Runs GoogleTest programs, many cases in one process, and counts every case.

A program's cases are cut into shards; as many shards as there are cores run at once. A case that ends its
process, or that takes too long, fails by its own name, and the cases behind it run in a new process.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from testing import store
from testing.stage import BUILD, REPORTS, ROOT, Runner, Stage, signal_sentence

CASE_SECONDS = 120
SLOW_CASE_SECONDS = 1800
SHARD_SECONDS = 15  # aimed at, from the times of the last run
SHARD_CASES = 150  # where no times are known


@dataclass
class Suite:
    """One test program of a build."""

    name: str
    label: str
    program: Path
    loads: list[Path]  # what it opens or starts when it runs
    environment: dict[str, str] = field(default_factory=dict)  # what its sanitizers need
    seconds: dict[str, float] = field(default_factory=dict)  # of each case, in the last run


@dataclass
class Shard:
    suite: Suite
    cases: list[str]
    number: int


@dataclass
class Result:
    passed: list[str] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # not run, since the process ended before
    seconds: dict[str, float] = field(default_factory=dict)


def read_suites(build: Path) -> list[Suite]:
    """Returns the programs of a configured build (cmake/tests.cmake writes suites.json)."""
    listed = json.loads((build / "suites.json").read_text())
    plugins = store.files_below(build / "lib")
    helpers = store.files_below(build / "tests" / "plugins")
    suites = []
    for row in listed["suites"]:
        program = build / row["program"]
        loads = plugins if row["plugins"] else []
        if row["plugins"]:
            loads = loads + helpers + sorted(program.parent.glob(f"{row['name']}_*"))
        if row["command"]:
            loads = [*loads, build / "bin" / "headrace"]
        suites.append(Suite(row["name"], row["label"], program, loads, row["environment"]))
    return suites


def list_cases(suite: Suite, wrapper: list[str], filter_text: str) -> list[str]:
    """Returns the names of the cases that the filter selects."""
    command = [*wrapper, str(suite.program), "--gtest_list_tests", f"--gtest_filter={filter_text}"]
    listing = subprocess.run(
        command,
        cwd=suite.program.parent,
        env={**os.environ, **suite.environment},
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


def cut(suite: Suite, cases: list[str]) -> list[Shard]:
    """Returns shards of about SHARD_SECONDS each; cases of one GoogleTest suite stay in order."""
    shards: list[Shard] = []
    current: list[str] = []
    seconds = 0.0
    for case in cases:
        current.append(case)
        unknown = SHARD_SECONDS if case_seconds(case) > CASE_SECONDS else SHARD_SECONDS / SHARD_CASES
        seconds += suite.seconds.get(case, unknown)
        if seconds >= SHARD_SECONDS:
            shards.append(Shard(suite, current, len(shards)))
            current, seconds = [], 0.0
    if current:
        shards.append(Shard(suite, current, len(shards)))
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
    """Runs the shard's cases in one process."""
    base = REPORTS / "gtest" / f"{stem}.{shard.suite.name}.{shard.number}"
    base.parent.mkdir(parents=True, exist_ok=True)
    log, report, flags = (base.with_suffix(base.suffix + end) for end in (".log", ".xml", ".flags"))
    report.unlink(missing_ok=True)
    flags.write_text(f"--gtest_filter={':'.join(shard.cases)}\n")
    command = [
        *wrapper,
        str(shard.suite.program),
        f"--gtest_flagfile={flags}",
        f"--gtest_output=xml:{report}",
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=shard.suite.program.parent,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **shard.suite.environment},
        )
        late = watch(runner, process, Log(log))
    text = log.read_text(errors="replace")
    if report.exists() and not late:
        return read_report(report, text, process.returncode, shard, log)
    return read_log(text, process.returncode, shard, late)


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
    """Runs the suites' cases and counts them in the stage. A program that passed before with the same hash is
    not run again."""
    begin = time.monotonic()
    times_file = BUILD / "passed" / f"{stage.name}.seconds.json"
    known: dict[str, dict[str, float]] = json.loads(times_file.read_text()) if times_file.exists() else {}
    shards: list[Shard] = []
    keys: dict[str, str] = {}
    for suite in suites:
        data = store.files_below(ROOT / "tests" / "fixtures", *suite.loads)
        filtered = filter_text + "".join(f":{name}" for name in (without or {}).get(suite.name, []))
        keys[suite.name] = store.hash_of(
            [suite.program, *data], filtered, json.dumps(suite.environment, sort_keys=True)
        )
        if runner.use_store and store.recall(stage, suite.name, keys[suite.name]):
            continue
        suite.seconds = known.get(suite.name, {})
        cases = list_cases(suite, wrapper, filtered)
        if runner.resume:
            cases = without_kept(runner, stage, suite, cases, keys[suite.name] + runner.resume)
        if not cases:
            continue
        shards += cut(suite, cases)
    outcomes: dict[str, list[Result]] = {shard.suite.name: [] for shard in shards}
    lock = threading.Lock()

    def work(shard: Shard) -> None:
        rest: Shard | None = shard
        again = 0
        while rest:
            result = run_shard(runner, rest, stage.name, wrapper)
            with lock:
                outcomes[shard.suite.name].append(result)
                if runner.resume and not result.failed:
                    ended = {**dict.fromkeys(result.passed, ""), **dict(result.skipped)}
                    store.keep_cases(stage, shard.suite.name, keys[shard.suite.name] + runner.resume, ended)
            again += 1
            number = shard.number + 1000 * again
            rest = Shard(shard.suite, result.left, number) if result.left else None

    # The longest first, so that no core waits for a long shard at the end.
    shards.sort(key=lambda s: -sum(s.suite.seconds.get(c, 0.1) for c in s.cases))
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, shards))
    for suite in suites:
        if suite.name in outcomes:
            count(runner, stage, suite, outcomes[suite.name], keys[suite.name])
            seconds = {k: v for result in outcomes[suite.name] for k, v in result.seconds.items()}
            known[suite.name] = {**suite.seconds, **seconds} if runner.resume else seconds
    times_file.parent.mkdir(parents=True, exist_ok=True)
    times_file.write_text(json.dumps(known) + "\n")
    stage.took("run", begin)


def without_kept(runner: Runner, stage: Stage, suite: Suite, cases: list[str], key: str) -> list[str]:
    """Counts the cases that an interrupted run of this tree has kept, and returns the others."""
    kept = store.recall_cases(stage, suite.name, key)
    for name, reason in ((name, kept[name]) for name in cases if name in kept):
        if reason:
            stage.skip(f"{suite.name}.{name}", reason, runner.allowed_skips)
        else:
            stage.passed += 1
            stage.stored += 1
    return [name for name in cases if name not in kept]


def count(runner: Runner, stage: Stage, suite: Suite, results: list[Result], key: str) -> None:
    failures, skips, passed = len(stage.failures), len(stage.skips), 0
    for result in results:
        for name, text in result.failed:
            stage.check(False, f"{suite.name}.{name}", text)
        for name, reason in result.skipped:
            stage.skip(f"{suite.name}.{name}", reason, runner.allowed_skips)
        stage.passed += len(result.passed)
        passed += len(result.passed)
    seconds = sum(sum(result.seconds.values()) for result in results)
    print(f"  {suite.name}: {passed} passed, {seconds:.0f} s", flush=True)
    if len(stage.failures) == failures and passed:
        store.keep(stage, suite.name, key, passed, stage.skips[skips:])
