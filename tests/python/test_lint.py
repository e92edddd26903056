# SPDX-License-Identifier: Apache-2.0
# backends: none
"""`make lint` finds each kind of defect by name, and nothing in a clean repository."""

import shutil
import subprocess

import pytest

from test_check_layers import ROOT, load_tool

lint = load_tool("lint")
LICENCE = "SPDX-License-Identifier: Apache-2.0"
CLEAN = {
    "src/base/a.cpp": f"// {LICENCE}\nint twice(int x) {{ return 2 * x; }}\n",
    "tools/a.py": f'# {LICENCE}\n"""A tool."""\n\n\ndef twice(x: int) -> int:\n    return 2 * x\n',
    "python/b.py": f"# {LICENCE}\nX: int = 1\n",
    "tools/a.sh": f'#!/usr/bin/env bash\n# {LICENCE}\necho "$1"\n',
    "README.md": "# A title\n\nShort prose.\n",
}


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    """A clean repository with the settings of this one; call it to change a file."""

    def write(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return tmp_path

    for name in ("pyproject.toml", ".clang-format", "layers.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for name, text in CLEAN.items():
        write(name, text)
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "The first")
    return write


@pytest.mark.parametrize("check, name, text, finding", [
    ("clang-format", "src/base/a.cpp", "int  x;\n", "src/base/a.cpp:1: clang-format-16 lays this out"),
    ("ruff format", "tools/a.py", "x = {'a':1}\n", "tools/a.py:1: ruff lays this out differently"),
    ("ruff check", "tools/a.py", "import os\n", "tools/a.py:1: F401 `os` imported but unused"),
    ("ruff check", "tools/a.py", f"x = 1  # {'word ' * 30}.\n", "tools/a.py:1: E501 Line too long"),
    ("shellcheck", "tools/a.sh", "#!/bin/bash\nrm $1\n", "tools/a.sh:2: note: Double quote to prevent"),
    ("sources", "tools/a.sh", "#!/bin/bash\n", "tools/a.sh: no line `SPDX-License"),
    ("layers", "src/base/a.cpp", '#include "agent/agent.hpp"\n', "src/base/a.cpp:1: agent/agent.hpp: base"),
])  # fmt: skip
def test_a_defect_is_found_by_name(repository, capsys, check, name, text, finding):
    root = repository(name, text)
    assert lint.main(["--root", str(root), check]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(finding)
    assert lines[-1].startswith(f"lint: {check} ") and lines[-1].endswith(" 1 findings")


def test_an_untyped_function_and_a_wrong_type_are_found(repository):
    repository("tools/a.py", "def twice(x):\n    return 2 * x\n")
    found = lint.mypy(repository("python/b.py", 'X: int = "1"\n'))
    assert found[0].startswith("tools/a.py:1: Function is missing a type annotation")
    assert found[1].startswith("python/b.py:1: Incompatible types")
    assert len(found) == 2


def test_a_clean_repository_has_no_finding(repository, capsys):
    root = repository("tools/new.py", CLEAN["tools/a.py"])
    checks = [name for name in lint.CHECKS if name not in ("numbers", "support")]
    assert lint.main(["--root", str(root), *checks]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= len(checks)
    assert all(line.endswith(" 0 findings") for line in lines)


def test_an_ignored_file_is_not_checked(repository):
    repository(".gitignore", "a.cpp\n")
    assert lint.clang_format(repository("src/a.cpp", "int  x;\n")) == []


WIDE = "word " * 30


@pytest.mark.parametrize("text", [WIDE, f"- {WIDE}", f"# {WIDE}", f"see [a](b) {WIDE}", f"```\n```\n{WIDE}"])
def test_a_wide_line_of_prose_is_found(repository, text):
    (found,) = lint.markdown(repository("docs/a.md", f"{text}\n"))
    assert found.startswith("docs/a.md:") and "at most 120 fit" in found


@pytest.mark.parametrize("text", [
    "x" * 119 + "!", f"| {WIDE} |", f"```\n{WIDE}\n```", f"~~~text\n{WIDE}\n~~~", f"````\n```\n{WIDE}\n````",
    f"<!-- {WIDE} -->", f"[a]: https://a.b/{'c' * 120}",
    f"https://a.b/{'c' * 120}", f"- <https://a.b/{'c' * 120}>", f"1. [{WIDE}](a.md)",
    f"![{WIDE}](a.svg)", f"[![a](https://a.b/{'c' * 90})](d) [![a](https://a.b/{'c' * 90})](d)",
])  # fmt: skip
def test_tables_code_comments_and_lines_of_links_may_be_wide(repository, text):
    assert lint.markdown(repository("docs/a.md", f"{text}\n")) == []


def test_titles_since_origin_are_checked_or_the_last_one_without_origin(repository, tmp_path):
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "a" * 73)
    (found,) = lint.titles(tmp_path)
    assert "the title has 73 characters, at most 72 fit: aaa" in found
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", f"{'b' * 72}\n\n{'c' * 100}")
    assert lint.titles(tmp_path) == []
    git(tmp_path, "update-ref", "refs/remotes/origin/main", "HEAD~2")
    assert lint.titles(tmp_path) == [found]
    git(tmp_path, "update-ref", "refs/remotes/origin/main", "HEAD~1")
    assert lint.titles(tmp_path) == []


def test_a_tool_that_fails_or_is_missing_is_a_finding(repository, tmp_path, monkeypatch):
    repository("pyproject.toml", "[tool.mypy]\nfiles = 'nowhere'\n")
    (found,) = lint.mypy(tmp_path)
    assert found.startswith("mypy: exit code 2: ")
    monkeypatch.setattr(lint.shutil, "which", lambda name: None)
    (found,) = lint.shellcheck(tmp_path)
    assert found.endswith("shellcheck is not installed: run `make setup`")
