# SPDX-License-Identifier: Apache-2.0
"""BACKEND=rocm and similar: cmake/torch.cmake stops with advice if the torch that was found is of another
kind."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = """\
cmake_policy(VERSION 3.25)
set(torch_absent "{absent}")
set(torch_version 2.13.0)
set(torch_root /a/torch)
set(torch_accelerator {kind})
include({folder}/cmake/torch.cmake)
headrace_check_backend()
"""
ROOT = Path(__file__).resolve().parents[2]


def check(tmp_path, backend, kind="cpu", absent=""):
    """The exit status, and the output of CMake in one line."""
    script = tmp_path / "check.cmake"
    script.write_text(SCRIPT.format(absent=absent, kind=kind, folder=ROOT))
    environment = {key: value for key, value in os.environ.items() if key != "BACKEND"}
    if backend is not None:
        environment["BACKEND"] = backend
    done = subprocess.run(
        ["cmake", "-P", str(script)], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, " ".join(done.stderr.split())


@pytest.mark.parametrize("backend", [None, "", "rocm"])
def test_a_torch_is_accepted_if_no_kind_or_its_kind_is_asked_for(tmp_path, backend):
    assert check(tmp_path, backend, kind="rocm") == (0, "")


def test_a_torch_of_another_kind_is_refused_with_advice(tmp_path):
    status, text = check(tmp_path, "rocm", kind="cpu")
    assert status != 0
    assert "BACKEND=rocm: torch 2.13.0 in /a/torch is one for cpu." in text
    assert "Install one for rocm" in text and "HEADRACE_TORCH_PYTHON" in text


def test_a_missing_torch_is_an_error_only_if_a_kind_is_asked_for(tmp_path):
    assert check(tmp_path, None, absent="python3 has no torch") == (0, "")
    status, text = check(tmp_path, "cuda", absent="python3 has no torch")
    assert status != 0 and "BACKEND=cuda needs a torch: python3 has no torch." in text


def test_an_unknown_kind_is_refused_with_the_known_ones(tmp_path):
    status, text = check(tmp_path, "hip")
    assert status != 0 and "BACKEND=hip: there are cpu, cuda and rocm" in text
