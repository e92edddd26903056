# SPDX-License-Identifier: Apache-2.0
"""The C++ tests of a build."""

from __future__ import annotations

import re

from gpu_steps import tree
from gpu_steps.endings import NothingRun, NotInBuild
from gpu_steps.reports import fresh_report, some_test_ran
from gpu_steps.sitting import Sitting
from gpu_steps.tree import LABELS


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
            str(tree.ROOT / "build" / "release"),
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
        file for folder in ("tests", "backends") for file in sorted((tree.ROOT / folder).rglob("*_test.cpp"))
    ]
    found = [match.groups() for file in sources for match in test.finditer(file.read_text(errors="replace"))]
    return [".".join(names) for names in found if any(label.search(name) for name in names)]
