# SPDX-License-Identifier: Apache-2.0
"""Reads the reports of ctest and pytest."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from testing.stage import Runner, Stage


def count_junit(runner: Runner, stage: Stage, report: Path, what: str) -> None:
    """Adds the tests of a JUnit file of ctest or pytest to the stage. A file without tests is a failure."""
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
    """Returns the reason of a skip. pytest writes it as the message, or behind it where a whole
    file is left out; GoogleTest prints it after `Skipped`."""
    if match := re.search(r"^\S*:\d+: Skipped\n(.*?)\n?^\[  SKIPPED", output, re.M | re.S):
        return " ".join(match[1].split())
    if skipped is None:
        return "no reason given"
    if match := re.search(r"""['"]Skipped: (.*)['"]\)$""", skipped.text or ""):  # of a whole file, by pytest
        return match[1]
    return skipped.get("message") or "no reason given"
