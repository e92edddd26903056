# SPDX-License-Identifier: Apache-2.0
"""The checked-in stub is what the compiled module says of itself.

To write it anew:  python tests/python/test_stubs.py
"""

import difflib
from pathlib import Path

from nanobind.stubgen import StubGen

from headrace import _headrace

STUB = Path(__file__).resolve().parents[2] / "python" / "headrace" / "_headrace.pyi"
LICENCE = "# SPDX-License-Identifier: Apache-2.0\n"


def generated() -> str:
    generator = StubGen(module=_headrace, recursive=False, include_docstrings=True, include_private=True)
    generator.put(_headrace)
    return LICENCE + generator.get()


def test_the_stub_is_up_to_date():
    difference = difflib.unified_diff(
        STUB.read_text().splitlines(), generated().splitlines(), "checked in", "of the module", lineterm=""
    )
    assert "\n".join(difference) == "", "write it anew: python tests/python/test_stubs.py"


if __name__ == "__main__":
    STUB.write_text(generated())
