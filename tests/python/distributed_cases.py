# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_distributed.py do with headrace.distributed: each function runs on all of them, in
the default group."""

from datetime import timedelta

import torch
import torch.distributed

import headrace
import headrace.distributed as dist
from headrace._torch.group import HeadraceProcessGroup
from torch_cases import of, raised, same, sum_of, with_gaps


class PastTheGroup:
    """In the block an operation of the group itself fails: those of headrace.distributed do not use it."""

    def __enter__(self):
        self.start = HeadraceProcessGroup._start
        HeadraceProcessGroup._start = None

    def __exit__(self, *_):
        HeadraceProcessGroup._start = self.start


def ended(work):
    work.wait()
    assert work.is_completed() and work.is_success()


# --- collectives


def all_reduce_is_in_place_also_with_gaps_and_reductions(rank, size):
    with PastTheGroup():
        mine = of(rank)
        assert dist.all_reduce(mine) is None
        same(mine, sum_of(size))
        gaps = with_gaps(of(rank))
        ended(dist.all_reduce(gaps, async_op=True))
        same(gaps, sum_of(size))
        most = of(rank)
        dist.all_reduce(most, op=torch.distributed.ReduceOp.MAX)
        same(most, torch.stack([of(other) for other in range(size)]).max(0).values)
    sparse = of(rank).to_sparse()
    dist.all_reduce(sparse)
    same(sparse.to_dense(), sum_of(size))


def the_future_of_a_work_has_the_result(rank, size):
    mine = of(rank)
    (result,) = dist.all_reduce(mine, async_op=True).get_future().wait()
    assert result is mine
    same(mine, sum_of(size))


def one_rank_gives_or_receives(rank, size):
    last = size - 1
    with PastTheGroup():
        mine = of(rank)
        dist.broadcast(mine, last)
        same(mine, of(last))
        mine = of(rank)
        ended(dist.broadcast(mine, group_src=0, async_op=True))
        same(mine, of(0))
        mine = of(rank)
        dist.reduce(mine, last)
        same(mine, sum_of(size) if rank == last else of(rank))
        outputs = [torch.zeros(3, 5).double() for _ in range(size)] if rank == 0 else None
        dist.gather(of(rank), outputs)
        for other, output in enumerate(outputs or ()):
            same(output, of(other))
        mine = with_gaps(torch.zeros(3, 5).double())
        dist.scatter(mine, [of(other) for other in range(size)] if rank == last else None, src=last)
        same(mine, of(rank))


def all_give_and_all_receive(rank, size):
    everything = torch.cat([of(other) for other in range(size)])
    with PastTheGroup():
        outputs = [torch.zeros(3, 5).double() for _ in range(size)]
        dist.all_gather(outputs, of(rank))
        same(torch.cat(outputs), everything)
        uneven = [torch.zeros(other + 1).double() for other in range(size)]
        dist.all_gather(uneven, torch.full((rank + 1,), float(rank)).double())
        assert [part.tolist() for part in uneven] == [[float(r)] * (r + 1) for r in range(size)]
        for gather in (dist.all_gather_into_tensor, dist.all_gather_single):
            output = torch.zeros_like(everything)
            ended(gather(output, of(rank), async_op=True))
            same(output, everything)
        output = torch.zeros(3, 5).double()
        dist.reduce_scatter(output, [of(rank + other) for other in range(size)])
        same(output, sum(of(other + rank) for other in range(size)))
        for scatter in (dist.reduce_scatter_tensor, dist.reduce_scatter_single):
            output = torch.zeros(3, 5).double()
            scatter(output, torch.cat([of(rank + other) for other in range(size)]))
            same(output, sum(of(other + rank) for other in range(size)))


def of_outputs_that_are_one_memory_the_last_one_wins(rank, size):
    for gather in (dist.all_gather, torch.distributed.all_gather):
        output = torch.zeros(3, 5).double()
        gather([output] * size, of(rank))
        same(output, of(size - 1))


def each_gives_to_each(rank, size):
    with PastTheGroup():
        outputs = [torch.zeros(2) for _ in range(size)]
        dist.all_to_all(outputs, [torch.full((2,), 10.0 * rank + other) for other in range(size)])
        assert [part[0].item() for part in outputs] == [10.0 * other + rank for other in range(size)]
        output = torch.zeros(size, 2)
        dist.all_to_all_single(output, torch.arange(2.0 * size).reshape(size, 2) + 100 * rank)
        assert output[:, 0].tolist() == [100.0 * other + 2 * rank for other in range(size)]
        rows = [other + 1 for other in range(size)]  # from rank r come r + 1 rows
        output = torch.zeros(sum(rows), 3)
        given = torch.full((size * (rank + 1), 3), float(rank))
        ended(dist.all_to_all_single(output, given, rows, [rank + 1] * size, async_op=True))
        assert output[:, 0].tolist() == [float(r) for r in range(size) for _ in range(r + 1)]
    text = raised(
        RuntimeError, lambda: dist.all_to_all_single(torch.zeros(size), torch.zeros(size), [size + 1])
    )
    assert "doesn't match total dim 0 size" in text


def barriers(rank, size):
    with PastTheGroup():
        assert dist.barrier() is None
        ended(dist.barrier(async_op=True, timeout=timedelta(seconds=10)))
        dist.monitored_barrier(timeout=timedelta(seconds=10))


# --- messages


def messages_have_tags_and_come_from_any_rank(rank, size):
    after, before = (rank + 1) % size, (rank - 1) % size
    sends = [dist.isend(torch.tensor([10 * rank + tag]), after, tag=tag) for tag in (1, 2)]
    second, first = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    assert dist.recv(second, before, tag=2) == before
    work = dist.irecv(first, tag=1)
    work.wait()
    assert work.source_rank() == before
    assert (first.item(), second.item()) == (10 * before + 1, 10 * before + 2)
    for work in sends:
        work.wait()


def a_batch_begins_together(rank, size):
    after, before = (rank + 1) % size, (rank - 1) % size
    got = with_gaps(torch.zeros(3, 5).double())
    ops = [
        dist.P2POp(dist.irecv, got, before),
        dist.P2POp(dist.isend, of(rank), after),
        torch.distributed.P2POp(torch.distributed.isend, of(rank), after, tag=7),
        dist.P2POp(dist.irecv, torch.zeros(3, 5).double(), before, tag=7),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(got, of(before))
    assert "at least one" in raised(ValueError, lambda: dist.batch_isend_irecv([]))


# --- objects


def objects_travel_as_pickles(rank, size):
    found = [None] * size
    dist.all_gather_object(found, {rank})
    assert found == [{other} for other in range(size)]
    found = [None] * size if rank == 0 else None
    dist.gather_object((rank,), found)
    assert found == ([(other,) for other in range(size)] if rank == 0 else None)
    mine = [{rank}, rank]
    dist.broadcast_object_list(mine, src=size - 1)
    assert mine == [{size - 1}, size - 1]
    output = [None]
    dist.scatter_object_list(output, [{other} for other in range(size)] if rank == 0 else None)
    assert output == [{rank}]
    if rank == 0:
        dist.send_object_list([{1}, 2], dst=1)
    elif rank == 1:
        output = [None, None]
        assert dist.recv_object_list(output) == 0
        assert output == [{1}, 2]


# --- several calls as one


def a_block_issues_its_calls_together(rank, size):
    first, second, all_of_all = of(rank), with_gaps(of(rank)), torch.zeros(size)
    with dist._coalescing_manager(async_ops=True) as manager:
        assert dist.all_reduce(first) is None
        assert dist.broadcast(second, 0, async_op=True) is None
        dist.all_gather_into_tensor(all_of_all, torch.tensor([float(rank)]))
        same(first, of(rank))
    manager.wait()
    same(first, sum_of(size))
    same(second, of(0))
    assert all_of_all.tolist() == [float(other) for other in range(size)]
    with dist._coalescing_manager():
        dist.all_reduce(first)
    same(first, sum_of(size) * size)


def a_block_that_fails_issues_none(rank, size):
    mine = of(rank)

    def fail():
        with dist._coalescing_manager():
            dist.all_reduce(mine)
            raise KeyError("mine")

    raised(KeyError, fail)
    same(mine, of(rank))
    dist.all_reduce(mine)
    same(mine, sum_of(size))


# --- groups


def a_new_group_is_a_split(rank, size):
    group = dist.new_group([0, size - 1])
    if rank not in (0, size - 1):
        assert group == torch.distributed.GroupMember.NON_GROUP_MEMBER and dist.get_rank(group) == -1
        return
    assert dist.comm_of(group).get_ranks() == sorted({0, size - 1})
    assert dist.get_world_size(group) == 2 and dist.get_backend(group) == "headrace"
    assert dist.get_rank(group) == (0 if rank == 0 else 1)
    mine = of(rank)
    dist.broadcast(mine, src=size - 1, group=group)
    same(mine, of(size - 1))
    torch.distributed.all_reduce(mine, group=group)  # torch's own function takes it, too
    same(mine, of(size - 1) * 2)
    dist.destroy_process_group(group)


def a_new_group_keeps_the_order_that_is_asked_for(rank, size):
    ranks = list(reversed(range(size)))
    group = dist.new_group(ranks, sort_ranks=False)
    assert dist.get_process_group_ranks(group) == ranks
    assert dist.comm_of(group).get_rank() == dist.get_rank(group) == size - 1 - rank
    dist.destroy_process_group(group)


def members_alone_make_a_group_at_the_store(rank, size):
    if rank < 2:
        group = dist.new_group([0, 1], use_local_synchronization=True)
        mine = of(rank)
        dist.all_reduce(mine, group=group)
        same(mine, of(0) + of(1))
        dist.destroy_process_group(group)
    dist.barrier()


def split_group_gives_each_rank_its_part(rank, size):
    parts = [[0], list(range(1, size))]
    for _ in range(2):  # the same split again
        group = dist.split_group(split_ranks=parts)
        mine = next(part for part in parts if rank in part)
        assert dist.get_process_group_ranks(group) == mine
        assert dist.comm_of(group).get_ranks() == mine
        dist.barrier(group)
    assert dist.split_group(split_ranks=[[0]]) is None or rank == 0
    inner = dist.split_group(group, [[0]])
    assert (inner is None) == (dist.get_rank(group) != 0)
    if inner is not None:
        assert dist.get_process_group_ranks(inner) == mine[:1]
    assert "none of them empty" in raised(ValueError, lambda: dist.split_group(split_ranks=[[]]))


def groups_of_others_go_to_torch(rank, size):
    group = dist.new_group(backend="gloo")
    assert dist.comm_of(group) is None and dist.is_enabled()
    mine = of(rank)
    dist.all_reduce(mine, group=group)
    same(mine, sum_of(size))
    found = [None] * size
    dist.all_gather_object(found, rank, group=group)
    assert found == list(range(size))
    dist.barrier(group)
    with dist._coalescing_manager(group):
        dist.all_reduce(mine, group=group)
    same(mine, sum_of(size) * size)
    dist.destroy_process_group(group)


def subgroups_of_torch_have_communicators(rank, size):
    group, _ = dist.new_subgroups(group_size=1)
    assert dist.comm_of(group).get_size() == 1


def errors_are_torchs_and_headraces(rank, size):
    for kind in (RuntimeError, ValueError, headrace.InvalidArgument, torch.distributed.DistBackendError):
        assert "root" in raised(kind, lambda: dist.broadcast(of(rank), size + 1))
    assert "one of both" in raised(ValueError, lambda: dist.broadcast(of(rank)))
    assert "one of both" in raised(ValueError, lambda: dist.broadcast(of(rank), 0, group_src=0))
    raised(TypeError, lambda: dist.all_reduce([1.0]))


def a_profiler_sees_the_ranges(rank, size):
    if size > 2:
        return  # its start takes seconds
    with torch.profiler.profile() as profiler:
        dist.all_reduce(of(rank))
    assert "headrace:all_reduce" in [event.name for event in profiler.events()]


def shrinking_makes_a_new_default_group(rank, size):
    """The last case: the last rank leaves."""
    if rank == size - 1:
        dist.barrier()
        return None
    dist.barrier()
    group = dist.shrink_group([size - 1])
    assert group is torch.distributed.GroupMember.WORLD and dist.is_enabled()
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size - 1)
    mine = of(rank)
    dist.all_reduce(mine)
    same(mine, sum_of(size - 1))
    return None
