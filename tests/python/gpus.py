# SPDX-License-Identifier: Apache-2.0
"""How many GPUs this machine has, and the marks of tests that need some."""

import ctypes
import importlib.util

import pytest


def count_gpus():
    """How many the driver shows. Asked of the driver, since torch takes seconds to start."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def torch_on_gpus(gpus):
    """Of tests that use torch on one GPU or more."""
    return [
        pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
        pytest.mark.skipif(gpus == 0, reason="this machine has no GPU"),
    ]


def two_of(gpus):
    """Of tests that need a second one."""
    return [pytest.mark.gpu2, pytest.mark.skipif(gpus < 2, reason="this machine has fewer than two GPUs")]
