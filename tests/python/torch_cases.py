# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_torch_group.py do: each function runs on all of them, in the default group. Those
whose name begins with that of a binding run with it alone, and those with `backend_`, also behind a binding,
where a group has a Backend: the compiled one, or the one in Python from torch 2.15 on."""

import gc
import os
import signal
import time
import unittest.mock
from datetime import timedelta

import numpy
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from torch._C._distributed_c10d import ErrorType, WorkResult
from torch.distributed import _functional_collectives as functional

import headrace
from headrace import torch_ops, torch_tools
from headrace._torch import compiled
from headrace._torch.backend import HeadraceBackend, torch_takes_it
from headrace._torch.operations import Operations

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]
ALL_DTYPES = [*FLOATS, *INTEGERS, torch.bool, *COMPLEX, *FP8]


def of(rank, shape=(3, 5), dtype=torch.float64):
    """The tensor of a rank, small whole numbers that every dtype holds."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) + rank) % 4).reshape(shape).to(dtype)


def with_gaps(tensor):
    """The same elements, not contiguous."""
    other = torch.empty(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)[..., ::2]
    other.copy_(tensor)
    assert not other.is_contiguous()
    return other


def backend_of(group):
    """What torch calls the backend of a group: itself, if it is in Python and torch takes no other."""
    return group._get_backend(torch.device("cpu"))


def destroy_of_gloo(group):
    """Without the barrier, a rank that still connects would take the end of the other for an error."""
    dist.barrier(group)
    dist.destroy_process_group(group)


def is_compiled():
    return not isinstance(backend_of(dist.group.WORLD), Operations)


def same(got, expected):
    assert got.dtype == expected.dtype
    assert torch.equal(got.double(), expected.double()), f"{got} is not {expected}"


def sum_of(size, shape=(3, 5), dtype=torch.float64):
    return sum(of(rank, shape).double() for rank in range(size)).to(dtype)


def raised(kind, call):
    """The text of the error that the call raises."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} was expected")


# --- operations


def all_reduce_has_every_reduction(rank, size):
    parts = torch.stack([of(other, dtype=torch.int64) + 1 for other in range(size)])
    expected = {
        dist.ReduceOp.SUM: parts.sum(0),
        dist.ReduceOp.PRODUCT: parts.prod(0),
        dist.ReduceOp.MIN: parts.min(0).values,
        dist.ReduceOp.MAX: parts.max(0).values,
        dist.ReduceOp.AVG: parts.double().mean(0),
        dist.ReduceOp.BAND: _fold(parts, "bitwise_and"),
        dist.ReduceOp.BOR: _fold(parts, "bitwise_or"),
        dist.ReduceOp.BXOR: _fold(parts, "bitwise_xor"),
    }
    for op, result in expected.items():
        mine = parts[rank].clone().to(result.dtype)
        dist.all_reduce(mine, op)
        torch.testing.assert_close(mine, result)
    mine = of(rank)
    dist.all_reduce(mine, dist._make_nccl_premul_sum(0.5))
    same(mine, sum_of(size) / 2)


def _fold(parts, name):
    result = parts[0]
    for part in parts[1:]:
        result = getattr(torch, name)(result, part)
    return result


def every_dtype_moves(rank, size):
    for dtype in ALL_DTYPES:
        mine, parts = of(rank, dtype=dtype), [torch.empty(3, 5, dtype=dtype) for _ in range(size)]
        dist.all_gather(parts, mine)
        for other in range(size):
            _same_bytes(parts[other], of(other, dtype=dtype))
        dist.broadcast(mine, size - 1)
        _same_bytes(mine, of(size - 1, dtype=dtype))


def _same_bytes(got, expected):
    assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8)), got.dtype


def every_dtype_is_added(rank, size):
    for dtype in (*FLOATS, *INTEGERS, *COMPLEX):
        mine = of(rank, dtype=dtype)
        dist.all_reduce(mine)
        assert torch.equal(mine, sum_of(size, dtype=dtype)), dtype
    for dtype in FP8:
        mine = of(rank, dtype=dtype)
        dist.group.WORLD.allreduce([mine]).wait()
        _same_bytes(mine, sum_of(size).to(dtype))
    mine = of(rank, dtype=torch.bool)
    dist.all_reduce(mine, dist.ReduceOp.MAX)
    assert torch.equal(mine, sum_of(size).bool())


def one_to_all_and_all_to_one(rank, size):
    root = size - 1
    mine = of(rank)
    dist.reduce(mine, root)
    same(mine, sum_of(size) if rank == root else of(rank))
    parts = [torch.empty(3, 5, dtype=torch.float64) for _ in range(size)] if rank == root else None
    dist.gather(of(rank), parts, root)
    for other, part in enumerate(parts or []):
        same(part, of(other))
    one = torch.empty(3, 5, dtype=torch.float64)
    dist.scatter(one, [of(10 + other) for other in range(size)] if rank == root else None, root)
    same(one, of(10 + rank))


def all_gather_and_reduce_scatter(rank, size):
    whole = torch.empty(size * 3, 5, dtype=torch.float64)
    dist.all_gather_into_tensor(whole, of(rank))
    same(whole, torch.cat([of(other) for other in range(size)]))
    one = torch.empty(3, 5, dtype=torch.float64)
    dist.reduce_scatter_tensor(one, torch.cat([of(rank + to) for to in range(size)]))
    expected = sum(of(other + rank) for other in range(size))
    same(one, expected)
    dist.reduce_scatter(one.zero_(), [of(rank + to) for to in range(size)])
    same(one, expected)
    uneven = [torch.empty(other + 1) for other in range(size)]
    dist.all_gather(uneven, torch.full((rank + 1,), float(rank)))
    assert [part.tolist() for part in uneven] == [[float(other)] * (other + 1) for other in range(size)]


def all_to_all_in_its_forms(rank, size):
    outputs = [torch.empty(2, 3) for _ in range(size)]
    dist.all_to_all(outputs, [torch.full((2, 3), 10.0 * rank + to) for to in range(size)])
    assert [part[0, 0].item() for part in outputs] == [10 * other + rank for other in range(size)]
    whole = torch.empty(size, 3)
    dist.all_to_all_single(whole, torch.full((size, 3), float(rank)))
    assert whole[:, 0].tolist() == list(range(size))
    splits = [rank + other for other in range(size)]  # rows
    rows = torch.empty(sum(splits), 2)
    dist.all_to_all_single(rows, torch.full((sum(splits), 2), float(rank)), splits, splits)
    assert rows[:, 1].tolist() == [other for other in range(size) for _ in range(rank + other)]
    # One side gives no splits: they are the equal ones.
    dist.all_to_all_single(whole, torch.full((size, 3), float(rank)), [1] * size if rank else None)
    assert whole[:, 0].tolist() == list(range(size))
    wrong = lambda: dist.all_to_all_single(torch.empty(size + 1, 3), torch.empty(size + 1, 3))  # noqa: E731
    assert "does not divide equally" in raised(RuntimeError, wrong)


def tensors_with_gaps_are_taken(rank, size):
    mine = with_gaps(of(rank))
    dist.all_reduce(mine)
    same(mine, sum_of(size))
    work = dist.all_reduce(mine.copy_(of(rank)), async_op=True)
    work.wait()
    same(mine, sum_of(size))
    mine.copy_(of(rank))
    dist.broadcast(mine, 0)
    same(mine, of(0))
    dist.broadcast(of(0)[:1].expand(3, 5) if rank == 0 else mine, 0)  # the root's elements overlap
    if rank != 0:
        same(mine, of(0)[:1].expand(3, 5))
    parts = [with_gaps(torch.zeros(3, 5, dtype=torch.float64)) for _ in range(size)]
    dist.all_gather(parts, with_gaps(of(rank)))
    for other in range(size):
        same(parts[other], of(other))
    dist.reduce_scatter(mine, [with_gaps(of(rank + to)) for to in range(size)])
    same(mine, sum(of(other + rank) for other in range(size)))
    dist.scatter(mine, [with_gaps(of(to)) for to in range(size)] if rank == 0 else None, 0)
    same(mine, of(rank))
    dist.gather(mine, parts if rank == 0 else None, 0)
    if rank == 0:
        same(parts[-1], of(size - 1))
    received = with_gaps(torch.zeros(3, 5, dtype=torch.float64))
    work = dist.irecv(received, (rank - 1) % size)
    dist.send(mine, (rank + 1) % size)
    work.wait()
    same(received, of((rank - 1) % size))


def conjugated_tensors_are_taken(rank, size):
    mine = torch.tensor([1 + 2j * (rank + 1), 3j], dtype=torch.complex64)
    parts = [torch.empty_like(mine) for _ in range(size)]
    group = backend_of(dist.group.WORLD)  # the functions of torch.distributed refuse them
    group.allgather([parts], [mine.conj()]).wait()
    assert [part[0].item() for part in parts] == [1 - 2j * (other + 1) for other in range(size)]
    received = torch.zeros(2, dtype=torch.complex64).conj()
    group.broadcast([mine.conj() if rank == 0 else received], _options(0)).wait()
    if rank != 0:
        assert received.tolist() == [1 - 2j, -3j]


def coalesced_operations_are_one_work(rank, size):
    group = dist.group.WORLD
    tensors = [of(rank), of(rank, (7,)), of(rank, (0,))]
    work = group.allreduce_coalesced(tensors)
    assert work.wait()
    assert len(work.result()) == 3
    same(tensors[1], sum_of(size, (7,)))
    lists = [[torch.empty(4), torch.empty(2)] for _ in range(size)]
    group.allgather_coalesced(lists, [torch.full((4,), float(rank)), torch.full((2,), float(rank))]).wait()
    assert [[part[0].item() for part in parts] for parts in lists] == [[r, r] for r in range(size)]
    outputs = [torch.empty(size * 2), torch.empty(size)]
    inputs = [torch.full((2,), float(rank)), torch.full((1,), float(rank))]
    group.allgather_into_tensor_coalesced(outputs, inputs).wait()
    assert outputs[1].tolist() == list(range(size))
    group.reduce_scatter_tensor_coalesced(inputs, outputs).wait()
    assert inputs[1].tolist() == [size * rank]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for tensor in (first := [of(rank), of(rank)]):
            dist.all_reduce(tensor)
    manager.wait()
    same(first[1], sum_of(size))
    group._start_coalescing(torch.device("cpu"))
    mixed = of(rank), of(rank)
    dist.all_reduce(mixed[0], async_op=True)
    dist.broadcast(mixed[1], 0, async_op=True)
    group._end_coalescing(torch.device("cpu")).wait()
    same(mixed[0], sum_of(size))
    same(mixed[1], of(0))


def messages_have_tags_and_sources(rank, size):
    if rank == 0:
        for _ in range(size - 1):
            received = torch.empty(5)
            source = dist.recv(received, tag=7)
            assert received.tolist() == [source] * 5
        later, first = torch.empty(2), torch.empty(2)
        dist.recv(first, 1, tag=2)
        dist.recv(later, 1, tag=1)
        assert (first[0].item(), later[0].item()) == (2, 1)
    else:
        dist.send(torch.full((5,), float(rank)), 0, tag=7)
    if rank == 1:
        works = [dist.isend(torch.full((2,), float(tag)), 0, tag=tag) for tag in (1, 2)]
        for work in works:
            work.wait()
    ring = torch.empty(3)
    operations = [
        dist.P2POp(dist.irecv, ring, (rank - 1) % size),
        dist.P2POp(dist.isend, torch.full((3,), float(rank)), (rank + 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert ring.tolist() == [(rank - 1) % size] * 3


def python_one_tensor_gathers_all(rank, size):
    """torch.distributed.gather_single of torch 2.15 calls it."""
    group, root = dist.group.WORLD, size - 1
    whole = torch.empty(size, 3, 5, dtype=torch.float64) if rank == root else torch.empty(0)
    group.gather_single(whole, with_gaps(of(rank)), _options(root)).wait()
    if rank == root:
        same(whole, torch.stack([of(other) for other in range(size)]))
        wrong = lambda: group.gather_single(torch.empty(2), torch.empty(3), _options(root))  # noqa: E731
        assert "output" in raised(headrace.InvalidArgument, wrong)


def python_float8_of_other_kinds_moves(rank, size):
    for dtype in (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz):
        mine, parts = of(rank, dtype=dtype), [torch.empty(3, 5, dtype=dtype) for _ in range(size)]
        dist.all_gather(parts, mine)
        for other in range(size):
            _same_bytes(parts[other], of(other, dtype=dtype))
        shared = [torch.empty(3, 5, dtype=dtype)] * size
        dist.all_gather(shared, mine)
        _same_bytes(shared[0], of(size - 1, dtype=dtype))
        gaps = with_gaps(mine)
        dist.broadcast(gaps, 0)
        _same_bytes(gaps.contiguous(), of(0, dtype=dtype))
        reduce = lambda: dist.group.WORLD.allreduce([mine])  # noqa: E731, B023
        assert "moved and not reduced" in raised(ValueError, reduce)
        whole = torch.cat([mine] * size)
        scatter = lambda: dist.group.WORLD.reduce_scatter_single(mine, whole)  # noqa: E731, B023
        assert "moved and not reduced" in raised(ValueError, scatter)


def objects_travel(rank, size):
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": other} for other in range(size)]
    shared = [("a", rank)]
    dist.broadcast_object_list(shared, 0)
    assert shared == [("a", 0)]
    mine = [None]
    dist.scatter_object_list(mine, [other * 10 for other in range(size)], 0)
    assert mine == [rank * 10]
    at_root = [None] * size if rank == 0 else None
    dist.gather_object(rank, at_root, 0)
    assert at_root == (list(range(size)) if rank == 0 else None)


def sparse_tensors_are_added(rank, size):
    indices = torch.tensor([[0, rank], [1, rank]])
    values = torch.tensor([1.0, 10.0 * (rank + 1)])
    mine = torch.sparse_coo_tensor(indices, values, (size + 1, size + 1))
    dense = torch.zeros(size + 1, size + 1)
    for other in range(size):
        dense[0, 1] += 1
        dense[other, other] += 10.0 * (other + 1)
    dist.all_reduce(mine)
    assert torch.equal(mine.to_dense(), dense)
    assert "all_reduce alone" in raised(
        RuntimeError, lambda: backend_of(dist.group.WORLD).broadcast([mine], _options(0))
    )


# --- works


def works_tell_how_it_goes(rank, size):
    mine = of(rank)
    work = dist.all_reduce(mine, async_op=True)
    assert work.get_future().wait() == [mine]
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert work.result() == [mine]
    assert work.get_future_result().wait() == WorkResult.SUCCESS.value
    work.synchronize()
    same(mine, sum_of(size))
    doubled = dist.all_reduce(of(rank), async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    same(doubled.wait(), sum_of(size) * 2)
    gaps = with_gaps(of(rank))
    dist.all_reduce(gaps, async_op=True).get_future().wait()
    same(gaps, sum_of(size))
    if rank == 0:
        work = dist.irecv(torch.empty(1), 1)
        raised(headrace.TimedOut, lambda: work.wait(timedelta(milliseconds=20)))
        assert not work.is_completed()
    dist.barrier()
    if rank == 1:
        dist.send(torch.ones(1), 0)
    if rank == 0:
        work.wait(timedelta(seconds=30))
        assert work.source_rank() == 1


def python_works_have_numbers_and_enter_graphs(rank, size):
    group = dist.group.WORLD
    registered = torch._C._distributed_c10d._get_work_registry_size
    before = group._get_sequence_number_for_group()
    work = dist.all_reduce(of(rank), async_op=True)
    assert work._get_sequence_number() == before + 1
    work.wait()
    assert registered() == 0
    with functional.allow_inflight_collective_as_graph_input_ctx():
        mine = of(rank)
        work = dist.all_reduce(mine, async_op=True)
        assert registered() == 1
        work.wait()
        assert registered() == 0
        same(mine, sum_of(size))
        dist.all_reduce(mine.copy_(of(rank)), async_op=True)
        same(torch.ops._c10d_functional.wait_tensor(mine), sum_of(size))
        assert registered() == 0


def a_failed_work_tells_why(rank, size):
    group = dist.new_group(list(range(size)))
    backend_of(group).comm.set_timeout(timedelta(seconds=0.2))
    if rank == 0:
        work = dist.all_reduce(of(rank), group=group, async_op=True)
        assert "not come within 200 ms" in raised(headrace.TimedOut, lambda: work.get_future().wait())
        assert work.is_completed() and not work.is_success()
        assert isinstance(work.exception(), (headrace.TimedOut, dist.DistBackendError))
        assert "not come within 200 ms" in str(work.exception())
        assert work.get_future_result().wait() == WorkResult.TIMEOUT.value
    dist.barrier()
    dist.destroy_process_group(group)


def an_output_that_no_longer_fits_fails_the_future(rank, size):
    gaps = with_gaps(of(rank))
    if rank == 0:
        for other in range(1, size):
            dist.recv(torch.empty(1), other)
        dist.all_reduce(gaps)
    else:
        future = dist.all_reduce(gaps, async_op=True).get_future()
        gaps.set_(torch.zeros(7, dtype=torch.float64))
        dist.send(torch.ones(1), 0)
        assert "must match the size" in raised(RuntimeError, future.wait)
    dist.barrier()


def tensors_live_until_their_operation_has_ended(rank, size):
    """Though nobody keeps the work; they may be those of NumPy."""
    if rank == 0:
        dist.irecv(torch.from_numpy(numpy.zeros(1000)), 1)
        gc.collect()
    dist.barrier()
    if rank == 1:
        dist.send(torch.ones(1000, dtype=torch.float64), 0)
    for _ in range(20):
        dist.all_reduce(torch.from_numpy(numpy.zeros(1000)), async_op=True)
    dist.barrier()


def profilers_show_ranges(rank, size):
    for _ in range(2):
        with torch.profiler.profile(record_shapes=True) as profile:
            dist.all_reduce(of(rank))
            dist.barrier()
        (event,) = [event for event in profile.events() if event.name == "headrace:all_reduce"]
        assert event.cpu_time > 0
        if is_compiled():
            assert event.input_shapes == [[3, 5]]


def functional_collectives_come_through_c10d(rank, size):
    group = dist.group.WORLD
    same(functional.all_reduce(of(rank), "sum", group) + 0, sum_of(size))
    gathered = functional.all_gather_tensor(of(rank), 0, group) + 0
    same(gathered, torch.cat([of(other) for other in range(size)]))
    scattered = functional.reduce_scatter_tensor(torch.cat([of(rank)] * size), "sum", 0, group) + 0
    same(scattered, sum_of(size))
    exchanged = functional.all_to_all_single(torch.full((size, 2), float(rank)), None, None, group) + 0
    assert exchanged[:, 0].tolist() == list(range(size))


# --- groups


def a_group_tells_what_it_is(rank, size):
    group = dist.group.WORLD
    backend = backend_of(group)
    assert (group.rank(), group.size(), dist.get_backend()) == (rank, size, "headrace")
    assert (backend.rank(), backend.size(), backend.name()) == (rank, size, "headrace")
    assert group.group_name == backend.options.group_name == backend.comm.get_name()
    assert group.group_desc == "default_pg"
    assert isinstance(backend.comm, headrace.Comm)
    assert backend.comm.get_ranks() == list(range(size))
    counts = backend if is_compiled() else group
    before = counts._get_sequence_number_for_group()
    dist.all_reduce(of(rank))
    assert counts._get_sequence_number_for_group() == before + 1


def python_a_group_has_the_operations_itself(rank, size):
    group = dist.group.WORLD
    assert repr(group) == f"HeadraceProcessGroup({group.group_name!r}, rank={rank}, size={size})"
    if torch_takes_it():
        assert type(backend_of(group)) is HeadraceBackend
        assert backend_of(group).comm is group.comm
    else:
        assert backend_of(group) is group
    assert "tensors on the CPU" in raised(RuntimeError, lambda: group._get_backend(torch.device("cuda")))


def hints_and_timeout_reach_the_communicator(rank, size):
    group = dist.new_group(
        list(range(size)), timeout=timedelta(seconds=7), pg_options={"chunk_bytes": "64KiB"}
    )
    options = backend_of(group).comm.get_options()
    assert (options.hints["chunk_bytes"], options.timeout) == ("64KiB", 7)
    backend_of(group).set_timeout(timedelta(seconds=8))
    assert backend_of(group).comm.get_options().timeout == 8
    dist.destroy_process_group(group)


def groups_of_some_ranks(rank, size):
    group = dist.new_group([1, 0])
    if rank < 2:
        mine = of(rank)
        dist.all_reduce(mine, group=group)
        same(mine, sum_of(2))
        dist.destroy_process_group(group)
    split = dist.group.WORLD.split_group([0, size - 1], group_name=f"ends of {size}", group_desc="ends")
    if rank in (0, size - 1):
        mine = of(rank)
        split.allreduce([mine]).wait()
        same(mine, of(0) + of(size - 1))
        assert (split.size(), split.group_name, split.group_desc) == (2, f"ends of {size}", "ends")
        assert backend_of(split).options.global_ranks_in_group == [0, size - 1]
        split.shutdown()
    else:
        assert split is None


def a_mesh_has_a_group_for_each_dimension(rank, size):
    mesh = dist.device_mesh.init_device_mesh("cpu", (1, size), mesh_dim_names=("outer", "inner"))
    mine = of(rank)
    dist.all_reduce(mine, group=mesh.get_group("inner"))
    same(mine, sum_of(size))
    assert mesh.get_group("outer").size() == 1


def a_group_goes_on_without_a_rank(rank, size):
    group = dist.new_group(list(range(size)))
    if rank != 1:
        left = backend_of(group).shrink([1])
        mine = of(rank)
        left.allreduce([mine]).wait()
        same(mine, sum_of(size) - of(1))
        assert left.size() == size - 1
        left.shutdown()
    dist.barrier()


def a_store_serves_a_second_group(rank, size):
    """The same keys, one group after the other."""
    store = dist.distributed_c10d._get_default_store()
    prefix = dist.PrefixStore("again", store)
    if is_compiled():
        from headrace._torch.compiled import new_backend as make
    else:
        from headrace._torch.group import HeadraceProcessGroup as make

    for _ in range(3):
        group = make(prefix, rank, size, timedelta(seconds=20))
        mine = of(rank)
        group.allreduce([mine]).wait()
        same(mine, sum_of(size))
        group.shutdown()
        dist.barrier()


def backend_torch_splits_a_group(rank, size):
    """torch.distributed.split_group asks for an accelerator, and for a device of the group."""
    world, here = dist.group.WORLD, torch.device("cpu", 0)
    with unittest.mock.patch.multiple(
        torch.accelerator, is_available=lambda: True, current_accelerator=lambda: torch.device("cpu")
    ):
        world.bound_device_id = here
        try:
            split = dist.split_group(split_ranks=[[0, size - 1]], timeout=timedelta(seconds=9))
        finally:
            world.bound_device_id = None
    if rank in (0, size - 1):
        mine = of(rank)
        dist.all_reduce(mine, group=split)
        same(mine, of(0) + of(size - 1))
        assert dist.get_process_group_ranks(split) == [0, size - 1]
        assert backend_of(split).comm.get_options().timeout == 9
        dist.destroy_process_group(split)
    else:
        assert split in (None, dist.GroupMember.NON_GROUP_MEMBER)
    assert backend_of(world).options.group_name == world.group_name


def backend_one_group_has_a_backend_for_each_device(rank, size):
    group = dist.new_group(list(range(size)), backend="cpu:headrace,cuda:gloo")
    mine = of(rank)
    dist.all_reduce(mine, group=group)
    same(mine, sum_of(size))
    assert type(backend_of(group)).__module__.startswith("headrace.")
    assert group._get_backend(torch.device("cuda")).name() == "gloo"
    dist.destroy_process_group(group)


def backend_groups_merge_at_a_store(rank, size):
    store = dist.PrefixStore("merging", dist.distributed_c10d._get_default_store())
    merged = dist.group.WORLD.merge_remote_group(store, size, timedelta(seconds=20), group_name="merged")
    mine = of(merged.rank())
    merged.allreduce([mine]).wait()
    same(mine, sum_of(size))
    assert backend_of(merged).comm.get_name() == "merged"
    merged.shutdown()


def python_backend_is_not_shrunk_by_torch(rank, size):
    """torch would take the new backend for gloo's, and DDP would read what only gloo's has."""
    group = dist.new_group(list(range(size)))
    assert not backend_of(group).supports_shrinking
    if rank != 1:
        raised(TypeError, lambda: dist.shrink_group([1], group))
        left = group.shrink([1])
        mine = of(rank)
        left.allreduce([mine]).wait()
        same(mine, sum_of(size) - of(1))
        left.shutdown()
    dist.barrier()


def python_backend_beside_others_is_split(rank, size):
    group = dist.new_group(list(range(size)), backend="cpu:headrace,cuda:gloo")
    alone = group.split_group([rank], group_name=f"alone {rank}", timeout=timedelta(seconds=20))
    assert alone.size() == 1
    alone.shutdown()
    split = lambda: group.split_group([0], group_name="first", timeout=timedelta(seconds=20))  # noqa: E731
    if rank == 0:
        split().shutdown()
    else:
        assert f"rank {rank} is not among the ranks [0]" in raised(RuntimeError, split)
    dist.destroy_process_group(group)


def backend_debug_mode_compares_the_calls(rank, size):
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    group = dist.new_group(list(range(size)))
    dist.set_debug_level(dist.DebugLevel.OFF)
    mine = of(rank)
    dist.all_reduce(mine, group=group)
    same(mine, sum_of(size))
    differ = dist.barrier if rank == 0 else lambda group: dist.all_reduce(of(rank), group=group)
    assert "Detected mismatch between collectives" in raised(RuntimeError, lambda: differ(group))
    dist.destroy_process_group(group)


def compiled_what_it_does_not_have_is_said(rank, size):
    backend = backend_of(dist.group.WORLD)
    assert backend.supports_splitting and backend.supports_coalescing and backend.supports_shrinking
    assert not backend.supports_tensor_alloc(torch.device("cpu"))
    assert "no allocator of its own" in raised(RuntimeError, lambda: backend.mem_allocator)
    allocate = lambda: backend.allocate_tensor(  # noqa: E731
        4, dtype=torch.float32, device=torch.device("cpu")
    )
    assert "torch.empty makes" in raised(RuntimeError, allocate)
    assert "cannot be suspended" in raised(RuntimeError, backend.suspend)
    assert "never suspended" in raised(RuntimeError, backend.resume)
    assert "counts no memory" in raised(RuntimeError, backend.memory_stats)
    assert backend.get_error() == ErrorType.SUCCESS


def compiled_the_error_of_a_group_is_told(rank, size):
    group = dist.new_group(list(range(size)), timeout=timedelta(seconds=0.2))
    if rank == 0:
        raised(headrace.TimedOut, lambda: dist.barrier(group))
        assert backend_of(group).get_error() == ErrorType.TIMEOUT
    dist.barrier()
    dist.destroy_process_group(group)


def compiled_torch_shrinks_a_group(rank, size):
    """Rank 1 takes no part: from here on torch makes other names on it for groups that are split."""
    group = dist.new_group(list(range(size)))
    if rank != 1:
        left = dist.shrink_group([1], group)
        mine = of(rank)
        dist.all_reduce(mine, group=left)
        same(mine, sum_of(size) - of(1))
        # torch takes the backend of such a group for gloo's.
        model = torch.nn.parallel.DistributedDataParallel(_model(), process_group=left)
        model(_inputs(rank)).sum().backward()
        log = model._get_ddp_logging_data()
        assert (log["backend_name"], log["gloo_num_threads"]) == ("gloo", 0)
        dist.destroy_process_group(left)
    dist.barrier()


# --- training


def _model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def _inputs(rank):
    return torch.linspace(-1, 1, 24).reshape(4, 6) + rank


def _weights_of_one_process(size):
    """After a step with the mean of the gradients of all ranks."""
    model = _model()
    loss = sum(model(_inputs(rank)).pow(2).mean() for rank in range(size)) / size
    loss.backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    return list(model.parameters())


def a_step_of_ddp(rank, size):
    model = torch.nn.parallel.DistributedDataParallel(_model())
    model(_inputs(rank)).pow(2).mean().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    for got, expected in zip(model.parameters(), _weights_of_one_process(size)):
        torch.testing.assert_close(got, expected)


def a_step_of_ddp_with_sparse_gradients(rank, size):
    torch.manual_seed(0)
    table = torch.nn.Embedding(4, 2, sparse=True)
    model = torch.nn.parallel.DistributedDataParallel(table)
    model(torch.tensor([rank, 3])).sum().backward()
    expected = torch.zeros(4, 2)
    for other in range(size):
        expected[[other, 3]] += 1 / size
    torch.testing.assert_close(table.weight.grad.to_dense(), expected)


def a_step_of_fsdp2(rank, size):
    from torch.distributed.fsdp import fully_shard

    model = _model()
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(_inputs(rank)).pow(2).mean().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    for got, expected in zip(model.parameters(), _weights_of_one_process(size)):
        torch.testing.assert_close(got.full_tensor(), expected)


# --- symmetric tensors


def _symmetric(rank, size, count=12):
    """A symmetric tensor, full of the rank, and what the ranks have made of it."""
    torch_tools.register_symmetric_memory()
    tensor = symmetric.empty(count, dtype=torch.float64, device="cpu").fill_(rank)
    memory = symmetric.rendezvous(tensor, dist.group.WORLD)
    memory.barrier()
    return tensor, memory


def symmetric_tensors_are_mapped_by_all_ranks(rank, size):
    tensor, memory = _symmetric(rank, size)
    assert symmetric.is_symm_mem_tensor(tensor) and not symmetric.is_symm_mem_tensor(of(rank))
    assert symmetric.get_backend("cpu") == "HEADRACE"
    symmetric.set_backend("HEADRACE")
    assert symmetric.rendezvous(tensor, dist.group.WORLD.group_name) is memory
    assert (memory.rank, memory.world_size, memory.buffer_size) == (rank, size, 12 * 8)
    assert memory.device == torch.device("cpu") and memory.buffer_ptrs[rank] == tensor.data_ptr()
    assert not symmetric._SymmetricMemory.has_multicast_support(torch._C._autograd.DeviceType.CPU, 0)
    for other in range(size):
        same(
            memory.get_remote_tensor(other, (3, 4), torch.float64), torch.full((3, 4), float(other)).double()
        )
    memory.barrier()
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(100):
        memory.get_buffer(right, (5,), torch.float64, step % 8).fill_(1000 * step + rank)
        memory.put_signal(right, channel=1)
        memory.wait_signal(left, channel=1)
        assert tensor[step % 8 : step % 8 + 5].tolist() == [1000 * step + left] * 5
        memory.barrier(channel=2)
    dist.barrier()
    for other in range(size):
        assert not memory.get_signal_pad(other, dtype=torch.int32).any()
    dist.barrier()
    memory.get_signal_pad(right, (1,), torch.int32, 7).fill_(rank + 1)
    memory.barrier()
    assert memory.get_signal_pad(rank, (1,), torch.int32, 7).item() == left + 1


def symmetric_tensors_come_and_go(rank, size):
    """And each group has signals of its own for a tensor."""
    for _ in range(3):
        first, memory = _symmetric(rank, size)
        second, other_memory = _symmetric(rank + 10, size)
        assert other_memory.get_buffer(size - 1, (1,), torch.float64).item() == size + 9
        memory.barrier()
        del first, memory, second, other_memory
    group = dist.new_group(list(range(size)))
    tensor, memory = _symmetric(rank, size)
    again = symmetric.rendezvous(tensor, group)
    assert again is not memory and again.get_buffer(0, (1,), torch.float64).item() == 0
    again.barrier()
    dist.destroy_process_group(group)
    assert "finalized" in raised(headrace.Error, again.barrier)
    memory.barrier()


def wrong_uses_of_symmetric_tensors_name_ranks_and_values(rank, size):
    tensor, memory = _symmetric(rank, size)
    other = (rank + 1) % size
    memory.put_signal(other, 2)
    put_again = raised(headrace.TimedOut, lambda: memory.put_signal(other, 2, timeout_ms=30))
    assert f"rank {rank}, put_signal on channel 2 of symmetric memory of " in put_again
    assert f"rank {other} has not waited for the signal before within 30 ms" in put_again
    memory.barrier()
    memory.wait_signal((rank - 1) % size, 2)
    wait_again = raised(headrace.TimedOut, lambda: memory.wait_signal(other, 3, timeout_ms=30))
    assert f"rank {other} has sent no signal within 30 ms" in wait_again
    no_rank = raised(headrace.InvalidArgument, lambda: memory.put_signal(size))
    assert f"there is no rank {size}; there are {size} ranks" in no_rank
    channels = symmetric.get_signal_pad_size() // 4 // size
    no_channel = raised(headrace.InvalidArgument, lambda: memory.barrier(channels))
    assert (
        f"there is no channel {channels}" in no_channel and f"have {channels} for {size} ranks" in no_channel
    )
    differ = symmetric.empty(4 + rank, device="cpu")
    sizes = raised(headrace.InvalidArgument, lambda: symmetric.rendezvous(differ, dist.group.WORLD))
    assert "rank 1 gives memory of 20 bytes, rank 0 of 16" in sizes
    plain = raised(RuntimeError, lambda: symmetric.rendezvous(of(rank), dist.group.WORLD))
    assert "is not that of a symmetric tensor" in plain
    far = dist.new_group(list(range(size)), pg_options={"backends": "tcp"})
    not_mapped = raised(headrace.NotSupported, lambda: symmetric.rendezvous(tensor, far))
    assert f"the memory of rank {int(rank == 0)} cannot be mapped, and symmetric tensors are" in not_mapped
    dist.destroy_process_group(far)
    gloo = dist.new_group(list(range(size)), backend="gloo")
    foreign = raised(headrace.NotSupported, lambda: symmetric.rendezvous(differ, gloo))
    assert "is none of Headrace" in foreign
    destroy_of_gloo(gloo)
    memory.barrier()


# --- torch.ops.headrace


def compiled_operators_are_traced_and_have_gradients(rank, size):
    name = torch_ops.register(dist.group.WORLD)
    ops = torch.ops.headrace

    def program(tensor):
        total = ops.all_reduce(tensor * (rank + 1), "sum", name)
        gathered = ops.all_gather_single(total * 2, name)
        scattered = ops.reduce_scatter_single(gathered, "avg", name)
        exchanged = ops.all_to_all_single(scattered, [1] * size, [1] * size, name)
        return ops.broadcast(exchanged + rank, 1, name)

    results = []
    for run in (program, torch.compile(program, backend="aot_eager", fullgraph=True)):
        tensor = torch.ones(size, 3, dtype=torch.float64, requires_grad=True)
        result = run(tensor)
        result.sum().backward()
        results.append((result.detach(), tensor.grad))
    (eager, gradient), (traced, gradient_traced) = results
    same(traced, eager)
    same(gradient_traced, gradient)
    factors = size * (size + 1) / 2  # the sum of those of all ranks
    same(eager, torch.full((size, 3), 2 * factors + 1, dtype=torch.float64))
    # The root has the sum of all ranks' gradients; its row 1 of exchanged, on every rank, is what it got.
    expected = torch.zeros(size, 3, dtype=torch.float64)
    expected[1] = 2 * size**2 * (rank + 1)
    same(gradient, expected)
    torch_ops.unregister(name)


def compiled_operators_pass_torchs_checks(rank, size):
    name = torch_ops.register(dist.group.WORLD)
    tensor = torch.ones(size * 2, 3, requires_grad=True)
    rows = [2] * size
    for operator, arguments in {
        "all_reduce": (tensor, "avg", name),
        "all_gather_single": (tensor, name),
        "reduce_scatter_single": (tensor, "sum", name),
        "all_to_all_single": (tensor, rows, rows, name),
        "broadcast": (tensor, 0, name),
    }.items():
        torch.library.opcheck(getattr(torch.ops.headrace, operator), arguments)
    torch_ops.unregister(name)


def compiled_operators_refuse_what_they_cannot_do(rank, size):
    name = torch_ops.register(dist.group.WORLD)
    assert torch_ops.register(dist.group.WORLD) == name
    ops, tensor = torch.ops.headrace, torch.ones(2 * size + 1, requires_grad=True)
    assert "has no gradient" in raised(headrace.NotSupported, lambda: ops.all_reduce(tensor, "max", name))
    plain = tensor.detach()
    assert "sum, product" in raised(headrace.InvalidArgument, lambda: ops.all_reduce(plain, "mean", name))
    assert "no equal rows" in raised(
        headrace.InvalidArgument, lambda: ops.reduce_scatter_single(plain, "sum", name)
    )
    gloo = dist.new_group(list(range(size)), backend="gloo")
    assert "is none of Headrace" in raised(headrace.InvalidArgument, lambda: torch_ops.register(gloo))
    destroy_of_gloo(gloo)
    torch_ops.unregister(name)
    assert "call register(comm)" in raised(headrace.NotFound, lambda: ops.all_gather_single(plain, name))


def compiled_operators_of_windows_keep_their_order(rank, size):
    window = backend_of(dist.group.WORLD).comm.new_window()
    window.allocate(8, "float64")
    name = torch_ops.register_window(window, "eight numbers")
    ops, other = torch.ops.headrace, 1 - rank

    def meet():
        ops.window_signal(other, 1, "add", name)
        ops.window_wait_signal(other, name)

    def program(tensor):
        ops.window_put(tensor + rank, other, 2, name)
        meet()
        first = ops.window_get(rank, 2, 3, name)
        meet()
        ops.window_put(first * 10, other, 2, name)
        meet()
        second = ops.window_get(other, 2, 3, name)
        meet()
        return first, second

    for run in (program, torch.compile(program, backend="aot_eager", fullgraph=True)):
        first, second = run(torch.arange(3.0, dtype=torch.float64))
        same(first, torch.arange(3.0, dtype=torch.float64) + other)
        same(second, first * 10)
    _check_operators(
        window_put=(torch.ones(2, dtype=torch.float64), rank, 6, name),
        window_get=(rank, 0, 4, name),
        window_signal=(rank, 5, "set", name),
        window_wait_signal=(rank, name, "eq", 5),
    )
    wrong = lambda: ops.window_put(torch.ones(2), other, 0, name)  # noqa: E731
    assert "float32, those of the window are float64" in raised(headrace.InvalidArgument, wrong)
    traced = torch.compile(lambda tensor: ops.window_put(tensor, other, 0, name), backend="aot_eager")
    assert "convert it by tensor.to(torch.float64)" in raised(Exception, lambda: traced(torch.ones(2)))
    assert "another window" in raised(
        headrace.InvalidArgument, lambda: torch_ops.register_window(_with_memory("int8"), name)
    )
    torch_ops.unregister_window(name)
    assert "call register_window" in raised(headrace.NotFound, lambda: ops.window_get(rank, 0, 1, name))
    window.tensor_deregister()


def _with_memory(dtype):
    window = backend_of(dist.group.WORLD).comm.new_window()
    window.allocate(2, dtype)
    return window


def _check_operators(**arguments):
    for operator, given in arguments.items():
        torch.library.opcheck(getattr(torch.ops.headrace, operator), given)


def compiled_operators_add_in_windows(rank, size):
    name = torch_ops.register_window(_with_memory("int64"), "counts")
    add = torch.ops.headrace.window_atomic_add
    traced = torch.compile(lambda value: add(0, 1, 5, name) + value, backend="aot_eager", fullgraph=True)
    got = [add(0, 1, 5, name).item(), traced(torch.tensor(0)).item()]
    assert got[0] < got[1] and set(got) <= {0, 5, 10, 15}
    dist.barrier()
    assert torch.ops.headrace.window_get(0, 1, 1, name).item() == 20
    dist.barrier()
    torch_ops.unregister_window(name)


def compiled_operators_of_batches_are_traced_and_have_gradients(rank, size):
    name = torch_ops.register(dist.group.WORLD)
    exchange, other = torch.ops.headrace.batch_send_recv, 1 - rank

    def program(tensor):
        first, second = exchange(
            [tensor * 2, tensor[:1]], [other, other], [tensor, tensor[:1]], [other, other], name
        )
        return first * (rank + 1) + second

    for run in (program, torch.compile(program, backend="aot_eager", fullgraph=True)):
        tensor = torch.full((3,), rank + 1.0, requires_grad=True)
        result = run(tensor)
        result.sum().backward()
        same(result.detach(), torch.full((3,), 2.0 * (other + 1) * (rank + 1) + other + 1))
        expected = torch.full((3,), 2.0 * (other + 1))  # what the other rank multiplied it by
        expected[0] += 3
        same(tensor.grad, expected)
    sends_alone = torch.compile(
        lambda tensor: exchange([tensor], [other], [], [], name), backend="aot_eager", fullgraph=True
    )
    sends_alone(torch.full((2,), float(rank)))
    received = torch.empty(2)
    dist.recv(received, other)
    assert received.tolist() == [other] * 2
    _check_operators(batch_send_recv=([torch.ones(2)], [other], [torch.ones(2)], [other], name))
    wrong = lambda: exchange([torch.ones(2)], [], [], [], name)  # noqa: E731
    assert "destinations has 0 ranks" in raised(headrace.InvalidArgument, wrong)
    torch_ops.unregister(name)


def compiled_operators_run_in_code_of_inductor(rank, size):
    name = torch_ops.register(dist.group.WORLD)
    window = torch_ops.register_window(_with_memory("float32"), "two numbers")
    ops, other = torch.ops.headrace, 1 - rank

    def program(tensor):
        total = ops.all_reduce(tensor * 2, "sum", name)
        ops.window_put(total[:2] + rank, other, 0, window)
        ops.window_signal(other, 1, "add", window)
        ops.window_wait_signal(other, window)
        (received,) = ops.batch_send_recv([total * rank], [other], [total], [other], name)
        return ops.window_get(rank, 0, 2, window).sum() + received.sin()

    tensor = torch.arange(4.0) + rank
    torch.testing.assert_close(torch.compile(program, fullgraph=True)(tensor), program(tensor))
    torch_ops.unregister_window(window)
    torch_ops.unregister(name)


# --- errors


def wrong_arguments_end_nothing(rank, size):
    group = dist.group.WORLD
    text = raised(RuntimeError, lambda: group.broadcast([of(rank)], _options(size)))
    assert f"rank {rank}" in text and "broadcast" in text
    raised(headrace.InvalidArgument, lambda: group.broadcast([of(rank)], _options(size)))
    raised(ValueError, lambda: group.allreduce([of(rank), of(rank)]))
    meta = torch.empty(3, device="meta")
    text = raised(RuntimeError, lambda: backend_of(group).broadcast([meta], _options(0)))
    assert "takes tensors on the CPU" in text and 'use another backend for others, as "nccl"' in text
    dist.barrier()


def _options(root):
    options = dist.BroadcastOptions()
    options.rootRank = root
    return options


def a_late_rank_is_named(rank, size):
    group = dist.new_group(list(range(size)), timeout=timedelta(seconds=0.3))
    if rank == 0:
        text = raised(dist.DistBackendError, lambda: dist.all_reduce(of(rank), group=group))
        assert "rank 0, all_reduce number" in text and "not come within 300 ms" in text
        raised(headrace.Error, lambda: dist.barrier(group))
    dist.barrier()
    if rank == 1:
        text = raised(RuntimeError, lambda: dist.barrier(group))
        assert "all_reduce" in text and "not come within 300 ms" in text
    if rank < 2:
        work_error = raised(
            RuntimeError, lambda: dist.all_reduce(of(rank), group=group, async_op=True).wait()
        )
        assert "not come within 300 ms" in work_error
    dist.destroy_process_group(group)


def monitored_barrier_names_late_ranks(rank, size):
    group = dist.group.WORLD
    group.monitored_barrier(timedelta(seconds=30))
    group.monitored_barrier(timedelta(seconds=30), wait_all_ranks=True)
    if rank == 0:
        text = raised(RuntimeError, lambda: group.monitored_barrier(timedelta(milliseconds=100)))
        assert text == "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 100 ms"
    dist.barrier()
    text = f"Rank {rank} successfully reached monitoredBarrier"
    if rank != 0:
        assert text in raised(RuntimeError, lambda: group.monitored_barrier(timedelta(milliseconds=100)))
    dist.barrier()
    everyone = ", ".join(str(other) for other in range(1, size))
    all_of_them = lambda: group.monitored_barrier(timedelta(milliseconds=100), wait_all_ranks=True)  # noqa: E731
    if rank == 0:
        assert raised(RuntimeError, all_of_them) == (
            f"[Rank 0]: Ranks {everyone} failed to pass monitoredBarrier in 100 ms"
        )
    dist.barrier()
    if rank != 0:
        assert text in raised(RuntimeError, all_of_them)
    dist.barrier()


def abort_ends_a_group_on_all_ranks(rank, size):
    group = dist.new_group(list(range(size)))
    if rank == 0:
        time.sleep(0.05)
        group.abort()
    else:
        assert "rank 0 aborted" in raised(headrace.Canceled, lambda: dist.barrier(group))
    dist.destroy_process_group(group)


def the_last_rank_is_killed(rank, size):
    memory = _symmetric(rank, size)[1] if compiled.is_for_this_torch() else None
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if memory is not None:
        assert f"rank {size - 1} is gone" in raised(headrace.PeerLost, lambda: memory.wait_signal(size - 1))
    text = raised(dist.DistBackendError, lambda: dist.barrier())
    assert f"rank {size - 1} is gone" in text and f"rank {rank}, barrier number" in text
    raised(headrace.PeerLost, lambda: dist.barrier())
    left = backend_of(dist.group.WORLD).shrink([size - 1])
    mine = of(rank)
    left.allreduce([mine]).wait()
    same(mine, sum_of(size - 1))
    left.shutdown()
    return text
