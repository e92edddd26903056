# SPDX-License-Identifier: Apache-2.0
"""The layer check finds includes that go up, sideways or out of a folder's bounds, and accepts all others."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load_tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


check_layers = load_tool("check_layers")


@pytest.fixture
def tree(tmp_path):
    """An empty repository with the rules of this one; call it to add a file."""
    (tmp_path / "layers.toml").write_text((ROOT / "layers.toml").read_text())

    def add(name, *includes):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"#include {include}\n" for include in includes))

    add.root = tmp_path
    return add


def problems(tree):
    return check_layers.check(tree.root)[1]


def test_a_room_may_include_itself_lower_rooms_and_the_public_surface(tree):
    tree(
        "src/engine/a.cpp",
        '"engine/b.hpp"',
        '"memory/c.hpp"',
        "<headrace/result.hpp>",
        "<vector>",
        "<memory>",
        "<curl/curl.h>",
    )
    assert problems(tree) == []


def test_an_include_upward_is_found_with_its_line(tree):
    tree("src/memory/a.hpp", "<vector>", '"engine/b.hpp"')
    assert problems(tree) == [
        "src/memory/a.hpp:2: engine/b.hpp: memory (level 3) includes engine (level 6), which goes upward"
    ]


def test_an_include_sideways_is_found(tree):
    tree("src/telemetry/a.cpp", '"metadata/b.hpp"')
    assert "which goes sideways" in problems(tree)[0]


def test_an_upward_include_by_relative_path_is_found(tree):
    tree("src/engine/b.hpp")
    tree("src/memory/a.hpp", '"../engine/b.hpp"')
    assert "which goes upward" in problems(tree)[0]


def test_a_room_without_a_level_is_found(tree):
    tree("src/cellar/a.cpp")
    assert "src/cellar has no level" in problems(tree)[0]


def test_a_backend_may_include_its_own_folder_the_plugin_table_and_the_low_rooms(tree):
    tree("backends/shm/ring.hpp")
    tree(
        "backends/shm/backend.cpp",
        '"ring.hpp"',
        '"backends/shm/ring.hpp"',
        '"memory/a.hpp"',
        "<headrace/plugin/backend.hpp>",
    )
    assert problems(tree) == []


@pytest.mark.parametrize("header", ["engine/a.hpp", "metadata/a.hpp", "backends/tcp/socket.hpp"])
def test_a_backend_may_not_include_the_engine_the_metadata_or_another_backend(tree, header):
    tree("backends/tcp/socket.hpp")
    tree("backends/shm/backend.cpp", f'"{header}"')
    assert len(problems(tree)) == 1


@pytest.mark.parametrize("folder", ["bindings/python", "examples"])
def test_a_folder_on_the_public_surface_may_include_no_room(tree, folder):
    tree(f"{folder}/a.cpp", "<headrace/agent.hpp>", '"base/log.hpp"')
    assert problems(tree) == [
        f"{folder}/a.cpp:2: base/log.hpp: {folder.split('/')[0]} may include no room, not base"
    ]


def test_the_command_may_include_gpu_memory_and_nothing_else_from_the_rooms(tree):
    tree("cli/a.cpp", "<headrace/agent.hpp>", '"gpu/a.hpp"', '"base/log.hpp"', '"engine/a.hpp"')
    assert [line.split(":")[1] for line in problems(tree)] == ["3", "4"]


def test_public_headers_include_no_room_and_no_other_project(tree):
    tree("include/headrace/a.hpp", "<headrace/result.hpp>", "<span>", '"memory/a.hpp"', "<nlohmann/json.hpp>")
    assert [line.split(":")[1] for line in problems(tree)] == ["3", "4"]


def test_a_family_of_kernels_may_include_itself_what_families_share_and_public_headers_of_kernels(tree):
    tree("kernels/common/done.cuh")
    tree("kernels/sorts/sorts.cuh")
    tree(
        "kernels/sorts/sorts.cu",
        '"kernels/sorts/sorts.cuh"',
        '"kernels/common/done.cuh"',
        "<headrace/plugin/kernels/sorts_v1.h>",
        "<headrace/plugin/columns_v1.h>",
        "<headrace/plugin/kernels_v1.h>",
    )
    assert problems(tree) == []


@pytest.mark.parametrize(
    ("file", "header"),
    [
        ("kernels/sorts/sorts.cpp", "kernels/grids/grids.hpp"),
        ("kernels/sorts/sorts.cpp", "kernels/library/library.hpp"),
        ("kernels/library/library.cpp", "kernels/sorts/sorts.hpp"),
        ("kernels/common/family.hpp", "kernels/sorts/sorts.hpp"),
    ],
)
def test_families_of_kernels_know_neither_one_another_nor_the_library(tree, file, header):
    tree(header)
    tree(file, f'"{header}"')
    assert len(problems(tree)) == 1
    assert problems(tree)[0].endswith(f"may not include {header}, which belongs to another part")


def test_kernels_may_include_public_headers_of_kernels_alone(tree):
    tree("kernels/sorts/sorts.cpp", "<headrace/plugin/backend_v1.h>")
    assert problems(tree) == [
        "kernels/sorts/sorts.cpp:1: headrace/plugin/backend_v1.h: kernels may not include <headrace/...>"
    ]


def test_kernels_may_include_cuda_only(tree):
    tree("kernels/a.cu", "<cuda_fp16.h>", "<cstdint>", "<headrace/result.hpp>", "<fmt/format.h>")
    assert [line.split(":")[1] for line in problems(tree)] == ["3", "4"]


def test_spdlog_stays_in_base(tree):
    tree("src/base/log.cpp", "<spdlog/spdlog.h>", "<fmt/format.h>")
    tree("src/engine/a.cpp", "<spdlog/spdlog.h>")
    assert problems(tree) == ["src/engine/a.cpp:1: spdlog/spdlog.h: only base may include spdlog/"]


def test_tests_may_include_the_code_under_test(tree):
    tree("backends/shm/shm_test.cpp", '"engine/a.hpp"')
    tree("tests/unit/base/a_test.cpp", '"engine/a.hpp"')
    assert problems(tree) == []


def test_this_repository_keeps_its_own_rules():
    count, found = check_layers.check(ROOT)
    assert count > 0 and found == []
