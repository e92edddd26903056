# SPDX-License-Identifier: Apache-2.0
"""tests/python/test_gpu.py in several processes at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

from gpu_steps import tree
from gpu_steps.endings import NothingRun
from gpu_steps.pytests import pytest_command
from gpu_steps.reports import skipped_text
from gpu_steps.shares import shares
from gpu_steps.sitting import TAIL_LINES, Sitting, run_together
from gpu_steps.tree import ANY_LABEL, bare_loader

# Of the step's time, for the tests that want the GPUs to themselves: what they take where there is enough.
ALONE_SHARE = 0.5
# What one process that runs tests needs, with those that it starts.
CORES_OF_A_SHARE, GPU_GIB_OF_A_SHARE = 4, 8


def tests(sitting: Sitting) -> bool:
    """tests/python/test_gpu.py without the slow tests: side by side, and one by one if a test needs the GPUs
    alone."""
    quick = f"({ANY_LABEL}) and not slow"
    beside, alone = (ids_of_tests(sitting, f"{quick} and {which}") for which in ("not alone", "alone"))
    shutil.rmtree(tree.WORK / "junit", ignore_errors=True)
    (tree.WORK / "junit").mkdir()
    if not beside and not alone:
        raise NothingRun(
            f"test_gpu.py has no test of this selection: {quick} {' '.join(sitting.options.pytest)}".rstrip()
        )
    dealt = shares(beside, how_many_beside(sitting))
    common = ["-v", "--durations=5", *sitting.options.pytest]
    commands = {
        f"share_{number}": pytest_command(*common, f"--junitxml={tree.WORK}/junit/{number:02}.xml", *share)
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
        ok = (
            sitting.run(pytest_command(*common, f"--junitxml={tree.WORK}/junit/alone.xml", *alone), tail=8)
            and ok
        )
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
        command,
        cwd=tree.ROOT,
        env=sitting.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=left,
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
    for report in sorted((tree.WORK / "junit").glob("*.xml")):
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
