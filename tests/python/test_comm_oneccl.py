# SPDX-License-Identifier: Apache-2.0
# backends: none
"""The backend oneccl: how it is named, and where it cannot be used."""

import numpy as np
import pytest

import headrace


def test_it_is_listed_and_its_library_has_an_option():
    assert "oneccl" in headrace.list_comm_backends()
    with pytest.raises(headrace.NotSupported, match="oneccl does not move memory of cuda:0: use another"):
        headrace.new_comm("oneccl", "cuda:0", rank=0, size=1)


def test_memory_of_xpus_is_refused():
    with pytest.raises(headrace.Error, match="xpu"):
        headrace.new_comm("xccl", "xpu:0", rank=0, size=1)


def test_one_rank_adds_or_the_error_says_what_to_install():
    try:
        comm = headrace.new_comm("xccl", rank=0, size=1)
    except headrace.NotSupported as refused:
        assert "pip install" in str(refused)
        pytest.skip(f"oneCCL cannot be used: {refused}")
    data = np.arange(5, dtype=np.float32)
    comm.all_reduce(data, headrace.ReduceOp.SUM)
    assert data.tolist() == [0, 1, 2, 3, 4]
    comm.finalize()
