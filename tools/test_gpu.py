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
import copy
import datetime
import importlib.util
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import threading
import time
import xml.etree.ElementTree as ElementTree
import zipfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gpu_shares import shares

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "gpu"
SITE = WORK / "site"  # what goes on PYTHONPATH
BUDGET = 470  # seconds for all, of the eight minutes that a run may take
PAGES = "4K,16K,64K,256K,1M,16M"
LABELS = ["gpu1", "gpu2", "gpu4", "kernel"]
ANY_LABEL = " or ".join(LABELS)
NOT_IN_BUILD = "no test of this kind in this build"
TAIL_LINES = 30
COMPILER = os.environ.get("CXX", "g++")
NIXL = "the wheels nixl and nixl-cu12"
# Of the step's time, for the tests that want the GPUs to themselves: what they take where there is enough.
ALONE_SHARE = 0.5
CORES_OF_A_SHARE, GPU_GIB_OF_A_SHARE = (
    4,
    8,
)  # what one process that runs tests needs, with those that it starts


def load_bare_loader() -> ModuleType:
    """Loads python/headrace/exporting/bare_loader.py without the package, which is not built yet."""
    path = ROOT / "python" / "headrace" / "exporting" / "bare_loader.py"
    spec = importlib.util.spec_from_file_location("bare_loader", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bare_loader = load_bare_loader()


class NothingRun(Exception):
    """A step ran no test, or measured nothing. The text says why. The run fails."""


class NotInBuild(NothingRun):
    """The build has no test for a step. The text says why. The run fails only if --steps names the step."""

    def __str__(self) -> str:
        return f"{NOT_IN_BUILD}: {super().__str__()}"


class Failed(Exception):
    """A step stopped early. The text says why."""


# On the machine that builds


def collect(folder: Path, build: Path) -> None:
    """Copies the files of a release build that a GPU machine needs, stripped, and nanobind's sources for the
    extension."""
    if not (build / "lib" / "libheadrace_kernels.so").exists():
        sys.exit(f"{build}/lib has no libheadrace_kernels.so: run `make build` on a machine with nvcc")
    shutil.rmtree(folder, ignore_errors=True)
    wanted = [
        "bin/headrace",
        "lib/libheadrace.so.0",
        "lib/libheadrace_kernels.so",
        "lib/headrace-probe-plugin",
        "lib/headrace_window.bc",
    ]
    wanted += [
        f"bench/bench_{name}"
        for name in ("gpu_probe", "gpu_ceilings", "gpu_collectives", "gpu_moe", "shm_raw", "raw_tcp")
    ]
    wanted += [str(path.relative_to(build)) for path in (build / "lib" / "backends").glob("*.so")]
    for name in wanted:
        if not (build / name).exists() and name.startswith(("bench/", "lib/headrace_window.bc")):
            continue
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2((build / name).resolve(), target)
        if target.suffix != ".bc":
            subprocess.run(["strip", "--strip-debug", str(target)], check=True)
    nanobind = nanobind_folder(None)
    if nanobind is None:
        print("nanobind is not installed for this Python: install it on the GPU machine", file=sys.stderr)
    else:
        for part in ("include", "src", "ext"):
            shutil.copytree(
                nanobind / part, folder / "nanobind" / part, ignore=shutil.ignore_patterns("__pycache__")
            )
    (folder / "commit.txt").write_text(commit_of_tree() + "\n")
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {total / 1e6:.1f} MB")


def commit_of_tree() -> str:
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12"]
    return (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
        or "unknown"
    )


def nanobind_folder(carried: Path | None) -> Path | None:
    """Returns the folder with nanobind's include, src and ext: carried, or installed for this Python or in
    .venv."""
    if carried is not None and (carried / "nanobind").exists():
        return carried / "nanobind"
    if found := importlib.util.find_spec("nanobind"):
        return Path(found.origin).parent if found.origin else None
    return next((ROOT / ".venv" / "lib").glob("python3*/site-packages/nanobind"), None)


# On the GPU machine


class Sitting:
    """One run: its folders, its remaining time, and its log."""

    def __init__(self, options: argparse.Namespace, started: float | None = None):
        self.started = time.monotonic() if started is None else started
        self.options = options
        self.step = "step"
        self.troubles: list[str] = []  # what failed in this step, for its line at the end
        self.lock = threading.Lock()  # of the log, the rows and what is shown
        self.carried: Path = options.carried.resolve()
        self.out: Path = options.out.resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        WORK.mkdir(parents=True, exist_ok=True)
        self.log = self.out / "test_gpu.log"
        self.limit = 0.0
        self.carries_commit = (self.carried / "commit.txt").exists()
        self.commit = (
            (self.carried / "commit.txt").read_text().strip() if self.carries_commit else commit_of_tree()
        )
        self.machine, self.label, self.gpus, self.gpu_gib = describe_gpus()
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH", "")])),
            "PATH": os.pathsep.join([str(self.carried / "bin"), os.environ["PATH"]]),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def of_step(self, name: str, limit: float) -> Sitting:
        """Returns a copy for a step, with files and a limit of its own. Other steps may run at the same time.

        The copy shares the log and its lock.
        """
        own = copy.copy(self)
        own.step, own.limit, own.troubles = name, limit, []
        return own

    def seconds_left(self) -> float:
        budget: float = self.options.budget
        return budget - (time.monotonic() - self.started)

    def step_seconds_left(self) -> float:
        """At least one second, so that a command that begins last can still print its end."""
        return max(1.0, self.limit - time.monotonic())

    def file(self, name: str) -> Path:
        """Returns the file for the output of a command of this step."""
        return WORK / f"{self.step}_{name}.txt"

    def trouble(self, text: str) -> bool:
        """Notes a failure. Returns False, the result of a step that failed."""
        self.troubles.append(text)
        self.note(f"    # {text}")
        return False

    def run(
        self,
        command: list[str],
        *,
        tail: int = TAIL_LINES,
        environment: dict[str, str] | None = None,
        rows: bool = False,
        case_suffix: str = "",
    ) -> bool:
        """Runs the command into the log for at most the step's time, and shows its last lines. Returns True
        if the command succeeded.

        rows: the command must print at least one row, and its rows are kept. case_suffix: added to the case
        of each row, so that other settings give other cases.
        """
        shown = " ".join(part if len(part) < 60 else "..." for part in command)
        if self.limit < time.monotonic():
            return self.trouble(f"not begun, out of time: {shown}")
        errors, output = self.file("stderr"), self.file("stdout")
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err if rows else out,
                start_new_session=True,
                env={**self.environment, **(environment or {})},
            )
            try:
                ending = bare_loader.ending(process.wait(self.step_seconds_left()))
            except subprocess.TimeoutExpired:
                ending = "out of time"
            end_with_children(process)
        text = output.read_text(errors="replace")
        kept = self.keep_rows(text, case_suffix) if rows else 1
        text += errors.read_text(errors="replace") if rows else ""
        self.note(f"$ {shown}\n{text}\n# {ending}", show=False)
        if ending == "exit code 0" and kept == 0:
            ending = "no row"
        ok: bool = ending == "exit code 0"
        if not ok:
            self.troubles.append(f"{brief(command)}: {ending}")
        self.show_end(text, tail if ok else max(tail, TAIL_LINES), [] if ok else [f"# {ending}: {shown}"])
        return ok

    def show_end(self, text: str, tail: int, last: list[str]) -> None:
        """Shows the last lines of a command's output and the lines `last`, without lines of another step in
        between."""
        lines = text.splitlines()[-tail:] if tail else []
        with self.lock:
            print("".join(f"    {line[:300]}\n" for line in lines + last), end="", flush=True)

    def note(self, text: str, show: bool = True) -> None:
        with self.lock:
            with self.log.open("a") as log:
                log.write(text + "\n")
            if show:
                print(text, flush=True)

    def keep_rows(self, text: str, case_suffix: str = "") -> int:
        """Appends the rows in a program's output to the files of their tables, with the GPUs as the machine
        and the tree's commit. Returns the number of rows."""
        kept = 0
        for line in text.splitlines():
            if not line.startswith("{"):
                continue
            row = json.loads(line)
            if "table" not in row:
                continue
            if "NVIDIA" not in row["machine"]:
                row["machine"] = self.machine
            if self.carries_commit or not re.fullmatch(r"[0-9a-f]{7,}\+?", row["commit"]):
                row["commit"] = self.commit  # what was carried need not be of the tree that lies here
            row["case"] = row.get("case", "") + case_suffix
            row["command"] = row["command"].replace(str(self.carried / "bin") + "/", "")
            with (
                self.lock,
                (self.out / f"{datetime.date.today()}-{self.label}-{row['table']}.jsonl").open("a") as file,
            ):
                file.write(json.dumps(row) + "\n")
            kept += 1
        return kept

    def row_lines(self) -> Counter[str]:
        """Returns the lines of all rows in the folder, also those of earlier runs."""
        files = self.out.glob("*.jsonl")
        return Counter(line for file in files for line in file.read_text().splitlines())

    def rows_since(self, before: Counter[str]) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.row_lines() - before).elements()]


def brief(command: list[str]) -> str:
    """Returns the first words of a command, without the folders."""
    parts = [Path(part).name if part.startswith(("/", "../")) else part for part in command[:5]]
    return " ".join(part if len(part) < 40 else "..." for part in parts)


def end_with_children(process: subprocess.Popen[bytes]) -> None:
    """Kills the process and its children, which would keep memory of the GPUs. The process leads a session of
    its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def describe_gpus() -> tuple[str, str, int, float]:
    """Returns "2x NVIDIA H200 (NVLink), 32 cores, driver 580.0", "h200x2", 2, and the GiB of the GPU with the
    least memory."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"]
    try:
        names = (
            subprocess.run(query, capture_output=True, text=True, check=True, timeout=30)
            .stdout.strip()
            .splitlines()
        )
        links = subprocess.run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=False, timeout=30
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return "no GPU", "no-gpu", 0, 0.0
    name, driver, _ = (part.strip() for part in names[0].split(","))
    # "[N/A]" of a GPU that has the host's memory: then one process at a time.
    mebibytes = [line.rpartition(",")[2].strip() for line in names]
    least = min(float(number) / 1024 if number.isdigit() else 0.0 for number in mebibytes)
    wire = " (NVLink)" if re.search(r"\bNV[0-9]+\b", links) else ""
    model = re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia ")).strip("-")
    return (
        f"{len(names)}x {name}{wire}, {len(os.sched_getaffinity(0))} cores, driver {driver}",
        f"{model}x{len(names)}",
        len(names),
        least,
    )


# Steps


def extension(sitting: Sitting) -> bool:
    """The package: python/headrace, the extensions compiled for this interpreter, and the libraries next to
    them."""
    package = SITE / "headrace"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    modules = {
        "python": (WORK / f"_headrace{suffix}", package),
        "compat_nixl": (WORK / f"_compiled{suffix}", package / "compat" / "nixl"),
    }
    for bindings, (made, _) in modules.items():
        sources = sorted((ROOT / "bindings" / bindings).glob("*.cpp"))
        newest = max(path.stat().st_mtime for path in sources)
        if made.exists() and made.stat().st_mtime >= newest:
            continue
        if not compile_extension(sitting, bindings, sources, made):
            return False
    shutil.rmtree(SITE, ignore_errors=True)
    for name in ("headrace", "headrace_torch"):
        shutil.copytree(ROOT / "python" / name, SITE / name, ignore=shutil.ignore_patterns("__pycache__"))
    for made, folder in modules.values():
        shutil.copy2(made, folder / made.name)
    (package / "lib").symlink_to(sitting.carried / "lib")
    # As the installed package shows it: what loads, and what each backend says of this machine.
    program = (
        "import headrace, headrace.compat.nixl\n"
        "print(headrace.__version__, headrace.compat.nixl.nixl_agent.__module__)\n"
        "for b in headrace.list_backends(): print(b.name, b.loaded, b.refusal)"
    )
    return sitting.run([sys.executable, "-c", program])


def compile_extension(sitting: Sitting, bindings: str, sources: list[Path], target: Path) -> bool:
    """Compiles as cmake/parts.cmake does for the release build, without the packages that a configuration
    needs."""
    flags = [
        "-fno-strict-aliasing",
        "-ffunction-sections",
        "-fdata-sections",
        f"-I{sysconfig.get_paths()['include']}",
    ]
    own_flags: dict[Path, list[str]] = {}
    libraries: list[str] = []
    if bindings == "python":
        nanobind = nanobind_folder(sitting.carried)
        if nanobind is None:
            return sitting.trouble("nanobind is neither carried nor installed")
        flags += [
            "-DNB_COMPACT_ASSERTIONS",
            f"-I{nanobind / 'include'}",
            f"-I{nanobind / 'ext' / 'robin_map' / 'include'}",
        ]
        combined = nanobind / "src" / "nb_combined.cpp"
        sources, own_flags = [combined, *sources], {combined: ["-DNB_BUILD"]}
        libraries = [str(sitting.carried / "lib" / "libheadrace.so.0")]
    # As Python 3.10 and 3.11 get it; failing that as the wheel for 3.12 and newer has it, with the limited
    # API.
    for api in [[], ["-DPy_LIMITED_API=0x030C0000"]][: 2 if sys.version_info >= (3, 12) else 1]:
        if objects := compile_objects(
            sitting, sources, [*flags, *api], WORK / f"objects_{bindings}", own_flags
        ):
            break
    else:
        return False
    link = [
        COMPILER,
        "-shared",
        "-o",
        str(target),
        *map(str, objects),
        "-Wl,--gc-sections",
        "-Wl,-rpath,$ORIGIN/lib",
        f"-Wl,--version-script={ROOT / 'cmake' / 'python_exports.map'}",
        *libraries,
        "-pthread",
    ]
    return sitting.run(link)


def compile_objects(
    sitting: Sitting,
    sources: list[Path],
    flags: list[str],
    folder: Path,
    own_flags: dict[Path, list[str]] | None = None,
    compiler: str = COMPILER,
) -> list[Path]:
    """Compiles each source into the folder, at most one at a time per core. Returns [] after the first errors
    if a source fails."""
    folder.mkdir(exist_ok=True)
    common = [
        "-std=c++20",
        "-O2",
        "-DNDEBUG",
        "-fPIC",
        "-fvisibility=hidden",
        "-fvisibility-inlines-hidden",
        "-w",
        f"-I{ROOT}",
        f"-I{ROOT / 'include'}",
    ]

    def compile_one(source: Path) -> tuple[Path, str]:
        made = folder / f"{source.stem}.o"
        command = [
            compiler,
            *common,
            *flags,
            *(own_flags or {}).get(source, []),
            "-c",
            str(source),
            "-o",
            str(made),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=sitting.step_seconds_left()
            )
        except subprocess.TimeoutExpired:
            return made, f"{source}: out of time"
        if done.returncode == 0:
            return made, ""
        return made, done.stderr or f"{source}: {compiler} {bare_loader.ended(done.returncode)}"

    with ThreadPoolExecutor(sitting.options.jobs or os.cpu_count() or 1) as pool:
        compiled = list(pool.map(compile_one, sources))
    errors = [text for _, text in compiled if text]
    if not errors:
        return [made for made, _ in compiled]
    sitting.note("\n".join(errors), show=False)
    print("\n".join(errors[0].splitlines()[:TAIL_LINES]))
    sitting.troubles.append(f"{len(errors)} of {len(sources)} sources do not compile")
    return []


def compile_torch_runtime(sitting: Sitting, compiler: str = COMPILER) -> bool:
    """Compiles libheadrace_torch.so and its note against the installed torch, as cmake/torch.cmake does."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        return sitting.trouble("torch is not installed")
    root = Path(found.origin).parent
    about = runpy.run_path(str(root / "version.py"))
    version, kind = (
        about["__version__"],
        "rocm" if about.get("hip") else "cuda" if about.get("cuda") else "cpu",
    )
    flags = [
        f'-DHEADRACE_TORCH_VERSION="{version}"',
        f'-DHEADRACE_TORCH_ACCELERATOR="{kind}"',
        "-isystem",
        str(root / "include"),
        "-isystem",
        str(root / "include" / "torch" / "csrc" / "api" / "include"),
    ]
    if tuple(map(int, version.split(".")[:2])) >= (2, 13):
        flags.append("-DHEADRACE_TORCH_LOADS_FOLDERS")
    objects = compile_objects(
        sitting,
        sorted((ROOT / "bindings" / "torch").glob("*.cpp")),
        flags,
        WORK / "torch_objects",
        compiler=compiler,
    )
    if not objects:
        return False
    library = sitting.carried / "lib" / "libheadrace_torch.so"
    torch_libraries = [str(root / "lib" / f"lib{name}.so") for name in ("torch", "torch_cpu", "c10")]
    link = [
        compiler,
        "-shared",
        "-o",
        str(library),
        *map(str, objects),
        "-Wl,--no-as-needed",
        *torch_libraries,
        f"-Wl,-rpath,{root / 'lib'}",
    ]
    done = subprocess.run(link, capture_output=True, text=True, check=False)
    sitting.note(done.stderr, show=done.returncode != 0)
    if done.returncode != 0:
        return sitting.trouble(f"linking {library.name}: {compiler} {bare_loader.ended(done.returncode)}")
    library.with_suffix(".json").write_text(
        json.dumps({"torch": version, "accelerator": kind, "folder": str(root)}) + "\n"
    )
    return True


def machine(sitting: Sitting) -> bool:
    """The machine, and the report of the command `headrace plugins` on it."""
    print(f"    {sitting.machine}; commit {sitting.commit}; Python {sys.version.split()[0]}")
    if shutil.which("nvidia-smi"):
        sitting.run(["nvidia-smi", "topo", "-m"], tail=0)
        sitting.run(["nvidia-smi"], tail=0)
    # torch's first import reads gigabytes from the disk, which shall not count as somebody's silence later.
    torch = sitting.run(
        [
            sys.executable,
            "-c",
            "import torch; print('torch', torch.__version__, torch.cuda.device_count(), 'GPUs')",
        ]
    )
    return sitting.run([str(sitting.carried / "bin" / "headrace"), "plugins"]) and torch


def paths(sitting: Sitting) -> bool:
    """The path of pages for each pair of memories, and its speed on this machine."""
    return sitting.run([str(sitting.carried / "bin" / "headrace"), "doctor", "--paths"], tail=40)


def native(sitting: Sitting) -> bool:
    """The C++ tests with a GPU's label, if the build was made on this machine."""
    no_label = f"no C++ test has a label of {', '.join(LABELS)}"
    if not sitting.options.built_here:
        names = labelled_cpp_tests()
        if not names:
            raise NotInBuild(no_label)
        raise NothingRun(
            f"--carried brings no C++ tests, and these need a GPU: {', '.join(names)}. On a machine that can "
            "build, leave --carried out"
        )
    report = fresh_report(sitting, "native")
    ok = sitting.run(
        [
            "ctest",
            "--test-dir",
            str(ROOT / "build" / "release"),
            "-L",
            f"^({'|'.join(LABELS)})$",
            "--output-on-failure",
            "--no-tests=error",
            "--output-junit",
            str(report),
        ]
    )
    if "No tests were found" in sitting.file("stdout").read_text(errors="replace"):
        raise NotInBuild(no_label)
    return some_test_ran(report) and ok


def labelled_cpp_tests() -> list[str]:
    """Returns the names of the checkout's C++ tests with a GPU's label. cmake/tests.cmake takes the label
    from the end of the suite's or the test's name."""
    test = re.compile(r"\b(?:TEST(?:_F|_P)?|TYPED_TEST(?:_P)?)\(\s*(\w+)\s*,\s*(\w+)")
    label = re.compile(rf"_(?:{'|'.join(LABELS)})$")
    sources = [
        file for folder in ("tests", "backends") for file in sorted((ROOT / folder).rglob("*_test.cpp"))
    ]
    found = [match.groups() for file in sources for match in test.finditer(file.read_text(errors="replace"))]
    return [".".join(names) for names in found if any(label.search(name) for name in names)]


def fresh_report(sitting: Sitting, name: str) -> Path:
    """Returns the file for a test program's report, and removes an earlier report."""
    report = sitting.out / f"{name}.xml"
    report.unlink(missing_ok=True)
    return report


def some_test_ran(report: Path) -> bool:
    """Raises NothingRun if the report has no test that ran. Returns False if there is no report: its program
    ended too early."""
    try:
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return False
    if not cases:
        raise NothingRun("no test was selected")
    if all(case.find("skipped") is not None for case in cases):
        raise NothingRun(skipped_text(cases))
    return True


def skipped_text(cases: list[ElementTree.Element]) -> str:
    """Says that all tests were skipped, with the most frequent reason."""
    skipped = [case.find("skipped") for case in cases]
    reasons = Counter(one.get("message", "") for one in skipped if one is not None)
    return f"all {len(cases)} tests were skipped: {reasons.most_common(1)[0][0]}"


def pytest_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]


def pytest(
    sitting: Sitting, selection: str, *arguments: str, file: str = "test_gpu.py", report: str = "",
    environment: dict[str, str] | None = None,
) -> bool:  # fmt: skip
    """Returns True if some test ran and none failed. report: the name of the report's file; default: the name
    of the tests' file."""
    path = fresh_report(sitting, report or Path(file).stem)
    command = pytest_command(
        "-v",
        "--durations=12",
        "-m",
        selection,
        f"--junitxml={path}",
        *arguments,
        f"tests/python/{file}",
    )
    ok = sitting.run(command, tail=60, environment=environment)
    return some_test_ran(path) and ok


def tests(sitting: Sitting) -> bool:
    """tests/python/test_gpu.py without the slow tests: side by side, and one by one if a test needs the GPUs
    alone."""
    quick = f"({ANY_LABEL}) and not slow"
    beside, alone = (ids_of_tests(sitting, f"{quick} and {which}") for which in ("not alone", "alone"))
    shutil.rmtree(WORK / "junit", ignore_errors=True)
    (WORK / "junit").mkdir()
    if not beside and not alone:
        raise NothingRun(
            f"test_gpu.py has no test of this selection: {quick} {' '.join(sitting.options.pytest)}".rstrip()
        )
    dealt = shares(beside, how_many_beside(sitting))
    common = ["-v", "--durations=5", *sitting.options.pytest]
    commands = {
        f"share_{number}": pytest_command(*common, f"--junitxml={WORK}/junit/{number:02}.xml", *share)
        for number, share in enumerate(dealt)
    }
    print(
        f"    {len(beside)} tests in {len(commands)} processes side by side, then {len(alone)} tests alone",
        flush=True,
    )
    cores = max(
        1, 2 * len(os.sched_getaffinity(0)) // max(1, len(commands))
    )  # twice its part: most of them wait most of the time
    before_those = sitting.of_step(
        sitting.step, sitting.limit - (ALONE_SHARE * sitting.step_seconds_left() if alone else 0)
    )
    ok = run_together(before_those, commands, {"OMP_NUM_THREADS": str(cores)})
    if alone:
        ok = sitting.run(pytest_command(*common, f"--junitxml={WORK}/junit/alone.xml", *alone), tail=8) and ok
    return every_test_counts(sitting, [*beside, *alone]) and ok


def ids_of_tests(sitting: Sitting, selection: str) -> list[str]:
    """Returns the ids of the selected tests of test_gpu.py, in pytest's form."""
    # What is asked for comes first: what this needs is not for it to change.
    arguments = [
        *sitting.options.pytest,
        "--collect-only",
        "--verbosity=-1",
        "-m",
        selection,
        "tests/python/test_gpu.py",
    ]
    command, left = pytest_command(*arguments), sitting.step_seconds_left()
    done = subprocess.run(
        command, cwd=ROOT, env=sitting.environment, capture_output=True, text=True, check=False, timeout=left
    )
    if done.returncode not in (0, 5):  # 5: none is left
        sitting.note(done.stdout + done.stderr)
        raise OSError(f"pytest cannot collect the tests: {bare_loader.ending(done.returncode)}")
    return [line for line in done.stdout.splitlines() if line.startswith("tests/") and "::" in line]


def how_many_beside(sitting: Sitting) -> int:
    """Returns how many processes may run tests at once: each needs a few cores and a part of the GPUs'
    memory."""
    return max(
        1, min(len(os.sched_getaffinity(0)) // CORES_OF_A_SHARE, int(sitting.gpu_gib // GPU_GIB_OF_A_SHARE))
    )


def every_test_counts(sitting: Sitting, asked_for: list[str]) -> bool:
    """Joins the processes' reports into test_gpu.xml, and notes the numbers of passed, failed and skipped
    tests. Returns True if each test ran once and none failed.

    Raises NothingRun if each test was skipped.
    """
    whole = ElementTree.Element("testsuites", name="tests/python/test_gpu.py")
    ran: list[str] = []
    count = {"failed": 0, "skipped": 0}
    for report in sorted((WORK / "junit").glob("*.xml")):
        try:
            suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
        except ElementTree.ParseError:  # of a process that was ended meanwhile: its tests count as not run
            continue
        for suite in suites:
            suite.set("name", report.stem)
            whole.append(suite)
            for case in suite.iter("testcase"):
                ran.append(case.get("name", ""))
                count["failed"] += case.find("failure") is not None or case.find("error") is not None
                count["skipped"] += case.find("skipped") is not None
    ElementTree.ElementTree(whole).write(sitting.out / "test_gpu.xml", encoding="utf-8", xml_declaration=True)
    names = [test.rpartition("::")[2] for test in asked_for]
    missing = sorted(set(names) - set(ran))
    passed = len(ran) - count["failed"] - count["skipped"]
    sitting.note(
        f"    {passed} passed, {count['failed']} failed, {count['skipped']} skipped, {len(missing)} not "
        f"run, of {len(names)} tests"
    )
    for name in missing[:TAIL_LINES]:
        sitting.note(f"    not run: {name}")
    if missing:
        sitting.troubles.append(f"{len(missing)} of {len(names)} tests not run")
    elif ran and count["skipped"] == len(ran):
        raise NothingRun(skipped_text(list(whole.iter("testcase"))))
    return sorted(ran) == sorted(names) and count["failed"] == 0 and bool(names)


def exchange(sitting: Sitting) -> bool:
    """Every GPU to and from every other at once, and several processes on one."""
    return pytest(sitting, ANY_LABEL, *sitting.options.pytest, file="test_gpu_all_to_all.py")


def comm(sitting: Sitting) -> bool:
    """Communicators in Python, each rank a process with torch."""
    return pytest(sitting, f"({ANY_LABEL}) and not slow", *sitting.options.pytest, file="test_gpu_comm.py")


def device_windows(sitting: Sitting) -> bool:
    """Windows in kernels of CUDA and of Triton, a part of the step `comm`."""
    more = ["-k", "kernels_use_windows and not fused", *sitting.options.pytest]
    return pytest(sitting, ANY_LABEL, *more, file="test_gpu_comm.py", report="test_gpu_device_windows")


def fused(sitting: Sitting) -> bool:
    """headrace.fused, a part of the step `comm`."""
    more = ["-k", "kernels_use_windows and fused", *sitting.options.pytest]
    return pytest(sitting, ANY_LABEL, *more, file="test_gpu_comm.py", report="test_gpu_fused")


def torch_operators(sitting: Sitting) -> bool:
    """torch.ops.headrace on tensors of GPUs, a part of the step `comm`."""
    more = ["-k", "operators_of_torch", *sitting.options.pytest]
    return pytest(sitting, ANY_LABEL, *more, file="test_gpu_comm.py", report="test_gpu_torch_operators")


def fabric(sitting: Sitting) -> bool:
    """Fabrics with kernels of one GPU, in 1 to 8 processes; pplx-garden's cumem on a GPU."""
    right = pytest(sitting, ANY_LABEL, "-s", *sitting.options.pytest, file="test_gpu_fabric.py")
    return pytest(sitting, "gpu1", file="test_compat_pplx_cumem.py") and right


def torch_further(sitting: Sitting) -> bool:
    """torch's symmetric tensors, and messages of a rank to itself: a part of the step `comm`."""
    more = ["-k", "further_checks", *sitting.options.pytest]
    return pytest(sitting, ANY_LABEL, *more, file="test_gpu_comm.py", report="test_gpu_torch_further")


def torch_order(sitting: Sitting) -> bool:
    """Groups of torch beside streams that are held up, memory that is used again, and other programs."""
    return pytest(sitting, ANY_LABEL, *sitting.options.pytest, file="test_gpu_torch_order.py")


def courier(sitting: Sitting) -> bool:
    """Small pages, moved by the courier."""
    return pytest(sitting, ANY_LABEL, *sitting.options.pytest, file="test_gpu_courier.py")


def run_together(
    sitting: Sitting, commands: dict[str, list[str]], environment: dict[str, str] | None = None
) -> bool:
    """Runs all commands at once, each into a file of its own. Then it writes their output to the log one
    after another, and shows the last lines of those that failed."""
    started = {}
    for name, command in commands.items():
        with sitting.file(name).open("wb") as out:
            started[name] = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                env={**sitting.environment, **(environment or {})},
            )  # fmt: skip
    failed = []
    for name, process in started.items():
        try:
            ending = bare_loader.ending(process.wait(sitting.step_seconds_left()))
        except subprocess.TimeoutExpired:
            ending = "out of time"
        end_with_children(process)
        text = sitting.file(name).read_text(errors="replace")
        sitting.note(f"$ {' '.join(commands[name])}\n{text}\n# {ending}", show=False)
        if ending != "exit code 0":
            failed.append(name)
            sitting.troubles.append(f"{name}: {ending}")
        sitting.show_end(text, 0 if ending == "exit code 0" else TAIL_LINES, [f"{name}: {ending}"])
    return not failed


def demo_rows(sitting: Sitting, said: dict[str, Any]) -> str:
    """Returns the figures of `headrace demo --json` as rows."""
    values = [
        ("tokens_per_second", "1/s"),
        ("GB/s", "GB/s"),
        ("share_before_prefill_ended", "1"),
        ("first_token_seconds", "s"),
        ("bytes", "B"),
    ]
    about = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": sitting.commit,
        "machine": sitting.machine,
    }
    case = f"demo/{said['shape']}/{said['prefill_device']}-{said['decode_device']}/{said['prompt_tokens']}"
    rest = {"peer": None, "peer_value": None, "ratio": None, "checked": said["checked"]}
    command = f"headrace demo --device cuda --shape {said['shape']} --check --tokens {said['tokens']}"
    rows = [
        {
            **about,
            "command": command,
            "table": "misc",
            "case": case,
            "metric": name,
            "unit": unit,
            "value": said[name],
            **rest,
        }
        for name, unit in values
    ]
    return "\n".join(map(json.dumps, rows))


def runner(sitting: Sitting) -> bool:
    """Models and the demo on GPUs. The step makes libheadrace_torch.so and all packages for the torch and the
    GPU of this machine."""
    with ThreadPoolExecutor(1) as pool:
        compiled = pool.submit(compile_torch_runtime, sitting)
        compiler = compiler_that_works(sitting)
        done = compiled.result()
    if compiler is not None:
        done = compile_torch_runtime(sitting, compiler)
    if not done:
        return False
    chosen = {} if compiler is None else {"CXX": compiler}
    folders = {shape: ROOT / "build" / "demo_gpu" / shape for shape in ("book", "experts", "8b")}
    if not export_models(sitting, folders, chosen):
        return False  # the tests would export again, and end as this did
    if not sitting.run([str(sitting.carried / "bin" / "headrace"), "doctor", "--device", "cuda:0"], tail=16):
        return False
    tested = pytest(
        sitting, ANY_LABEL, "-s", *sitting.options.pytest, file="test_gpu_runner.py", environment=chosen
    )
    return demo_at_size(sitting, folders["8b"]) and tested


def compiler_that_works(sitting: Sitting) -> str | None:
    """Returns a C++ compiler whose packages PyTorch's own loader loads; None if that is the default compiler.

    Raises Failed if the loader dies without Headrace: then nothing of this step can work.
    """
    outcome = try_bare_loader(sitting, None)
    if outcome.works:
        return None
    other: str | None = bare_loader.other_compiler()
    if other is not None and try_bare_loader(sitting, other).works:
        sitting.note(f"    using CXX={other}: with {COMPILER} PyTorch's own loader dies")
        return other
    raise Failed(
        f"PyTorch's own loader fails on this machine without Headrace: a bare program gave {outcome}"
    )


def try_bare_loader(sitting: Sitting, compiler: str | None) -> Any:
    """Runs PyTorch's own loader in a bare program. Returns its bare_loader.Outcome."""
    outcome = bare_loader.try_loader(
        "cuda", compiler, seconds=min(bare_loader.SECONDS, sitting.step_seconds_left())
    )
    with_compiler = f" with CXX={compiler}" if compiler else ""
    sitting.note(f"$ PyTorch's own loader{with_compiler}\n{outcome.printed}\n# {outcome}", show=False)
    lines = [] if outcome.works else outcome.printed.splitlines()[-TAIL_LINES:]
    sitting.show_end("\n".join(lines), TAIL_LINES, [f"PyTorch's own loader{with_compiler}: {outcome}"])
    return outcome


def export_models(sitting: Sitting, folders: dict[str, Path], environment: dict[str, str]) -> bool:
    """Exports the packages of the demo and of the tests."""
    export = [sys.executable, "-m", "headrace.demo_model.export", "--device", "cuda"]
    commands = {
        f"export_{shape}": [*export, "--shape", shape, "--output", str(folder)]
        for shape, folder in folders.items()
    }
    commands["export_tests"] = [
        sys.executable,
        "tests/support/gpu_models.py",
        str(ROOT / "build" / "gpu_models"),
    ]
    # Without it each starts a process for each core.
    return run_together(sitting, commands, {"TORCHINDUCTOR_COMPILE_THREADS": "1", **environment})


def demo_at_size(sitting: Sitting, packages: Path) -> bool:
    """Runs `headrace demo --shape 8b`, compares its tokens with those of one process, and keeps its figures
    as rows."""
    command = [
        str(sitting.carried / "bin" / "headrace"),
        "demo",
        "--device",
        "cuda",
        "--shape",
        "8b",
        "--packages",
        str(packages),
    ]
    if not sitting.run(
        [*command, "--python", sys.executable, "--check", "--tokens", "100", "--json"], tail=0
    ):
        return False
    lines = sitting.file("stdout").read_text(errors="replace").splitlines()
    said = next((json.loads(line) for line in lines if line.startswith("{")), None)
    if said is None:
        return sitting.trouble("headrace demo printed no JSON")
    sitting.keep_rows(demo_rows(sitting, said))
    keys = (
        "prompt_tokens",
        "tokens",
        "tokens_per_second",
        "first_token_seconds",
        "bytes",
        "GB/s",
        "share_before_prefill_ended",
        "path",
    )
    sitting.note(
        "    "
        + ", ".join(
            f"{key} {said[key]:.4g}" if isinstance(said[key], float) else f"{key} {said[key]}" for key in keys
        )
    )
    return True


def soak(sitting: Sitting) -> bool:
    """100,000 random requests, every byte compared. Too little time for all of them is a failure."""
    seconds = min(sitting.options.soak_seconds, max(5.0, sitting.limit - time.monotonic() - 20))
    return pytest(sitting, "slow", "-s", f"--soak-seconds={seconds:.0f}", report="test_gpu_soak")


def assumptions(sitting: Sitting) -> bool:
    """The behaviour of the driver in the points that the fake driver assumes."""
    output = sitting.out / "driver_assumptions.jsonl"
    output.unlink(missing_ok=True)
    ok = sitting.run([sys.executable, "bench/gpu/driver_assumptions.py", "--out", str(output)], tail=60)
    if not output.exists() or not output.read_text().strip():
        raise NothingRun("no question was put to the driver")
    return ok


def bench(
    sitting: Sitting,
    *arguments: str,
    kinds: str = "vram-vram",
    environment: dict[str, str] | None = None,
    suffix: str = "",
) -> bool:
    command = [
        str(sitting.carried / "bin" / "headrace"),
        "bench",
        "pages",
        "--kinds",
        kinds,
        "--op",
        "both",
        "--json",
        *arguments,
    ]
    return sitting.run(command, rows=True, environment=environment, case_suffix=suffix)


def pages(sitting: Sitting) -> bool:
    """Pages of every size between two GPUs, both directions; small ones also by 16 multiprocessors alone."""
    whole = bench(sitting, "--page", PAGES)
    return (
        bench(
            sitting, "--page", "4K", environment={"HEADRACE_CUDA_IPC_MULTIPROCESSORS": "16"}, suffix="/sm16"
        )
        and whole
    )


def host(sitting: Sitting) -> bool:
    """Pages between a GPU and the host memory of another process; either side is the initiator."""
    far = bench(sitting, "--allocated", "--page", "4K,64K,16M", kinds="vram-dram")
    near = bench(sitting, "--allocated", "--page", "4K,64K,16M", kinds="dram-vram")
    registered = [bench(sitting, "--page", "4K,64K,16M", kinds=kinds) for kinds in ("vram-dram", "dram-vram")]
    # Memory that may not be pinned: nothing tells the two sides of it apart but the process that copies.
    unpinned = {"HEADRACE_CUDA_IPC_PIN_REGISTERED": "off"}
    staged = [
        bench(sitting, "--page", "4K,64K,16M", kinds=kinds, environment=unpinned, suffix="/unpinned")
        for kinds in ("vram-dram", "dram-vram")
    ]
    return all(registered) and all(staged) and near and far


def compare(sitting: Sitting, script: str, *arguments: str, tail: int = 60) -> bool:
    """Runs a comparison of bench/ and keeps its rows. A comparison that writes no row has failed."""
    about = [
        "--results",
        os.path.relpath(sitting.out, ROOT),
        "--machine",
        sitting.machine,
        "--commit",
        sitting.commit,
        "--machine-label",
        sitting.label,
    ]
    before = sitting.row_lines()
    ok = sitting.run([sys.executable, script, *arguments, *about], tail=tail)
    if ok and not sitting.rows_since(before):
        return sitting.trouble(f"{script} wrote no row")
    return ok


def carried_program(sitting: Sitting, name: str) -> str:
    """Returns the path relative to the tree, in which programs run: rows name it."""
    return os.path.relpath(sitting.carried / name, ROOT)


def many_threads() -> int:
    """Returns half the cores; the peer gets the other half."""
    return max(2, len(os.sched_getaffinity(0)) // 2)


def attach(sitting: Sitting) -> bool:
    """Host memory of another process, on one thread and on half the cores, in turn with bare loops."""
    raw = carried_program(sitting, "bench/bench_shm_raw")
    return compare(
        sitting, "bench/compare_attach.py", "--program", raw, "--threads", f"1,{many_threads()}", tail=50
    )


def dram(sitting: Sitting) -> bool:
    """Host memory of another process through agents with default options, before and after bare loops on half
    the cores."""
    raw = carried_program(sitting, "bench/bench_shm_raw")

    def agents() -> bool:
        registered = bench(sitting, "--page", "4K,64K,16M", kinds="dram-dram")
        return bench(sitting, "--allocated", "--page", "4K,64K,16M", kinds="dram-dram") and registered

    before = agents()
    bare = compare(
        sitting,
        "bench/compare_attach.py",
        "--program",
        raw,
        "--threads",
        str(many_threads()),
        "--rounds",
        "7",
        tail=25,
    )
    return agents() and bare and before


def single(sitting: Sitting) -> bool:
    """One page at a time: by the default choice, and by the courier."""
    chosen = bench(sitting, "--single", "--page", "4K")
    return (
        bench(
            sitting,
            "--single",
            "--page",
            "4K",
            environment={"HEADRACE_CUDA_IPC_COURIER": "on"},
            suffix="/courier",
        )
        and chosen
    )


def ceilings(sitting: Sitting) -> bool:
    """One page between GPUs, one over tcp, pages of host memory: in turn with bare programs that do only the
    copies."""
    bare, command = (
        carried_program(sitting, "bench/bench_gpu_ceilings"),
        carried_program(sitting, "bin/headrace"),
    )
    return compare(sitting, "bench/compare_ceilings.py", "--bare", bare, "--command", command, tail=110)


def views(sitting: Sitting) -> bool:
    """Blocks of a KV cache that change their layout while they move between two GPUs."""
    return sitting.run([sys.executable, "bench/gpu/views.py"], rows=True)


def tcp(sitting: Sitting) -> bool:
    """Pages of GPU memory over tcp at 8 streams, both directions; one page at a time; and between a GPU and
    host memory."""
    whole = bench(sitting, "--backend", "tcp", "--streams", "8", "--page", "4K,64K,16M")
    # As much as the larger pages are: of 64 MiB, a third of the time is the sockets' waking and waiting for
    # the last one.
    whole = (
        bench(
            sitting,
            "--backend",
            "tcp",
            "--streams",
            "8",
            "--page",
            "4K",
            "--count",
            "65536",
            suffix="/65536pages",
        )
        and whole
    )
    alone = bench(sitting, "--backend", "tcp", "--single", "--page", "4K")
    mixed = bench(sitting, "--backend", "tcp", "--streams", "8", "--page", "64K", kinds="vram-dram")
    return whole and alone and mixed


def tcp_host(sitting: Sitting) -> bool:
    """Host memory over tcp in turn with bare TCP: many requests, and one request next to many. A turn is
    short."""
    programs = (
        "--raw",
        carried_program(sitting, "bench/bench_raw_tcp"),
        "--command",
        carried_program(sitting, "bin/headrace"),
    )
    shape = (
        "--streams",
        "1,4,8,16",
        "--pages",
        "4096,16384,65536,16777216",
        "--rounds",
        "2",
        "--iterations",
        "3",
        "--seconds",
        "0.6",
    )
    return compare(sitting, "bench/compare_tcp.py", *programs, *shape, tail=100)


LAST_TURN_SECONDS = 25  # that one may take which began in time


def in_turn(sitting: Sitting, *arguments: str, seconds: int) -> bool:
    """Compares NIXL and Headrace in turn. After `seconds` no turn begins."""
    folder = nixl_folder(sitting)
    seconds = min(seconds, max(1, int(sitting.limit - time.monotonic() - LAST_TURN_SECONDS)))
    before = sitting.row_lines()
    ok = compare(
        sitting,
        "bench/compare_nixl.py",
        "--device",
        "cuda",
        *arguments,
        "--nixl-path",
        os.path.relpath(folder, ROOT),
        "--seconds",
        str(seconds),
    )
    # It goes on where NIXL's processes end too early, and says so.
    if ok and not any(str(row.get("peer")).startswith("nixl") for row in sitting.rows_since(before)):
        return sitting.trouble(
            "nothing was compared with NIXL: the lines above say why its turns did not run"
        )
    return ok


def nixl_folder(sitting: Sitting) -> Path:
    """Returns the folder from which a Python of this version imports NIXL: the folder of --nixl, or the one
    of an installed NIXL.

    Raises NothingRun if there is none.
    """
    given: Path | None = sitting.options.nixl
    if given is not None:
        folder = unpacked(given.resolve())
    else:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        places = [
            Path(sysconfig.get_paths()["purelib"]),
            ROOT / "build" / "nixl-venv" / "lib" / version / "site-packages",
        ]
        found = next((place for place in places if list(place.glob("nixl_cu1[23]-*.dist-info"))), None)
        if found is None:
            raise NothingRun(
                f"NIXL is not installed: download {NIXL} for this Python on a machine with a network, "
                "unpack both into one folder, copy it to this machine, and pass --nixl FOLDER"
            )
        folder = found
    if sitting.limit < time.monotonic():
        raise Failed("out of time before a comparison with NIXL began")
    program = "import nixl._api; print(nixl._api.nixl_agent.__module__)"
    search = os.pathsep.join([str(folder), sitting.environment["PYTHONPATH"]])
    if not sitting.run([sys.executable, "-c", program], environment={"PYTHONPATH": search}):
        raise NothingRun(f"NIXL in {folder} cannot be imported: its error is printed above")
    if (module := sitting.file("stdout").read_text().split()[-1]).startswith("headrace"):
        raise NothingRun(
            f"nixl in {folder} is Headrace's drop-in ({module}): pass --nixl FOLDER with the folder of "
            "NIXL's own package"
        )
    return folder


def nixl(sitting: Sitting) -> bool:
    """NIXL and Headrace in turn, between two GPUs, or between two processes on one."""
    return in_turn(sitting, *target_gpu(sitting), seconds=110)


def target_gpu(sitting: Sitting) -> tuple[str, ...]:
    """Returns the arguments of compare_nixl.py for GPU memory on both sides: its default is two GPUs."""
    return ("--target-gpu", "0") if sitting.gpus == 1 else ()


def nixl_others(sitting: Sitting) -> bool:
    """NIXL, with its defaults and tuned, and Headrace in turn: between a GPU and host memory, in host memory,
    and over tcp."""
    short = (
        "--pages",
        "4096,65536,16777216",
        "--tuned",
        "--without",
        "nixl 2 threads",
        "--rounds",
        "1",
        "--iterations",
        "3",
        "--warm-up",
        "1",
    )
    kinds = [
        ("vram-dram",),
        ("dram-vram",),
        ("dram-dram",),
        ("vram-vram", "--over", "tcp", *target_gpu(sitting)),
        ("dram-dram", "--over", "tcp"),
    ]
    # A list, so that every kind runs after one has failed.
    return all([in_turn(sitting, *short, "--kinds", *which, seconds=75) for which in kinds])  # noqa: C419


def unpacked(given: Path) -> Path:
    """Returns the folder that contains the package: the given folder, or a folder of the given archive, which
    is unpacked once.

    Raises NothingRun if there is none.
    """
    folder = unpack(given) if given.is_file() else given
    packages = [folder / "nixl", *sorted(folder.glob("*/nixl"))]
    # NIXL's wheel has a folder of that name beside the package, for its plugins.
    found = next((path.parent for path in packages if (path / "__init__.py").is_file()), None)
    if found is None:
        raise NothingRun(
            f"{given} has no package nixl: unpack {NIXL} into one folder, and pass it with --nixl FOLDER"
        )
    return found


def unpack(archive: Path) -> Path:
    """Unpacks an archive into a folder of its own, which appears whole or not at all."""
    status = archive.stat()
    target = WORK / "nixl" / f"{archive.name}-{status.st_size}-{status.st_mtime_ns}"
    if target.exists():
        return target
    unfinished = target.with_name(f".{target.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    if zipfile.is_zipfile(archive):  # a wheel is one
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(unfinished)
    else:
        with tarfile.open(archive) as tar:  # Pythons before 3.11.4 trust without being told
            if hasattr(tarfile, "fully_trusted_filter"):
                tar.extractall(unfinished, filter="fully_trusted")
            else:
                tar.extractall(unfinished)
    unfinished.rename(target)
    return target


def sanitizer_command(tool: str) -> list[str]:
    """Returns the beginning of a command that a tool of compute-sanitizer examines."""
    program = shutil.which(
        "compute-sanitizer", path=os.pathsep.join([os.environ["PATH"], "/usr/local/cuda/bin"])
    )
    if program is None:
        raise NothingRun("compute-sanitizer is not installed")
    return [program, "--tool", tool, "--target-processes", "all", "--error-exitcode", "9"]


def sanitizer(sitting: Sitting, tool: str) -> bool:
    command = [
        *sanitizer_command(tool),
        str(sitting.carried / "bin" / "headrace"), "bench", "pages", "--kinds", "vram-vram", "--page", "4K",
        "--total", "1M", "--op", "both",
    ]  # fmt: skip
    moved = sanitized(sitting, [*command, "--count", "100", "--iterations", "2"], {})
    return (
        sanitized(sitting, [*command, "--single", "--iterations", "256"], {"HEADRACE_CUDA_IPC_COURIER": "on"})
        and moved
    )


def sanitized(sitting: Sitting, command: list[str], environment: dict[str, str]) -> bool:
    """Runs a command under compute-sanitizer. Without the sanitizer's summary the command has failed: nothing
    was examined."""
    ok = sitting.run(command, tail=8, environment=environment)
    if ok and " SUMMARY: " not in sitting.file("stdout").read_text(errors="replace"):
        return sitting.trouble("compute-sanitizer gave no summary: it examined nothing")
    return ok


def memcheck(sitting: Sitting) -> bool:
    """compute-sanitizer checks each access of the kernels."""
    return sanitizer(sitting, "memcheck")


def initcheck(sitting: Sitting) -> bool:
    """compute-sanitizer finds reads of GPU memory that was never written."""
    if sitting.gpus < 2:
        raise NothingRun(
            "it needs two GPUs: on one GPU the sanitizer takes writes of another process for no writes"
        )
    return sanitizer(sitting, "initcheck")


def racecheck(sitting: Sitting) -> bool:
    """compute-sanitizer finds races in shared memory."""
    return sanitizer(sitting, "racecheck")


def collectives(sitting: Sitting) -> bool:
    """The kernels of collectives, of ranks that share a GPU: under compute-sanitizer, and their times in turn
    with bare kernels."""
    program = str(sitting.carried / "bench" / "bench_gpu_collectives")
    examined = sanitized(sitting, [*sanitizer_command("memcheck"), program, "quick"], {})
    four = sitting.run([program, "time", "--ranks", "4"], rows=True)
    two = sitting.run([program, "time", "--ranks", "2"], rows=True, case_suffix="/ranks2")
    return four and two and examined


def collectives_long(sitting: Sitting) -> bool:
    """All answers of the kernels of collectives: operations, types, reductions, billions of elements; and
    racecheck."""
    program = str(sitting.carried / "bench" / "bench_gpu_collectives")
    right = sitting.run([program, "check"], tail=8)
    right = pytest(sitting, "slow", file="test_gpu_comm.py", report="test_gpu_billions") and right
    return sanitized(sitting, [*sanitizer_command("racecheck"), program, "quick"], {}) and right


def moe(sitting: Sitting) -> bool:
    """The kernels of MoE, of ranks that share a GPU: random shapes beside the CPU reference, replays whose
    routing changes, compute-sanitizer, and times in turn with bare kernels. Each part has its own end."""
    program = str(sitting.carried / "bench" / "bench_gpu_moe")
    right = sitting.run([program, "check", "--seconds", "50"], tail=12)
    right = sitting.run([program, "soak", "--seconds", "100"], tail=4) and right
    right = sanitized(sitting, [*sanitizer_command("memcheck"), program, "quick"], {}) and right
    return sitting.run([program, "time", "--seconds", "100"], rows=True) and right


def moe_ranks(sitting: Sitting) -> bool:
    """headrace.MoE and its operators of torch on GPUs, ranks as threads and as processes."""
    return pytest(sitting, ANY_LABEL, *sitting.options.pytest, file="test_gpu_moe.py")


def moe_command(sitting: Sitting) -> bool:
    """headrace.MoE by the command, all rows compared: threads and processes that share a GPU, in graphs and
    not, groups, uneven ranks; then times of few and of many tokens."""
    command = [carried_program(sitting, "bin/headrace"), "bench", "moe", "--device", "cuda", "--json"]
    compared = ["--check", "--repeats", "20", "--warm-up", "2", "--seconds", "10", "--tokens", "1,100"]
    right = True
    for shape in (
        ["--ranks", "2", "--routing", "all"],
        ["--ranks", "3", "--experts", "20", "--hidden", "2048", "--type", "bfloat16", "--blocks", "8"],
        ["--ranks", "4", "--group-size", "2", "--combine-type", "float32"],
        ["--ranks", "2", "--graph"],
        ["--ranks", "2", "--processes"],
    ):
        right = sitting.run([*command, *compared, *shape], rows=True) and right
    times = [
        "--ranks",
        "4",
        "--graph",
        "--blocks",
        "16",
        "--seconds",
        "4",
        "--tokens",
        "1,8,32,128,1024,4096",
    ]
    return sitting.run([*command, *times], rows=True) and right


def moe_racecheck(sitting: Sitting) -> bool:
    """compute-sanitizer finds races in shared memory of the kernels of MoE, on small shapes."""
    program = str(sitting.carried / "bench" / "bench_gpu_moe")
    return sanitized(sitting, [*sanitizer_command("racecheck"), program, "quick"], {})


def probe(sitting: Sitting) -> bool:
    """bench/gpu/gpu_probe.cpp: the speed of the links without an agent. Runs only if --steps names it."""
    return sitting.run([str(sitting.carried / "bench" / "bench_gpu_probe"), "--correct", "--quick"], tail=40)


@dataclass
class Step:
    """A function, the most seconds that it may take, and its usual seconds on H200 with 16 to 32 cores, which
    earlier steps leave to it."""

    do: Callable[[Sitting], bool]
    limit: float
    usual: float
    gpus: int = 1  # that it needs


# In the order of what would be missed most.
STEPS: dict[str, Step] = {
    "extension": Step(extension, 120, 10, gpus=0),
    "machine": Step(machine, 90, 8),
    "pages": Step(pages, 60, 12),
    "single": Step(single, 30, 4),
    "host": Step(host, 140, 36),
    "tcp": Step(tcp, 90, 20),
    "views": Step(views, 60, 6),
    "tests": Step(tests, 330, 165),
    "memcheck": Step(memcheck, 60, 8),
    "initcheck": Step(initcheck, 60, 8),
    "racecheck": Step(racecheck, 60, 11),
    "soak": Step(soak, 120, 16, gpus=2),
    "nixl": Step(nixl, 150, 53),
    "collectives": Step(collectives, 180, 67),
    "paths": Step(paths, 60, 5),
    "native": Step(native, 60, 0, gpus=0),
    # A sitting of their own, or what a driver is asked once.
    "attach": Step(attach, 120, 70, gpus=0),
    "dram": Step(dram, 110, 52, gpus=0),
    "ceilings": Step(ceilings, 400, 185),
    "tcp_host": Step(tcp_host, 420, 215, gpus=0),
    "exchange": Step(exchange, 240, 26),
    "collectives_long": Step(collectives_long, 420, 200),
    "comm": Step(comm, 400, 190),
    "device_windows": Step(device_windows, 120, 60),
    "fused": Step(fused, 120, 60),
    "torch_operators": Step(torch_operators, 120, 60),
    "torch_further": Step(torch_further, 120, 60),
    "torch_order": Step(torch_order, 460, 240),
    "moe": Step(moe, 440, 290),
    "moe_ranks": Step(moe_ranks, 540, 200),
    "moe_racecheck": Step(moe_racecheck, 120, 60),
    "moe_command": Step(moe_command, 280, 120),
    "courier": Step(courier, 150, 90),
    "fabric": Step(fabric, 420, 150),
    "runner": Step(runner, 340, 210),
    "assumptions": Step(assumptions, 90, 30),
    "nixl_others": Step(nixl_others, 500, 465),
    "probe": Step(probe, 200, 100),
}
EVERY_TIME = list(STEPS)[: list(STEPS).index("attach")]
# Neighbours of these run at once: they measure nothing, and no one minds what the others take of the GPUs.
SIDE_BY_SIDE = [{"extension", "machine"}, {"memcheck", "initcheck", "racecheck", "soak"}]


def stages(names: list[str]) -> list[list[str]]:
    """Returns the steps in their order; steps that may run side by side share a list."""
    found: list[list[str]] = []
    for name in names:
        if found and any({name, *found[-1]} <= group for group in SIDE_BY_SIDE) and name not in found[-1]:
            found[-1].append(name)
        else:
            found.append([name])
    return found


def usual_seconds(some_stages: list[list[str]]) -> float:
    return sum(max(STEPS[name].usual for name in stage) for stage in some_stages)


def run_step(sitting: Sitting, name: str, later: float) -> tuple[str, float, str]:
    """Runs one step. Returns its name, its seconds and its result. `later`: the usual seconds of the steps
    after it."""
    step, begun, left = STEPS[name], time.monotonic(), sitting.seconds_left()
    if left < 5:
        return name, 0.0, "nothing run: out of time"
    if sitting.gpus < step.gpus:
        needed = "a GPU" if step.gpus == 1 else f"{step.gpus} GPUs"
        return name, 0.0, f"nothing run: the step needs {needed}, and this machine has {sitting.gpus}"
    # One that hangs does not take the time of those after it.
    own = sitting.of_step(name, begun + min(step.limit, left, max(step.usual, left - later)))
    own.note(f"== {name}: {step.do.__doc__ or ''}".splitlines()[0])
    try:
        result = "ok" if step.do(own) else f"failed: {'; '.join(own.troubles) or 'the reason is in the log'}"
    except NotInBuild as why:
        result = f"nothing run: {why}" if sitting.options.steps else str(why)
    except NothingRun as why:
        result = f"nothing run: {why}"
    except Failed as why:
        result = f"failed: {why}"
    except Exception as error:  # a step that cannot even begin is a failure of that step
        own.note(f"    {type(error).__name__}: {error}")
        result = f"failed: {type(error).__name__}: {error}"
    seconds = time.monotonic() - begun
    own.note(f"== {name}: {result}, {seconds:.1f} s")
    return name, seconds, result


def run_steps(sitting: Sitting, names: list[str]) -> int:
    lines: list[tuple[str, float, str]] = []
    todo = stages(names)
    for number, stage in enumerate(todo):
        later = usual_seconds(todo[number + 1 :])
        if len(stage) == 1:  # in this thread, which a Ctrl-C reaches
            lines.append(run_step(sitting, stage[0], later))
            continue
        with ThreadPoolExecutor(len(stage)) as pool:
            lines += pool.map(lambda name, later=later: run_step(sitting, name, later), stage)
    sitting.note(f"\n{sitting.machine}, commit {sitting.commit}")
    for name, seconds, result in lines:
        sitting.note(f"{name:<12}{seconds:>7.1f} s  {result}")
    sitting.note(
        f"{time.monotonic() - sitting.started:.0f} s in all; log and rows: "
        f"{os.path.relpath(sitting.out, ROOT)}"
    )
    ran = [result for _, _, result in lines if not result.startswith(NOT_IN_BUILD)]
    return 0 if ran and all(result == "ok" for result in ran) else 1


def cause(errors: str) -> str:
    """Returns CMake's error on one line. Of other errors it returns the last lines."""
    found = re.search(
        r"^CMake Error at [^\n]*\n(.*?)(?:\n\n\n|\nCall Stack|\Z)", errors, re.DOTALL | re.MULTILINE
    )
    return " ".join(found[1].split()) if found else "\n".join(errors.splitlines()[-8:])


def build_here() -> Path:
    """Builds and collects a release build of this tree. If a dependency is missing, it exits and prints the
    next steps."""
    for command in (["cmake", "--preset", "release"], ["cmake", "--build", "--preset", "release"]):
        print(f"$ {' '.join(command)}", flush=True)
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output="--build" not in command, text=True, check=False
            )
        except OSError as error:
            done = subprocess.CompletedProcess(command, 1, stderr=str(error))
        if done.returncode != 0:
            print(cause(done.stderr or ""))
            print(f"{' '.join(command)}: {bare_loader.ending(done.returncode)}")
            sys.exit(
                "this machine cannot build Headrace: run `make setup`. Or build on another machine, run "
                "`tools/test_gpu.py --collect FOLDER build/release` there, copy FOLDER to this machine, and "
                'run `make test-gpu ARGS="--carried FOLDER"`'
            )
    collect(WORK / "collected", ROOT / "build" / "release")
    return WORK / "collected"


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
        default=Path(os.environ.get("OUT") or ROOT / "build" / "reports" / "gpu"),
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
