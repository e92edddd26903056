# SPDX-License-Identifier: Apache-2.0
# backends: none
"""tools/setup.sh: its output while pip works, and its behaviour after an interruption. Stand-ins replace pip
and apt-get here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "setup.sh"

# A stand-in for .venv/bin/python that prints what pip prints.
PYTHON = """#!/bin/sh
case "$*" in
  "-m pip --version") echo "pip 23" ;;
  *sys.base_prefix*) cat identity ;;
  *'version("torch")'*) test -e torch_is_there ;;
  *" torch=="*) cat torch_words; test ! -e torch_fails ;;
  *) echo "Collecting numpy"; echo "  Downloading numpy-2.4.whl (16 MB)"
    echo "Requirement already satisfied: pytest" ;;
esac
"""
TORCH_WORDS = """\
Collecting torch
  Downloading https://somewhere/torch-2.13.whl.metadata (30 kB)
  Downloading https://somewhere/torch-2.13.whl (800 MB)
Processing /folder/sympy-1.14.whl
Installing collected packages: sympy, torch
Successfully installed torch
"""


@pytest.fixture
def place(tmp_path):
    """A copy of the script beside a working environment, on a machine where all Debian packages are
    installed."""
    for folder in ("tools", "bin", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(SCRIPT, tmp_path / "tools")
    write(tmp_path / "bin" / "dpkg-query", "#!/bin/sh\necho installed\n")
    for name in ("apt-get", "g++", "cmake", "ninja"):
        write(tmp_path / "bin" / name, "#!/bin/sh\nexit 0\n")
    write(tmp_path / ".venv" / "bin" / "python", PYTHON)
    (tmp_path / "torch_words").write_text(TORCH_WORDS)
    return tmp_path


def write(path, text):
    path.write_text(text)
    path.chmod(0o755)


def setup(place, **environment):
    command = [place / "tools" / "setup.sh"]
    return subprocess.run(
        command,
        env=surroundings(place) | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def surroundings(place):
    environment = {name: value for name, value in os.environ.items() if name != "HEADRACE_PYTHON"}
    return environment | {"PATH": f"{place}/bin:{os.environ['PATH']}"}


def said(done):
    return [line.removeprefix("setup: ").strip() for line in done.stdout.splitlines()]


def test_fetched_and_unpacked_packages_are_printed(place):
    done = setup(place)
    assert done.returncode == 0, done.stderr
    lines = said(done)
    assert lines[1] == "using the existing Python environment .venv"
    steps = [
        "downloading numpy-2.4.whl (16 MB)",
        "downloading torch-2.13.whl (800 MB)",
        "processing sympy-1.14.whl",
        "unpacking sympy, torch",
    ]
    assert [line for line in lines if line in steps] == steps
    assert not any("metadata" in line for line in lines)
    assert lines[-1] == "done"
    assert said(setup(place)) == ["nothing to do"]


def test_a_long_step_prints_its_progress_regularly(place):
    script = place / "tools" / "setup.sh"
    script.write_text(script.read_text().replace("word_every=30 ", "word_every=0.05 "))
    # The stand-in continues after the test has read two progress lines and closed the pipe.
    words = place / "torch_words"
    words.unlink()
    os.mkfifo(words)
    process = subprocess.Popen([script], env=surroundings(place), stdout=subprocess.PIPE, text=True)
    with words.open("w") as pip:
        pip.write("  Downloading torch-2.13.whl (800 MB)\n")
        pip.flush()
        heard = 0
        for line in process.stdout:
            heard += "still downloading torch-2.13.whl (800 MB), " in line
            if heard == 2:
                break
    assert process.wait(60) == 0
    process.stdout.close()


def test_a_run_after_a_failure_continues_with_the_existing_environment(place):
    (place / "torch_fails").touch()
    assert setup(place).returncode != 0
    assert not (place / ".venv" / ".headrace-setup").exists()
    (place / "torch_fails").unlink()
    done = setup(place)
    assert done.returncode == 0, done.stderr
    assert "using the existing Python environment .venv" in said(done)


def test_an_installed_torch_is_kept(place):
    (place / "torch_is_there").touch()
    (place / "torch_fails").touch()
    done = setup(place)
    assert done.returncode == 0, done.stderr
    assert "torch is already installed" in said(done)


def test_the_same_interpreter_named_again_keeps_its_environment(place):
    identity = subprocess.run(
        [sys.executable, "-c", "import sys; print(sys.base_prefix, sys.version)"],
        capture_output=True,
        text=True,
        check=True,
    )
    (place / "identity").write_text(identity.stdout)
    done = setup(place, HEADRACE_PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    assert "using the existing Python environment .venv" in said(done)


def test_another_interpreter_gets_an_environment_of_its_own(place):
    (place / "identity").write_text("another one")
    write(place / "bin" / "python", '#!/bin/sh\necho "$@" >>made\n')
    done = setup(place, HEADRACE_PYTHON=str(place / "bin" / "python"))
    assert done.returncode == 0, done.stderr
    assert any(line.startswith("making the Python environment .venv with") for line in said(done))
    assert "-m venv --clear .venv" in (place / "made").read_text().splitlines()
