# SPDX-License-Identifier: Apache-2.0
"""`headrace demo` over tcp, and with every backend open; the tests of test_demo.py open shm alone."""

import os
import subprocess

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from test_demo import COMMAND, check_random_weights, check_tokens, combinations, finished
from test_demo import demo as demo
from test_demo import packages as packages
from test_demo import small as small


@pytest.mark.parametrize("workers, page", combinations((1, 64)))
def test_the_tokens_are_those_of_one_process_alone(demo, workers, page):
    check_tokens(demo, "tcp", workers, page)


@pytest.mark.slow
def test_random_weights_are_the_same_in_every_process(demo, small):
    check_random_weights(demo, small, "tcp")


def test_a_backend_that_does_not_exist_is_named(demo):
    process = demo("--backend", "nosuch")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "nosuch" in err.decode()


def test_the_demo_chooses_among_all_backends(packages, tmp_path):
    process = subprocess.Popen(
        [COMMAND, "demo", "--packages", packages, "--json", "--check", "--tokens", "16"],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    said, _ = finished(process)
    assert (said["tokens"], said["checked"], said["path"]) == (16, True, "shm")
