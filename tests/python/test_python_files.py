# SPDX-License-Identifier: Apache-2.0
"""A file of Python tests runs again when something changes that it uses, and not otherwise."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from testing import python_files, stage, store

TESTS = {
    "test_tool.py": """
        import subprocess
        def test_it(): subprocess.run([{bin!r} + "/tool"], check=True)
        def test_other(): pass
    """,
    "test_plain.py": """
        import pytest
        def test_it(): pytest.skip("no IPv6")
        def test_other(): pass
    """,
    "test_sources.py": """
        def test_it(): assert open("src/x.cpp").read()
    """,
}


PYPROJECT = """[tool.pytest.ini_options]
markers = ["slow"]
addopts = "-p no:cacheprovider"
"""


def write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = text.splitlines()
    file.write_text("".join(f"{line[8:]}\n" for line in lines) if len(lines) > 1 else text)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A tree with tests and a source, and a package with two programs and a module."""
    root = tmp_path / "root"
    monkeypatch.setattr(store, "STORE", tmp_path / "passed")
    for name, place in {"REPORTS": tmp_path / "reports", "ROOT": root}.items():
        monkeypatch.setattr(stage, name, place)
    monkeypatch.setattr(python_files, "REPORTS", tmp_path / "reports")
    monkeypatch.setattr(stage, "read_allowed_skips", lambda: [re.compile("no IPv6")])
    (tmp_path / "reports").mkdir()
    package = tmp_path / "package"
    for name in ("tool", "other"):
        write(package / "bin" / name, "")
        shutil.copy("/bin/true", package / "bin" / name)
    write(package / "module.py", "1")
    root.mkdir()
    (root / "pyproject.toml").write_text(PYPROJECT)
    write(root / "src" / "x.cpp", "int x;")
    subprocess.run(["git", "init", "-q", root], check=True)
    for name, text in TESTS.items():
        write(root / "tests" / "python" / name, text.format(bin=str(package / "bin")))
    return tmp_path


@pytest.fixture
def run(tree):
    """Runs the files as `make test` does. Returns the stage, and the files that ran."""

    def run_files(use_store=True, marks="not slow"):
        for report in (tree / "reports").glob("*.xml"):
            report.unlink()
        store._known.clear()  # a run by another process
        place = python_files.Place(tree / "root", Path(sys.executable), tree / "package")
        place.look(marks)
        counted = stage.Stage("python", "")
        files = sorted((tree / "root" / "tests" / "python").glob("test_*.py"))
        python_files.run(stage.Runner(None, use_store), counted, place, files, ["-m", marks], {}, 2)
        ran = sorted(report.stem.removeprefix("python-test_") for report in (tree / "reports").glob("*.xml"))
        return counted, ran

    return run_files


ALL = ["plain", "sources", "tool"]


def test_the_counts_are_the_same_whether_files_run_or_not(run):
    counted, ran = run()
    assert (counted.passed, counted.stored, len(counted.skips), ran) == (4, 0, 1, ALL), counted.failures
    counted, ran = run()
    assert (counted.passed, counted.stored, len(counted.skips), ran) == (4, 4, 1, [])
    assert run(use_store=False)[1] == ALL


@pytest.mark.parametrize(
    ("changed", "runs"),
    [
        ("package/bin/tool", ["tool"]),
        ("package/bin/other", []),
        ("package/module.py", ALL),
        ("root/src/x.cpp", ["sources"]),
        ("root/src/y.cpp", ["sources"]),
        ("root/tests/python/test_tool.py", ALL),
        ("root/tests/data", ALL),
        ("package/bin/third", ALL),
    ],
)
def test_a_change_runs_the_files_that_use_it(run, tree, changed, runs):
    run()
    file = tree / changed
    file.write_bytes(file.read_bytes() + b"\n" if file.exists() else b"\x7fELF")
    assert run()[1] == runs


def test_other_marks_or_another_environment_run_every_file(run, tree, monkeypatch):
    run()
    assert run(marks="not other")[1] == ALL
    monkeypatch.setattr(python_files, "identity", lambda python: ["another environment"])
    assert run()[1] == ALL


def test_a_failure_is_not_stored(run, tree):
    write(tree / "root" / "tests" / "python" / "test_plain.py", "def test_it(): assert False")
    counted, _ = run()
    assert [case.name for case in counted.failures] == ["tests.python.test_plain.test_it"]
    assert run()[1] == ["plain"]


def test_a_file_that_cannot_be_read_fails(run, tree):
    write(tree / "root" / "tests" / "python" / "test_plain.py", "import nothing_of_this_name")
    assert len(run()[0].failures) == 1


def test_a_file_without_a_test_of_these_marks_counts_nothing(run, tree):
    text = "import pytest\npytestmark = pytest.mark.slow\ndef test_it(): assert False"
    (tree / "root" / "tests" / "python" / "test_plain.py").write_text(text)
    counted, _ = run()
    assert (counted.passed, counted.failures) == (3, [])
    assert run()[1] == []


@pytest.mark.parametrize(
    ("body", "uses"),
    [
        ("", []),
        ("open('src/x.cpp').read()", ["src"]),
        ("subprocess.run(['cat', 'pyproject.toml'])", ["src"]),  # a program that may read anything
        ("subprocess.run([sys.executable, '-c', 'open(\"src/x.cpp\")'])", ["src"]),
        ("open({bin!r} + '/tool', 'rb').read()", ["tool"]),
        ("os.listdir({bin!r})", ["other", "tool"]),
        ("os.system('exec ' + {bin!r} + '/tool')", ["src", "tool"]),
        ("subprocess.run(['true'], env={{}})", ["other", "src", "tool"]),
        ("os.listdir({bin!r} + '/..')", []),  # to import modules of the package
    ],
)
def test_what_a_test_uses(run, tree, monkeypatch, body, uses):
    kept = {}
    monkeypatch.setattr(store, "keep", lambda stage, name, key, passed, skips, files: kept.update(files))
    for file in (tree / "root" / "tests" / "python").iterdir():
        file.unlink()
    body = body.format(bin=str(tree / "package" / "bin")) or "pass"
    text = f"import os, subprocess, sys\ndef test_it(): {body}"
    (tree / "root" / "tests" / "python" / "test_it.py").write_text(text)
    assert run()[0].failures == []
    assert sorted({Path(path).name for path in kept} - {".gitignore"}) == uses
