# SPDX-License-Identifier: Apache-2.0
# backends: none
"""The checked-in stubs equal the stubs that are generated from the compiled modules.

To write that of headrace._headrace again:  python tests/python/test_stubs.py
"""

import ast
import difflib
import inspect
import re
from pathlib import Path

from nanobind.stubgen import ReplacePattern, StubGen

from headrace import _headrace
from headrace.compat.nixl import _compiled

STUB = Path(__file__).resolve().parents[2] / "python" / "headrace" / "_headrace.pyi"
COMPAT_STUB = STUB.parent / "compat" / "nixl" / "_compiled.pyi"
LICENCE = "# SPDX-License-Identifier: Apache-2.0\n"


# What the module has but does not describe: the buffer protocol of C, which Python before 3.12 has no name
# for.
ADDITIONS = [
    (r"^headrace\._headrace\.__suffix__$", ["__version__: str", ""]),
    (r"^headrace\._headrace\.codes$", ["codes: tuple[str, ...]", ""]),
    (
        r"^headrace\._headrace\.(Memory|Mapping|Tensor)\.__suffix__$",
        ["def __buffer__(self, flags: int, /) -> memoryview: ...", ""],
    ),
]


def generated() -> str:
    patterns = [ReplacePattern(re.compile(query), list(lines), 0) for query, lines in ADDITIONS]
    generator = StubGen(
        module=_headrace, recursive=False, include_docstrings=True, include_private=True, patterns=patterns
    )
    generator.put(_headrace)
    return LICENCE + generator.get()


def test_the_stub_is_up_to_date():
    difference = difflib.unified_diff(
        STUB.read_text().splitlines(), generated().splitlines(), "checked in", "of the module", lineterm=""
    )
    assert "\n".join(difference) == "", "write it again: python tests/python/test_stubs.py"


def test_the_stub_of_the_drop_ins_compiled_module_has_its_names_and_no_second_docstring():
    tree = ast.parse(COMPAT_STUB.read_text())
    stubs = {node.name: node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert set(stubs) == {name for name in vars(_compiled) if not name.startswith("__")}
    assert _compiled.__doc__
    assert ast.get_docstring(tree) is None
    for name in ("capture_rows", "pack_tuples"):
        stub, function = stubs[name], getattr(_compiled, name)
        assert inspect.getdoc(function)
        assert ast.get_docstring(stub) is None
        assert list(inspect.signature(function).parameters) == [
            argument.arg for argument in stub.args.posonlyargs
        ]
    members = {node.name for node in stubs["QuickMake"].body if isinstance(node, ast.FunctionDef)}
    assert members <= set(dir(_compiled.QuickMake))


if __name__ == "__main__":
    STUB.write_text(generated())
