# SPDX-License-Identifier: Apache-2.0
# backends: none
"""A file of Python tests runs again when something changes, but for backends that it does not use."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from testing import python_files, stage, store

HERE = Path(__file__).resolve().parent

TESTS = {
    "test_fake.py": """
        # backends: fake
        import ctypes
        def test_it(): ctypes.CDLL({fake!r})
        def test_other(): pass
    """,
    "test_none.py": """
        # backends: none
        import pytest
        def test_it(): pytest.skip("no IPv6")
        def test_other(): pass
    """,
    "test_each.py": """
        # backends: by case, others fake
        import os
        import pytest
        @pytest.mark.parametrize("backend", ["shm", "tcp"])
        def test_it(backend): assert os.environ.get("HEADRACE_BACKENDS", backend) == backend
        def test_other(): assert os.environ.get("HEADRACE_BACKENDS", "fake") == "fake"
    """,
    "test_any.py": """
        import os
        def test_it(): assert os.path.exists("CHANGELOG.md")
    """,
}
CONFTEST = "from parts import add_option as pytest_addoption, pytest_collection_modifyitems\n"
# In place of Python, where a test asks which files run and not how they end: each has one test, which passes.
STAND_IN = """#!/bin/sh
for argument; do case "$argument" in --junitxml=*) report="${argument#*=}" ;; esac; done
echo '<testsuite><testcase classname="x" name="y" time="0" /></testsuite>' >"$report"
"""
PLAIN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
PYPROJECT = """[tool.pytest.ini_options]
markers = ["slow"]
addopts = "-p no:cacheprovider"
"""


def write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = text.splitlines()
    file.write_text("".join(f"{line[8:]}\n" for line in lines) if len(lines) > 1 else text)


@pytest.fixture(scope="session")
def plugin(tmp_path_factory):
    """A shared object."""
    file = tmp_path_factory.mktemp("plugin") / "plugin.so"
    subprocess.run(["cc", "-shared", "-o", file, "-x", "c", "/dev/null"], check=True, timeout=60)
    return file


@pytest.fixture
def tree(tmp_path, monkeypatch, plugin):
    """A tree with tests, sources and a file that a test looks for, and a package with two plugins."""
    root = tmp_path / "root"
    monkeypatch.setattr(store, "STORE", tmp_path / "passed")
    for name, place in {"REPORTS": tmp_path / "reports", "ROOT": root}.items():
        monkeypatch.setattr(stage, name, place)
    monkeypatch.setattr(python_files, "REPORTS", tmp_path / "reports")
    monkeypatch.setattr(stage, "read_allowed_skips", lambda: [re.compile("no IPv6")])
    (tmp_path / "reports").mkdir()
    package = tmp_path / "package"
    write(package / "module.py", "1")
    write(tmp_path / "demo_model" / "weights", "1")
    for name in ("fake", "tcp"):
        shutil.copy(plugin, package / f"headrace_backend_{name}.so")
        write(root / "backends" / name / "x.cpp", "int x;")
    write(root / "backends" / "README.md", "")
    write(root / "src" / "x.cpp", "int x;")
    write(root / "CHANGELOG.md", "")
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / ".gitignore").write_text("*.pyc\n__pycache__\n")
    subprocess.run(["git", "init", "-q", root], check=True)
    (root / "tests" / "python").mkdir(parents=True)
    shutil.copy(HERE / "parts.py", root / "tests" / "python")
    (root / "tests" / "python" / "conftest.py").write_text(CONFTEST)
    for name, text in TESTS.items():
        write(root / "tests" / "python" / name, text.format(fake=str(package / "headrace_backend_fake.so")))
    return tmp_path


@pytest.fixture
def run(tree):
    """Runs the files as `make test` does. Returns the stage, and the files that ran."""

    def run_files(use_store=True, marks="not slow", interpreter=sys.executable):
        for report in (tree / "reports").glob("*.xml"):
            report.unlink()
        store._known.clear()  # a run by another process
        store.surroundings.cache_clear()
        more = [tree / "demo_model"]
        place = python_files.Place(tree / "root", Path(interpreter), tree / "package", (marks,), more)
        counted = stage.Stage("python", "")
        files = sorted((tree / "root" / "tests" / "python").glob("test_*.py"))
        python_files.run(stage.Runner(None, use_store), counted, place, files, ["-m", marks], PLAIN, 2)
        ran = sorted(report.stem.removeprefix("python-test_") for report in (tree / "reports").glob("*.xml"))
        return counted, ran

    return run_files


@pytest.fixture
def which_run(run, tree):
    """As `run` with a stand-in for pytest, which costs no interpreter a file. Returns the files that ran."""
    stand_in = tree / "stand_in"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)

    def run_files(**options):
        counted, ran = run(interpreter=stand_in, **options)
        assert counted.failures == []
        return ran

    return run_files


def leave(tree, *names):
    """Removes the other files of tests: each costs a run of pytest."""
    for file in (tree / "root" / "tests" / "python").glob("test_*.py"):
        if file.stem.removeprefix("test_") not in names:
            file.unlink()


EACH = ["each@others", "each@shm", "each@tcp"]
ALL = ["any", *EACH, "fake", "none"]


def test_the_counts_are_the_same_whether_files_run_or_not(run):
    counted, ran = run()
    assert (counted.passed, counted.stored, len(counted.skips), ran) == (7, 0, 1, ALL), counted.failures
    counted, ran = run()
    assert (counted.passed, counted.stored, len(counted.skips), ran) == (7, 7, 1, [])
    counted, ran = run(use_store=False)
    assert (counted.passed, counted.stored, ran) == (7, 0, ["any", "each", "fake", "none"])


CHANGES = {
    "a backend": {
        "root/backends/tcp/x.cpp": ["any", "each@tcp"],
        "root/backends/fake/x.cpp": ["any", "each@others", "fake"],
        "package/headrace_backend_tcp.so": ["any", "each@tcp"],
        "package/headrace_backend_fake.so": ["any", "each@others", "fake"],
    },
    "a source": {
        "root/backends/README.md": ALL,
        "root/backends/tcp/y.cpp": ALL,  # one more
        "root/src/x.cpp": ALL,
        "root/tests/python/test_any.py": ALL,
    },
    "data": {"package/module.py": ALL, "root/data": ALL, "demo_model/weights": ALL},
}


@pytest.mark.parametrize("group", CHANGES)
def test_a_change_runs_the_files_that_depend_on_it(which_run, tree, group):
    assert which_run() == ALL
    for changed, runs in CHANGES[group].items():
        file = tree / changed
        file.write_bytes(file.read_bytes() + b"\n" if file.exists() else b"")
        assert which_run() == runs, changed


def test_a_file_that_tests_only_look_for_is_an_input(run, tree):
    leave(tree, "any", "none")
    run()
    (tree / "root" / "CHANGELOG.md").unlink()
    counted, ran = run()
    assert ([case.name for case in counted.failures], ran) == (
        ["tests.python.test_any.test_it"],
        ["any", "none"],
    )


@pytest.mark.parametrize("options", [["-I"], ["-S"], ["-E"]])
def test_what_a_child_reads_without_its_environment_is_an_input(run, tree, options):
    reads = f"import subprocess, sys; command = [sys.executable, *{options!r}, '-c', 'open(\"src/x.cpp\")']"
    text = f"{reads}\ndef test_it(): subprocess.run(command, env={{}}, check=True)\n"
    leave(tree, "none")
    (tree / "root" / "tests" / "python" / "test_none.py").write_text(text)
    assert run()[0].failures == []
    (tree / "root" / "src" / "x.cpp").unlink()
    assert "tests.python.test_none.test_it" in [case.name for case in run()[0].failures]


def test_a_mode_is_an_input(which_run, tree):
    which_run()
    (tree / "root" / "src" / "x.cpp").chmod(0o755)
    assert which_run() == ALL


def test_a_file_that_loads_a_backend_beside_its_own_fails(run, tree):
    leave(tree, "fake", "none")
    file = tree / "root" / "tests" / "python" / "test_fake.py"
    file.write_text(file.read_text().replace("# backends: fake", "# backends: shm, tcp"))
    counted, _ = run()
    assert [case.name for case in counted.failures] == ["test_fake"]
    assert "its line `# backends:` lacks fake" in counted.failures[0].text
    assert run()[1] == ["fake"]


@pytest.mark.parametrize(
    "variable", ["HEADRACE_CONTRACT_BACKENDS", "NIXL_PLUGIN_DIR", "CXX", "PYTHONHASHSEED"]
)
def test_another_environment_runs_every_file(which_run, monkeypatch, variable):
    which_run()
    monkeypatch.setenv(variable, "1")
    assert which_run() == ALL
    assert which_run() == []


def test_other_marks_run_every_file(which_run):
    which_run()
    assert which_run(marks="not other") == ALL


def test_a_failure_is_not_stored(run, tree):
    leave(tree, "any", "none")
    write(tree / "root" / "tests" / "python" / "test_none.py", "def test_it(): assert False")
    counted, _ = run()
    assert [case.name for case in counted.failures] == ["tests.python.test_none.test_it"]
    assert run()[1] == ["none"]


def test_a_result_during_which_a_file_changed_is_not_stored(run, tree):
    leave(tree, "any", "none")
    text = "from pathlib import Path\ndef test_it(): Path('data').write_text('')\n"
    (tree / "root" / "tests" / "python" / "test_none.py").write_text(text)
    run()
    assert run()[1] == ["any", "none"]
    assert run()[1] == []


def test_a_file_that_cannot_be_read_fails(run, tree):
    leave(tree, "none")
    write(tree / "root" / "tests" / "python" / "test_none.py", "import nothing_of_this_name")
    assert len(run()[0].failures) == 1


def test_a_process_that_ends_without_a_report_is_named_with_its_last_words(run, tree):
    leave(tree, "none")
    text = "import os\ndef test_it():\n    os.write(2, b'farewell\\n')\n    os._exit(3)\n"
    (tree / "root" / "tests" / "python" / "test_none.py").write_text(text)
    (failure,) = run()[0].failures
    assert failure.name == "test_none"
    assert "exit code 3, without a report" in failure.text


def test_a_file_without_a_test_of_these_marks_counts_nothing(run, tree):
    leave(tree, "any", "none")
    text = "import pytest\npytestmark = pytest.mark.slow\ndef test_it(): assert False"
    (tree / "root" / "tests" / "python" / "test_none.py").write_text(text)
    counted, _ = run()
    assert (counted.passed, counted.failures) == (1, [])
    assert run()[1] == []
