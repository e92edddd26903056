# SPDX-License-Identifier: Apache-2.0
"""The option `--part`: the cases that use one backend by their fixture `backend` or `stopped`, or others.

tools/testing/python_files.py stores the result of each part by itself.
"""

BY_CASE = ("shm", "tcp")  # what the fixture `backend` gives; as in tools/testing/python_files.py


def add_option(parser):
    parser.addoption(
        "--part", choices=[*BY_CASE, "others"], help="the cases that use this backend, or the others"
    )


def pytest_collection_modifyitems(config, items):
    part = config.getoption("--part")
    if part is None:
        return
    left_out = [item for item in items if part_of(item) != part]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if part_of(item) == part]


def part_of(item):
    given = item.callspec.params if hasattr(item, "callspec") else {}
    value = given.get("backend") or given.get("stopped", ["others"])[0]
    return value if value in BY_CASE else "others"
