# SPDX-License-Identifier: Apache-2.0
"""How to start a process as the first of a PID namespace of its own, with a /proc of its own, as a container
has it."""

import subprocess

import pytest

# It ends with the one that it is under, which is what a test kills.
UNDER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
NUMBER = 1  # that it has there, whoever else has it elsewhere


def own_pid_namespace():
    """The words to put before a command; skips the test where the system does not allow it."""
    try:
        allowed = subprocess.run([*UNDER, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("this machine allows no PID namespace of one's own")
    return UNDER
