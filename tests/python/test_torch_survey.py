# SPDX-License-Identifier: Apache-2.0
# backends: none
"""What `headrace doctor --collectives` says of torch: versions, binding and entry points."""

import json
import subprocess
import sys
from importlib import metadata

import pytest

from headrace._torch import survey


def by_name(findings):
    return {found["name"]: found for found in findings}


@pytest.fixture
def with_torch(monkeypatch):
    """Sets the versions of torch and of the compiled binding."""

    def chosen(torch, built):
        monkeypatch.setattr(survey, "version_of", lambda package: torch)
        monkeypatch.setattr(survey, "compiled_torch_binding", lambda: built)
        return by_name(survey.survey())

    return chosen


def test_without_torch_it_says_what_to_install(with_torch):
    found = with_torch(None, None)["torch"]
    assert (found["state"], found["value"]) == ("note", "not installed")
    assert "pip install torch" in found["advice"]


def test_gloo_is_a_backend_where_torch_is(with_torch, monkeypatch):
    found = with_torch("2.13.0+cpu", None)["backend gloo"]
    assert (found["state"], found["value"].split(";")[0]) == ("ok", "2.13.0+cpu, torch's")
    found = with_torch(None, None)["backend gloo"]
    assert (found["state"], found["value"]) == ("note", "cannot be used")
    assert "pip install torch" in found["advice"]
    monkeypatch.setattr(survey, "is_comm_backend_left_out", lambda name: name == "gloo")
    assert "backend gloo" not in with_torch("2.13.0", None)


@pytest.mark.parametrize(
    ("torch", "built", "state", "text"),
    [
        ("2.13.0+cpu", "2.13", "ok", "compiled, for torch 2.13"),
        ("2.14.1", "2.13", "note", "the one in Python: the compiled one is for torch 2.13"),
        ("2.12.0", None, "note", "the one in Python: none was compiled for this Python"),
        ("2.10.0", None, "warning", "none for torch 2.10.0"),
    ],
)
def test_the_binding_that_serves_is_named(with_torch, torch, built, state, text):
    found = with_torch(torch, built)["torch's binding"]
    assert (found["state"], found["value"]) == (state, text)
    assert bool(found["advice"]) == (state != "ok")


@pytest.mark.parametrize(
    ("torch", "group"), [("2.13.0", "torch.backends"), ("2.14.0", "torch.distributed.backends")]
)
def test_the_entry_point_is_the_one_that_this_torch_reads(with_torch, torch, group):
    found = with_torch(torch, None)["torch's entry point"]
    assert found["value"] == f"{group}: headrace = headrace_torch:register"


def test_an_entry_point_that_is_turned_off_or_missing_is_a_warning(with_torch, monkeypatch):
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    off = with_torch("2.13.0", None)["torch's entry point"]
    assert off["state"] == "warning" and "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in off["value"]
    later = with_torch("2.15.0", None)["torch's entry point"]  # torch asks for it by its name
    assert later["state"] == "ok"
    monkeypatch.setattr(metadata, "entry_points", lambda group: [])
    missing = with_torch("2.13.0", None)["torch's entry point"]
    assert missing["state"] == "warning" and "install Headrace" in missing["advice"]


def test_python_classes_of_packages_are_listed(with_torch, monkeypatch):
    point = metadata.EntryPoint("mine", "my_package:Backend", "headrace.comm_backends")
    monkeypatch.setattr(
        metadata, "entry_points", lambda group: [point] if group == "headrace.comm_backends" else []
    )
    assert with_torch(None, None)["backend mine"]["value"] == "a Python class: my_package:Backend"


def test_the_survey_imports_no_torch():
    text = (
        "import sys\nfrom headrace._torch import survey\nsurvey.survey()\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", text], check=True)


def test_the_module_prints_json():
    run = subprocess.run(
        [sys.executable, "-m", "headrace._torch.survey"], check=True, capture_output=True, text=True
    )
    assert "torch" in by_name(json.loads(run.stdout))
