# SPDX-License-Identifier: Apache-2.0
"""The checked-in stub is what the compiled module says of itself.

To write it anew:  python tests/python/test_stubs.py
"""

import difflib
import re
from pathlib import Path

from nanobind.stubgen import ReplacePattern, StubGen

from headrace import _headrace

STUB = Path(__file__).resolve().parents[2] / "python" / "headrace" / "_headrace.pyi"
LICENCE = "# SPDX-License-Identifier: Apache-2.0\n"


# What the module has and does not show: the buffer protocol of C, which Python before 3.12 has no name for.
ADDITIONS = [
    (r"^headrace\._headrace\.__suffix__$", ["__version__: str", ""]),
    (r"^headrace\._headrace\.codes$", ["codes: tuple[str, ...]", ""]),
    (r"^headrace\._headrace\.(Memory|Mapping|Tensor)\.__suffix__$", ["def __buffer__(self, flags: int, /) -> memoryview: ...", ""]),
]


def generated() -> str:
    patterns = [ReplacePattern(re.compile(query), list(lines), 0) for query, lines in ADDITIONS]
    generator = StubGen(module=_headrace, recursive=False, include_docstrings=True, include_private=True, patterns=patterns)
    generator.put(_headrace)
    return LICENCE + generator.get()


def test_the_stub_is_up_to_date():
    difference = difflib.unified_diff(
        STUB.read_text().splitlines(), generated().splitlines(), "checked in", "of the module", lineterm=""
    )
    assert "\n".join(difference) == "", "write it anew: python tests/python/test_stubs.py"


if __name__ == "__main__":
    STUB.write_text(generated())
