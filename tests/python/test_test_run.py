# SPDX-License-Identifier: Apache-2.0
# backends: none
"""The test run counts the reports of ctest and pytest, and a test that did not run never counts as passed."""

import re
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

import pytest

from test_check_layers import ROOT, load_tool

run = load_tool("test")

from testing import connectors  # noqa: E402
from testing import stage as stage_module  # noqa: E402  (the tool has put its folder into sys.path)


@pytest.fixture
def runner():
    runner = run.Runner(None)
    runner.allowed_skips = [re.compile("no IPv6")]
    return runner


@pytest.fixture
def stage():
    return run.Stage("unit", "")


def count(runner, stage, tmp_path, cases, what="ctest"):
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuite>{cases}</testsuite>")
    run.count_junit(runner, stage, report, what)
    return stage.passed, len(stage.failures), len(stage.skips)


GTEST_SKIP = (
    '<testcase name="t" status="notrun"><skipped '
    'message="SKIP_REGULAR_EXPRESSION_MATCHED"/><system-out>{}</system-out></testcase>'
)


def gtest_skip(reason):
    return GTEST_SKIP.format(f"[ RUN      ] A.t\na/b.cpp:12: Skipped\n{reason}\n\n[  SKIPPED ] A.t (0 ms)")


def test_passed_and_failed_tests_of_ctest_are_counted(runner, stage, tmp_path):
    cases = (
        '<testcase name="a" status="run"/><testcase name="b" status="fail"><failure '
        'message=""/><system-out>why</system-out></testcase>'
    )
    assert count(runner, stage, tmp_path, cases) == (1, 1, 0)
    assert "why" in stage.failures[0].text


def test_a_skip_for_an_allowed_reason_is_counted_as_skipped(runner, stage, tmp_path):
    assert count(runner, stage, tmp_path, gtest_skip("no IPv6 on this machine")) == (0, 0, 1)
    assert stage.skips[0].text == "no IPv6 on this machine"


@pytest.mark.parametrize("reason", ["I did not feel like it", ""])
def test_a_skip_for_any_other_reason_is_a_failure(runner, stage, tmp_path, reason):
    assert count(runner, stage, tmp_path, gtest_skip(reason)) == (0, 1, 0)


def test_a_test_that_was_disabled_or_never_built_is_a_failure(runner, stage, tmp_path):
    cases = '<testcase name="a" status="disabled"/><testcase name="b_NOT_BUILT" status="notrun"/>'
    assert count(runner, stage, tmp_path, cases) == (0, 2, 0)


def test_skips_and_errors_of_pytest_are_counted(runner, stage, tmp_path):
    cases = (
        '<testcase classname="m" name="a"/>'
        '<testcase classname="m" name="b"><skipped type="pytest.skip" message="no IPv6 here"/></testcase>'
        '<testcase classname="m" name="c"><error message="broken">trace</error></testcase>'
    )
    assert count(runner, stage, tmp_path, cases, "pytest") == (1, 1, 1)
    assert stage.failures[0].name == "m.c"


def test_a_file_of_pytest_that_is_left_out_is_skipped_for_its_own_reason(runner, stage, tmp_path):
    cases = (
        '<testcase classname="m" name="a"/>'
        '<testcase classname="" name="n"><skipped message="collection skipped">'
        "('/tests/n.py', 23, 'Skipped: no IPv6 here')</skipped></testcase>"
    )
    assert count(runner, stage, tmp_path, cases, "pytest") == (1, 0, 1)
    assert stage.skips[0].text == "no IPv6 here"


def test_a_report_that_is_missing_or_empty_is_a_failure(runner, stage, tmp_path):
    run.count_junit(runner, stage, tmp_path / "none.xml", "ctest")
    assert count(runner, stage, tmp_path, "") == (0, 2, 0)


def test_the_last_line_counts_all_tests_and_a_failure_sets_the_exit_code(capsys):
    good, bad = run.Stage("good", "", passed=3), run.Stage("bad", "", passed=1, failures=[run.Case("x", "")])
    assert run.report([good], 0.1) == 0
    assert run.report([good, bad], 0.1) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "4 passed, 1 failed, 0 skipped"


def test_a_run_in_which_nothing_passed_is_a_failure():
    assert run.report([run.Stage("empty", "")], 0.0) == 1


@pytest.fixture
def empty_root(monkeypatch, tmp_path):
    for module in (run, stage_module):
        monkeypatch.setattr(module, "REPORTS", tmp_path)
        monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "allowed_skips.txt").write_text("# none\n")
    return tmp_path


def test_a_command_that_outlasts_the_budget_is_killed_and_reported(monkeypatch, empty_root, capsys):
    monkeypatch.setitem(
        run.STAGES, "endless", ("", lambda runner, stage: runner.command(stage, ["sleep", "600"]))
    )
    monkeypatch.setitem(run.STAGES, "after", ("", lambda runner, stage: stage.check(True, "after")))
    assert run.run_stages(["endless", "after"], budget_minutes=0.005) == 1
    out = capsys.readouterr().out
    assert "out of time" in out and "cut off: endless; not run: after" in out
    assert out.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"


def test_a_stage_waits_for_its_work_that_was_begun_ahead(monkeypatch, empty_root):
    monkeypatch.setattr(run.Runner, "hurry", lambda runner: None)
    made = empty_root / "made"
    command = ["sh", "-c", f"sleep 1; ps -o ni= -p $$ > {made}"]
    works = {
        "second": lambda runner, stage: runner.command(stage, command),
        "third": lambda runner, stage: stage.check(made.exists(), "one after the other") and made.touch(),
        "never": lambda runner, stage: (empty_root / "never").touch(),
    }
    bodies = {
        "first": lambda runner, stage: stage.check(not made.exists(), "the first does not wait"),
        "second": lambda runner, stage: stage.check(made.read_text().strip() == "19", "made"),
        "third": lambda runner, stage: stage.check(True, "done"),
    }
    monkeypatch.setattr(run, "AHEAD", works)
    for name, body in bodies.items():
        monkeypatch.setitem(run.STAGES, name, ("", body))
    assert run.run_stages(list(bodies), None) == 0
    assert not (empty_root / "never").exists()


def test_work_ahead_for_which_a_stage_waits_gets_its_priority(monkeypatch, empty_root):
    asked = []
    monkeypatch.setattr(stage_module.os, "setpriority", lambda which, who, priority: asked.append(priority))
    work = ["sleep", "1"]
    monkeypatch.setattr(run, "AHEAD", {"second": lambda runner, stage: runner.command(stage, work)})
    for name in ("first", "second"):
        monkeypatch.setitem(run.STAGES, name, ("", lambda runner, stage: stage.check(not asked, "done")))
    assert run.run_stages(["first"], 1) == 0
    assert run.run_stages(["first", "second"], 1) == 1
    assert set(asked) == {0}


def test_a_stage_does_the_work_that_failed_ahead_of_it(monkeypatch, empty_root):
    def fails(runner, stage):
        raise ValueError("ahead")

    monkeypatch.setattr(run, "AHEAD", {"second": fails, "third": fails})
    monkeypatch.setattr("threading.excepthook", lambda arguments: None)
    for name in ("first", "second", "third"):
        monkeypatch.setitem(run.STAGES, name, ("", lambda runner, stage: stage.check(True, "done")))
    assert run.run_stages(["first", "second", "third"], None) == 0


def test_work_ahead_of_a_stage_that_does_not_come_is_ended(monkeypatch, empty_root):
    begun = empty_root / "begun"

    def first(runner, stage):
        while not begun.exists():
            time.sleep(0.01)
        raise KeyboardInterrupt

    work = ["sh", "-c", f"touch {begun}; exec sleep 600"]
    monkeypatch.setattr(run, "AHEAD", {"second": lambda runner, stage: runner.command(stage, work)})
    monkeypatch.setitem(run.STAGES, "first", ("", first))
    monkeypatch.setitem(run.STAGES, "second", ("", lambda runner, stage: None))
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run.run_stages(["first", "second"], None)
    assert time.monotonic() - begin < 60


@pytest.fixture
def long_run(monkeypatch, empty_root):
    """Runs stages as `make test-long` does, and returns the exit code and the names of those that began."""
    monkeypatch.setattr(run, "LONG_RESULTS", empty_root / "long")
    subprocess.run(["git", "init", "-q", empty_root], check=True)
    (empty_root / ".gitignore").write_text("*.log\n*.json\n")

    def run_long(**bodies):
        begun = []

        def begin(name, body):
            return lambda runner, stage: (begun.append(name), body(runner, stage))

        for name, body in bodies.items():
            monkeypatch.setitem(run.STAGES, name, ("", begin(name, body)))
        return run.run_stages(list(bodies), None, resume=run.tree_key()), begun

    return run_long


def passes(runner, stage):
    stage.check(True, "it")


def fails(runner, stage):
    stage.check(False, "it")


def test_a_stage_that_passed_is_not_repeated_while_the_tree_is_the_same(long_run, empty_root):
    assert long_run(first=passes, second=fails) == (1, ["first", "second"])
    assert long_run(first=passes, second=passes) == (0, ["second"])
    (empty_root / "a.cpp").write_text("")
    assert long_run(first=passes, second=passes) == (0, ["first", "second"])
    (empty_root / "a.cpp").rename(empty_root / "b.cpp")
    assert long_run(first=passes, second=passes) == (0, ["first", "second"])


def test_a_tree_that_changes_during_a_long_run_ends_it(long_run, empty_root, capsys):
    def change(runner, stage):
        (empty_root / "a.cpp").write_text("")
        passes(runner, stage)

    assert long_run(first=change, second=passes) == (1, ["first"])
    assert "failed: first: the tree has changed" in capsys.readouterr().out
    assert long_run(first=passes, second=passes) == (0, ["first", "second"])


def test_a_reader_is_fuzzed_again_if_its_program_changed_or_it_was_left(monkeypatch, empty_root):
    folder, ran = empty_root / "fuzz" / "fuzz", empty_root / "ran"
    folder.mkdir(parents=True)
    monkeypatch.setattr(run, "BUILD", empty_root)
    monkeypatch.setattr(run.store, "STORE", empty_root / "passed")
    monkeypatch.setattr(run, "configure_and_build", lambda *_: True)
    for name, code in {"fuzz_good": 0, "fuzz_bad": 77}.items():
        (folder / name).write_text(f"#!/bin/sh\necho {name} >> {ran}\nexit {code}\n")
        (folder / name).chmod(0o755)

    def fuzz(key, use_store=False):
        ran.write_text("")
        stage = run.Stage("fuzz-long", "")
        run.store._known.clear()  # a run by another process
        run.fuzz(run.Runner(None, use_store, key), stage, 300, [])
        return sorted(ran.read_text().split()), stage.passed, len(stage.failures)

    assert fuzz("one tree") == (["fuzz_bad", "fuzz_good"], 1, 1)
    assert fuzz("one tree") == (["fuzz_bad"], 1, 1)
    assert fuzz("another") == (["fuzz_bad", "fuzz_good"], 1, 1)
    assert fuzz("") == (["fuzz_bad", "fuzz_good"], 1, 1)
    assert fuzz("", use_store=True) == (["fuzz_bad"], 1, 1)
    (folder / "fuzz_good").write_text(f"#!/bin/sh\necho fuzz_good >> {ran} # changed\n")
    assert fuzz("", use_store=True) == (["fuzz_bad", "fuzz_good"], 1, 1)


@pytest.fixture
def bare_python(tmp_path, monkeypatch):
    """An environment of its own for the servers, and a pip that reaches no index."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "servers")], check=True)
    monkeypatch.setattr(connectors, "PYTHON", tmp_path / "servers" / "bin" / "python")
    monkeypatch.setattr(connectors, "REPORTS", tmp_path)
    monkeypatch.setattr(stage_module, "REPORTS", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


def test_a_server_that_pip_does_not_find_is_skipped_with_pips_sentence(runner, stage, bare_python):
    runner.allowed_skips = stage_module.read_allowed_skips()
    assert not connectors.has_server(runner, stage, Path(sys.executable), "vllm==0.33.0")
    (skipped,) = stage.skips
    assert skipped.text == "pip cannot install vllm==0.33.0: No matching distribution found for vllm==0.33.0"


def test_a_server_that_pip_fails_to_install_is_no_skip(runner, stage):
    runner.allowed_skips = stage_module.read_allowed_skips()
    output = (
        "WARNING: retrying\nERROR: Could not install packages due to an OSError: No space left on device\n"
    )
    stage.skip(
        "vllm", connectors.skip_reason("vllm==0.33.0", connectors.pips_sentence(output)), runner.allowed_skips
    )
    assert len(stage.failures) == 1 and not stage.skips


def cases_in_sources(suite):
    kind, _, room = suite.partition("_")
    folder = ROOT / {"unit": f"tests/unit/{room}", "backend": f"backends/{room}"}.get(kind, f"tests/{suite}")
    macro = re.compile(r"^(?:TEST|TEST_F|TEST_P)\((\w+),\s*(\w+)\)", re.M)
    texts = [source.read_text() for source in folder.rglob("*.cpp")]
    return {f"{group}.{case}" for text in texts for group, case in macro.findall(text)}


def is_left_out(patterns, case, row="none"):
    """GoogleTest's name of a case may have an instantiation before it and a row behind it."""
    return any(
        fnmatch(name, pattern) for pattern in patterns for name in (case, f"any/{case}", f"any/{case}/{row}")
    )


ROW = re.compile(r"/(\w+)$")


def cases_named(table):
    """The cases that the table leaves out in all rows, by their names in the sources."""
    named = set()
    for suite, patterns in table.items():
        cases = cases_in_sources(suite)
        for pattern in patterns:
            found = {case for case in cases if is_left_out([ROW.sub("/none", pattern)], case)}
            assert found, f"{suite} has no case {pattern}"
            named |= set() if ROW.search(pattern) else found
    return named


def test_a_case_that_one_sanitizer_leaves_out_every_day_is_seen_by_the_other():
    assert not cases_named(run.NOT_IN_DEV) & cases_named(run.NOT_IN_TSAN)
    assert not set(run.ROWS_FOR_THREADS) & set(run.ROWS_FOR_MEMORY)


def test_a_case_with_rows_is_seen_in_one_of_them_every_day():
    for suite in {*run.NOT_IN_DEV, *run.NOT_IN_TSAN}:
        tables = [table.get(suite, []) for table in (run.NOT_IN_DEV, run.NOT_IN_TSAN)]
        with_row = [
            (pattern, row[1]) for table in tables for pattern in table if (row := ROW.search(pattern))
        ]
        for case in cases_in_sources(suite):
            rows = {row for pattern, row in with_row if is_left_out([pattern], case, row)}
            seen = [row for row in rows if not all(is_left_out(table, case, row) for table in tables)]
            assert seen or not rows, f"{suite}: no sanitizer sees {case} in any of {rows}"
