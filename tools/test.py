#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests stage by stage, and counts passed, failed and skipped ones.

`make test` calls it without arguments: it runs the daily stages in order, within BUDGET_MINUTES. The output
of each step goes to build/reports/<stage>.log; failures are also shown on the terminal. The last line is `N
passed, N failed, N skipped`. It needs only Python's own library: the first stage installs the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from testing import connectors as servers
from testing import gtest, python_files, store, timings
from testing import tidy as tidy_files
from testing.junit import count_junit
from testing.stage import BUILD, JOBS, REPORTS, ROOT, Case, OutOfTime, Runner, Stage

VENV_PYTHON = ROOT / ".venv" / "bin" / "python"
DEMO_MODEL = BUILD / "demo_model"
INSTALLED = ROOT / ".venv" / ".headrace-installed"  # as old as the last installation; the Makefile compares

BUDGET_MINUTES = 40
LAST_LINES = 12  # of each failure, told again at the end

# Tests wait for other processes and for time limits: one and a half for each core keep the cores busy.
TEST_JOBS = JOBS + JOBS // 2

# Tests that need special hardware, or that take too long for every day.
LABELS = ["slow", "gpu1", "gpu2", "gpu4", "kernel", "fabric", "rdma"]
# C++ cases with the body of another one and more rounds of it: in `make test-long`, under both sanitizers.
MANY_ROUNDS = "many_rounds"

# Suites by stage. The thread sanitizer looks at the parts that have threads.
SANITIZED = r"unit_.*|backend_.*|contract|system"
THREADED = (
    r"unit_(base|memory|transport|local|telemetry|metadata|engine|agent|collectives|compat|fabric|moe)"
    r"|backend_.*|contract|system"
)
RELEASED = r"command|model"

# These rows of the contract suite run under one of the two sanitizers every day, under both in
# `make test-long`.
ROWS_FOR_THREADS = ["cuda_ipc_courier", "fake_kill", "local_small_chunks", "shm_relay", "tcp_faulty"]
ROWS_FOR_MEMORY = [
    "cuda_ipc", "fake_delay", "fake_drop", "fake_inline", "fake_partial", "fake_reorder", "local",
    "local_gpu", "minimal", "posix", "shm", "tcp", "tcp_byte_by_byte", "tcp_gpu", "tcp_reset",
]  # fmt: skip
# These run in `make test-long` alone: rows beside them have the same backend with other settings.
ROWS_FOR_LONG = [
    "fake_duplicate", "fake_progress", "fake_thread", "local_gpu_courier", "posix_small_pieces",
    "tcp_gpu_faulty", "tcp_gpu_small_ring",
]  # fmt: skip
# Suites with rows in other programs: the row that the thread sanitizer sees every day, and the others, which
# the address sanitizer sees.
DAILY_ROWS: dict[str, dict[str, tuple[list[str], list[str]]]] = {
    "system": dict.fromkeys(
        ["*OverBackend", "*OverFaultlessBackend", "*NotificationFlow", "*SeveralPeers"],
        (["tcp"], ["fake", "shm"]),
    ),
    "unit_collectives": {
        "*CommOnEachNccl": (["newest"], ["newest_goes_on", "newest_on_hip", "old", "old_goes_on"]),
        "*CommOnP2pGpus": (
            ["four_of_two_gpus"],
            ["four_of_two_gpus_by_copies", "one", "three", "three_of_one_gpu", "two", "two_by_copies"],
        ),
        "*LazyOver": (["tcp"], ["shm"]),
        "*MixedOperations": (["3_over_tcp"], ["2_over_shm", "3_over_shm"]),
        "*Survivors": (["put"], ["broadcast_from_another", "recv_from_any", "send"]),
        "*WindowOnNccl": (["three"], ["one", "three_that_go_on", "two"]),
        "*WindowOnP2p": (["three_of_one_gpu"], ["one", "three", "two"]),
        "*WindowOver": (["far"], ["far_registered", "mapped", "registered"]),
    },
    "unit_fabric": {"*FabricLanding": (["over_sockets"], ["over_shared_memory"])},
}


def rows_for_threads(suite: str) -> list[str]:
    return [f"{group}.*/{row}" for group, rows in DAILY_ROWS[suite].items() for row in rows[0]]


def rows_for_memory(suite: str) -> list[str]:
    return [f"{group}.*/{row}" for group, rows in DAILY_ROWS[suite].items() for row in rows[1]]


# Cases about shapes of requests run under the address sanitizer every day, under both in `make test-long`:
# their threads do the same as those of `random_pages_arrive`.
SHAPES = [
    "*GridTransfer.*", "*Transfer.uniform_pages_arrive*", "*Transfer.one_page_of_64_mib*",
    "*Transfer.the_accepting_side_of_a_link_reads*", "*Processes.one_page_of_64_mib_moves*",
]  # fmt: skip
# Cases about types of elements and values of results, in which the threads do the same at each call.
TYPES = [
    "CommOnP2p.copies_give_each_rank_its_elements",
    "CommOnP2p.gives_each_rank_its_elements_of_every_type_and_count",
    "CommOnP2p.reduces_every_type_by_each_reduction_that_it_has", "CommOnP2p.registered_tensors_*",
    "CommSupport.*", "OnecclFake.*", "ReduceScatterQuantized.*", "ReductionTest.*",
    "*CommOfSize.all_reduce_adds_every_type_*",
]  # fmt: skip
# Cases about which backend of `auto` has a call: AutoOrder has its threads.
CHOICES = [
    "*CommOnAutoTables.*", "CommOnAuto.a_group_has_*", "CommOnAuto.a_hint_*", "CommOnAuto.gives_small_*",
    "CommOnAuto.goes_on_with_the_other_one_*", "CommOnAuto.grows_*", "CommOnAuto.makes_a_communicator_*",
    "CommOnAuto.nccl_sleeps_*", "CommOnAuto.the_table_*", "CommOnAuto.what_nccl_does_not_reduce_*",
    "CommOnAuto.windows_*",
]  # fmt: skip
# By suite, the cases that a sanitizer does not see every day; `make test-long` has all cases under both. The
# thread sanitizer sees the storms of cancels, which look for races. The address sanitizer sees what looks for
# lost lives and memory: peers that die or stand still, a real etcd, what one thread does at great length.
NOT_IN_DEV = {
    "contract": [
        *(f"*/{row}" for row in ROWS_FOR_THREADS + ROWS_FOR_LONG),
        # Peers that die or stand still: the sockets are those of `tcp`.
        "*/Processes.a_*/tcp_gpu", "*/Processes.posts_*/tcp_gpu", "*/Processes.links_*/tcp_gpu",
        # The same page goes between agents of one process in these rows.
        *(f"*/Processes.one_page_of_64_mib_*/{row}" for row in ("cuda_ipc", "minimal", "tcp", "tcp_gpu")),
        # Random pages of Transfer meet delays and another order too.
        *(f"{each}/fake_delay" for each in [*SHAPES, "*LocalTransfer.*"]),
        *(f"{each}/fake_reorder" for each in [*SHAPES, "*LocalTransfer.*"]),
    ],
    "system": [
        "*.a_storm_of_cancels_*", "*.every_post_completes_once_in_a_storm_of_cancels*",
        *rows_for_threads("system"),
    ],
    "unit_collectives": rows_for_threads("unit_collectives"),
    "unit_fabric": rows_for_threads("unit_fabric"),
}  # fmt: skip
NOT_IN_TSAN = {
    "contract": [
        *(f"*/{row}" for row in ROWS_FOR_MEMORY + ROWS_FOR_LONG), *SHAPES,
        "*Processes.a_killed_peer_*", "*Processes.a_peer_that_*", "*Processes.a_write_to_a_stopped_peer_*",
        "*Processes.posts_to_a_stopped_peer_*", "*OwnerMoves.a_hundred_thousand_pages_*",
        "*Regions.come_and_go_by_the_thousand*", "*LostMemoryProcesses.*",
    ],
    "system": [
        "*PeerChaos.*", "*SeveralProcesses.*",
        # It measures the heap; of_eight_fast_senders_* has the same threads.
        "*.a_function_that_is_slower_than_the_senders_costs_no_memory_*",
        *rows_for_memory("system"),
    ],
    "unit_engine": [
        "Inbox.*", "PayloadIndex.*", "RemoteRegions.*", "RevokedIds.*",
        "AgentMessagesTest.beyond_the_bounds_*", "LastMessages.*",
        "RevocationTest.revoking_a_region_takes_*",
    ],
    "unit_fabric": ["FabricLandings.the_host_memory_of_messages_*", *rows_for_memory("unit_fabric")],
    "unit_memory": ["page_cursor.*", "region_table.*"],
    "unit_metadata": [
        "EtcdServerTest.*", "*StoreContract.*/etcd", "EtcdClient.*", "OpenStore.*",
        "*StoreContract.AnEntryOfMegabytes*",
    ],
    "unit_collectives": [
        "AssemblyMail.*", "*CommOfSize.*/0", "*CommOfSize.*/1", "CommProcesses.*",
        "Meeting.keeps_a_bounded_number_*", "P2pProcesses.*", "WindowProcesses.*", *CHOICES, *TYPES,
        *rows_for_memory("unit_collectives"),
    ],
    "unit_moe": [
        "MoEKernels.*", "MoEKernelsTest.*", "MoENodeFailures.*",
        "MoEOnGpus.that_are_shared_or_not_make_what_the_reference_makes",
    ],
    "backend_tcp": ["*FrameReaderSplits.*", "Goodbye.*", "IdleLink.*"],
}  # fmt: skip

THREADED_PYTHON = [
    f"tests/python/test_{name}.py"
    for name in ("threads", "requests", "notifications", "asyncio", "compat_nixl_agent")
]

# The preset `dev` has these checks of the undefined-behaviour sanitizer; `make test` saves their time. The
# address sanitizer also ends a read through a null pointer and a read past an object.
DEV_SETTINGS = ["-DHEADRACE_SANITIZE_EXCEPT=null,vptr,object-size"]

# On a machine without a GPU, `make demo` and `make test` compile kernels for one kind of GPU, which takes
# seconds. A machine with GPUs gets all kinds, as `make wheel` does.
ALL_ARCHS = ["80", "90a", "100", "120"]
ARCHS = ALL_ARCHS if Path("/dev/nvidiactl").exists() else ["90a"]
RELEASE_SETTINGS = [
    "-DHEADRACE_WERROR=ON",
    "-DCMAKE_UNITY_BUILD=ON",
    "-DHEADRACE_PYTHON=ON",
    "-DHEADRACE_TESTS=ON",
    "-DHEADRACE_EXAMPLES=ON",
    "-DHEADRACE_BENCH=ON",
    f"-DHEADRACE_CUDA_ARCHS={';'.join(ARCHS)}",
]

FUZZ_SECONDS, FUZZ_SECONDS_LONG = 15, 300
TIDY_MINUTES = 1
# No target has these sources: tools/check_rocm.py compiles the first, a command of tests/fuzz/README.md the
# other.
NEVER_COMPILED = {"tests/rocm/hip_functions.cpp", "tests/fuzz/make_corpus/make_corpus.cpp"}
# A build compiles these where it is given the headers of another project: HEADRACE_TORCHCOMMS_ROOT.
WITH_HEADERS_OF_OTHERS = "bindings/torchcomms/"


# Steps that several stages share


def configure(runner: Runner, stage: Stage, preset: str, settings: Sequence[str] = ()) -> bool:
    begin = time.monotonic()
    done = runner.command(stage, ["cmake", "--preset", preset, *settings], environment=venv_environment())
    stage.took("configure", begin)
    return stage.check(done, f"configure {preset}")


def build_targets(runner: Runner, stage: Stage, preset: str, targets: Iterable[str]) -> bool:
    begin = time.monotonic()
    command = ["cmake", "--build", "--preset", preset, "--parallel", str(JOBS)]
    names = list(targets)
    done = runner.command(stage, [*command, *(["--target", *names] if names else [])])
    stage.took("build", begin)
    return stage.check(done, f"build {preset}")


def configure_and_build(
    runner: Runner, stage: Stage, preset: str, targets: Sequence[str], settings: Sequence[str] = ()
) -> bool:
    return configure(runner, stage, preset, settings) and build_targets(runner, stage, preset, targets)


def suites_of(preset: str, names: str) -> list[gtest.Suite]:
    """Returns the test programs whose names match."""
    return [suite for suite in gtest.read_suites(BUILD / preset) if re.fullmatch(names, suite.name)]


def build_suites(
    runner: Runner,
    stage: Stage,
    preset: str,
    names: str,
    more: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> bool:
    if not configure(runner, stage, preset, settings):
        return False
    # A program of the list is not built yet, so only its name counts here.
    targets = [suite.name for suite in suites_of(preset, names)]
    return build_targets(runner, stage, preset, [*targets, *more])


def run_suites(
    runner: Runner,
    stage: Stage,
    preset: str,
    names: str,
    filter_text: str = "",
    without: dict[str, list[str]] | None = None,
    jobs: int = TEST_JOBS,
) -> None:
    gtest.run_suites(
        runner,
        stage,
        suites_of(preset, names),
        wrapper=layout_wrapper(preset),
        filter_text=filter_text or gtest.filter_without(LABELS),
        without=without,
        jobs=jobs,
    )


def run_every_day(
    runner: Runner, stage: Stage, preset: str, names: str, without: dict[str, list[str]]
) -> None:
    daily = gtest.filter_without([*LABELS, MANY_ROUNDS])
    run_suites(runner, stage, preset, names, daily, without)


def test_programs(runner: Runner, stage: Stage, preset: str) -> None:
    """Exports the packages that the model tests run, and runs the examples and the programs in C."""
    begin = time.monotonic()
    ctest(runner, stage, preset, "-R", r"^(model_packages|c\..*|example\..*)$")
    stage.took("run", begin)


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
    """Returns the command prefix for programs under the thread sanitizer, which cannot place its shadow
    memory if the kernel randomises more than 28 address bits."""
    bits = Path("/proc/sys/vm/mmap_rnd_bits")
    if preset == "tsan" and bits.exists() and int(bits.read_text()) > 28:
        return ["setarch", "--addr-no-randomize"]
    return []


def pytest(
    runner: Runner,
    stage: Stage,
    *arguments: str,
    environment: dict[str, str] | None = None,
    wrapper: list[str] | None = None,
    interpreter: Path = VENV_PYTHON,
) -> None:
    if not list((ROOT / "tests" / "python").glob("**/test_*.py")):
        stage.check(False, "pytest", "tests/python has no test_*.py")
        return
    report = REPORTS / f"{stage.name}.pytest.xml"
    report.unlink(missing_ok=True)
    # The name of a Unix socket has room for 107 bytes, and tests make theirs below this folder.
    base = tempfile.mkdtemp(prefix="hr-")
    command = [*(wrapper or []), str(interpreter), "-m", "pytest", "-q", f"--junitxml={report}"]
    command += [f"--basetemp={base}/t", *arguments]
    begin = time.monotonic()
    print(f"  pytest {' '.join(arguments)}", flush=True)
    ok = runner.command(stage, command, environment={**venv_environment(), **(environment or {})}, quiet=True)
    stage.took("run", begin)
    shutil.rmtree(base, ignore_errors=True)
    failures = len(stage.failures)
    count_junit(runner, stage, report, "pytest")
    if not ok and len(stage.failures) == failures:
        stage.check(False, "pytest", f"it failed though no test did; see build/reports/{stage.name}.log")


def venv_environment() -> dict[str, str]:
    """Returns the environment with .venv's programs first, `headrace` among them."""
    return {
        "PATH": f"{VENV_PYTHON.parent}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(VENV_PYTHON.parent.parent),
    }


# Stages


def setup(runner: Runner, stage: Stage) -> None:
    stage.check(run_setup(), "tools/setup.sh")


def run_setup() -> bool:
    """Shows the lines of tools/setup.sh. The output of apt-get and pip goes to the log, and is shown here if
    it fails."""
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


def build_dev(runner: Runner, stage: Stage) -> bool:
    more = ["headrace_fuzz_targets", "headrace_c_tests"]
    return build_suites(runner, stage, "dev", SANITIZED, more, DEV_SETTINGS)


def dev(runner: Runner, stage: Stage) -> None:
    if build_dev(runner, stage):
        run_every_day(runner, stage, "dev", SANITIZED, NOT_IN_DEV)
        ctest(runner, stage, "dev", "-R", r"^c\.", "-L", "unit")  # the programs in C that need no models
        replay(runner, stage, "dev")


def build_tsan(runner: Runner, stage: Stage) -> bool:
    return build_suites(runner, stage, "tsan", THREADED)


def tsan(runner: Runner, stage: Stage) -> None:
    if build_tsan(runner, stage):
        run_every_day(runner, stage, "tsan", THREADED, NOT_IN_TSAN)


def tsan_all(runner: Runner, stage: Stage) -> None:
    """Also the C API, the runner and the models, whose library is built without libtorch's own code being
    watched."""
    suites = f"{THREADED}|unit_runner|model"
    if build_suites(runner, stage, "tsan", suites, ["headrace_examples", "headrace_c_tests"]):
        test_programs(runner, stage, "tsan")
        run_suites(runner, stage, "tsan", suites)


def release(runner: Runner, stage: Stage) -> None:
    """Tests the release build: the command, models, examples. The Python package comes from the same
    build."""
    if build_release(runner, stage):
        test_programs(runner, stage, "release")
        run_suites(runner, stage, "release", RELEASED)


def build_release(runner: Runner, stage: Stage) -> bool:
    more = ["headrace_examples", "headrace_c_tests", "c_model_test"]
    return build_suites(runner, stage, "release", RELEASED, more, RELEASE_SETTINGS)


def wheel(runner: Runner, stage: Stage) -> None:
    stage.check(install_wheel(runner, stage), "pip install .")
    script = "import headrace, sys; sys.exit('torch' in sys.modules)"
    stage.check(
        runner.command(stage, [str(VENV_PYTHON), "-c", script], environment=venv_environment()),
        "import headrace without torch",
    )


def install_wheel(runner: Runner, stage: Stage) -> bool:
    """Builds the package in build/release, the folder of the preset, and installs it into .venv."""
    settings = ["build-dir=build/release", "build.targets=headrace_package"]
    settings += [f"cmake.define.{setting.removeprefix('-D')}" for setting in RELEASE_SETTINGS]
    command = [
        str(VENV_PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--no-build-isolation", "--force-reinstall", *(f"--config-settings={each}" for each in settings), ".",
    ]  # fmt: skip
    begin = time.monotonic()
    runner.venv_ready = runner.command(stage, command, environment=venv_environment())
    stage.took("build", begin)
    if runner.venv_ready:
        INSTALLED.touch()
    return runner.venv_ready


def python(runner: Runner, stage: Stage) -> None:
    marks = ["-m", "not (" + " or ".join(LABELS) + ")"]
    archs = ",".join(ARCHS)
    place = python_files.Place(ROOT, VENV_PYTHON, installed_package(), (*marks, archs))
    # Before the tests, each of which has its limit: compiling the demo's models takes two minutes.
    if demo_is_exported(runner, stage, place):
        files = sorted((ROOT / "tests" / "python").glob("**/test_*.py"))
        place.more = [DEMO_MODEL, BUILD / "models"]
        # The tests use no plugin of pytest. Importing those that are installed takes time in each file.
        environment = {"HEADRACE_TEST_ARCHS": archs, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        environment |= venv_environment()
        python_files.run(runner, stage, place, files, marks, environment, TEST_JOBS)


def demo_is_exported(runner: Runner, stage: Stage, place: python_files.Place) -> bool:
    key = place.key(set())
    if runner.use_store and store.recall(stage, "demo_model", key):
        return True
    ok = stage.check(export_demo(runner, stage), "headrace.demo_model.export")
    if ok and place.key(set()) == key:
        store.keep(stage, "demo_model", key, 1, [], store.hashes_of([DEMO_MODEL]))
    return ok


def export_demo_once(runner: Runner, stage: Stage) -> bool:
    return DEMO_MODEL.exists() or export_demo(runner, stage)


def export_demo(runner: Runner, stage: Stage) -> bool:
    """Exports the demo's models into DEMO_MODEL. Packages that are up to date stay."""
    export = [str(VENV_PYTHON), "-m", "headrace.demo_model.export", "--cache", str(DEMO_MODEL / "cache")]
    folders = {"book": DEMO_MODEL, "experts": DEMO_MODEL / "experts"}
    return all(
        runner.command(
            stage, [*export, "--shape", shape, "--output", str(folder)], environment=venv_environment()
        )
        for shape, folder in folders.items()
    )


def installed_package() -> Path:
    return next((VENV_PYTHON.parent.parent / "lib").glob("python3.*")) / "site-packages" / "headrace"


def replay(runner: Runner, stage: Stage, preset: str) -> None:
    """Runs each fuzz target on its corpus."""
    for target in fuzz_targets(preset):
        corpus = ROOT / "tests" / "fuzz" / "corpus" / target.name.removeprefix("fuzz_")
        key = store.hash_of([target, *store.files_below(corpus)])
        if runner.use_store and store.recall(stage, target.name, key):
            continue
        inputs = [str(path.relative_to(ROOT)) for path in store.files_below(corpus)]
        if stage.check(runner.command(stage, [str(target), *inputs], quiet=True), f"replay {target.name}"):
            store.keep(stage, target.name, key, 1, [])


def fuzz_targets(preset: str) -> list[Path]:
    return sorted(path for path in (BUILD / preset / "fuzz").glob("fuzz_*") if os.access(path, os.X_OK))


def changed_fuzz_targets() -> list[str]:
    """Returns the fuzz targets whose own file changed, or a file of a room or backend that they include."""
    changed = [name for name in changed_sources() if not name.endswith("_test.cpp")]
    found = []
    for source in sorted((ROOT / "tests" / "fuzz").glob("*_fuzz.cpp")):
        rooms = set(re.findall(r'^#include "((?:backends/)?[a-z_]+)/', source.read_text(), re.M))
        folders = [room if room.startswith("backends/") else f"src/{room}" for room in rooms]
        own = (f"tests/fuzz/{source.name}", *(f"{folder}/" for folder in folders))
        if any(name.startswith(own) for name in changed):
            found.append(f"fuzz_{source.stem}")
    return found


def build_fuzz(runner: Runner, stage: Stage, names: Sequence[str]) -> bool:
    return configure_and_build(runner, stage, "fuzz", names or ["headrace_fuzz_targets"])


def build_fuzz_changed(runner: Runner, stage: Stage) -> bool:
    targets = changed_fuzz_targets()
    return not targets or build_fuzz(runner, stage, targets)


def fuzz_changed(runner: Runner, stage: Stage) -> None:
    targets = changed_fuzz_targets()
    print(f"  changed since the base: {', '.join(targets) or 'no target'}", flush=True)
    if targets:
        fuzz(runner, stage, FUZZ_SECONDS, targets)


def fuzz(runner: Runner, stage: Stage, seconds: int, names: Sequence[str]) -> None:
    """Fuzzes the targets, or all. A program that was fuzzed before is the same if no source of it changed."""
    if not build_fuzz(runner, stage, names):
        return
    targets = [path for path in fuzz_targets("fuzz") if not names or path.name in names]
    if not targets:
        stage.check(False, "fuzz", "tests/fuzz has no target")

    def run_target(target: Path) -> None:
        name = target.name.removeprefix("fuzz_")
        corpus = ROOT / "tests" / "fuzz" / "corpus" / name
        key = runner.resume or store.hash_of([target, *store.files_below(corpus)], str(seconds))
        if (runner.use_store or runner.resume) and store.recall(stage, target.name, key):
            return
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
        ok = runner.command(stage, command, log_name=f"{stage.name}-{name}")
        if stage.check(ok, f"{target.name} for {seconds} s"):
            store.keep(stage, target.name, key, 1, [])

    with ThreadPoolExecutor(JOBS) as pool:
        list(pool.map(run_target, targets))


def fuzz_long(runner: Runner, stage: Stage) -> None:
    fuzz(runner, stage, FUZZ_SECONDS_LONG, [])


def changed_sources() -> list[str]:
    """Returns the sources that differ from the commit where the branch left origin; without such a commit,
    from the last commit's parent."""

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


def run_tidy(runner: Runner, stage: Stage, names: list[str], minutes: float | None, use_kept: bool) -> None:
    """Runs clang-tidy on those of the files that are sources, each by itself, as an editor sees it: in a
    build folder that is configured and never built."""
    folder = BUILD / "tidy"
    if not configure(runner, stage, "tidy", ["-DHEADRACE_PYTHON=ON"]):
        return
    if not shutil.which(tidy_files.TIDY):
        stage.check(False, "clang-tidy", f"{tidy_files.TIDY} is not installed: run tools/setup.sh")
        return
    compiled = tidy_files.read_commands(folder)
    names = [
        name
        for name in names
        if name.endswith(".cpp")
        and name not in NEVER_COMPILED
        and (name in compiled or not name.startswith(WITH_HEADERS_OF_OTHERS))
    ]
    for name in names:
        if name not in compiled:
            stage.check(
                False, f"clang-tidy {name}", "no compile command in build/tidy: no target has this file"
            )
    names = [name for name in names if name in compiled]
    tidy_files.run(runner, stage, names, folder, minutes, use_kept)


def tidy(runner: Runner, stage: Stage) -> None:
    run_tidy(runner, stage, changed_sources(), TIDY_MINUTES, use_kept=runner.use_store)


def tidy_ahead(runner: Runner, stage: Stage) -> None:
    """Looks at the changed sources, if the stage reads what is kept."""
    if runner.use_store:
        tidy(runner, stage)


def tidy_all(runner: Runner, stage: Stage) -> None:
    listing = subprocess.run(
        ["git", "ls-files", "*.cpp"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    run_tidy(runner, stage, listing.split(), None, use_kept=runner.use_store or bool(runner.resume))


def gcc(runner: Runner, stage: Stage) -> None:
    """Builds with the second compiler, each source by itself, and runs each case in a process of its own."""
    if configure_and_build(runner, stage, "gcc", []):
        ctest(runner, stage, "gcc", "-LE", f"^({'|'.join(LABELS)})$")


def soaks(runner: Runner, stage: Stage) -> None:
    # One at a time: a soak measures memory and descriptors, and starves its neighbours.
    if build_suites(runner, stage, "dev", SANITIZED, (), DEV_SETTINGS):
        run_suites(runner, stage, "dev", SANITIZED, gtest.filter_with("slow"), jobs=1)


def dev_all(runner: Runner, stage: Stage) -> None:
    """Runs the command and the models under the address and undefined sanitizers, with all their checks."""
    if configure_and_build(runner, stage, "dev", [], ["-DHEADRACE_SANITIZE_EXCEPT="]):
        run_suites(runner, stage, "dev", SANITIZED)
        test_programs(runner, stage, "dev")
        run_suites(runner, stage, "dev", RELEASED)


def tsan_python(runner: Runner, stage: Stage) -> None:
    """Builds the Python module for the thread sanitizer in a folder of its own, and runs the tests in which
    threads share agents."""
    folder = BUILD / "tsan-python"
    package = folder / "package" / "headrace"
    settings = [
        "-DHEADRACE_PYTHON=ON",
        "-DHEADRACE_TESTS=OFF",
        "-DHEADRACE_EXAMPLES=OFF",
        f"-DPython_EXECUTABLE={VENV_PYTHON}",
        # GCC's sanitizer is a library, which Python loads first; clang's is a part of the program.
        "-DCMAKE_C_COMPILER=gcc",
        "-DCMAKE_CXX_COMPILER=g++",
        "-DHEADRACE_PRECOMPILED_HEADERS=OFF",
    ]
    built = (
        runner.command(
            stage, ["cmake", "--preset", "tsan", "-B", str(folder), *settings], environment=venv_environment()
        )
        and runner.command(stage, ["cmake", "--build", str(folder), "--parallel", str(JOBS)])
        and runner.command(
            stage, ["cmake", "--install", str(folder), "--prefix", str(package), "--component", "package"]
        )
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
    suppressions = ROOT / "tests" / "tsan_python.supp"
    options = [
        f"log_path={reports}",
        "second_deadlock_stack=1",
        f"suppressions={suppressions}",
        # GCC 12's guesses the size of thread-local memory from the word before it, which may be a pointer.
        "intercept_tls_get_addr=0",
    ]
    environment = {
        "PYTHONPATH": str(package.parent),
        "LD_PRELOAD": library,
        "TSAN_OPTIONS": ":".join(options),
        "OPENBLAS_NUM_THREADS": "1",
    }
    # The sanitizer ends a forked child that starts threads.
    selection = [*THREADED_PYTHON, "-k", "not forked_child_awaits"]
    pytest(runner, stage, *selection, environment=environment, wrapper=layout_wrapper("tsan"))
    for found in REPORTS.glob(f"{reports.name}.*"):
        stage.check(False, found.name, found.read_text())


def wheel_all(runner: Runner, stage: Stage) -> None:
    """Builds the package as `make wheel` does, with kernels for all kinds of GPU."""
    folder = BUILD / "wheel-all"
    command = [str(VENV_PYTHON), "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--target", str(folder), "--upgrade", "."]
    if stage.check(runner.command(stage, command, environment=venv_environment()), "pip install, all kinds"):
        environment = {"PYTHONPATH": str(folder), "HEADRACE_TEST_ARCHS": ",".join(ALL_ARCHS)}
        pytest(runner, stage, "tests/python/test_device_code.py", environment=environment)


def soaks_python(runner: Runner, stage: Stage) -> None:
    if stage.check(runner.venv_ready or install_wheel(runner, stage), "pip install ."):
        pytest(runner, stage, "-m", "slow and not (" + " or ".join(LABELS[1:]) + ")")


def connectors(runner: Runner, stage: Stage) -> None:
    """Runs the connector classes of inference servers, where pip can install them."""
    ready = stage.check(runner.venv_ready or install_wheel(runner, stage), "pip install .")
    if ready and servers.prepare(runner, stage, VENV_PYTHON):
        pytest(runner, stage, "tests/connectors", interpreter=servers.PYTHON)


def torch_suite(runner: Runner, stage: Stage) -> None:
    """Runs torch's own tests of torch.distributed on Headrace, with two and three ranks."""
    if stage.check(runner.venv_ready or install_wheel(runner, stage), "pip install ."):
        for binding in ("compiled", "python"):
            for ranks in ("--ranks 2", "--ranks 3", "--ranks 2 --own-name"):
                options = f"{ranks} --binding {binding}"
                command = [str(VENV_PYTHON), str(ROOT / "tests" / "torch_suite.py"), *options.split()]
                stage.check(runner.command(stage, command), f"torch's tests, {options}")


def rocm(runner: Runner, stage: Stage) -> None:
    """Compiles the model runner for ROCm's torch; tools/check_rocm.py names the limits of this check."""
    stage.check(
        runner.command(
            stage, [sys.executable, str(ROOT / "tools" / "check_rocm.py"), "--python", str(VENV_PYTHON)]
        ),
        "check_rocm.py",
    )


STAGES: dict[str, tuple[str, Callable[[Runner, Stage], None]]] = {
    "setup": ("install missing packages", setup),
    "sources": ("layout, types, layers, licence lines, host names, paths, figures", sources),
    "dev": ("build and test under the address and undefined sanitizers", dev),
    "tsan": ("build and test the core under the thread sanitizer", tsan),
    "wheel": ("build the Python package and install it", wheel),
    "release": ("test the release build: the command, models, examples", release),
    "python": ("test the Python package and the tools", python),
    "fuzz": (f"{FUZZ_SECONDS} s of fuzzing each reader whose room changed", fuzz_changed),
    "tidy": ("clang-tidy on changed sources", tidy),
    "dev-all": ("all of it, with all checks, under the address and undefined sanitizers", dev_all),
    "tsan-all": ("every row of the contract suite under the thread sanitizer", tsan_all),
    "gcc": ("build and test with the second compiler, each source and each case by itself", gcc),
    "fuzz-long": (f"{FUZZ_SECONDS_LONG} s of fuzzing each reader", fuzz_long),
    "tidy-all": ("clang-tidy on every source", tidy_all),
    "soaks": ("the C++ tests that take minutes", soaks),
    "tsan-python": ("Python tests in which threads share agents, under the thread sanitizer", tsan_python),
    "wheel-all": ("the package with kernels for all kinds of GPU", wheel_all),
    "soaks-python": ("the Python tests that take minutes", soaks_python),
    "connectors": ("connector classes of vLLM, SGLang and LMCache on the drop-in for NIXL", connectors),
    "torch-suite": ("torch's own tests of torch.distributed, on Headrace", torch_suite),
    "rocm": ("compile the model runner as for ROCm's torch, neither linked nor run", rocm),
}
# What stages can do before their turn, in the order of the stages: see Runner.begin_ahead.
AHEAD: dict[str, Callable[[Runner, Stage], object]] = {
    "dev": build_dev,
    "tsan": build_tsan,
    "wheel": install_wheel,
    "release": build_release,
    "python": export_demo_once,
    "fuzz": build_fuzz_changed,
    "tidy": tidy_ahead,
}
EVERY_DAY = ["setup", "sources", "dev", "tsan", "wheel", "release", "python", "fuzz", "tidy"]
# What is likeliest to fail comes first: a mend changes the tree, and the run begins again.
LONG = [
    "setup", "sources", "soaks", "soaks-python", "tsan-python", "dev-all", "tsan-all", "connectors",
    "torch-suite", "gcc", "wheel-all", "rocm", "tidy-all", "fuzz-long",
]  # fmt: skip

LONG_RESULTS = BUILD / "long"


# Ways to call


def run_stages(
    names: list[str], budget_minutes: float | None, *, use_store: bool = False, resume: str = ""
) -> int:
    """Runs the stages in order. With `resume`, a key, a stage that passed under this key is not repeated, nor
    is a part of a stage that was cut off."""
    runner = Runner(budget_minutes, use_store, resume)
    start = time.monotonic()
    try:
        for name in names:
            done = LONG_RESULTS / f"{name}.json"
            if resume and name != "setup" and (stage := recall_stage(name, done, resume)):
                runner.stages.append(stage)
                print(f"== {name}: passed before, {stage.minutes:.1f} min, {stage.passed} passed", flush=True)
                continue
            if name != "setup" and runner.worker is None:
                later = names[names.index(name) + 1 :]
                runner.begin_ahead({each: AHEAD[each] for each in later if each in AHEAD})
            sentence, body = STAGES[name]
            stage = runner.run(name, sentence, body)
            if name == "setup":
                if stage.failures:
                    break
                runner.begin_budget()  # downloads count apart
            if resume and tree_key() != resume:
                stage.check(False, "the tree has changed during the run, which is about one tree")
                break
            if resume and not stage.failures:
                keep_stage(stage, done, resume)
    except OutOfTime:
        late = runner.stages[-1]
        late.failures.append(Case("budget", ""))
        ended = {stage.name for stage in runner.stages}
        left = ", ".join(name for name in names if name not in ended) or "none"
        print(f"== out of time: {budget_minutes} minutes are spent; cut off: {late.name}; not run: {left}")
    finally:
        runner.end_ahead()
    minutes = (time.monotonic() - start) / 60
    return report(runner.stages, minutes)


def keep_stage(stage: Stage, file: Path, key: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    skips = [[case.name, case.text] for case in stage.skips]
    kept = {"key": key, "minutes": stage.minutes, "passed": stage.passed, "skips": skips}
    file.write_text(json.dumps(kept) + "\n")


def recall_stage(name: str, file: Path, key: str) -> Stage | None:
    try:
        kept = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    if kept["key"] != key:
        return None
    skips = [Case(*skip) for skip in kept["skips"]]
    return Stage(name, "", minutes=kept["minutes"], passed=kept["passed"], skips=skips)


def tree_key() -> str:
    """Returns the hash of the tree's files and of the environment. After an interruption `make test-long`
    continues if they are the same, and starts again if they differ."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listing.splitlines() if (ROOT / name).is_file()]
    return store.hash_of([ROOT / name for name in names], *names, store.surroundings())


def report(stages: list[Stage], minutes: float) -> int:
    """Prints the table at the end, and the line with the numbers."""
    passed = sum(stage.passed for stage in stages)
    failed = sum(len(stage.failures) for stage in stages)
    skipped = sum(len(stage.skips) for stage in stages)
    print(f"\n{'stage':<14}{'minutes':>8}{'CPU s':>8}{'passed':>8}{'failed':>8}{'skipped':>8}")
    for stage in stages:
        counts = f"{stage.passed:>8}{len(stage.failures):>8}{len(stage.skips):>8}"
        print(f"{stage.name:<14}{stage.minutes:>8.1f}{stage.cpu_seconds:>8.0f}{counts}")
    cpu_seconds = sum(stage.cpu_seconds for stage in stages)
    print(f"{'all':<14}{minutes:>8.1f}{cpu_seconds:>8.0f}{passed:>8}{failed:>8}{skipped:>8}")
    for stage in stages:
        for case in stage.failures:
            print(f"failed: {stage.name}: {case.name}")
            for line in case.text.splitlines()[-LAST_LINES:]:  # a log that is cut keeps its end
                print(f"    {line}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed or not passed else 0


def install() -> int:
    runner = Runner(None)
    stage = Stage("install", "build the Python package and install it")
    print("building the Python package and installing it into .venv", flush=True)
    return 0 if install_wheel(runner, stage) else 1


def one(pattern: str) -> int:
    """Runs the tests whose names match: a regular expression for ctest, an expression for pytest. Their
    output goes to the terminal."""
    if not pattern:
        print("no test is named: make one T=<regular expression>", file=sys.stderr)
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
    group.add_argument("--stages", metavar="A,B", help=f"run only these stages, of: {', '.join(STAGES)}")
    group.add_argument("--long", action="store_true", help=f"run {', '.join(LONG)}, without a time limit")
    group.add_argument("--one", metavar="T", help="run the tests whose names match")
    group.add_argument(
        "--install", action="store_true", help="build the Python package and install it into .venv"
    )
    group.add_argument("--timings", action="store_true", help="show the times of the last run")
    parser.add_argument(
        "--all", action="store_true", help="run also the programs that passed before with the same hash"
    )
    options = parser.parse_args(arguments)
    REPORTS.mkdir(parents=True, exist_ok=True)
    if options.install:
        return install()
    if options.one is not None:
        return one(options.one)
    if options.timings:
        return timings.print_timings()
    if options.long:
        return run_stages(LONG, None, resume=tree_key())
    names = options.stages.split(",") if options.stages else EVERY_DAY
    if unknown := [name for name in names if name not in STAGES]:
        parser.error(f"there is no stage {', '.join(unknown)}: the stages are {', '.join(STAGES)}")
    use_store = not options.all and not os.environ.get("CI")
    return run_stages(names, BUDGET_MINUTES if not options.stages else None, use_store=use_store)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\ninterrupted: the next run goes on with what has not passed yet", file=sys.stderr)
        sys.exit(130)
