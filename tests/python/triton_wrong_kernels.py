# SPDX-License-Identifier: Apache-2.0
"""Kernels that headrace.triton refuses, of tests/python/test_triton.py."""

import triton
import triton.language as tl

import headrace.triton as windows


@triton.jit
def comparison(window, source):
    windows.wait_signal(window, 0, 0, "more", 1)


@triton.jit
def scope(window, source):
    windows.put(window, 0, 0, source, 4, "grid")


@triton.jit
def ranks(window, source):
    windows.signal(window, tl.arange(0, 2), 0, 1)
