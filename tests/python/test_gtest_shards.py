# SPDX-License-Identifier: Apache-2.0
# backends: none
"""Test programs in shards: every case counts once, also behind a case that ends its process. A stored result
holds for the same program and the same plugins only."""

import json
import re
import stat
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from testing import gtest, seen, stage, store

# Behaves as a GoogleTest program: lists its cases, runs those of the filter, writes XML at its end. A case of
# a row `x` loads x.so, as its loader reports.
PROGRAM = """#!{python}
import os, signal, sys, time
cases = {cases!r}
only = os.environ.get("HEADRACE_CONTRACT_BACKENDS", "")
cases = {{name: does for name, does in cases.items() if name.endswith(only)}}
def load(line):
    with open(os.environ["LD_DEBUG_OUTPUT"] + ".1", "a") as report:
        print("     1:\t" + line, file=report)
flags = dict(a.lstrip("-").split("=", 1) for a in sys.argv[1:] if "=" in a)
if "gtest_flagfile" in flags:
    flags.update(l.lstrip("-").split("=", 1) for l in open(flags["gtest_flagfile"]).read().split())
if "--gtest_list_tests" in sys.argv:
    print("S.")
    [print("  " + name) for name in cases]
    sys.exit()
load("initialize program: " + os.path.basename(sys.argv[0]))
wanted, xml, bad = flags["gtest_filter"].split(":"), "", False
for name, does in cases.items():
    if "S." + name not in wanted: continue
    print("[ RUN      ] S." + name, flush=True)
    if "/" in name: load("file=lib/" + name.split("/")[1] + ".so [0];  generating link map")
    if does == "crash": os.kill(os.getpid(), signal.SIGSEGV)
    if does == "hang": time.sleep(60)
    if does == "opens": does = os.environ.get("HEADRACE_BACKENDS") or "fail"
    if does == "fail": print("it is wrong")
    word = {{"fail": "  FAILED  ", "skip": "  SKIPPED "}}.get(does, "       OK ")
    print("[" + word + "] S." + name + " (3 ms)", flush=True)
    bodies = {{"fail": '<failure message="wrong"/>', "skip": '<skipped message="a.cpp:1&#10;no IPv6"/>'}}
    bad = bad or does == "fail"
    result = "skipped" if does == "skip" else "completed"
    about = f'name="{{name}}" classname="S" status="run" result="{{result}}" time="0.003"'
    xml += f'<testcase {{about}}>{{bodies.get(does, "")}}</testcase>'
open(flags["gtest_output"].removeprefix("xml:"), "w").write("<testsuites>" + xml + "</testsuites>")
runs = open(sys.argv[0] + ".runs", "a+")
print("run", file=runs, flush=True)
runs.seek(0)
if len(runs.readlines()) <= {dying_checks!r}:
    print("==7==LeakSanitizer has encountered a fatal error.", flush=True)
    sys.exit(1)
sys.exit(3 if {leaks!r} else int(bad))
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a program with these cases and returns the stage that counted them."""
    for module in (gtest, stage):
        monkeypatch.setattr(module, "REPORTS", tmp_path, raising=False)
        monkeypatch.setattr(module, "ROOT", tmp_path, raising=False)
    monkeypatch.setattr(gtest, "BUILD", tmp_path)
    monkeypatch.setattr(store, "STORE", tmp_path / "passed")
    monkeypatch.setattr(stage, "read_allowed_skips", lambda: [re.compile("no IPv6")])

    def run_cases(use_store=False, leaks=False, resume="", label="unit", loads=(), dying_checks=0, **cases):
        program = tmp_path / "unit_x"
        about = {"cases": cases, "leaks": leaks, "dying_checks": dying_checks}
        program.write_text(PROGRAM.format(python=sys.executable, **about))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        runner = stage.Runner(None, use_store, resume)
        counted = stage.Stage("dev", "")
        store._known.clear()  # a run by another process
        store.surroundings.cache_clear()
        suite = gtest.Suite("unit_x", label, program, [], list(loads))
        gtest.run_suites(runner, counted, [suite], wrapper=[], filter_text="*", jobs=2)
        return counted

    return run_cases


def failed(counted):
    return [case.name for case in counted.failures]


def test_every_case_counts_once(run):
    counted = run(a="pass", b="fail", c="skip", d="pass")
    assert (counted.passed, failed(counted)) == (2, ["unit_x.S.b"])
    assert [case.text for case in counted.skips] == ["no IPv6"]


@pytest.mark.parametrize(("package", "stored"), [("headrace-0.1.0", 1), ("numpy-9.9.9", 0)])
def test_a_new_package_runs_them_again_unless_it_is_the_projects_own(
    run, tmp_path, monkeypatch, package, stored
):
    monkeypatch.setattr(store, "PYTHONS", (tmp_path / "venv",))
    run(use_store=True, a="pass")
    (tmp_path / "venv" / "lib" / "python3.11" / "site-packages" / f"{package}.dist-info").mkdir(parents=True)
    counted = run(use_store=True, a="pass")
    assert (counted.passed, counted.stored) == (1, stored)


def test_a_case_that_ends_its_process_fails_by_name_and_the_cases_behind_it_run(run):
    counted = run(a="pass", b="crash", c="pass", d="fail", e="crash", f="pass")
    assert sorted(failed(counted)) == ["unit_x.S.b", "unit_x.S.d", "unit_x.S.e"]
    assert counted.passed == 3
    text = next(case.text for case in counted.failures if case.name == "unit_x.S.b")
    assert "ended by signal 11 (SIGSEGV)" in text


def test_a_case_that_takes_too_long_is_killed_and_fails_by_name(run, monkeypatch):
    monkeypatch.setattr(gtest, "CASE_SECONDS", 1)
    counted = run(a="pass", b="hang", c="pass")
    assert (counted.passed, failed(counted)) == (2, ["unit_x.S.b"])
    assert "killed" in counted.failures[0].text


def test_a_process_that_fails_after_its_cases_passed_is_a_failure(run):
    counted = run(a="pass", leaks=True)
    assert failed(counted) == ["unit_x.process of shard 0"]
    assert "exit code 3" in counted.failures[0].text


@pytest.mark.parametrize(("dying_checks", "leaks", "passes"), [(1, False, 1), (2, False, 0), (1, True, 0)])
def test_a_leak_check_that_crashes_by_itself_runs_once_more(run, dying_checks, leaks, passes):
    counted = run(a="pass", dying_checks=dying_checks, leaks=leaks)
    assert failed(counted) == ["unit_x.process of shard 0"] * (1 - passes)


def test_a_case_that_failed_does_not_run_again_for_the_leak_check(run):
    counted = run(a="fail", b="pass", dying_checks=1)
    assert failed(counted) == ["unit_x.S.a"]


def test_a_result_is_stored_for_the_same_program_only(run):
    assert run(a="pass", b="skip").stored == 0
    again = run(use_store=True, a="pass", b="skip")
    assert (again.passed, again.stored, len(again.skips)) == (1, 1, 1)
    assert run(use_store=False, a="pass", b="skip").stored == 0
    assert run(use_store=True, a="pass", b="skip", c="pass").stored == 0


@pytest.mark.parametrize("variable", ["HEADRACE_TCP_SOCKETS", "NIXL_PLUGIN_DIR", "CXX", "PYTHONHASHSEED"])
def test_a_result_is_stored_for_the_same_environment_only(run, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    run(a="pass")
    assert run(use_store=True, a="pass").stored == 1
    monkeypatch.setenv(variable, "2")
    assert run(use_store=True, a="pass").stored == 0
    monkeypatch.delenv(variable)
    assert run(use_store=True, a="pass").stored == 0


def test_a_program_does_not_get_what_differs_between_terminals(run, monkeypatch):
    monkeypatch.setenv("TERM", "one")
    assert "TERM" not in stage.inherited()
    run(a="pass")
    monkeypatch.setenv("TERM", "another")
    assert run(use_store=True, a="pass").stored == 1


def test_a_list_of_cases_under_another_environment_does_not_count_for_all(rows, monkeypatch):
    """HEADRACE_CONTRACT_BACKENDS=shm lists shm alone."""
    monkeypatch.setenv("HEADRACE_CONTRACT_BACKENDS", "shm")
    assert rows(use_store=True).passed == 1
    monkeypatch.delenv("HEADRACE_CONTRACT_BACKENDS")
    again = rows(use_store=True)
    assert (again.passed, again.stored) == (3, 0)


def test_a_result_is_stored_for_the_same_tools_and_packages_only(run, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "TOOLS", tmp_path / "tools")
    monkeypatch.setattr(store, "DEBIAN_PACKAGES", tmp_path / "status")
    monkeypatch.setattr(store, "PYTHONS", (tmp_path,))
    package = tmp_path / "lib" / "python3.9" / "site-packages" / "torch-2.dist-info"
    for file in (tmp_path / "tools" / "testing" / "x.py", tmp_path / "status", package):
        file.parent.mkdir(parents=True, exist_ok=True)
        run(a="pass")
        assert run(use_store=True, a="pass").stored == 1
        file.write_text("new")
        assert run(use_store=True, a="pass").stored == 0


def test_a_result_during_which_the_program_changed_is_not_stored(run, tmp_path, monkeypatch):
    def run_and_change(*arguments):
        result = run_shard(*arguments)
        (tmp_path / "unit_x").write_text("changed")
        return result

    run_shard = gtest.run_shard
    monkeypatch.setattr(gtest, "run_shard", run_and_change)
    assert run(a="pass").passed == 1
    monkeypatch.setattr(gtest, "run_shard", run_shard)
    assert run(use_store=True, a="pass").stored == 0


def test_a_failure_is_not_stored(run):
    run(a="pass", b="fail")
    assert run(use_store=True, a="pass", b="fail").stored == 0


@pytest.fixture
def rows(run, tmp_path):
    """Runs a suite of two rows that load a plugin each, and returns the stage."""
    for row in ("shm", "tcp", "other"):
        (tmp_path / f"{row}.so").write_text(row)
    cases = {"a/shm": "pass", "b/shm": "skip", "a/tcp": "pass", "c": "pass"}

    def run_rows(label="contract", **more):
        return run(label=label, loads=sorted(tmp_path.glob("*.so")), **{**cases, **more})

    return run_rows


def test_a_change_in_a_plugin_runs_the_rows_again_that_load_it(rows, tmp_path):
    assert rows(use_store=True).stored == 0
    again = rows(use_store=True)
    assert (again.passed, again.stored, len(again.skips)) == (3, 3, 1)
    (tmp_path / "tcp.so").write_text("changed")
    again = rows(use_store=True)
    assert (again.passed, again.stored, len(again.skips)) == (3, 2, 1)
    (tmp_path / "other.so").write_text("changed")
    assert rows(use_store=True).stored == 3


def test_a_plugin_more_or_less_runs_every_row_again(rows, tmp_path):
    rows(use_store=True)
    (tmp_path / "other.so").unlink()
    assert rows(use_store=True).stored == 0


def test_a_row_that_fails_runs_again_and_the_others_do_not(rows):
    rows(use_store=True, **{"a/tcp": "fail"})
    again = rows(use_store=True, **{"a/tcp": "fail"})
    assert (again.stored, failed(again)) == (2, ["unit_x.S.a/tcp"])


def test_a_suite_without_rows_is_one_part(rows, tmp_path):
    rows("unit", use_store=True)
    assert rows("unit", use_store=True).stored == 3
    (tmp_path / "tcp.so").write_text("changed")
    assert rows("unit", use_store=True).stored == 0


def test_cases_apart_load_what_the_others_need_not(rows, tmp_path, monkeypatch):
    monkeypatch.setitem(gtest.APART, "unit_x", gtest.Apart("far", ("*/tcp",), "shm"))
    cases = {"a/shm": "opens"}
    assert failed(rows("unit", use_store=True, **cases)) == []
    (tmp_path / "tcp.so").write_text("changed")
    again = rows("unit", use_store=True, **cases)
    assert (again.passed, again.stored) == (3, 2), "all but the case apart"


@pytest.mark.parametrize(("opened", "fails"), [("shm", ["unit_x"]), ("shm,tcp", [])])
def test_a_part_that_loads_a_backend_of_the_other_part_fails(run, tmp_path, monkeypatch, opened, fails):
    monkeypatch.setitem(gtest.APART, "unit_x", gtest.Apart("far", ("*/far",), opened))
    plugin = tmp_path / "lib" / "backends" / "headrace_backend_tcp.so"
    plugin.parent.mkdir(parents=True)
    plugin.write_text("1")
    cases = {"a": "pass", "b/headrace_backend_tcp": "pass"}
    assert failed(run(use_store=True, loads=[plugin], **cases)) == fails
    assert failed(run(loads=[plugin], **cases)) == [], "without a store all agents open all backends"


def test_where_nothing_is_stored_all_backends_are_opened(rows, monkeypatch):
    monkeypatch.setitem(gtest.APART, "unit_x", gtest.Apart("far", ("*/tcp",), "shm"))
    assert failed(rows("unit", **{"a/shm": "opens"})) == ["unit_x.S.a/shm"]


def test_a_static_program_depends_on_everything(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(seen, "names", lambda folder: set())  # a static program
    rows(use_store=True)
    (tmp_path / "other.so").write_text("changed")
    assert rows(use_store=True).stored == 0


def test_programs_count_for_every_result_and_objects_where_they_are_loaded(tmp_path, monkeypatch):
    """A program, which may be static, need not report that it ran."""
    monkeypatch.setattr(gtest, "ROOT", tmp_path)
    build = tmp_path / "build"
    files = (
        "bin/headrace", "lib/libheadrace.so.0", "lib/backends/headrace_backend_tcp.so", "lib/data.json",
        "tests/test_backends/tcp.so", "tests/contract_peer", "tests/plugins/lies.so",
    )  # fmt: skip
    for file in (*(build / name for name in files), tmp_path / "tests" / "tsan.supp"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    suite = {"name": "contract", "label": "contract", "program": "tests/contract", "environment": {}}
    (build / "suites.json").write_text(json.dumps({"suites": [suite]}))
    (read,) = gtest.read_suites(build)
    assert {path.name for path in read.loads} == {
        "libheadrace.so.0", "headrace_backend_tcp.so", "tcp.so"
    }  # fmt: skip
    assert {path.name for path in read.data} == {
        "headrace", "data.json", "contract_peer", "lies.so", "tsan.supp"
    }  # fmt: skip


def test_after_an_interruption_only_the_cases_left_run(run, monkeypatch):
    monkeypatch.setattr(gtest, "SHARD_SECONDS", 0)  # a shard for each case
    ways = {"a": "pass", "b": "skip", "c": "fail"}
    assert run(resume="one tree", **ways).stored == 0
    again = run(resume="one tree", **ways)
    assert (again.passed, again.stored, len(again.skips), failed(again)) == (1, 1, 1, ["unit_x.S.c"])
    assert run(resume="another", **ways).stored == 0
    assert run(**ways).stored == 0


def test_cases_of_a_process_that_failed_are_not_kept(run):
    assert failed(run(resume="one tree", a="pass", leaks=True)) == ["unit_x.process of shard 0"]
    assert run(resume="one tree", a="pass", leaks=True).stored == 0


def test_a_slow_case_without_known_times_is_a_shard_of_its_own():
    suite = gtest.Suite("system", "system", Path("system"), [], [])
    shards = gtest.cut(suite, ["S.a_slow/shm", "S.a_slow/tcp", "S.b", "S.c"])
    assert [shard.cases for shard in shards] == [["S.a_slow/shm"], ["S.a_slow/tcp"], ["S.b", "S.c"]]
    assert [shard.part for shard in shards] == ["system@shm", "system@tcp", "system"]


def test_labels_at_the_end_of_a_suite_or_case_are_filtered():
    assert gtest.filter_without(["slow"]) == "-*_slow.*:*_slow:*_slow/*"
