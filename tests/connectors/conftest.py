# SPDX-License-Identifier: Apache-2.0
"""Connector classes of inference servers, unmodified, on the drop-in for NIXL. `tools/test.py --stages
connectors` installs the servers into an environment of their own and runs these tests there."""

import faulthandler
import importlib.metadata
import os
import socket
import sys

import pytest

import engines

TEST_SECONDS = 600


def pytest_configure(config):
    config.real_stderr = os.dup(2)


@pytest.fixture(autouse=True)
def no_test_hangs(request):
    """Prints the stack of every thread and ends the process if a test runs too long."""
    faulthandler.dump_traceback_later(TEST_SECONDS, exit=True, file=request.config.real_stderr)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(params=["shm", "tcp"], scope="module")
def backend(request):
    return request.param


@pytest.fixture(scope="module")
def start(backend, tmp_path_factory):
    """Starts an engine: start(program, arguments...) returns at once, and the engine's first answer is
    `ready`. It lives until the last test of its file over this backend, because the import of a server takes
    most of the time."""
    runtime, logs = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("logs")
    runtime.chmod(0o700)
    started = engines.Engine.all
    started.clear()

    def run(program, *arguments, **environment):
        given = {
            "HEADRACE_BACKENDS": backend,
            "HEADRACE_RUNTIME_DIR": str(runtime),
            "OMP_NUM_THREADS": "1",
            "XDG_CACHE_HOME": f"{sys.prefix}/cache",
            "HF_HUB_OFFLINE": "1",
            **environment,
        }
        log = logs / f"{len(started)}-{program}.log"
        return engines.Engine(program, arguments, given, log)

    yield run
    for engine in started:
        engine.close()
    for engine in started:
        assert f"Headrace carries dram by {backend}, local" in engine.text()


@pytest.fixture(scope="module")
def ports():
    """A function that returns ports which were free a moment ago."""

    def free(count):
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        numbers = [held.getsockname()[1] for held in sockets]
        for held in sockets:
            held.close()
        return numbers

    return free


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """Adds the output of the engines to the report of a test that fails."""
    report = (yield).get_result()
    if report.failed:
        for engine in engines.Engine.all:
            report.sections.append((engine.log.name, engine.text()[-8000:]))


@pytest.fixture(autouse=True)
def the_drop_in_is_what_they_import():
    assert set(importlib.metadata.packages_distributions().get("nixl", [])) == {"headrace-nixl"}, (
        "run these tests by tools/test.py --stages connectors: `nixl` must come from headrace-nixl"
    )
