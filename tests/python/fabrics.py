# SPDX-License-Identifier: Apache-2.0
"""What tests of headrace.Fabric share: fabrics over loopback, fresh bytes, waits for a condition."""

import time

import numpy

import headrace

SECONDS = 60  # longer than any step of a test: a wait that needs it has failed


def open_fabric(nics=("127.0.0.1", "127.0.0.2")):
    return headrace.Fabric(groups=[headrace.FabricGroupOptions(list(nics))])


def fresh(count):
    return numpy.random.default_rng().integers(0, 256, count, numpy.uint8)


def await_true(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.0005)
