# SPDX-License-Identifier: Apache-2.0
"""The number of GPUs of this machine, and the marks of tests that need GPUs."""

import ctypes
import importlib.util

import pytest


def count_gpus():
    """The number of GPUs that the driver shows. torch is not asked, because it takes seconds to start."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def torch_on_gpus(gpus):
    """The marks of tests that use torch on at least one GPU."""
    return [
        pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
        pytest.mark.skipif(gpus == 0, reason="this machine has no GPU"),
    ]


def two_of(gpus):
    """The marks of tests that need a second GPU."""
    return [pytest.mark.gpu2, pytest.mark.skipif(gpus < 2, reason="this machine has fewer than two GPUs")]
