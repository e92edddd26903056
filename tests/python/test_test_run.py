# SPDX-License-Identifier: Apache-2.0
"""The test run counts the reports of ctest and pytest, and a test that did not run never counts as passed."""

import re

import pytest

from test_check_layers import load_tool

run = load_tool("test")

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


def test_a_command_that_outlasts_the_budget_is_killed_and_reported(monkeypatch, tmp_path, capsys):
    for module in (run, stage_module):
        monkeypatch.setattr(module, "REPORTS", tmp_path)
        monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "allowed_skips.txt").write_text("# none\n")
    monkeypatch.setitem(
        run.STAGES, "endless", ("", lambda runner, stage: runner.command(stage, ["sleep", "600"]))
    )
    monkeypatch.setitem(run.STAGES, "after", ("", lambda runner, stage: stage.check(True, "after")))
    assert run.run_stages(["endless", "after"], budget_minutes=0.005) == 1
    out = capsys.readouterr().out
    assert "out of time" in out and "cut off: endless; not run: after" in out
    assert out.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"
