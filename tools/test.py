#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every test there is, stage by stage, and counts what passed, failed and was skipped.

`make test` calls it without arguments: the stages of STAGES in order, within BUDGET_MINUTES. The output of
each step goes to build/reports/<stage>.log; what failed is shown here too. The last line is `N passed, N
failed, N skipped`. Needs nothing but Python's own library: the first stage installs the rest.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
REPORTS = BUILD / "reports"
VENV_PYTHON = ROOT / ".venv" / "bin" / "python"

INSTALLED = ROOT / ".venv" / ".headrace-installed"  # as old as the last installation; the Makefile compares

BUDGET_MINUTES = 85
JOBS = os.cpu_count() or 1
TAIL_LINES = 120

# Tests that need what a plain machine has not, or that take too long for every day.
LABELS = ["slow", "gpu1", "gpu2", "gpu4", "kernel", "fabric", "rdma"]
SET_ASIDE = f"^({'|'.join(LABELS)})$"

# What the thread sanitizer is asked about: the parts that have threads.
THREADED = [
    "unit_base",
    "unit_memory",
    "unit_telemetry",
    "unit_metadata",
    "unit_engine",
    "unit_agent",
    "contract",
    "system",
]
THREADED_LABELS = "^(base|memory|telemetry|metadata|engine|agent|backend|contract|system)$"

THREADED_PYTHON = [
    f"tests/python/test_{name}.py"
    for name in ("threads", "requests", "notifications", "asyncio", "compat_nixl_agent")
]

# Checks that cost a fifth of the sanitized build and find little beside the address sanitizer, which ends a
# read through a null pointer and one past an object anyway. The preset `dev` has them.
DEV_SETTINGS = ["-DHEADRACE_SANITIZE_EXCEPT=null,vptr,object-size"]

# The build folders, of other checkouts too, take equal objects from one compiler cache.
SHARED_CACHE = {"CCACHE_NOHASHDIR": "1", "CCACHE_BASEDIR": str(ROOT)}

FUZZ_SECONDS, FUZZ_SECONDS_LONG = 30, 300
TIDY_MINUTES = 4


class OutOfTime(Exception):
    """The whole run's budget is spent."""


@dataclass
class Case:
    """One test that did not simply pass."""

    name: str
    text: str


@dataclass
class Stage:
    """What a stage did, filled in while it runs."""

    name: str
    sentence: str
    minutes: float = 0.0
    passed: int = 0
    failures: list[Case] = field(default_factory=list)
    skips: list[Case] = field(default_factory=list)

    def check(self, ok: bool, name: str, text: str = "") -> bool:
        """Counts one check."""
        if ok:
            self.passed += 1
        else:
            self.failures.append(Case(name, text))
        return ok

    def skip(self, name: str, reason: str, allowed: list[re.Pattern[str]]) -> None:
        """Counts a test that could not run; for a reason that nobody allowed it is a failure."""
        if any(pattern.search(reason) for pattern in allowed):
            self.skips.append(Case(name, reason))
        else:
            self.failures.append(
                Case(name, f"skipped for a reason that tests/allowed_skips.txt does not have: {reason}")
            )


class Runner:
    """Runs commands and stages; knows the time that is left."""

    def __init__(self, budget_minutes: float | None):
        self.deadline = time.monotonic() + budget_minutes * 60 if budget_minutes else None
        self.stages: list[Stage] = []
        self.allowed_skips = read_allowed_skips()
        self.venv_ready = False

    def seconds_left(self) -> float | None:
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise OutOfTime
        return left

    def command(
        self,
        stage: Stage,
        command: list[str],
        *,
        environment: dict[str, str] | None = None,
        quiet: bool = False,
        log_name: str = "",
    ) -> bool:
        """Runs one command into the stage's log. True when it succeeded; its last lines are shown when it did
        not."""
        shown = " ".join(part if len(part) < 80 else part[:60] + "..." for part in command)
        if not quiet:
            print(f"  {shown}", flush=True)
        log = REPORTS / f"{log_name or stage.name}.log"
        with log.open("ab") as out:
            out.write(f"$ {shown}\n".encode())
            out.flush()
            start = out.tell()
            code = self._wait(
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, **SHARED_CACHE, **(environment or {})},
                )
            )
        if code != 0 and not quiet:
            with log.open("rb") as text:
                text.seek(start)
                for line in text.read().decode(errors="replace").splitlines()[-TAIL_LINES:]:
                    print(f"    {line}")
            print(f"  exit code {code}: {shown}\n  the whole of it: {log.relative_to(ROOT)}", flush=True)
        return code == 0

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(timeout=self.seconds_left())
        except BaseException as error:
            # Compilers and tests are children of the command: end the whole session that it leads.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise OutOfTime from None
            raise

    def run(self, name: str) -> Stage:
        sentence, body = STAGES[name]
        stage = Stage(name, sentence)
        self.stages.append(stage)
        (REPORTS / f"{name}.log").unlink(missing_ok=True)
        print(f"== {name}: {sentence}", flush=True)
        start = time.monotonic()
        try:
            body(self, stage)
        finally:
            stage.minutes = (time.monotonic() - start) / 60
            for case in stage.failures:
                print(f"  FAILED {case.name}")
                for line in case.text.splitlines()[-60:]:
                    print(f"    {line}")
            for case in stage.skips:
                print(f"  skipped {case.name}: {case.text}")
            print(
                f"== {name}: {stage.minutes:.1f} min, {stage.passed} passed, {len(stage.failures)} failed, "
                f"{len(stage.skips)} skipped",
                flush=True,
            )
        return stage


def read_allowed_skips() -> list[re.Pattern[str]]:
    lines = (ROOT / "tests" / "allowed_skips.txt").read_text().splitlines()
    return [re.compile(line) for line in lines if line.strip() and not line.startswith("#")]


# Reading reports


def count_junit(runner: Runner, stage: Stage, report: Path, what: str) -> None:
    """Adds a JUnit file's tests, as ctest and pytest write them, to the stage. No tests in it is a
    failure."""
    if not report.exists():
        stage.check(False, what, "it wrote no report")
        return
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    if not cases:
        stage.check(False, what, "it ran no test")
    for case in cases:
        name = (
            ".".join(filter(None, [case.get("classname"), case.get("name")]))
            if what == "pytest"
            else case.get("name", "?")
        )
        skipped = case.find("skipped")
        bad = [element for element in (case.find("failure"), case.find("error")) if element is not None]
        output = case.findtext("system-out") or ""
        if bad or case.get("status") == "fail":
            stage.check(False, name, "\n".join([*((b.text or b.get("message") or "") for b in bad), output]))
        elif skipped is not None or case.get("status") in ("notrun", "disabled"):
            stage.skip(name, skip_reason(skipped, output), runner.allowed_skips)
        else:
            stage.passed += 1


def skip_reason(skipped: ElementTree.Element | None, output: str) -> str:
    """pytest gives the reason as the message; GoogleTest prints it after `Skipped`."""
    if match := re.search(r"^\S*:\d+: Skipped\n(.*?)\n?^\[  SKIPPED", output, re.M | re.S):
        return " ".join(match[1].split())
    message = skipped.get("message") if skipped is not None else None
    return message or "no reason given"


# Steps that several stages share


def configure_and_build(
    runner: Runner, stage: Stage, preset: str, targets: list[str], settings: Sequence[str] = ()
) -> bool:
    ok = runner.command(stage, ["cmake", "--preset", preset, *settings]) and runner.command(
        stage,
        [
            "cmake",
            "--build",
            "--preset",
            preset,
            "--parallel",
            str(JOBS),
            *(["--target", *targets] if targets else []),
        ],
    )
    return stage.check(ok, f"build {preset}")


def ctest(runner: Runner, stage: Stage, preset: str, *selection: str, jobs: int = JOBS) -> None:
    report = REPORTS / f"{stage.name}.ctest.xml"
    report.unlink(missing_ok=True)
    command = [
        "ctest", "--test-dir", str((BUILD / preset).relative_to(ROOT)), "-j", str(jobs), "--no-tests=error",
        "--output-on-failure", "--output-junit", str(report), "--test-output-size-passed", "65536",
        "--test-output-size-failed", "262144", *selection,
    ]  # fmt: skip
    print(f"  {' '.join(command[:3])} {' '.join(selection)}", flush=True)
    ok = runner.command(stage, [*layout_wrapper(preset), *command], quiet=True)
    failures = len(stage.failures)
    count_junit(runner, stage, report, "ctest")
    if not ok and len(stage.failures) == failures:
        stage.check(False, "ctest", f"it failed though no test did; see build/reports/{stage.name}.log")


def layout_wrapper(preset: str) -> list[str]:
    """GCC's thread sanitizer cannot place its shadow memory where the kernel randomises more than 28 address
    bits."""
    bits = Path("/proc/sys/vm/mmap_rnd_bits")
    if preset == "tsan" and bits.exists() and int(bits.read_text()) > 28:
        return ["setarch", "--addr-no-randomize"]
    return []


def targets_of(runner: Runner, preset: str) -> set[str]:
    """The names that the configured build knows."""
    listing = subprocess.run(
        ["ninja", "-C", str(BUILD / preset), "-t", "targets", "all"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    return {line.split(":")[0] for line in listing.splitlines()}


def pytest(
    runner: Runner,
    stage: Stage,
    *arguments: str,
    environment: dict[str, str] | None = None,
    wrapper: list[str] | None = None,
) -> None:
    if not list((ROOT / "tests" / "python").glob("**/test_*.py")):
        stage.check(False, "pytest", "tests/python has no test_*.py")
        return
    report = REPORTS / f"{stage.name}.pytest.xml"
    report.unlink(missing_ok=True)
    command = [*(wrapper or []), str(VENV_PYTHON), "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
    print(f"  pytest {' '.join(arguments)}", flush=True)
    ok = runner.command(stage, command, environment={**venv_environment(), **(environment or {})}, quiet=True)
    failures = len(stage.failures)
    count_junit(runner, stage, report, "pytest")
    if not ok and len(stage.failures) == failures:
        stage.check(False, "pytest", f"it failed though no test did; see build/reports/{stage.name}.log")


def venv_environment() -> dict[str, str]:
    """The environment's own programs come first, `headrace` among them."""
    return {
        "PATH": f"{VENV_PYTHON.parent}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(VENV_PYTHON.parent.parent),
    }


# Stages


def setup(runner: Runner, stage: Stage) -> None:
    stage.check(run_setup(), "tools/setup.sh")


def run_setup() -> bool:
    """Shows what tools/setup.sh says it does; what apt-get and pip say goes to the log, and here if it
    fails."""
    log = REPORTS / "setup.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            ["tools/setup.sh"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            out.write(line)
            if line.startswith("setup:"):
                print(f"  {line}", end="", flush=True)
    ok = process.wait() == 0
    if not ok:
        print(log.read_text()[-8000:])
    return ok


def sources(runner: Runner, stage: Stage) -> None:
    stage.check(runner.command(stage, [str(VENV_PYTHON), "tools/lint.py"]), "tools/lint.py")


def dev_build(runner: Runner, stage: Stage) -> None:
    configure_and_build(runner, stage, "dev", [], DEV_SETTINGS)


def dev(runner: Runner, stage: Stage) -> None:
    if configure_and_build(runner, stage, "dev", [], DEV_SETTINGS):
        ctest(runner, stage, "dev", "-LE", SET_ASIDE)


def tsan(runner: Runner, stage: Stage) -> None:
    if not stage.check(runner.command(stage, ["cmake", "--preset", "tsan"]), "configure tsan"):
        return
    known = targets_of(runner, "tsan")
    backends = sorted(name for name in known if re.fullmatch(r"backend_[a-z0-9_]+", name))
    wanted = [name for name in THREADED if name in known] + backends
    if configure_and_build(runner, stage, "tsan", wanted):
        ctest(runner, stage, "tsan", "-L", THREADED_LABELS, "-LE", SET_ASIDE)


def release(runner: Runner, stage: Stage) -> None:
    configure_and_build(runner, stage, "release", ["headrace_product"])


def wheel(runner: Runner, stage: Stage) -> None:
    stage.check(install_wheel(runner, stage), "pip install .")
    script = "import headrace, sys; sys.exit('torch' in sys.modules)"
    stage.check(
        runner.command(stage, [str(VENV_PYTHON), "-c", script], environment=venv_environment()),
        "import headrace without torch",
    )


def install_wheel(runner: Runner, stage: Stage) -> bool:
    # The release build's flags, so that the compiler cache answers; the environment's own nanobind, so that
    # its path stays.
    command = [
        str(VENV_PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--no-build-isolation", "--force-reinstall", "--config-settings=cmake.define.HEADRACE_WERROR=ON", ".",
    ]  # fmt: skip
    runner.venv_ready = runner.command(stage, command, environment=venv_environment())
    if runner.venv_ready:
        INSTALLED.touch()
    return runner.venv_ready


def python(runner: Runner, stage: Stage) -> None:
    # Ahead of the tests, each of which has its limit: compiling the demo's model takes a minute.
    folder = BUILD / "demo_model"
    export = [
        str(VENV_PYTHON),
        "-m",
        "headrace.demo_model.export",
        "--output",
        str(folder),
        "--cache",
        str(folder / "cache"),
    ]
    stage.check(runner.command(stage, export, environment=venv_environment()), "headrace.demo_model.export")
    pytest(runner, stage, "-m", "not (" + " or ".join(LABELS) + ")")


def examples(runner: Runner, stage: Stage) -> None:
    ctest(runner, stage, "release", "-L", "^example$")


def fuzz(runner: Runner, stage: Stage, seconds: int = FUZZ_SECONDS) -> None:
    if not configure_and_build(runner, stage, "fuzz", ["headrace_fuzz_targets"]):
        return
    targets = sorted(path for path in (BUILD / "fuzz" / "fuzz").glob("fuzz_*") if os.access(path, os.X_OK))
    if not targets:
        stage.check(False, "fuzz", "tests/fuzz has no target")

    def run_target(target: Path) -> bool:
        name = target.name.removeprefix("fuzz_")
        # What it finds on the way is kept in the build folder; an input that breaks the reader lands in
        # artifacts.
        found, artifacts = BUILD / "fuzz" / "corpus" / name, BUILD / "fuzz" / "artifacts"
        found.mkdir(parents=True, exist_ok=True)
        artifacts.mkdir(parents=True, exist_ok=True)
        command = [
            str(target),
            f"-max_total_time={seconds}",
            "-timeout=10",
            "-rss_limit_mb=2048",
            "-print_final_stats=1",
            f"-artifact_prefix={artifacts}/{name}-",
            str(found),
            f"tests/fuzz/corpus/{name}",
        ]
        return runner.command(stage, command, log_name=f"{stage.name}-{name}")

    with ThreadPoolExecutor(JOBS) as pool:
        for target, ok in zip(targets, pool.map(run_target, targets)):
            stage.check(ok, f"{target.name} for {seconds} s")


def fuzz_long(runner: Runner, stage: Stage) -> None:
    fuzz(runner, stage, FUZZ_SECONDS_LONG)


def changed_sources() -> list[str]:
    """Sources that differ from where the branch left origin, or from the last commit's parent where it did
    not leave."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.split() if done.returncode == 0 else []

    head = git("rev-parse", "HEAD")
    base = git("merge-base", "HEAD", "origin/HEAD") or git("merge-base", "HEAD", "origin/main")
    if not base or base == head:
        base = git("rev-parse", "HEAD~1")
    if not base:
        return git("ls-files")
    return sorted(
        {
            *git("diff", "--name-only", "--diff-filter=d", base[0]),
            *git("ls-files", "--others", "--exclude-standard"),
        }
    )


def run_tidy(runner: Runner, stage: Stage, files: list[str], minutes: float | None) -> None:
    """clang-tidy over the files, several at once; those not begun within `minutes` are named and counted as
    skipped."""
    database = BUILD / "dev" / "compile_commands.json"
    if not database.exists():
        stage.check(False, "clang-tidy", "build/dev has no compile_commands.json: the stage dev comes first")
        return
    if not shutil.which("clang-tidy-16"):
        stage.check(False, "clang-tidy", "clang-tidy-16 is not installed: run tools/setup.sh")
        return
    compiled = set(re.findall(r'"file": "([^"]+)"', database.read_text()))
    files = [name for name in files if name.endswith(".cpp") and str(ROOT / name) in compiled]
    print(f"  clang-tidy-16 on {len(files)} files", flush=True)
    stop_at = time.monotonic() + minutes * 60 if minutes else None
    pending = list(files)
    running: dict[str, tuple[subprocess.Popen[bytes], TextIOWrapper]] = {}
    while pending or running:
        while pending and len(running) < JOBS:
            name = pending.pop(0)
            if stop_at and time.monotonic() > stop_at:
                stage.skip(
                    name,
                    f"clang-tidy had its {minutes} minutes: `make tidy` takes the rest",
                    runner.allowed_skips,
                )
                continue
            command = ["clang-tidy-16", "--quiet", "-p", str(database.parent), name]
            log = (REPORTS / f"tidy-{len(files) - len(pending)}.log").open("w+")
            running[name] = (
                subprocess.Popen(
                    command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
                ),
                log,
            )
        for name, (process, log) in list(running.items()):
            try:
                runner.seconds_left()
            except OutOfTime:
                for other, _ in running.values():
                    other.kill()
                raise
            if process.poll() is None:
                continue
            log.seek(0)
            stage.check(process.returncode == 0, f"clang-tidy {name}", log.read())
            log.close()
            del running[name]
        time.sleep(0.05)


def tidy(runner: Runner, stage: Stage) -> None:
    run_tidy(runner, stage, changed_sources(), TIDY_MINUTES)


def tidy_all(runner: Runner, stage: Stage) -> None:
    listing = subprocess.run(
        ["git", "ls-files", "*.cpp"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    run_tidy(runner, stage, listing.split(), None)


def clang(runner: Runner, stage: Stage) -> None:
    if configure_and_build(runner, stage, "clang", []):
        ctest(runner, stage, "clang", "-LE", SET_ASIDE)


def soaks(runner: Runner, stage: Stage) -> None:
    # One at a time: a soak measures memory and descriptors, and starves its neighbours.
    if configure_and_build(runner, stage, "dev", [], DEV_SETTINGS):
        ctest(runner, stage, "dev", "-L", "^slow$", "-LE", "^(gpu1|gpu2|gpu4|kernel|fabric|rdma)$", jobs=1)


def tsan_python(runner: Runner, stage: Stage) -> None:
    """The Python module built for the thread sanitizer, in a folder of its own, and the tests in which
    threads share agents."""
    folder = BUILD / "tsan-python"
    package = folder / "package" / "headrace"
    settings = [
        "-DHEADRACE_PYTHON=ON",
        "-DHEADRACE_TESTS=OFF",
        "-DHEADRACE_EXAMPLES=OFF",
        f"-DPython_EXECUTABLE={VENV_PYTHON}",
    ]
    built = (
        runner.command(
            stage, ["cmake", "--preset", "tsan", "-B", str(folder), *settings], environment=venv_environment()
        )
        and runner.command(stage, ["cmake", "--build", str(folder), "--parallel", str(JOBS)])
        and runner.command(stage, ["cmake", "--install", str(folder), "--prefix", str(package)])
    )
    if not stage.check(built, "build tsan-python"):
        return
    shutil.copytree(ROOT / "python" / "headrace", package, dirs_exist_ok=True)
    reports = (
        REPORTS / "tsan-python.races"
    )  # a file a process: pytest keeps to itself what passing tests print
    for old in REPORTS.glob(f"{reports.name}.*"):
        old.unlink()
    # Python itself knows nothing of the sanitizer, which has to be there first.
    library = subprocess.run(
        ["gcc", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    environment = {
        "PYTHONPATH": str(package.parent),
        "LD_PRELOAD": library,
        "TSAN_OPTIONS": f"log_path={reports}:second_deadlock_stack=1:suppressions={ROOT}/tests/tsan.supp",
        "OPENBLAS_NUM_THREADS": "1",
    }
    pytest(runner, stage, *THREADED_PYTHON, environment=environment, wrapper=layout_wrapper("tsan"))
    for found in REPORTS.glob(f"{reports.name}.*"):
        stage.check(False, found.name, found.read_text())


def soaks_python(runner: Runner, stage: Stage) -> None:
    if stage.check(runner.venv_ready or install_wheel(runner, stage), "pip install ."):
        pytest(runner, stage, "-m", "slow and not (" + " or ".join(LABELS[1:]) + ")")


def rocm(runner: Runner, stage: Stage) -> None:
    """The model runner as for ROCm's torch; tools/check_rocm.py says what that leaves open."""
    stage.check(
        runner.command(
            stage, [sys.executable, str(ROOT / "tools" / "check_rocm.py"), "--python", str(VENV_PYTHON)]
        ),
        "check_rocm.py",
    )


STAGES: dict[str, tuple[str, Callable[[Runner, Stage], None]]] = {
    "setup": ("install what is missing", setup),
    "sources": ("layout, types, layers, licence lines, host names, paths", sources),
    "dev": ("build and test under the address and undefined sanitizers", dev),
    "tsan": ("build and test the core under the thread sanitizer", tsan),
    "release": ("build as shipped", release),
    "wheel": ("build the Python package and install it", wheel),
    "python": ("test the Python package, the command and the tools", python),
    "examples": ("run the C++ examples as shipped", examples),
    "fuzz": (f"{FUZZ_SECONDS} s of fuzzing each reader", fuzz),
    "tidy": ("clang-tidy on what changed", tidy),
    "dev-build": ("build under the address and undefined sanitizers", dev_build),
    "clang": ("build and test with the second compiler", clang),
    "fuzz-long": (f"{FUZZ_SECONDS_LONG} s of fuzzing each reader", fuzz_long),
    "tidy-all": ("clang-tidy on every source", tidy_all),
    "soaks": ("the C++ tests that take minutes", soaks),
    "tsan-python": (
        "the Python tests in which threads share agents, under the thread sanitizer",
        tsan_python,
    ),
    "soaks-python": ("the Python tests that take minutes", soaks_python),
    "rocm": ("compile the model runner as for ROCm's torch, neither linked nor run", rocm),
}
EVERY_DAY = ["setup", "sources", "dev", "tsan", "release", "wheel", "python", "examples", "fuzz", "tidy"]
LONG = [
    "setup",
    "sources",
    "dev-build",
    "soaks",
    "clang",
    "fuzz-long",
    "tsan-python",
    "soaks-python",
    "rocm",
    "tidy-all",
]


# Ways to call


def run_stages(names: list[str], budget_minutes: float | None) -> int:
    runner = Runner(budget_minutes)
    start = time.monotonic()
    try:
        for name in names:
            stage = runner.run(name)
            if name == "setup" and stage.failures:
                break
    except OutOfTime:
        runner.stages[-1].failures.append(Case("budget", ""))
        done = {stage.name for stage in runner.stages}
        left = [name for name in names if name not in done]
        print(
            f"== out of time: {budget_minutes} minutes are spent; cut off: {runner.stages[-1].name}; not "
            f"run: {', '.join(left) or 'none'}"
        )
    minutes = (time.monotonic() - start) / 60
    return report(runner.stages, minutes)


def report(stages: list[Stage], minutes: float) -> int:
    """The one table at the end, and the line that counts."""
    passed = sum(stage.passed for stage in stages)
    failed = sum(len(stage.failures) for stage in stages)
    skipped = sum(len(stage.skips) for stage in stages)
    print(f"\n{'stage':<14}{'minutes':>8}{'passed':>8}{'failed':>8}{'skipped':>8}")
    for stage in stages:
        print(
            f"{stage.name:<14}{stage.minutes:>8.1f}{stage.passed:>8}{len(stage.failures):>8}{len(stage.skips):>8}"
        )
    print(f"{'all':<14}{minutes:>8.1f}{passed:>8}{failed:>8}{skipped:>8}")
    for stage in stages:
        for case in stage.failures:
            print(f"failed: {stage.name}: {case.name}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed or not passed else 0


def install() -> int:
    runner = Runner(None)
    stage = Stage("install", "build the Python package and install it")
    print("building the Python package and installing it into .venv", flush=True)
    return 0 if install_wheel(runner, stage) else 1


def one(pattern: str) -> int:
    """The tests whose names match: a regular expression for ctest, an expression for pytest. Output goes to
    the terminal."""
    if not pattern:
        print("which test? make one T=<regular expression>", file=sys.stderr)
        return 2
    for command in (
        ["tools/setup.sh"],
        ["cmake", "--preset", "dev"],
        ["cmake", "--build", "--preset", "dev"],
    ):
        if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
            return 1
    native = ["ctest", "--test-dir", "build/dev", "--output-on-failure", "-R", pattern]
    found = (
        "Total Tests: 0"
        not in subprocess.run([*native, "-N"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    )
    codes = [subprocess.run(native, cwd=ROOT, check=False).returncode] if found else []
    if re.fullmatch(r"\w+", pattern) or not found:
        python = [str(VENV_PYTHON), "-m", "pytest", "-q", "-k", pattern]
        code = subprocess.run(
            python, cwd=ROOT, env={**os.environ, **venv_environment()}, check=False
        ).returncode
        if code != 5:  # 5: no Python test of that name
            codes.append(code)
    if not codes:
        print(f"no test's name matches {pattern}", file=sys.stderr)
        return 1
    return max(codes)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--stages", metavar="A,B", help=f"run these stages alone, of: {', '.join(STAGES)}")
    group.add_argument("--long", action="store_true", help=f"run {', '.join(LONG)}, however long they take")
    group.add_argument("--one", metavar="T", help="run the tests whose names match")
    group.add_argument(
        "--install", action="store_true", help="build the Python package and install it into .venv"
    )
    options = parser.parse_args(arguments)
    REPORTS.mkdir(parents=True, exist_ok=True)
    if options.install:
        return install()
    if options.one is not None:
        return one(options.one)
    if options.long:
        return run_stages(LONG, None)
    names = options.stages.split(",") if options.stages else EVERY_DAY
    if unknown := [name for name in names if name not in STAGES]:
        parser.error(f"no stage {', '.join(unknown)}; there are {', '.join(STAGES)}")
    return run_stages(names, BUDGET_MINUTES if not options.stages else None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
