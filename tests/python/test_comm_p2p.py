# SPDX-License-Identifier: Apache-2.0
# backends: none
"""The backend p2p where it cannot be used: in host memory, and without a GPU."""

from pathlib import Path

import pytest

import headrace


def open_one_rank(device="cuda:0", **options):
    return headrace.new_comm("p2p", device, rank=0, size=1, **options)


def test_it_is_listed():
    assert "p2p" in headrace.list_comm_backends()


def test_host_memory_is_refused():
    with pytest.raises(headrace.NotSupported, match=r"p2p does not move memory of cpu: use .*\(auto, fake"):
        open_one_rank("cpu")


def test_it_says_that_there_is_no_driver():
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    with pytest.raises(headrace.NotSupported, match="backend p2p: no NVIDIA driver: libcuda"):
        open_one_rank()
