# SPDX-License-Identifier: Apache-2.0
"""Reports of test programs: whether a test ran."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

from gpu_steps.endings import NothingRun
from gpu_steps.sitting import Sitting


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
