# SPDX-License-Identifier: Apache-2.0
# backends: none
"""HEADRACE_COMM_<BACKEND>: which backends of communicators a build leaves out."""

import os
import subprocess
from pathlib import Path

import pytest

from headrace import _comm_backend

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def left_out(tmp_path):
    """Returns what CMake leaves out for these settings of the command line and of the environment."""

    def run(defined=(), environment=()):
        script = tmp_path / "choose.cmake"
        script.write_text(
            f'include("{ROOT}/cmake/comm_backends.cmake")\n'
            "headrace_comm_left_out(names)\n"
            'message(NOTICE "left out: ${names}")\n'
        )
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_COMM_")}
        return subprocess.run(
            ["cmake", *(f"-DHEADRACE_COMM_{setting}" for setting in defined), "-P", str(script)],
            env={**clean, **{f"HEADRACE_COMM_{name}": value for name, value in environment}},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("defined", "environment", "names"),
    [
        ([], [], ""),
        (["NCCL=OFF"], [], "nccl"),
        (["NCCL=0", "LAZY=OFF"], [], "lazy,nccl"),
        (["NCCL=1"], [("NCCLX", "0")], "ncclx"),
        (["GLOO=OFF"], [], "gloo"),
        ([], [("FAKE", "OFF"), ("NCCL", "ON")], "fake"),
        ([], [("NCCL", "")], ""),
        (["NCCL=ON"], [("NCCL", "OFF")], ""),  # -D comes first
    ],
)
def test_backends_are_left_out_by_definition_or_environment(left_out, defined, environment, names):
    assert left_out(defined, environment).stderr == f"left out: {names}\n"


@pytest.mark.parametrize("left_out", [False, True])
def test_a_build_without_gloo_does_not_register_it(left_out, monkeypatch):
    registered = []
    monkeypatch.setattr(_comm_backend, "_has_registered", False)
    monkeypatch.setattr(_comm_backend, "is_comm_backend_left_out", lambda name: left_out)
    monkeypatch.setattr(_comm_backend, "register_backend", lambda name, cls: registered.append(name))
    _comm_backend.register_own()
    _comm_backend.register_own()
    assert registered == ([] if left_out else ["gloo"])


@pytest.mark.parametrize("value", ["no", "2"])
def test_another_value_is_an_error_that_says_what_to_give(left_out, value):
    done = left_out(environment=[("NCCL", value)])
    assert done.returncode != 0
    assert f'HEADRACE_COMM_NCCL is "{value}": give ON or 1' in " ".join(done.stderr.split())
