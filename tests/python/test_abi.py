# SPDX-License-Identifier: Apache-2.0
# backends: none
"""tools/abi.py finds each change of a C header that breaks what was built before, and lets appends pass."""

import functools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import abi

ROOT = Path(__file__).resolve().parents[2]

HEADER = """\
#include <stddef.h>
#include <stdint.h>
#define HEADRACE_SAMPLE_ABI_MINOR 0u
#define HEADRACE_SAMPLE_FAMILY_VERSION 1u
#define HEADRACE_SAMPLE_MOST 4
typedef enum headrace_color { HEADRACE_RED = 0, HEADRACE_BLUE = 1 } headrace_color;
typedef struct headrace_frozen { uint64_t first; uint32_t second; } headrace_frozen;
typedef struct headrace_growing {
  size_t struct_size;
  uint64_t first; int32_t (*call)(void* context);
  int32_t reserved; int32_t reserved_2;
} headrace_growing;
typedef struct headrace_kernel_family_v1 { size_t struct_size; } headrace_kernel_family_v1;
typedef struct headrace_table { headrace_kernel_family_v1 family; int32_t (*run)(void); } headrace_table;
int32_t headrace_paint(const headrace_growing* what, headrace_color color);
"""


def run_command(root, *arguments):
    command = [sys.executable, str(ROOT / "tools" / "abi.py"), "--root", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


SAMPLE = "include/headrace/c/sample.h"


@pytest.fixture(name="described", scope="module")
def described_tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("described")
    (root / SAMPLE).parent.mkdir(parents=True)
    (root / SAMPLE).write_text(HEADER)
    assert run_command(root, "--write") == (0, "")
    assert run_command(root) == (0, "abi: 1 headers, 0 differences\n")
    return root


@pytest.fixture(name="tree")
def own_tree(described, tmp_path):
    root = tmp_path / "tree"
    shutil.copytree(described, root)
    return root, root / SAMPLE


@pytest.fixture
def run(monkeypatch, capsys):
    """What the command does, in this process. The compiler reads each text of the header once."""
    describe = abi.describe

    @functools.cache
    def describe_text(root, header, text):
        return describe(root, header)

    monkeypatch.setattr(
        abi, "describe", lambda root, header: describe_text(root, header, (root / header).read_text())
    )

    def run(root, *arguments):
        return abi.main(["--root", str(root), *arguments]), capsys.readouterr().out

    return run


BREAKS = {
    "a field in the middle": (
        "uint64_t first; int32_t (*call)",
        "uint64_t zeroth; uint64_t first; int32_t (*call)",
    ),
    "another type": ("uint64_t first; int32_t (*call)", "int64_t first; int32_t (*call)"),
    "another signature in a table": ("(*call)(void* context)", "(*call)(void* context, int more)"),
    "a frozen struct that grows": ("uint32_t second;", "uint32_t second; uint64_t third;"),
    "another type of a reserved field": ("int32_t reserved;", "uint32_t hue;"),
    "another value": ("HEADRACE_BLUE = 1", "HEADRACE_BLUE = 2"),
    "an enumerator that is gone": (", HEADRACE_BLUE = 1", ""),
    "another function": ("headrace_color color);", "headrace_color color, int more);"),
    "a function that is gone": (
        "int32_t headrace_paint(const headrace_growing* what, headrace_color color);",
        "",
    ),
    "another constant": ("HEADRACE_SAMPLE_MOST 4", "HEADRACE_SAMPLE_MOST 8"),
}


@pytest.mark.parametrize("change", BREAKS)
def test_a_change_that_is_no_append_fails_and_is_not_written(run, tree, change):
    root, header = tree
    before, after = BREAKS[change]
    assert before in HEADER
    header.write_text(HEADER.replace(before, after))
    for arguments in ([], ["--write"]):
        code, said = run(root, *arguments)
        assert code == 1 and "what was built before breaks" in said, said
    assert run(root, "--break") == (0, "")
    assert run(root)[0] == 0


APPENDS = {
    "a field at the end": ("int32_t reserved_2;", "int32_t reserved_2; uint64_t more;"),
    "a name for a reserved field": ("int32_t reserved;", "int32_t hue;"),
    "an enumerator": ("HEADRACE_BLUE = 1", "HEADRACE_BLUE = 1, HEADRACE_GREEN = 2"),
    "a function": ("int32_t headrace_paint", "void headrace_wash(void);\nint32_t headrace_paint"),
    "a constant": (
        "#define HEADRACE_SAMPLE_MOST 4",
        "#define HEADRACE_SAMPLE_MOST 4\n#define HEADRACE_SAMPLE_LEAST 1",
    ),
    "a minor version": ("HEADRACE_SAMPLE_ABI_MINOR 0u", "HEADRACE_SAMPLE_ABI_MINOR 1u"),
    "an entry of a family of kernels": ("(*run)(void);", "(*run)(void); int32_t (*more)(void);"),
    "the version of a family": ("SAMPLE_FAMILY_VERSION 1u", "SAMPLE_FAMILY_VERSION 2u"),
}


@pytest.mark.parametrize("change", APPENDS)
def test_an_append_fails_until_it_is_written(run, tree, change):
    root, header = tree
    before, after = APPENDS[change]
    assert before in HEADER
    header.write_text(HEADER.replace(before, after))
    code, said = run(root)
    assert code == 1 and "run tools/abi.py --write" in said and "breaks" not in said, said
    assert run(root, "--write") == (0, "")
    assert run(root)[0] == 0


def test_a_header_that_is_gone_fails(run, tree):
    root, header = tree
    header.unlink()
    code, said = run(root)
    assert code == 1 and "tests/abi/c/sample.h.txt: its header is gone" in said


def test_the_headers_of_this_tree_are_described():
    code, said = run_command(ROOT)
    assert code == 0, said
