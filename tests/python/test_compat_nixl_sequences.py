# SPDX-License-Identifier: Apache-2.0
"""The call sequences of nixl_sequences.py: the drop-in gives, call by call, what was recorded of NIXL's
wheel.

Where the wheel is installed (in this interpreter, or by `bench/compare_nixl.py --install`), it gives the same
as the recording.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SEQUENCES = sorted(path.stem for path in (HERE / "nixl_results").glob("*.json"))

DIFFERENCES = {
    ("vllm", "descCount"): "NIXL counts after it has merged neighbours, Headrace before",
    (
        "storage",
        "query_memory as it would be opened",
    ): "Headrace takes the form in which files are registered for a question as well",
    ("storage", "estimate_xfer_cost"): "Headrace has an estimate",
    ("storage", "with a notification"): "Headrace tells the agent itself",
    ("vllm_peer_returns", "check_remote_metadata"): "Headrace answers False once the peer is dead",
}


def recorded(sequence):
    return json.loads((HERE / "nixl_results" / f"{sequence}.json").read_text())


def rows_of(library, sequence, python=sys.executable, path=()):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NIXL_")}
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, path), environment.get("PYTHONPATH", "")])
    command = [python, str(HERE / "nixl_sequences.py"), library, sequence]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=110, check=False)
    # A line of the log may follow the rows: agents end with the interpreter.
    rows = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert rows, done.stderr
    return json.loads(rows[-1])


def wheel_is_installed():
    """Asked of what pip installed: modules of that name come with the wheel headrace-nixl as well."""
    wheels = ("nixl-cu12", "nixl-cu13")
    return any(list(importlib.metadata.distributions(name=name)) for name in wheels)


def wheel():
    """Interpreter and path with which `import nixl` gives the real library; skips where there is none."""
    installed = sorted((ROOT / "build" / "nixl-venv").glob("lib/python*/site-packages/nixl_cu1*"))
    if wheel_is_installed():
        return sys.executable, []
    if installed and f"python{sys.version_info.major}.{sys.version_info.minor}" in str(installed[0]):
        return sys.executable, [installed[0].parent]
    pytest.skip("NIXL's wheel is not installed")


def test_every_sequence_has_been_recorded(run_script):
    code, said, errors = run_script(
        "import sys; sys.path.insert(0, sys.argv[1]); import nixl_sequences; "
        "print(*sorted(nixl_sequences.SEQUENCES))",
        str(HERE),
    )
    assert code == 0, errors
    assert said.split() == SEQUENCES


def taken(library, *path):
    """How a process ends that takes this library where `path` is searched first."""
    take = "import nixl_sequences; nixl_sequences.take_library(sys.argv[2])"
    text = f"import sys; sys.path.insert(0, sys.argv[1]); {take}"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*map(str, path), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-c", text, str(HERE), library]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


@pytest.mark.parametrize("checkout", ["headrace", "elsewhere"])
def test_the_libraries_are_told_apart_by_their_modules_and_not_by_the_folder_that_they_lie_in(
    tmp_path, checkout
):
    package = tmp_path / checkout / "site-packages" / "nixl"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "_api.py").write_text("class nixl_agent: pass\n")
    done = taken("wheel", package.parent)
    assert done.returncode == 0, done.stderr


def test_modules_of_the_wheels_names_are_not_taken_for_the_wheel(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    (tmp_path / "nixl_cu12").mkdir()
    (tmp_path / "nixl_cu12" / "__init__.py").write_text("")
    assert not wheel_is_installed()
    (tmp_path / "nixl_cu12-1.5.1.dist-info").mkdir()
    (tmp_path / "nixl_cu12-1.5.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: nixl-cu12\nVersion: 1.5.1\n"
    )
    assert wheel_is_installed()


def test_the_drop_in_is_not_taken_for_the_wheel():
    drop_in = ROOT / "packaging" / "headrace_nixl" / "src"
    assert taken("dropin", drop_in).returncode == 0
    done = taken("wheel", drop_in)
    assert done.returncode == 1 and "nixl_agent is of headrace.compat.nixl._api" in done.stderr


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_the_drop_in_gives_what_nixl_gives(sequence):
    theirs, ours = recorded(sequence), rows_of("dropin", sequence)
    assert [row[0] for row in ours] == [row[0] for row in theirs]
    different = [(left, right) for left, right in zip(theirs, ours, strict=True) if left != right]
    assert [pair for pair in different if (sequence, pair[0][0]) not in DIFFERENCES] == []
    named = {call for of, call in DIFFERENCES if of == sequence}
    assert {left[0] for left, _ in different} == named, "a difference is listed that is none"


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_nixl_gives_what_was_recorded(sequence):
    python, path = wheel()
    assert rows_of("wheel", sequence, python, path) == recorded(sequence)
