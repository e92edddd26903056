# SPDX-License-Identifier: Apache-2.0
"""The call sequences of nixl_sequences.py: the drop-in gives, call by call, the result that was recorded from
NIXL's wheel.

If the wheel is installed (in this interpreter, or by `bench/compare_nixl.py --install`), the wheel gives the
recorded results, too.
"""

import importlib.util
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
}


def recorded(sequence):
    return json.loads((HERE / "nixl_results" / f"{sequence}.json").read_text())


def rows_of(library, sequence, python=sys.executable, path=()):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NIXL_")}
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, path), environment.get("PYTHONPATH", "")])
    command = [python, str(HERE / "nixl_sequences.py"), library, sequence]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=110, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def wheel():
    """The interpreter and the path with which `import nixl` gives the real library. Skips the test if it is
    not installed."""
    installed = sorted((ROOT / "build" / "nixl-venv").glob("lib/python*/site-packages/nixl_cu1*"))
    if importlib.util.find_spec("nixl_cu12") or importlib.util.find_spec("nixl_cu13"):
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


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_the_drop_in_gives_the_recorded_results(sequence):
    theirs, ours = recorded(sequence), rows_of("dropin", sequence)
    assert [row[0] for row in ours] == [row[0] for row in theirs]
    different = [(left, right) for left, right in zip(theirs, ours, strict=True) if left != right]
    assert [pair for pair in different if (sequence, pair[0][0]) not in DIFFERENCES] == []
    named = {call for of, call in DIFFERENCES if of == sequence}
    assert {left[0] for left, _ in different} == named, "the list has a difference that no longer exists"


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_nixls_wheel_gives_the_recorded_results(sequence):
    python, path = wheel()
    assert rows_of("wheel", sequence, python, path) == recorded(sequence)
