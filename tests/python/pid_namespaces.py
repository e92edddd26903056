# SPDX-License-Identifier: Apache-2.0
"""Starts a process as the first one of a new PID namespace with its own /proc, as in a container."""

import subprocess

import pytest

# A test kills `unshare`; --kill-child then ends the process inside the namespace.
UNDER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
NUMBER = 1  # the process id inside the namespace, even if another process has that id outside


def own_pid_namespace():
    """The command line to put before a command. Skips the test if the system does not allow it."""
    try:
        allowed = subprocess.run([*UNDER, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("this machine allows no PID namespace of one's own")
    return UNDER
