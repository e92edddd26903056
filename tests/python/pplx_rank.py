# SPDX-License-Identifier: Apache-2.0
"""What ranks of test_compat_pplx.py run, as programs of pplx-garden do: under its names."""

import pytest
import torch
import torch.distributed as dist
from pplx_garden.distributed import ParallelGroup
from torch.distributed import ReduceOp


def of(rank, count=4):
    return torch.arange(count, dtype=torch.float32) + 10 * rank


def every_call(device, part, group, sentence, number):
    """On two ranks, each a part of its own."""
    assert isinstance(group, ParallelGroup) and isinstance(part, ParallelGroup)
    assert device == torch.device("cpu") == group.device
    assert (sentence, number) == ("hello", 7)
    assert (group.size, group.local_rank, group.global_rank, group.node_rank) == (
        2,
        group.rank,
        group.rank,
        0,
    )
    assert not group.is_inter_node and not group.has_nvshmem
    assert (part.size, part.rank, part.global_rank) == (1, 0, group.rank)
    assert {dist.get_backend(each) for each in (None, *dist.distributed_c10d._world.pg_map)} == {"headrace"}
    _reductions(group)
    _gathers(group)
    _broadcasts(group)
    _parts(group)
    group.barrier()
    return group.rank, of(group.rank)


def _reductions(group):
    total = of(0) + of(1)
    mine = of(group.rank)
    assert group.all_reduce(mine) is mine and torch.equal(mine, total)
    assert torch.equal(group.all_reduce(of(group.rank), ReduceOp.MAX), of(1))
    mine = of(group.rank)
    group.all_reduce_cpu(mine)
    assert torch.equal(mine, total)
    mine = of(group.rank)
    work = group.all_reduce_cpu_async(mine, ReduceOp.MIN)
    work.wait()
    assert torch.equal(mine, of(0))

    reducer = group.reducer(mine.shape, mine.dtype)
    assert reducer.input is None
    mine, out = of(group.rank), torch.zeros(4)
    with group.capture():
        assert reducer.reduce(mine, out) is out
    assert torch.equal(out, total) and torch.equal(mine, of(group.rank))
    assert reducer.reduce(mine) is mine and torch.equal(mine, total)


def _gathers(group):
    rows = [of(rank, 6).reshape(2, 3) for rank in range(2)]
    assert torch.equal(group.all_gather(rows[group.rank]), torch.cat(rows, 1))
    assert torch.equal(group.all_gather(rows[group.rank], 0), torch.cat(rows, 0))
    across = [row.t() for row in rows]  # not contiguous
    assert torch.equal(group.all_gather(across[group.rank], -2), torch.cat(across, 0))
    with pytest.raises(ValueError, match="dim 2 is not in a tensor of shape"):
        group.all_gather(rows[0], 2)
    assert group.all_gather_object({"rank": group.rank}) == [{"rank": 0}, {"rank": 1}]
    assert torch.equal(group.all_to_all(of(group.rank, 2)), torch.tensor([0.0, 10.0]) + group.rank)
    with pytest.raises(ValueError, match="3 rows, and the group 2 ranks"):
        group.all_to_all(torch.zeros(3))


def _broadcasts(group):
    assert group.broadcast_object(["from", 1] if group.rank == 1 else None, root=1) == ["from", 1]
    mine = of(group.rank)
    assert group.broadcast(mine, 1) is mine and torch.equal(mine, of(1))
    mine = of(group.rank)
    group.broadcast_cpu_tensor_async(mine, 0).wait()
    assert torch.equal(mine, of(0))
    with pytest.raises(ValueError, match="no rank 2 in a group of 2"):
        group.broadcast(mine, 2)


def _parts(group):
    whole = group.slice_by_lens([2])
    assert (whole.rank, whole.size) == (group.rank, 2)
    assert torch.equal(whole.all_reduce(of(group.rank)), of(0) + of(1))
    whole.destroy()
    for divide in (lambda: group.slice_by_count(3), lambda: group.slice_by_lens([1])):
        with pytest.raises(ValueError, match="2 ranks|group 2"):
            divide()


def the_second_fails(device, part, group):
    """On two nodes of one rank each."""
    assert group.is_inter_node and (group.local_rank, group.node_rank) == (0, group.rank)
    if group.rank == 1:
        raise RuntimeError("rank 1 has had enough")
    group.barrier()
