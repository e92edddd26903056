# SPDX-License-Identifier: Apache-2.0
# backends: none
"""How a child process ended is told in words, and whether PyTorch's own loader crashes without Headrace.
No test needs torch."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.exporting import bare_loader
from headrace.exporting.bare_loader import Outcome, ending, explain_crash, is_crash, try_loader


def program(tmp_path, text):
    """An interpreter that runs this text, whatever it is told to run."""
    path = tmp_path / "python"
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_process_that_a_signal_ended_is_told_by_the_signals_number_and_name():
    died = subprocess.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"], check=False)
    assert ending(died.returncode) == "signal 11 (SIGSEGV)"
    assert [ending(0), ending(3), ending(-9), ending(-250)] == [
        "exit code 0", "exit code 3", "signal 9 (SIGKILL)", "signal 250",
    ]  # fmt: skip


def test_a_crash_is_a_signal_that_nobody_sends():
    assert all(is_crash(-number) for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL))
    assert not any(is_crash(code) for code in (0, 1, 139, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT))


def test_the_last_step_that_began_is_told_with_the_signal(tmp_path):
    steps = "for step in ('import', 'export', 'compile', 'load'): print('step', step, flush=True)"
    text = f"import os\n{steps}\nos.kill(os.getpid(), 11)"
    outcome = try_loader("cpu", python=program(tmp_path, text))
    assert str(outcome) == "signal 11 (SIGSEGV) in step load" and not outcome.works


def test_a_bare_program_that_does_not_end_is_ended(tmp_path):
    text = "import time\nprint('step compile', flush=True)\ntime.sleep(60)"
    outcome = try_loader("cpu", python=program(tmp_path, text), seconds=2)
    assert (outcome.step, outcome.code) == ("compile", None)


def test_the_bare_program_gets_the_compiler_and_leaves_nothing_behind(tmp_path):
    facts = "os.environ['CXX'], os.getcwd(), sys.argv[3:]"
    text = f"import os, sys\nprint('step run')\nprint({facts}, file=sys.stderr)"
    compiler, folder, *arguments = try_loader(
        "cuda:1", "/opt/g++", python=program(tmp_path, text)
    ).printed.split()
    assert compiler == "/opt/g++" and any("cuda:1" in argument for argument in arguments)
    assert not Path(folder).exists()


def test_the_bare_program_imports_nothing_of_headrace(tmp_path):
    fake = [
        "import sys",
        "assert not any('exporting' in entry for entry in sys.path), sys.path",
        "assert 'headrace' not in sys.modules",
        "raise SystemExit(7)",
    ]
    (tmp_path / "torch.py").write_text("\n".join(fake))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, bare_loader.__file__, "cpu", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "step import\n"), done.stderr


@pytest.fixture
def outcomes(monkeypatch):
    """Call it with how the bare program ends, by compiler, and with what CXX names."""

    def set_outcomes(by_compiler, cxx=sys.executable):
        monkeypatch.setattr(bare_loader, "try_loader", lambda device, compiler=None: by_compiler[compiler])
        monkeypatch.setattr(bare_loader, "SYSTEM_COMPILER", sys.executable)  # a file that is there
        monkeypatch.setenv("CXX", cxx)

    return set_outcomes


WORKS, CRASHES = Outcome("run", 0, ""), Outcome("load", -11, "")


def test_it_is_said_whether_pytorchs_own_loader_dies_too(outcomes):
    outcomes({None: CRASHES})
    assert explain_crash("cuda") == (
        "PyTorch's own loader dies too, without Headrace: "
        "a bare program ended by signal 11 (SIGSEGV) in step load"
    )
    outcomes({None: WORKS})
    assert "PyTorch's own loader works: a bare program" in explain_crash("cuda")
    outcomes({None: Outcome("compile", 1, "some lines\nno compiler\n")})
    assert explain_crash("cuda").endswith("with exit code 1 in step compile: no compiler")
    outcomes({None: Outcome("compile", None, "")})
    assert "without an end in step compile: nothing was printed" in explain_crash("cuda")
    outcomes({None: Outcome("compile", -11, "")})
    assert explain_crash("cuda").startswith("PyTorch dies too, without Headrace")


def test_a_compiler_that_helps_is_named(outcomes):
    outcomes({None: CRASHES, sys.executable: WORKS}, cxx="/opt/g++")
    assert explain_crash("cuda").endswith(
        f"With CXX={sys.executable} instead of /opt/g++ it works: set that, and export again"
    )
    outcomes({None: CRASHES, sys.executable: CRASHES}, cxx="/opt/g++")
    assert explain_crash("cuda").endswith("in step load")


def test_a_compiler_is_another_one_by_its_file_and_not_by_its_name(outcomes, tmp_path, monkeypatch):
    outcomes({})
    assert bare_loader.other_compiler() is None
    (tmp_path / "g++").symlink_to(sys.executable)
    outcomes({}, cxx=str(tmp_path / "g++"))
    assert bare_loader.other_compiler() is None
    monkeypatch.delenv("CXX")  # g++ of the PATH then
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bare_loader.other_compiler() is None
    (tmp_path / "g++").unlink()
    (tmp_path / "g++").write_text("#!/bin/sh\n")
    (tmp_path / "g++").chmod(0o755)
    assert bare_loader.other_compiler() == sys.executable
