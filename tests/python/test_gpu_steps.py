# SPDX-License-Identifier: Apache-2.0
"""The run on a GPU machine goes on after a failure, ends what takes too long, and keeps the rows."""

import argparse
import importlib.util
import json
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Not by the tool's own name, which a file of tests bears too.
_spec = importlib.util.spec_from_file_location("gpu_steps", ROOT / "tools" / "test_gpu.py")
gpu = importlib.util.module_from_spec(_spec)
sys.modules["gpu_steps"] = gpu  # where its dataclasses look for themselves
_spec.loader.exec_module(gpu)
gpu_shares = sys.modules["gpu_shares"]


@pytest.fixture
def sitting(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "WORK", tmp_path / "work")
    monkeypatch.setattr(
        gpu, "describe_gpus", lambda: ("2x NVIDIA H200 (NVLink), 32 cores, driver 580.1", "h200x2", 2, 140.0)
    )
    (tmp_path / "carried" / "bin").mkdir(parents=True)
    (tmp_path / "carried" / "commit.txt").write_text("0123456789ab\n")
    return gpu.Sitting(
        argparse.Namespace(carried=tmp_path / "carried", out=tmp_path / "out", budget=60, pytest=[])
    )


def python(text):
    return [sys.executable, "-c", text]


def step(do, limit=5, usual=1):
    return gpu.Step(do, limit, usual)


def test_a_step_that_fails_or_breaks_stops_no_other(sitting, monkeypatch, capsys):
    def breaks(_):
        raise OSError("no such program")

    steps = {"fails": step(lambda _: False), "breaks": step(breaks), "works": step(lambda _: True)}
    monkeypatch.setattr(gpu, "STEPS", steps)
    assert gpu.run_steps(sitting, list(steps)) == 1
    assert gpu.run_steps(sitting, ["works"]) == 0
    text = capsys.readouterr().out
    assert "no such program" in text
    assert sitting.log.read_text().count("works") >= 2


def test_a_command_that_takes_too_long_ends_with_what_it_started(sitting, capsys):
    sitting.limit = time.monotonic() + 1
    start = time.monotonic()
    assert not sitting.run(
        python(
            "import subprocess, sys; print('begun', flush=True); subprocess.run([sys.executable, '-c', "
            "'import time; time.sleep(60)'])"
        )
    )
    assert time.monotonic() - start < 20
    text = capsys.readouterr().out
    assert "begun" in text and "out of time" in text


@pytest.mark.parametrize(
    "said", ["0.1.0", "fedcba987654+"]
)  # by the program: of no tree, or of the one that lies where it runs
def test_rows_that_a_program_prints_go_to_their_table_with_the_gpus_and_the_commit_that_was_carried(
    sitting, said
):
    sitting.limit = time.monotonic() + 20
    row = {
        "date": "d",
        "commit": said,
        "machine": "a processor",
        "command": "headrace bench pages",
        "table": "pages-gpu",
        "case": "read/4096x16384",
        "value": 1,
    }
    assert sitting.run(
        python(f"print('some words')\nprint('''{json.dumps(row)}''')"), rows=True, case_suffix="/sm16"
    )
    (file,) = sitting.out.glob("*-h200x2-pages-gpu.jsonl")
    assert json.loads(file.read_text()) == {
        **row,
        "case": "read/4096x16384/sm16",
        "commit": "0123456789ab",
        "machine": sitting.machine,
    }


def test_commands_run_at_once_and_those_that_fail_or_take_too_long_are_shown(sitting, capsys):
    sitting.limit = time.monotonic() + 10
    # Each waits for what the other writes: one after another they would wait for ever.
    meet = (
        "import pathlib, time; here = pathlib.Path({!r}); (here / {!r}).touch()\nwhile not (here / "
        "{!r}).exists(): time.sleep(0.01)"
    )
    where = str(gpu.WORK)
    assert gpu.run_together(
        sitting, {"one": python(meet.format(where, "a", "b")), "other": python(meet.format(where, "b", "a"))}
    )
    sitting.limit = time.monotonic() + 2
    assert not gpu.run_together(
        sitting,
        {
            "fails": python("print('some words'); raise SystemExit(3)"),
            "stays": python("import time; time.sleep(60)"),
        },
    )
    text = capsys.readouterr().out
    assert "some words" in text and "fails: exit code 3" in text and "stays: out of time" in text


def test_what_the_demo_says_becomes_rows_of_a_place_and_a_length(sitting):
    said = {
        "shape": "8b",
        "prefill_device": "cuda:0",
        "decode_device": "cuda:1",
        "prompt_tokens": 2048,
        "tokens": 100,
        "checked": True,
    }
    said |= {
        "tokens_per_second": 90.5,
        "GB/s": 200.0,
        "share_before_prefill_ended": 0.97,
        "first_token_seconds": 0.5,
        "bytes": 268435456,
    }
    sitting.keep_rows(gpu.demo_rows(sitting, said))
    (file,) = sitting.out.glob("*-h200x2-misc.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["case"] for row in rows} == {"demo/8b/cuda:0-cuda:1/2048"} and all(
        row["checked"] and row["commit"] == "0123456789ab" for row in rows
    )
    assert {row["metric"]: row["value"] for row in rows}["GB/s"] == 200.0


def test_what_cannot_be_carried_or_is_not_there_is_said(tmp_path):
    script = str(ROOT / "tools" / "test_gpu.py")
    done = subprocess.run(
        [sys.executable, script, "--collect", str(tmp_path / "a"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0 and "libheadrace_kernels.so" in done.stderr
    done = subprocess.run(
        [sys.executable, script, "--carried", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0 and "is not what --collect makes" in done.stderr


def test_steps_that_measure_nothing_run_side_by_side_and_others_alone(sitting, monkeypatch):
    met = threading.Barrier(2, timeout=20)  # passed only if both are under way at once
    at_once = []

    def meets(_):
        met.wait()
        return True

    def notes_others(own):
        at_once.append(own.step)
        time.sleep(0.05)
        at_once.append(own.step)
        return True

    steps = {
        "one": step(meets),
        "other": step(meets),
        "third": step(notes_others),
        "fourth": step(notes_others),
    }
    monkeypatch.setattr(gpu, "STEPS", steps)
    monkeypatch.setattr(gpu, "SIDE_BY_SIDE", [{"one", "other"}])
    assert gpu.stages(list(steps)) == [["one", "other"], ["third"], ["fourth"]]
    assert gpu.run_steps(sitting, list(steps)) == 0
    assert at_once == ["third", "third", "fourth", "fourth"]


def test_a_step_that_hangs_leaves_those_after_it_their_time(sitting, monkeypatch):
    sitting.options.budget = 40
    limits = {}

    def sees_its_limit(own):
        limits[own.step] = own.limit - time.monotonic()
        return True

    steps = {
        "first": step(sees_its_limit, 1000, 5),
        "second": step(sees_its_limit, 1000, 20),
        "third": step(sees_its_limit, 3, 1),
    }
    monkeypatch.setattr(gpu, "STEPS", steps)
    assert gpu.run_steps(sitting, list(steps)) == 0
    assert limits["first"] == pytest.approx(40 - 21, abs=2)
    assert limits["second"] == pytest.approx(40 - 1, abs=2)
    assert limits["third"] == pytest.approx(3, abs=2)


def test_all_default_steps_usually_take_less_than_the_budget_and_are_in_it():
    usual = gpu.usual_seconds(gpu.stages(gpu.EVERY_TIME))
    assert usual < 0.85 * gpu.BUDGET and gpu.BUDGET <= 480 - 10
    for name in (
        "extension",
        "tests",
        "pages",
        "host",
        "tcp",
        "nixl",
        "memcheck",
        "initcheck",
        "racecheck",
        "soak",
    ):
        assert name in gpu.EVERY_TIME


def test_commands_of_steps_side_by_side_do_not_get_each_others_output(sitting):
    steps = [sitting.of_step(name, time.monotonic() + 20) for name in ("left", "right")]
    with ThreadPoolExecutor(2) as pool:
        assert all(
            pool.map(lambda own: own.run(python(f"import time; print('{own.step}'); time.sleep(0.3)")), steps)
        )
    assert [own.file("stdout").read_text() for own in steps] == ["left\n", "right\n"]


# Shares


IDS = [
    f"tests/python/test_gpu.py::test_{name}[{place}-{kind}-{number}]"
    for name in "abcde"
    for place in ("two_gpus", "one_gpu")
    for kind in ("plain", "expandable")
    for number in range(12)
]
IDS += [f"tests/python/test_gpu.py::test_with_its_own_processes_{number}" for number in range(30)]
IDS += ["tests/python/test_gpu.py::test_an_initiator_that_is_killed_leaves_its_owner_whole"]


@pytest.mark.parametrize("processes", [1, 2, 3, 8, 16, 1000])
def test_each_test_is_in_one_share_and_in_its_order(processes):
    dealt = gpu_shares.shares(IDS, processes)
    assert 1 <= len(dealt) <= processes
    assert sorted(test for share in dealt for test in share) == sorted(IDS)
    for share in dealt:
        assert share == sorted(share, key=IDS.index) and share


def test_shares_take_about_as_long_as_each_other_and_start_few_processes():
    dealt = gpu_shares.shares(IDS, 8)
    places = [{gpu_shares.place_of(test) for test in share} - {None} for share in dealt]
    loads = [
        sum(map(gpu_shares.seconds_of, share)) + gpu_shares.START * len(place)
        for share, place in zip(dealt, places)
    ]
    assert max(loads) < 1.25 * sum(loads) / len(loads)
    assert sum(map(len, places)) <= 10  # of 4 places


def test_nothing_is_dealt_out_of_nothing():
    assert gpu_shares.shares([], 8) == []


# The step that runs tests, on tests that stand in for those on GPUs


SOME_TESTS = """
import pytest
pytestmark = pytest.mark.gpu1

@pytest.mark.parametrize("number", range(6))
def test_beside(number):
    pass

@pytest.mark.alone
def test_alone():
    import pathlib
    assert len(list(pathlib.Path({reports!r}).glob("[0-9]*.xml"))) == 2, "the others have ended"

@pytest.mark.slow
def test_long():
    raise AssertionError("nobody asked for it")
"""
MARKS = "[pytest]\naddopts = --strict-markers\nmarkers =\n" + "".join(
    f"  {mark}: of GPUs\n" for mark in ("gpu1", "gpu2", "gpu4", "kernel", "alone", "slow")
)


@pytest.fixture
def tree(tmp_path, monkeypatch, sitting):
    """Call it with the text of a test_gpu.py to have it in a tree of its own; the sitting has two processes
    for its tests."""
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setattr(gpu, "how_many_beside", lambda _: 2)
    sitting.limit = time.monotonic() + 160

    def write(text):
        (tmp_path / "tests" / "python").mkdir(parents=True)
        (tmp_path / "tests" / "python" / "test_gpu.py").write_text(text)
        (tmp_path / "pytest.ini").write_text(MARKS)

    return write


def test_every_test_runs_once_those_that_want_the_gpus_alone_after_the_others(tree, sitting, capsys):
    tree(SOME_TESTS.format(reports=str(gpu.WORK / "junit")))
    sitting.options.pytest = ["-v", "-q", "-q"]  # how much it says does not change which tests it finds
    assert gpu.tests(sitting)
    assert "7 passed, 0 failed, 0 skipped, 0 not run, of 7 tests" in capsys.readouterr().out
    names = [
        case.get("name")
        for case in ElementTree.parse(sitting.out / "test_gpu.xml").getroot().iter("testcase")
    ]
    assert sorted(names) == sorted([f"test_beside[{number}]" for number in range(6)] + ["test_alone"])


def test_a_test_that_fails_in_one_of_the_processes_is_shown_and_fails_the_step(tree, sitting, capsys):
    tree(
        SOME_TESTS.format(reports=str(gpu.WORK / "junit"))
        + "\ndef test_wrong():\n    assert 1 == 2, 'some words'\n"
    )
    assert not gpu.tests(sitting)
    text = capsys.readouterr().out
    assert "some words" in text and "7 passed, 1 failed, 0 skipped, 0 not run, of 8 tests" in text


def test_tests_of_a_process_that_dies_count_as_not_run(tree, sitting, capsys):
    tree(
        "import os, pytest\npytestmark = pytest.mark.gpu1\n\ndef test_dies():\n    os._exit(0)\n\ndef "
        "test_lives():\n    pass\n"
    )
    assert not gpu.tests(sitting)
    text = capsys.readouterr().out
    assert "1 passed, 0 failed, 0 skipped, 1 not run, of 2 tests" in text and "not run: test_dies" in text


def test_no_tests_at_all_and_tests_that_cannot_be_read_are_no_success(tree, sitting):
    tree("import pytest\n\n@pytest.mark.slow\ndef test_long():\n    pass\n")
    with pytest.raises(OSError, match="there is no test to run"):
        gpu.tests(sitting)
    (gpu.ROOT / "tests" / "python" / "test_gpu.py").write_text("import a_module_that_is_not_there\n")
    with pytest.raises(OSError, match="cannot collect"):
        gpu.tests(sitting)


# A build here


CMAKE_SAYS = """CMake Error at cmake/dependencies.cmake:67 (message):
  Headrace needs <fmt/format.h>, <spdlog/spdlog.h>, not found on this machine.  On
  Debian or Ubuntu: apt-get install libfmt-dev libspdlog-dev
  (or run `make setup`).
Call Stack (most recent call first):
  CMakeLists.txt:28 (include)


-- Configuring incomplete, errors occurred!
"""


def run_without_build(tmp_path, cmake):
    """The tool where this is the machine's cmake."""
    if cmake:
        (tmp_path / "cmake").write_text(cmake)
        (tmp_path / "cmake").chmod(0o755)
    command = [sys.executable, str(ROOT / "tools" / "test_gpu.py"), "--out", str(tmp_path / "out")]
    return subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)


def test_a_machine_that_cannot_build_says_what_it_misses_and_what_to_do(tmp_path):
    (tmp_path / "says").write_text(CMAKE_SAYS)
    done = run_without_build(tmp_path, f"#!/bin/sh\n/bin/cat {tmp_path}/says >&2\nexit 1\n")
    assert done.returncode == 1
    assert (
        "Headrace needs <fmt/format.h>, <spdlog/spdlog.h>, not found on this machine. On Debian or Ubuntu: "
        "apt-get install libfmt-dev libspdlog-dev" in done.stdout
    )
    assert "--collect FOLDER build/release" in done.stderr and "--carried FOLDER" in done.stderr


def test_a_machine_without_cmake_says_so(tmp_path):
    done = run_without_build(tmp_path, None)
    assert done.returncode == 1
    assert "cmake" in done.stdout and "--carried FOLDER" in done.stderr


def test_a_command_is_not_begun_when_its_step_has_no_time_left(sitting, capsys):
    sitting.limit = time.monotonic() - 1
    assert not sitting.run(python("print('begun')"))
    text = capsys.readouterr().out
    assert "not begun, out of time" in text and "begun\n" not in text.replace("not begun", "")


@pytest.mark.parametrize(("lines", "told"), [
    (["NVIDIA H200, 580.1, 143771", "NVIDIA H200, 580.1, 143771"], ("h200x2", 2, 140)),
    (["NVIDIA H100 80GB HBM3, 570.2, 81559"], ("h100-80gb-hbm3x1", 1, 79)),
    (["NVIDIA GB10, 580.1, [N/A]"], ("gb10x1", 1, 0)),
])  # fmt: skip
def test_the_gpus_their_driver_and_their_memory_are_asked_of_the_system(tmp_path, monkeypatch, lines, told):
    (tmp_path / "nvidia-smi").write_text(
        "#!/bin/sh\n[ $1 = topo ] && echo ' NV18 ' && exit\n" + "".join(f"echo '{line}'\n" for line in lines)
    )
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    machine, label, count, gib = gpu.describe_gpus()
    assert (label, count, int(gib)) == told
    name, driver, _ = lines[0].split(", ")
    assert machine.startswith(f"{count}x {name} (NVLink), ") and machine.endswith(f" cores, driver {driver}")


def test_as_many_processes_run_tests_as_cores_and_the_gpus_memory_allow(sitting, monkeypatch):
    monkeypatch.setattr(gpu.os, "sched_getaffinity", lambda _: set(range(32)))
    for gib, processes in ((140.0, 8), (24.0, 3), (0.0, 1)):
        sitting.gpu_gib = gib
        assert gpu.how_many_beside(sitting) == processes
