# SPDX-License-Identifier: Apache-2.0
"""What `headrace doctor --collectives` says of torch in this Python, as JSON: a list of findings.

It imports no torch, because that takes seconds: versions and entry points are in the metadata of packages.
"""

from __future__ import annotations

import json
import os
from importlib import metadata

from .._headrace import is_comm_backend_left_out
from . import compiled_torch_binding

NAME = "headrace"
# torch reads the first group up to 2.13, the second from 2.14 on.
GROUPS = ("torch.backends", "torch.distributed.backends")
LATEST_OF_FIRST_GROUP = (2, 13)
Finding = dict[str, str]


def finding(name: str, state: str, value: str, advice: str = "") -> Finding:
    """state: "ok", "note" or "warning"."""
    return {"name": name, "state": state, "value": value, "advice": advice}


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def major_and_minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def binding(torch: str) -> Finding:
    """Which binding serves init_process_group("headrace")."""
    built = compiled_torch_binding()
    own = ".".join(map(str, major_and_minor(torch)))
    if built == own:
        return finding("torch's binding", "ok", f"compiled, for torch {built}")
    if major_and_minor(torch) < (2, 11):
        return finding("torch's binding", "warning", f"none for torch {torch}", "install torch 2.11 or newer")
    why = f"the compiled one is for torch {built}" if built else "none was compiled for this Python"
    return finding(
        "torch's binding",
        "note",
        f"the one in Python: {why}",
        "it is slower; a build where torch 2.13 is installed has the compiled one",
    )


def entry_point(torch: str) -> Finding:
    """Whether torch finds the backend by itself."""
    first_group = major_and_minor(torch) <= LATEST_OF_FIRST_GROUP
    group = GROUPS[not first_group]
    points = [point for point in metadata.entry_points(group=group) if point.name == NAME]
    if not points:
        return finding(
            "torch's entry point",
            "warning",
            f"the group {group} has no {NAME}",
            "install Headrace as a package, or import headrace.distributed before init_process_group",
        )
    text = f"{group}: {points[0].name} = {points[0].value}"
    if first_group and os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        return finding(
            "torch's entry point",
            "warning",
            f"{text}; TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns it off",
            "import headrace.distributed before init_process_group",
        )
    return finding("torch's entry point", "ok", text)


def gloo(torch: str | None) -> list[Finding]:
    """The backend of communicators that is a class of Headrace."""
    if is_comm_backend_left_out("gloo"):
        return []
    if torch is None:
        return [finding("backend gloo", "note", "cannot be used", "pip install torch: it is torch's gloo")]
    return [finding("backend gloo", "ok", f"{torch}, torch's; memory of cpu; in Python alone; split, tags")]


def python_backends() -> list[Finding]:
    """Backends of communicators that packages bring as Python classes."""
    return [
        finding(f"backend {point.name}", "note", f"a Python class: {point.value}")
        for point in metadata.entry_points(group="headrace.comm_backends")
    ]


def survey() -> list[Finding]:
    torch = version_of("torch")
    if torch is None:
        found = [
            finding(
                "torch", "note", "not installed", "pip install torch, to use init_process_group('headrace')"
            )
        ]
    else:
        found = [finding("torch", "ok", torch), binding(torch), entry_point(torch)]
    return found + gloo(torch) + python_backends()


if __name__ == "__main__":
    print(json.dumps(survey()))
