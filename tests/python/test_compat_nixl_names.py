# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""The names under which the drop-in can be imported, and the cost and side effects of an import. Each test
runs in a fresh interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from test_compat_nixl_sequences import wheel

ROOT = Path(__file__).resolve().parents[2]
SMALL_WHEEL = ROOT / "packaging" / "headrace_nixl" / "src"


def said_by(text, *path):
    """The output of a program that has more folders to import from."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*map(str, path), os.environ.get("PYTHONPATH", "")]),
        "NIXL_LOG_LEVEL": "WARN",
    }
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("name", ["nixl", "nixl_cu12", "nixl_cu13"])
def test_after_install_every_module_comes_from_headrace(name):
    text = f"""
import headrace.compat.nixl.install
import {name}, {name}._api, {name}._bindings, {name}._utils, {name}.logging
from {name} import nixl_agent, nixl_agent_config, nixlXferDList, DRAM_SEG, get_logger, malloc_passthru
from {name}._api import nixl_agent as again, nixl_thread_sync_t
assert nixl_agent is again and {name}.nixl_thread_sync_t is nixl_thread_sync_t
for module in ({name}, {name}._api, {name}._bindings, {name}._utils, {name}.logging):
    print(module.__name__)
"""
    modules = ["", "._api", "._bindings", "._utils", ".logging"]
    assert said_by(text) == [f"headrace.compat.nixl{module}" for module in modules]


@pytest.mark.parametrize("name", ["nixl", "nixl_cu12", "nixl_cu13"])
@pytest.mark.parametrize("module", ["", "._api", "._bindings", ".logging"])
def test_the_small_wheel_provides_the_modules_without_another_import(name, module):
    text = f"import {name}{module}, {name}; print({name}{module}.__name__, {name}.nixl_agent.__module__)"
    assert said_by(text, SMALL_WHEEL) == [f"headrace.compat.nixl{module}", "headrace.compat.nixl._api"]


@pytest.fixture(scope="module")
def small_wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run(["cp", "-r", str(SMALL_WHEEL.parent), str(folder / "source")], check=True)
    subprocess.run([*command, "--wheel-dir", str(folder), str(folder / "source")], check=True, timeout=100)
    (made,) = folder.glob("headrace_nixl-*-py3-none-any.whl")
    return made


def test_the_small_wheel_holds_every_package(small_wheel):
    assert said_by("import nixl_cu13; print(nixl_cu13.__name__)", small_wheel) == ["headrace.compat.nixl"]


def test_programs_that_ask_for_the_version_of_nixl_get_that_of_its_package(small_wheel):
    # As vLLM does (check_nixl_version), which refuses a version before 1.5.0.
    text = """
from importlib.metadata import packages_distributions, version
print("headrace-nixl" in packages_distributions()["nixl"], version("headrace-nixl"))
"""
    assert said_by(text, small_wheel) == ["True", "1.5.1"]


def test_importing_the_drop_in_imports_neither_numpy_nor_torch():
    text = """
import sys
import headrace.compat.nixl.install
from nixl._api import nixl_agent
a = nixl_agent("a")
import nixl._utils
at = nixl._utils.malloc_passthru(64)
a.register_memory([(at, 64, 0, "")], "DRAM")
here, there = a.get_xfer_descs([(at, 8, 0)], "DRAM"), a.get_xfer_descs([(at + 8, 8, 0)], "DRAM")
t = a.initialize_xfer("WRITE", here, there, "a")
a.transfer(t)
while a.check_xfer_state(t) != "DONE": pass
print(sorted({"numpy", "torch"} & set(sys.modules)))
"""
    assert said_by(text) == ["[]"]


def test_pickles_can_be_read_by_a_program_without_the_install_module():
    text = """
import pickle, sys
import headrace.compat.nixl._bindings as bind
print(pickle.dumps(bind.nixlXferDList(bind.DRAM_SEG, [(1, 2, 3)])).hex())
"""
    (hexed,) = said_by(text)
    read = f"import pickle; print(pickle.loads(bytes.fromhex('{hexed}'))[0][1])"
    assert said_by(read) == ["2"]


def test_modules_imported_before_install_stay_valid_for_their_importer(tmp_path):
    for name in ("nixl", "nixl_cu13"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("owner = 'other'\n")
    (tmp_path / "nixl" / "_api.py").write_text("owner = 'other'\n")
    text = """
import nixl, nixl._api, nixl_cu13
held = nixl, nixl._api, nixl_cu13
import headrace.compat.nixl.install
print(*(module.owner for module in held))
import nixl, nixl._api, nixl_cu12, nixl_cu13
print(nixl.__name__, nixl._api.__name__, nixl_cu12.__name__, nixl_cu13.owner)
"""
    said = said_by(text, tmp_path)
    assert said[-7:] == [
        "other",
        "other",
        "other",
        "headrace.compat.nixl",
        "headrace.compat.nixl._api",
        "headrace.compat.nixl",
        "other",
    ]


BOTH = """
import sys, numpy as np
import {real} as real, {real}._api
import headrace.compat.nixl.install
import nixl, nixl._api
assert sys.modules["{real}"] is real and nixl is not real
memory = [np.full(4096, i, np.uint8) for i in range(4)]
agents = []
for package, (a, b) in ((real, ("ra", "rb")), (nixl, ("ra", "rb"))):
    left, right = package._api.nixl_agent(a), package._api.nixl_agent(b)
    here, there = memory[len(agents)], memory[len(agents) + 1]
    left.register_memory([(here.ctypes.data, 4096, 0, "")], "DRAM")
    right.register_memory([(there.ctypes.data, 4096, 0, "")], "DRAM")
    left.add_remote_agent(right.get_agent_metadata())
    agents += [left, right]
for round in range(3):
    for left, right, here, there in ((*agents[:2], *memory[:2]), (*agents[2:], *memory[2:])):
        here.fill(0)
        source = left.get_xfer_descs([(here.ctypes.data, 4096, 0)], "DRAM")
        target = left.get_xfer_descs([(there.ctypes.data, 4096, 0)], "DRAM")
        transfer = left.initialize_xfer("READ", source, target, right.name)
        left.transfer(transfer)
        while left.check_xfer_state(transfer) != "DONE": pass
        assert (here == there).all()
        left.release_xfer_handle(transfer)
print(agents[0].__class__.__module__, agents[2].__class__.__module__, flush=True)
import os
os._exit(0)  # UCX may crash when its process ends
"""


def test_nixls_own_library_works_beside_the_drop_in():
    _, path = wheel()
    real = next(
        name
        for name in ("nixl_cu13", "nixl_cu12")
        if any((folder / name).exists() for folder in map(Path, [*path, *sys.path]))
    )
    assert said_by(BOTH.format(real=real), *path)[-2:] == [f"{real}._api", "headrace.compat.nixl._api"]
