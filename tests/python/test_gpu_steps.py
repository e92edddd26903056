# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""The run on a GPU machine goes on after a failure, ends what takes too long, and keeps the rows."""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import threading
import time
import xml.etree.ElementTree as ElementTree
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import gpu_steps as gpu
import gpu_steps.steps  # which imports the others
from gpu_steps.endings import Failed, NothingRun, NotInBuild
from gpu_steps.sitting import Sitting

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def sitting(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu.tree, "WORK", tmp_path / "work")
    monkeypatch.setattr(
        gpu.sitting,
        "describe_gpus",
        lambda: ("2x NVIDIA H200 (NVLink), 32 cores, driver 580.1", "h200x2", 2, 140.0),
    )
    (tmp_path / "carried" / "bin").mkdir(parents=True)
    (tmp_path / "carried" / "commit.txt").write_text("0123456789ab\n")
    options = {"budget": 60, "pytest": [], "nixl": None, "built_here": False, "soak_seconds": 5, "jobs": 0}
    options["steps"] = None
    return Sitting(argparse.Namespace(carried=tmp_path / "carried", out=tmp_path / "out", **options))


def python(text):
    return [sys.executable, "-c", text]


def step(do, limit=5, usual=1):
    return gpu.steps.Step(do, limit, usual)


def test_a_step_that_fails_or_breaks_stops_no_other(sitting, monkeypatch, capsys):
    def breaks(_):
        raise OSError("no such program")

    steps = {"fails": step(lambda _: False), "breaks": step(breaks), "works": step(lambda _: True)}
    monkeypatch.setattr(gpu.steps, "STEPS", steps)
    assert gpu.steps.run_steps(sitting, list(steps)) == 1
    assert gpu.steps.run_steps(sitting, ["works"]) == 0
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
    where = str(gpu.tree.WORK)
    assert gpu.sitting.run_together(
        sitting, {"one": python(meet.format(where, "a", "b")), "other": python(meet.format(where, "b", "a"))}
    )
    sitting.limit = time.monotonic() + 1
    assert not gpu.sitting.run_together(
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
    sitting.keep_rows(gpu.runner.demo_rows(sitting, said))
    (file,) = sitting.out.glob("*-h200x2-misc.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["case"] for row in rows} == {"demo/8b/cuda:0-cuda:1/2048"} and all(
        row["checked"] and row["commit"] == "0123456789ab" for row in rows
    )
    assert {row["metric"]: row["value"] for row in rows}["GB/s"] == 200.0
    not_compared = gpu.runner.demo_rows(sitting, said | {"checked": False}).splitlines()
    assert [json.loads(line)["checked"] for line in not_compared] == [False] * len(rows)


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
    assert done.returncode != 0 and "is not a folder of --collect" in done.stderr


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
    monkeypatch.setattr(gpu.steps, "STEPS", steps)
    monkeypatch.setattr(gpu.steps, "SIDE_BY_SIDE", [{"one", "other"}])
    assert gpu.steps.stages(list(steps)) == [["one", "other"], ["third"], ["fourth"]]
    assert gpu.steps.run_steps(sitting, list(steps)) == 0
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
    monkeypatch.setattr(gpu.steps, "STEPS", steps)
    assert gpu.steps.run_steps(sitting, list(steps)) == 0
    assert limits["first"] == pytest.approx(40 - 21, abs=2)
    assert limits["second"] == pytest.approx(40 - 1, abs=2)
    assert limits["third"] == pytest.approx(3, abs=2)


def test_all_default_steps_usually_take_less_than_the_budget_and_are_in_it():
    usual = gpu.steps.usual_seconds(gpu.steps.stages(gpu.steps.EVERY_TIME))
    assert usual < 0.85 * gpu.steps.BUDGET and gpu.steps.BUDGET <= 480 - 10
    for name in (
        "extension",
        "tests",
        "pages",
        "host",
        "tcp",
        "nixl",
        "collectives",
        "memcheck",
        "initcheck",
        "racecheck",
        "soak",
    ):
        assert name in gpu.steps.EVERY_TIME


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
    dealt = gpu.shares.shares(IDS, processes)
    assert 1 <= len(dealt) <= processes
    assert sorted(test for share in dealt for test in share) == sorted(IDS)
    for share in dealt:
        assert share == sorted(share, key=IDS.index) and share


def test_shares_take_about_as_long_as_each_other_and_start_few_processes():
    dealt = gpu.shares.shares(IDS, 8)
    places = [{gpu.shares.place_of(test) for test in share} - {None} for share in dealt]
    loads = [
        sum(map(gpu.shares.seconds_of, share)) + gpu.shares.START * len(place)
        for share, place in zip(dealt, places)
    ]
    assert max(loads) < 1.25 * sum(loads) / len(loads)
    assert sum(map(len, places)) <= 10  # of 4 places


def test_nothing_is_dealt_out_of_nothing():
    assert gpu.shares.shares([], 8) == []


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
    monkeypatch.setattr(gpu.tree, "ROOT", tmp_path)
    monkeypatch.setattr(gpu.side_by_side, "how_many_beside", lambda _: 2)
    sitting.limit = time.monotonic() + 160

    def write(text):
        (tmp_path / "tests" / "python").mkdir(parents=True)
        (tmp_path / "tests" / "python" / "test_gpu.py").write_text(text)
        (tmp_path / "pytest.ini").write_text(MARKS)

    return write


def test_every_test_runs_once_those_that_want_the_gpus_alone_after_the_others(tree, sitting, capsys):
    tree(SOME_TESTS.format(reports=str(gpu.tree.WORK / "junit")))
    sitting.options.pytest = ["-v", "-q", "-q"]  # how much it says does not change which tests it finds
    assert gpu.side_by_side.tests(sitting)
    assert "7 passed, 0 failed, 0 skipped, 0 not run, of 7 tests" in capsys.readouterr().out
    names = [
        case.get("name")
        for case in ElementTree.parse(sitting.out / "test_gpu.xml").getroot().iter("testcase")
    ]
    assert sorted(names) == sorted([f"test_beside[{number}]" for number in range(6)] + ["test_alone"])


def test_a_test_that_fails_in_one_of_the_processes_is_shown_and_fails_the_step(tree, sitting, capsys):
    tree(
        SOME_TESTS.format(reports=str(gpu.tree.WORK / "junit"))
        + "\ndef test_wrong():\n    assert 1 == 2, 'some words'\n"
    )
    assert not gpu.side_by_side.tests(sitting)
    text = capsys.readouterr().out
    assert "some words" in text and "7 passed, 1 failed, 0 skipped, 0 not run, of 8 tests" in text


def test_tests_of_a_process_that_dies_count_as_not_run(tree, sitting, capsys):
    tree(
        "import os, pytest\npytestmark = pytest.mark.gpu1\n\ndef test_dies():\n    os._exit(0)\n\ndef "
        "test_lives():\n    pass\n"
    )
    assert not gpu.side_by_side.tests(sitting)
    text = capsys.readouterr().out
    assert "1 passed, 0 failed, 0 skipped, 1 not run, of 2 tests" in text and "not run: test_dies" in text


def test_no_tests_at_all_and_tests_that_cannot_be_read_are_no_success(tree, sitting):
    tree("import pytest\n\n@pytest.mark.slow\ndef test_long():\n    pass\n")
    with pytest.raises(NothingRun, match="test_gpu.py has no test of this selection"):
        gpu.side_by_side.tests(sitting)
    (gpu.tree.ROOT / "tests" / "python" / "test_gpu.py").write_text("import a_module_that_is_not_there\n")
    with pytest.raises(OSError, match="cannot collect"):
        gpu.side_by_side.tests(sitting)


def test_tests_that_were_all_skipped_are_no_success(tree, sitting):
    tree(
        "import pytest\npytestmark = pytest.mark.gpu1\n\n"
        "def test_it():\n    pytest.skip('torch is not installed')\n"
    )
    with pytest.raises(NothingRun, match="all 1 tests were skipped: torch is not installed"):
        gpu.side_by_side.tests(sitting)


# Steps that run nothing


def result_of_step(sitting, name, do, gpus=1):
    """The line of one step in the table at the end."""
    gpu.steps.STEPS[name] = gpu.steps.Step(do, 30, 1, gpus)
    return gpu.steps.run_step(sitting, name, 0)[2]


@pytest.fixture
def own_steps(monkeypatch):
    monkeypatch.setattr(gpu.steps, "STEPS", {})


@pytest.fixture
def programs(tmp_path, monkeypatch, sitting):
    """Call it with a name and a shell script to have that program first on the PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    sitting.limit = time.monotonic() + 60
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    sitting.environment["PATH"] = path
    monkeypatch.setenv("PATH", path)

    def write(name, script):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
        return str(folder / name)

    return write


def test_a_step_that_runs_nothing_says_so_and_is_no_success(sitting, own_steps):
    def lacks(_):
        raise NothingRun("the program is not installed")

    assert result_of_step(sitting, "lacks", lacks) == "nothing run: the program is not installed"
    assert gpu.steps.run_steps(sitting, ["lacks"]) == 1
    needs = "nothing run: the step needs 4 GPUs, and this machine has 2"
    assert result_of_step(sitting, "many", lambda _: True, gpus=4) == needs


def test_the_line_of_a_step_that_failed_names_the_program_and_the_signal_that_ended_it(sitting, own_steps):
    die = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    result = result_of_step(sitting, "dies", lambda own: own.run(python(die)))
    assert result.startswith("failed: ") and result.endswith(": signal 11 (SIGSEGV)")
    result = result_of_step(
        sitting, "many", lambda own: gpu.sitting.run_together(own, {"export_8b": python(die)})
    )
    assert result == "failed: export_8b: signal 11 (SIGSEGV)"


def test_a_program_that_is_to_print_rows_and_prints_none_has_failed(sitting, own_steps):
    result = result_of_step(sitting, "pages", lambda own: own.run(python("print('no GPU')"), rows=True))
    assert result.startswith("failed: ") and result.endswith("no row")


def test_a_comparison_that_writes_no_row_has_failed(tree, sitting, own_steps):
    tree("")
    (gpu.tree.ROOT / "bench").mkdir()
    (gpu.tree.ROOT / "bench" / "compare_x.py").write_text("print('rows: none')\n")
    result = result_of_step(sitting, "x", lambda own: gpu.bare.compare(own, "bench/compare_x.py"))
    assert result == "failed: bench/compare_x.py wrote no row"


def test_a_step_without_a_test_in_the_build_fails_only_a_run_that_names_it_or_has_no_other(
    sitting, own_steps
):
    def lacks(_):
        raise NotInBuild("no C++ test has a label")

    said = "no test of this kind in this build: no C++ test has a label"
    assert result_of_step(sitting, "lacks", lacks) == said
    gpu.steps.STEPS["works"] = step(lambda _: True)
    assert gpu.steps.run_steps(sitting, ["lacks", "works"]) == 0
    assert re.search(f"^lacks .* {re.escape(said)}$", sitting.log.read_text(), re.MULTILINE)
    assert gpu.steps.run_steps(sitting, ["lacks"]) == 1, "a run of nothing is no success"
    sitting.options.steps = "lacks,works"
    assert result_of_step(sitting, "lacks", lacks) == f"nothing run: {said}"
    assert gpu.steps.run_steps(sitting, ["lacks", "works"]) == 1


def test_a_carried_build_has_no_step_native_unless_the_checkout_has_cpp_tests_with_a_label(tree, sitting):
    tree("")
    folder = gpu.tree.ROOT / "tests" / "unit" / "gpu"
    folder.mkdir(parents=True)
    (folder / "a_test.cpp").write_text("TEST(copy, of_a_page) { run_kernel(); }\n")
    with pytest.raises(NotInBuild, match="no C\\+\\+ test has a label of gpu1, gpu2, gpu4, kernel"):
        gpu.native.native(sitting)
    (folder / "b_test.cpp").write_text("TEST_F(copy_gpu1, of_a_page) {}\nTEST(copy,\n     other_kernel) {}\n")
    with pytest.raises(NothingRun, match="copy_gpu1.of_a_page, copy.other_kernel") as raised:
        gpu.native.native(sitting)
    assert not isinstance(raised.value, NotInBuild)


# ctest's, whose last argument is the file.
JUNIT = "for last; do :; done; echo '<testsuite>{}</testsuite>' >\"$last\""


def test_cpp_tests_of_which_none_has_a_label_are_not_in_the_build_and_skipped_ones_are_nothing_run(
    sitting, programs
):
    sitting.options.built_here = True
    programs("ctest", "echo 'No tests were found!!!'")
    with pytest.raises(NotInBuild, match="no C\\+\\+ test has a label of gpu1, gpu2, gpu4, kernel"):
        gpu.native.native(sitting)
    programs(
        "ctest",
        JUNIT.format('<testcase name="a"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/></testcase>'),
    )
    with pytest.raises(NothingRun, match="all 1 tests were skipped"):
        gpu.native.native(sitting)
    programs("ctest", JUNIT.format('<testcase name="a"/>'))
    assert gpu.native.native(sitting)
    programs("ctest", JUNIT.format('<testcase name="a"><failure/></testcase>') + "; exit 8")
    assert not gpu.native.native(sitting)


@pytest.mark.parametrize("do", ["exchange", "courier"])
@pytest.mark.parametrize(("text", "why"), [
    ("def test_it():\n    pytest.skip('two GPUs')\n", "all 1 tests were skipped: two GPUs"),
    ("@pytest.mark.slow\ndef test_it():\n    pass\n", None),
    ("", "no test was selected"),
])  # fmt: skip
def test_a_file_of_tests_of_which_none_runs_is_nothing_run(tree, sitting, do, text, why):
    tree("")
    file = {"exchange": "test_gpu_all_to_all.py", "courier": "test_gpu_courier.py"}[do]
    (gpu.tree.ROOT / "tests" / "python" / file).write_text(
        f"import pytest\npytestmark = pytest.mark.gpu1\n{text}"
    )
    if why is None:
        assert getattr(gpu.pytests, do)(sitting)
        return
    with pytest.raises(NothingRun, match=why):
        getattr(gpu.pytests, do)(sitting)


def test_a_soak_that_is_not_there_is_nothing_run(tree, sitting):
    tree("def test_quick():\n    pass\n")
    (gpu.tree.ROOT / "tests" / "python" / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--soak-seconds')\n"
    )
    with pytest.raises(NothingRun, match="no test was selected"):
        gpu.pytests.soak(sitting)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_soak_that_does_not_reach_its_number_says_how_far_it_came_and_fails():
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "-m",
        "slow",
        "--soak-seconds=1",
    ]
    environment = {**os.environ, "HEADRACE_TEST_WITHOUT_GPU": "1"}
    done = subprocess.run(
        [*command, "tests/python/test_gpu.py"], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert "of 100000 requests were made in 1 s of --soak-seconds" in done.stdout


def test_what_a_driver_was_not_asked_is_nothing_run(tree, sitting):
    tree("")
    (gpu.tree.ROOT / "bench" / "gpu").mkdir(parents=True)
    (gpu.tree.ROOT / "bench" / "gpu" / "driver_assumptions.py").write_text("")
    with pytest.raises(NothingRun, match="no question was put to the driver"):
        gpu.machine.assumptions(sitting)


def test_a_sanitizer_that_looked_at_nothing_is_no_success(sitting, programs):
    programs("compute-sanitizer", "echo 'Device not supported'")
    assert not gpu.sanitizer.memcheck(sitting)
    assert "it examined nothing" in sitting.troubles[-1]
    programs("compute-sanitizer", "echo '========= ERROR SUMMARY: 0 errors'")
    assert gpu.sanitizer.memcheck(sitting)
    programs(
        "compute-sanitizer", "echo '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)'"
    )
    assert gpu.sanitizer.racecheck(sitting)


# NIXL


@pytest.fixture
def no_nixl(tmp_path, monkeypatch, sitting):
    """Nothing of NIXL is installed, whatever this interpreter has."""
    monkeypatch.setattr(gpu.nixl.sysconfig, "get_paths", lambda: {"purelib": str(tmp_path / "empty")})
    sitting.limit = time.monotonic() + 60


@pytest.mark.parametrize("do", ["nixl", "nixl_others"])
def test_without_nixl_its_steps_say_so_and_how_to_bring_it(tree, sitting, no_nixl, do):
    tree("")
    with pytest.raises(
        NothingRun, match="NIXL is not installed.*the wheels nixl and nixl-cu12.*--nixl FOLDER"
    ):
        getattr(gpu.nixl, do)(sitting)


def make_nixl(folder, text="class nixl_agent: pass"):
    """A package that stands in for NIXL's."""
    (folder / "nixl").mkdir(parents=True)
    (folder / "nixl" / "__init__.py").write_text("")
    (folder / "nixl" / "_api.py").write_text(text + "\n")


def make_plugins(folder):
    """What the wheel nixl_cu12 has beside its package, under the package's name."""
    (folder / "nixl_cu12.libs" / "nixl").mkdir(parents=True)
    (folder / "nixl_cu12.libs" / "nixl" / "libplugin_UCX.so").write_text("")


def test_the_folder_of_a_wheels_plugins_is_not_taken_for_the_package(tmp_path):
    make_plugins(tmp_path / "given")
    make_nixl(tmp_path / "given" / "site-packages")
    assert gpu.nixl.unpacked(tmp_path / "given") == tmp_path / "given" / "site-packages"
    make_plugins(tmp_path / "plugins")
    with pytest.raises(NothingRun, match="has no package nixl"):
        gpu.nixl.unpacked(tmp_path / "plugins")


def test_a_wheel_is_unpacked_once_and_another_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu.tree, "WORK", tmp_path / "work")
    archives = []
    for version in ("1", "2"):
        archives.append(tmp_path / f"nixl-{version}.whl")
        with zipfile.ZipFile(archives[-1], "w") as wheel:
            wheel.writestr("nixl/__init__.py", version)
            wheel.writestr("nixl_cu12.libs/nixl/libplugin_UCX.so", "")
    folders = [gpu.nixl.unpacked(archive) for archive in archives]
    assert [(folder / "nixl" / "__init__.py").read_text() for folder in folders] == ["1", "2"]
    assert gpu.nixl.unpacked(archives[0]) == folders[0]


def test_nixl_that_cannot_be_imported_or_is_the_drop_in_is_nothing_run(tmp_path, tree, sitting):
    tree("")
    make_nixl(tmp_path / "broken", "raise ImportError('No NIXL backend found')")
    sitting.options.nixl = tmp_path / "broken"
    with pytest.raises(NothingRun, match="cannot be imported"):
        gpu.nixl.nixl(sitting)
    make_nixl(
        tmp_path / "ours", "class nixl_agent: pass\nnixl_agent.__module__ = 'headrace.compat.nixl._api'"
    )
    sitting.options.nixl = tmp_path / "ours"
    with pytest.raises(NothingRun, match="is Headrace's drop-in"):
        gpu.nixl.nixl(sitting)


COMPARE = """
import json, sys
folder = sys.argv[sys.argv.index("--results") + 1]
with open(folder + "/a-pages-gpu.jsonl", "a") as file:
    file.write(json.dumps({{"case": "read", "value": 1, "peer": {peer!r}}}) + "\\n")
"""


@pytest.mark.parametrize(("peer", "ok"), [(None, False), ("nixl 2 threads 1.5.1", True)])
def test_a_comparison_from_which_nixl_was_left_out_is_no_success(tmp_path, tree, sitting, peer, ok):
    tree("")
    make_nixl(tmp_path / "given")
    sitting.options.nixl = tmp_path / "given"
    sitting.limit = time.monotonic() + 60
    (gpu.tree.ROOT / "bench").mkdir()
    (gpu.tree.ROOT / "bench" / "compare_nixl.py").write_text(COMPARE.format(peer=peer))
    (sitting.out / "a-pages-gpu.jsonl").write_text(
        '{"case": "read", "value": 1, "peer": "nixl 1.5.1"}\n'
    )  # an earlier one's
    assert gpu.nixl.nixl(sitting) == ok
    assert ok or "nothing was compared with NIXL" in sitting.troubles[-1]


@pytest.mark.parametrize(("gpus", "arguments"), [(1, ("--target-gpu", "0")), (2, ()), (0, ())])
def test_on_one_gpu_both_sides_of_the_comparison_are_on_it(monkeypatch, sitting, gpus, arguments):
    asked = []
    monkeypatch.setattr(gpu.nixl, "in_turn", lambda _, *given, seconds: asked.append(given) or True)
    sitting.gpus = gpus
    assert gpu.nixl.nixl(sitting) and gpu.nixl.nixl_others(sitting)
    assert asked[0] == arguments
    for given in asked[1:]:
        assert ("--target-gpu" in given) == (gpus == 1 and "vram-vram" in given)


def test_a_comparison_without_time_does_not_say_that_nixl_cannot_be_imported(tmp_path, tree, sitting):
    tree("")
    make_nixl(tmp_path / "given")
    sitting.options.nixl = tmp_path / "given"
    sitting.limit = time.monotonic() - 1
    with pytest.raises(Failed, match="out of time before a comparison with NIXL began"):
        gpu.nixl.nixl(sitting)


# The package that is compiled there


def test_the_extension_of_compat_nixl_is_compiled_as_well(tmp_path, monkeypatch, sitting):
    monkeypatch.setattr(gpu.tree, "SITE", tmp_path / "site")
    compiled, linked = {}, []

    def compile_objects(_, sources, flags, folder, own_flags=None, compiler=""):
        compiled[folder.name] = [source.name for source in sources]
        return [folder / "all.o"]

    def run(_, command, **__):
        linked.append(command)
        if "-o" in command:
            Path(command[command.index("-o") + 1]).write_text("")
        return True

    monkeypatch.setattr(gpu.compiling, "compile_objects", compile_objects)
    monkeypatch.setattr(gpu.compiling, "nanobind_folder", lambda _: tmp_path / "nanobind")
    monkeypatch.setattr(Sitting, "run", run)
    assert gpu.compiling.extension(sitting)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    package = tmp_path / "site" / "headrace"
    for made in (package / f"_headrace{suffix}", package / "compat" / "nixl" / f"_compiled{suffix}"):
        assert made.exists(), made
    assert (
        "capture_rows.cpp" in compiled["objects_compat_nixl"]
        and "agent_handle.cpp" in compiled["objects_python"]
    )
    assert "import headrace, headrace.compat.nixl" in linked[-1][-1]


def test_python_files_are_copied_anew_where_nothing_has_to_be_compiled(tmp_path, monkeypatch, sitting):
    monkeypatch.setattr(gpu.tree, "SITE", tmp_path / "site")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for name in ("_headrace", "_compiled"):
        (gpu.tree.WORK / f"{name}{suffix}").write_text("made before")
    (tmp_path / "site" / "headrace").mkdir(parents=True)
    (tmp_path / "site" / "headrace" / "gone.py").write_text("")
    monkeypatch.setattr(Sitting, "run", lambda *_, **__: True)
    assert gpu.compiling.extension(sitting)
    assert not (tmp_path / "site" / "headrace" / "gone.py").exists()
    assert (tmp_path / "site" / "headrace" / "export.py").exists()


def test_a_compiler_that_a_signal_ends_without_a_word_has_failed(tmp_path, sitting, programs, capsys):
    compiler = programs("dies", "kill -KILL $$")
    assert (
        gpu.compiling.compile_objects(
            sitting, [tmp_path / "a.cpp"], [], tmp_path / "objects", compiler=compiler
        )
        == []
    )
    assert "dies ended by signal 9 (SIGKILL)" in capsys.readouterr().out


# The step that runs models


@pytest.fixture
def bare(monkeypatch, sitting):
    """Call it with how PyTorch's own loader ends, by compiler; nothing else of the step does anything.
    What was called."""
    called = []
    sitting.limit = time.monotonic() + 60
    monkeypatch.setattr(
        gpu.runner, "compile_torch_runtime", lambda _, compiler=None: called.append(compiler) or True
    )
    monkeypatch.setattr(gpu.runner, "export_models", lambda *arguments: called.append(arguments[2]) or True)
    monkeypatch.setattr(gpu.runner, "demo_at_size", lambda *_: True)
    monkeypatch.setattr(gpu.runner, "pytest", lambda *_, **__: True)
    monkeypatch.setattr(Sitting, "run", lambda *_, **__: True)

    def ends(by_compiler, other):
        def try_loader(device, compiler=None, seconds=0):
            code = by_compiler[compiler]
            return gpu.tree.bare_loader.Outcome(
                "run" if code == 0 else "load", code, "Fatal Python error: Segmentation fault\n"
            )

        monkeypatch.setattr(gpu.tree.bare_loader, "try_loader", try_loader)
        monkeypatch.setattr(gpu.tree.bare_loader, "other_compiler", lambda: other)
        return called

    return ends


def test_models_are_not_exported_where_pytorchs_own_loader_dies(sitting, own_steps, bare, capsys):
    called = bare({None: -11}, None)
    result = result_of_step(sitting, "runner", gpu.runner.runner)
    assert result.startswith("failed: PyTorch's own loader fails on this machine without Headrace")
    assert result.endswith("signal 11 (SIGSEGV) in step load")
    assert called == [None], "nothing but the runtime was compiled"
    assert "Segmentation fault" in capsys.readouterr().out


def test_models_are_exported_with_a_compiler_whose_packages_load(sitting, own_steps, bare):
    called = bare({None: -11, "/usr/bin/g++": 0}, "/usr/bin/g++")
    assert result_of_step(sitting, "runner", gpu.runner.runner) == "ok"
    assert called == [None, "/usr/bin/g++", {"CXX": "/usr/bin/g++"}]


def test_models_are_exported_as_they_are_where_the_loader_works(sitting, own_steps, bare):
    called = bare({None: 0}, "/usr/bin/g++")
    assert result_of_step(sitting, "runner", gpu.runner.runner) == "ok"
    assert called == [None, {}]


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
    machine, label, count, gib = gpu.gpus.describe_gpus()
    assert (label, count, int(gib)) == told
    name, driver, _ = lines[0].split(", ")
    assert machine.startswith(f"{count}x {name} (NVLink), ") and machine.endswith(f" cores, driver {driver}")


def test_as_many_processes_run_tests_as_cores_and_the_gpus_memory_allow(sitting, monkeypatch):
    monkeypatch.setattr(gpu.side_by_side.os, "sched_getaffinity", lambda _: set(range(32)))
    for gib, processes in ((140.0, 8), (24.0, 3), (0.0, 1)):
        sitting.gpu_gib = gib
        assert gpu.side_by_side.how_many_beside(sitting) == processes
