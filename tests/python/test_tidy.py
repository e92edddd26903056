# SPDX-License-Identifier: Apache-2.0
# backends: none
"""clang-tidy looks again at a source when a file that it depends on has changed, and not otherwise."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from testing import stage, store, tidy

OLD = 1_000_000_000  # a time of modification before any look


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(file, (OLD, OLD))


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A tree of two sources, one of which includes a header."""
    for module in (stage, tidy):
        monkeypatch.setattr(module, "ROOT", tmp_path)
        monkeypatch.setattr(module, "REPORTS", tmp_path / "build" / "reports")
    monkeypatch.setattr(store, "STORE", tmp_path / "build" / "passed")
    write(tmp_path / "tests" / "allowed_skips.txt", "^clang-tidy had its\n")
    write(tmp_path / ".clang-tidy", "Checks: '-*,modernize-use-nullptr'\nWarningsAsErrors: '*'\n")
    write(tmp_path / "src" / "a.hpp", "int* a();\n")
    write(tmp_path / "src" / "a.cpp", '#include "a.hpp"\nint* a() { return nullptr; }\n')
    write(tmp_path / "src" / "b.cpp", "int b() { return 0; }\n")
    return tmp_path


def look(tree, *names, minutes=None, use_kept=True, flags=""):
    """Returns the stage, and the sources at which clang-tidy looked."""
    folder = tree / "build" / "tidy"
    folder.mkdir(parents=True, exist_ok=True)
    commands = [
        {"directory": str(folder), "file": str(tree / name), "command": f"clang++ {flags} -c {tree / name}"}
        for name in ("src/a.cpp", "src/b.cpp")
    ]
    (folder / "compile_commands.json").write_text(json.dumps(commands))
    logs = tree / "build" / "reports" / "tidy"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    store._known.clear()  # a look by another process
    counted = stage.Stage("tidy-all", "")
    names = names or ("src/a.cpp", "src/b.cpp")
    tidy.run(stage.Runner(None), counted, names, folder, minutes, use_kept)
    return counted, sorted(str(log.relative_to(logs).with_suffix("")) for log in logs.glob("**/*.log"))


def test_a_source_without_a_finding_is_looked_at_once(tree):
    counted, looked = look(tree)
    assert (counted.passed, counted.stored, looked) == (2, 0, ["src/a.cpp", "src/b.cpp"])
    counted, looked = look(tree)
    assert (counted.passed, counted.stored, looked) == (2, 2, [])
    assert look(tree, use_kept=False)[1] == ["src/a.cpp", "src/b.cpp"]


@pytest.mark.parametrize(
    "file, text, reached",
    [
        ("src/a.hpp", "int* a();  // changed\n", ["src/a.cpp"]),
        ("src/b.cpp", "int b() { return 1; }\n", ["src/b.cpp"]),
        (".clang-tidy", "Checks: '-*,modernize-*'\n", ["src/a.cpp", "src/b.cpp"]),
        ("src/.clang-tidy", "InheritParentConfig: true\n", ["src/a.cpp", "src/b.cpp"]),
    ],
)
def test_a_change_brings_a_look_at_the_sources_that_it_reaches(tree, file, text, reached):
    look(tree)
    write(tree / file, text)
    assert look(tree)[1] == reached
    assert look(tree)[1] == []


def test_other_flags_bring_a_new_look(tree):
    look(tree)
    assert look(tree, flags="-DX")[1] == ["src/a.cpp", "src/b.cpp"]


def test_a_finding_is_a_failure_and_is_not_kept(tree):
    write(tree / "src" / "b.cpp", "int* b() { return 0; }\n")
    for _ in range(2):
        counted, looked = look(tree, "src/b.cpp")
        assert ([case.name for case in counted.failures], looked) == (["clang-tidy src/b.cpp"], ["src/b.cpp"])
        assert "use nullptr" in counted.failures[0].text


def test_a_file_that_changes_during_a_look_brings_another_one(tree):
    os.utime(tree / "src" / "a.hpp", (OLD * 4, OLD * 4))
    assert look(tree)[0].passed == 2
    assert look(tree)[1] == ["src/a.cpp"]


def test_sources_beyond_the_minutes_are_skipped_by_name(tree):
    counted, looked = look(tree, minutes=-1)
    assert ([case.name for case in counted.skips], looked) == (["src/a.cpp", "src/b.cpp"], [])
