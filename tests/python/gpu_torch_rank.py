# SPDX-License-Identifier: Apache-2.0
"""One rank of tests/python/test_gpu_torch.py: a torch process group of Headrace whose tensors are on a GPU.
Compares what torch.distributed's functions give with what torch computes on the CPU. Prints a line for each
check, and ends with code 1 at the first difference.

    gpu_torch_rank.py GPU RANK SIZE FILE [CHECK]

CHECK: one of them, or "operators": those of torch.ops.headrace; none: all but these, check_symmetric and
check_to_itself.
"""

import importlib.util
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import headrace
import headrace.distributed
from headrace import torch_ops

COUNTS = [1, 257, 40_003, 1_000_001]
SUM, AVG, MAX = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX


class Rank:
    def __init__(self, device):
        self.device = device
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.turn = 0

    def inputs(self, count, dtype=torch.float32):
        """Every rank's elements: all ranks make the same. Small whole numbers, whose sums are exact."""
        self.turn += 1
        generator = torch.Generator().manual_seed(1000 * count + self.turn)
        return [torch.randint(0, 8, (count,), generator=generator).to(dtype) for _ in range(self.size)]

    def same(self, got, expected, what):
        if not torch.equal(got.cpu(), expected):
            sys.exit(f"rank {self.rank}: {what}: {got} is not {expected}")


def check_reductions(r):
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for count in COUNTS:
            inputs = r.inputs(count, dtype)
            tensor = inputs[r.rank].to(r.device)
            dist.all_reduce(tensor, SUM)
            r.same(tensor, torch.stack(inputs).sum(0).to(dtype), f"all_reduce of {count} {dtype}")
            tensor = inputs[r.rank].to(r.device)
            work = dist.all_reduce(tensor, MAX, async_op=True)
            work.wait()
            r.same(tensor, torch.stack(inputs).amax(0), f"maximum of {count} {dtype}")
    inputs = r.inputs(r.size * 1025)
    part = slice(r.rank * 1025, (r.rank + 1) * 1025)
    output = torch.empty(1025, device=r.device)
    dist.reduce_scatter_tensor(output, inputs[r.rank].to(r.device))
    r.same(output, torch.stack(inputs).sum(0)[part], "reduce_scatter_tensor")
    dist.reduce_scatter(output, list(inputs[r.rank].to(r.device).chunk(r.size)))
    r.same(output, torch.stack(inputs).sum(0)[part], "reduce_scatter")
    for root in range(r.size):
        tensor = inputs[r.rank].to(r.device)
        dist.reduce(tensor, root)
        if r.rank == root:
            r.same(tensor, torch.stack(inputs).sum(0), "reduce")


def check_moves(r):
    for count in COUNTS:
        inputs = r.inputs(count)
        mine = inputs[r.rank].to(r.device)
        whole = torch.empty(r.size * count, device=r.device)
        dist.all_gather_into_tensor(whole, mine)
        r.same(whole, torch.cat(inputs), "all_gather_into_tensor")
        parts = [torch.empty(count, device=r.device) for _ in range(r.size)]
        dist.all_gather(parts, mine)
        r.same(torch.cat(parts), torch.cat(inputs), "all_gather")
        rows = r.inputs(r.size * count)
        part = slice(r.rank * count, (r.rank + 1) * count)
        exchanged = torch.empty(r.size * count, device=r.device)
        dist.all_to_all_single(exchanged, rows[r.rank].to(r.device))
        r.same(exchanged, torch.cat([row[part] for row in rows]), "all_to_all_single")
    for root in range(r.size):
        inputs = r.inputs(4099)
        tensor = inputs[r.rank].to(r.device)
        dist.broadcast(tensor, root)
        r.same(tensor, inputs[root], "broadcast")
        outputs = [torch.empty(4099, device=r.device) for _ in range(r.size)] if r.rank == root else None
        dist.gather(inputs[r.rank].to(r.device), outputs, root)
        if outputs:
            r.same(torch.cat(outputs), torch.cat(inputs), "gather")
        output = torch.empty(4099, device=r.device)
        given = [tensor.to(r.device) for tensor in inputs] if r.rank == root else None
        dist.scatter(output, given, root)
        r.same(output, inputs[r.rank], "scatter")


def check_uneven(r):
    """Splits that differ, and tensors of other lengths on each rank."""
    rows = [[(rank + to) % 3 for to in range(r.size)] for rank in range(r.size)]
    inputs = [torch.arange(sum(rows[rank]) * 5.0).reshape(-1, 5) + 100 * rank for rank in range(r.size)]
    received = [rows[rank][r.rank] for rank in range(r.size)]
    output = torch.empty(sum(received), 5, device=r.device)
    dist.all_to_all_single(output, inputs[r.rank].to(r.device), received, rows[r.rank])
    r.same(output, torch.cat([inputs[rank].split(rows[rank])[r.rank] for rank in range(r.size)]), "splits")


def check_gaps(r):
    """Tensors with gaps are copied, and the copies are in the order of the stream."""
    inputs = r.inputs(2 * 3001)
    tensor = inputs[r.rank].to(r.device).reshape(-1, 2)
    for _ in range(50):
        tensor += 1
    work = dist.all_reduce(tensor[:, 0], SUM, async_op=True)
    work.wait()
    tensor *= 2
    expected = inputs[r.rank].reshape(-1, 2) + 50
    expected[:, 0] = torch.stack(inputs).reshape(r.size, -1, 2)[:, :, 0].sum(0) + 50 * r.size
    r.same(tensor, expected * 2, "a sum of a tensor with gaps")


def check_streams(r):
    """An operation comes after the stream's earlier work, and its result before the later work."""
    count = 1 << 20
    with torch.cuda.stream(torch.cuda.Stream(r.device)):
        for is_async in (False, True):
            tensor = torch.zeros(count, device=r.device)
            for _ in range(100):
                tensor += r.rank + 1
            work = dist.all_reduce(tensor, SUM, async_op=is_async)
            if is_async:
                work.wait()
            tensor *= 2
            expected = 200.0 * r.size * (r.size + 1) / 2
            r.same(tensor, torch.full((count,), expected), f"stream, async_op={is_async}")


def check_futures(r):
    tensor = torch.full((100_003,), r.rank + 1.0, device=r.device)
    future = dist.all_reduce(tensor, SUM, async_op=True).get_future().then(lambda f: f.value()[0] / r.size)
    r.same(future.wait(), torch.full((100_003,), (r.size + 1) / 2), "a future")


def check_graph(r):
    """The graph is replayed with other elements."""
    tensor, source = torch.empty(40_003, device=r.device), torch.empty(40_003, device=r.device)
    graph = torch.cuda.CUDAGraph()
    dist.barrier()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        tensor.copy_(source)
        dist.all_reduce(tensor)
        tensor += 1
    for _ in range(5):
        inputs = r.inputs(40_003)
        source.copy_(inputs[r.rank])
        torch.cuda.synchronize()
        graph.replay()
        r.same(tensor, torch.stack(inputs).sum(0) + 1, "a replay")
    dist.barrier()
    del graph


def check_messages(r):
    after, before = (r.rank + 1) % r.size, (r.rank - 1) % r.size
    mine = torch.full((500_001,), r.rank + 1.0, device=r.device)
    other = torch.empty_like(mine)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, other, before)]
    ):
        work.wait()
    r.same(other, torch.full((500_001,), before + 1.0), "messages in a ring")
    if r.rank == 0:
        dist.send(mine, 1)
    elif r.rank == 1:
        dist.recv(other, 0)
        r.same(other, torch.full((500_001,), 1.0), "a message")


def check_to_itself(r):
    """Beside messages to others, and on two streams."""
    mine, got = torch.full((1001,), r.rank + 1.0, device=r.device), torch.zeros(2, 1001, device=r.device)
    pairs = [dist.P2POp(dist.irecv, got[0], r.rank), dist.P2POp(dist.isend, mine, r.rank)]
    after, before = (r.rank + 1) % r.size, (r.rank - 1) % r.size
    pairs += [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, got[1], before)]
    for work in dist.batch_isend_irecv(pairs):
        work.wait()
    mine *= 2
    r.same(got[0], torch.full((1001,), r.rank + 1.0), "a message to itself")
    r.same(got[1], torch.full((1001,), before + 1.0), "a message beside it")
    with torch.cuda.stream(torch.cuda.Stream(r.device)):
        for _ in range(100):
            mine += 1
        sent = dist.isend(mine, r.rank)
    with torch.cuda.stream(torch.cuda.Stream(r.device)):
        dist.irecv(got[0], r.rank).wait()
        r.same(got[0], torch.full((1001,), 2 * r.rank + 102.0), "a message from another stream")
    sent.wait()


def check_coalesced(r):
    inputs = [r.inputs(1000 + 7 * index) for index in range(5)]
    tensors = [each[r.rank].to(r.device) for each in inputs]
    with dist._coalescing_manager(device=torch.device(r.device), async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor, each in zip(tensors, inputs, strict=True):
        r.same(tensor, torch.stack(each).sum(0), "coalesced sums")


def check_groups(r):
    """Pairs of ranks; tensors of CPU and GPU in one group; objects."""
    pairs = [dist.new_group([first, first + 1]) for first in range(0, r.size, 2)]
    tensor = torch.full((1000,), r.rank + 1.0, device=r.device)
    dist.all_reduce(tensor, group=pairs[r.rank // 2])
    first = r.rank // 2 * 2
    r.same(tensor, torch.full((1000,), 2.0 * first + 3), "the sum of a pair")
    tensor = torch.full((10,), r.rank + 1.0)
    dist.all_reduce(tensor)
    r.same(tensor, torch.full((10,), r.size * (r.size + 1) / 2), "a sum on the CPU")
    objects = [None] * r.size
    dist.all_gather_object(objects, {"rank": r.rank})
    if objects != [{"rank": rank} for rank in range(r.size)]:
        sys.exit(f"objects: {objects}")


def check_registered(r):
    comm = headrace.distributed.comm_of(device=r.device)
    inputs = r.inputs(1 << 20)
    tensor = inputs[r.rank].to(r.device)
    comm.tensor_register(tensor)
    dist.all_reduce(tensor)
    r.same(tensor, torch.stack(inputs).sum(0), "the sum of a registered tensor")
    torch.cuda.synchronize()
    comm.tensor_deregister(tensor)


def model_of(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))


def trained(model, batches, device):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        model(batch.to(device)).square().mean().backward()
        optimizer.step()
    return model


def check_training(r):
    """DDP and FSDP2 on all ranks give the parameters of one process with the whole batch."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    batches = [torch.randn(8 * r.size, 64) for _ in range(3)]
    mine = [batch[8 * r.rank : 8 * (r.rank + 1)] for batch in batches]
    expected = trained(model_of(0).to(r.device), batches, r.device)
    ddp = torch.nn.parallel.DistributedDataParallel(
        model_of(0).to(r.device), device_ids=[torch.device(r.device).index]
    )
    trained(ddp, mine, r.device)
    sharded = model_of(0).to(r.device)
    mesh = dist.device_mesh.init_device_mesh("cuda", (r.size,))
    fully_shard(sharded, mesh=mesh)
    trained(sharded, mine, r.device)
    for want, of_ddp, of_shards in zip(
        expected.parameters(), ddp.module.parameters(), sharded.parameters(), strict=True
    ):
        torch.testing.assert_close(of_ddp, want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(of_shards.full_tensor(), want, rtol=1e-4, atol=1e-5)


def check_symmetric(r):
    """torch's symmetric tensors on GPUs, whose ranks meet in a group of Headrace."""
    import torch.distributed._symmetric_memory as symmetric

    after, before, count = (r.rank + 1) % r.size, (r.rank - 1) % r.size, 1 << 20
    tensor = symmetric.empty(count, dtype=torch.float32, device=r.device)
    memory = symmetric.rendezvous(tensor, dist.group.WORLD)
    source = torch.full((count,), r.rank + 1.0, device=r.device)
    memory.get_buffer(after, (count,), torch.float32).copy_(source)
    memory.put_signal(after)
    memory.wait_signal(before)
    r.same(tensor, torch.full((count,), before + 1.0), "what the rank before has put")
    memory.barrier()
    total = torch.full((count,), r.size * (r.size + 1) / 2)
    tensor.copy_(source)
    r.same(torch.ops.symm_mem.one_shot_all_reduce(tensor, "sum", dist.group.WORLD.group_name), total, "sum")
    # Headrace takes the same memory.
    comm = headrace.distributed.comm_of(device=r.device)
    memory.barrier()
    torch.cuda.synchronize()
    comm.tensor_register(tensor)
    dist.all_reduce(tensor)
    r.same(tensor, total, "the sum of a registered symmetric tensor")
    torch.cuda.synchronize()
    comm.tensor_deregister(tensor)
    window = comm.new_window(tensor)
    window.put(source[:100], after, 7)
    window.signal(after)
    window.wait_signal(before)
    r.same(tensor[7:107], torch.full((100,), before + 1.0), "a window of a symmetric tensor")
    comm.barrier()
    torch.cuda.synchronize()
    window.tensor_deregister()


def program_of(name, size):
    """The same on all ranks, as compilers need it: what differs are tensors."""
    ops = torch.ops.headrace

    def program(tensor, factor, addend):
        total = ops.all_reduce(tensor * factor, "sum", name)
        gathered = ops.all_gather_single(total * 2, name)
        scattered = ops.reduce_scatter_single(gathered, "avg", name)
        exchanged = ops.all_to_all_single(scattered, [1] * size, [1] * size, name)
        return ops.broadcast(exchanged + addend, 1, name)

    return program


def check_operators(r):
    """torch.ops.headrace on a stream of its own, with gradients: called, traced, and compiled by inductor."""
    name = torch_ops.register(dist.group.WORLD)
    program = program_of(name, r.size)
    factor, addend = (torch.full((), float(value), device=r.device) for value in (r.rank + 1, r.rank))
    factors = r.size * (r.size + 1) / 2  # the sum of those of all ranks
    gradient = torch.zeros(r.size, 1000)
    gradient[1] = 2 * r.size**2 * (r.rank + 1)
    runs = {"called": program, "traced": torch.compile(program, backend="aot_eager", fullgraph=True)}
    if importlib.util.find_spec("triton") and r.size == 2:  # it takes long
        runs["compiled"] = torch.compile(program, fullgraph=True)
    for how, run in runs.items():
        with torch.cuda.stream(torch.cuda.Stream(r.device)):
            tensor = torch.zeros(r.size, 1000, device=r.device)
            for _ in range(100):  # work that the operators come after
                tensor += 0.01
            tensor = tensor.round().requires_grad_()
            result = run(tensor, factor, addend)
            result.sum().backward()
            r.same(result.detach(), torch.full((r.size, 1000), 2 * factors + 1), f"operators, {how}")
            r.same(tensor.grad, gradient, f"gradients of operators, {how}")
    torch_ops.unregister(name)


def check_operators_of_messages(r):
    name = torch_ops.register(dist.group.WORLD)
    after, before = (r.rank + 1) % r.size, (r.rank - 1) % r.size
    mine = torch.full((1001,), r.rank + 1.0, device=r.device, requires_grad=True)
    (got,) = torch.ops.headrace.batch_send_recv([mine], [after], [mine.detach()], [before], name)
    (got * (r.rank + 10)).sum().backward()
    r.same(got.detach(), torch.full((1001,), before + 1.0), "a message of an operator")
    r.same(mine.grad, torch.full((1001,), after + 10.0), "the gradient of a message")
    torch_ops.unregister(name)


def check_operators_of_windows(r):
    """Traced: puts, signals and waits between neighbours, in their order."""
    ops, after, before = torch.ops.headrace, (r.rank + 1) % r.size, (r.rank - 1) % r.size
    memory = torch.zeros(1000, device=r.device)
    torch.cuda.synchronize()
    window = headrace.distributed.comm_of(device=r.device).new_window(memory)
    name = torch_ops.register_window(window, "numbers on a GPU")

    def program(tensor):
        ops.window_put(tensor + r.rank, after, 2, name)
        ops.window_signal(after, 1, "add", name)
        ops.window_wait_signal(before, name)
        got = ops.window_get(r.rank, 2, 500, name)
        ops.window_signal(before, 1, "add", name)
        ops.window_wait_signal(after, name)
        return got * 2

    for run in (program, torch.compile(program, backend="aot_eager", fullgraph=True)):
        with torch.cuda.stream(torch.cuda.Stream(r.device)):
            values = torch.arange(500.0, device=r.device)
            r.same(run(values), (torch.arange(500.0) + before) * 2, "what a window has got")
    dist.barrier()
    torch.cuda.synchronize()
    torch_ops.unregister_window(name)
    window.tensor_deregister()


def check_refusals_of_operators(r):
    alone = headrace.new_comm(rank=0, size=1, name="on the CPU", meeting=f"memory:{r.rank}")
    name = torch_ops.register(alone)
    try:
        torch.ops.headrace.all_reduce(torch.ones(2, device=r.device), "sum", name)
        sys.exit("a tensor on a GPU is taken by a communicator of the CPU")
    except headrace.NotSupported as error:
        if "open a communicator by new_comm(" not in str(error):
            sys.exit(f"it says: {error}")
    torch_ops.unregister(name)
    alone.finalize()


CHECKS = [
    check_reductions,
    check_moves,
    check_uneven,
    check_gaps,
    check_streams,
    check_futures,
    check_graph,
    check_messages,
    check_coalesced,
    check_groups,
    check_registered,
    check_training,
]
BY_NAME = [check_symmetric, check_to_itself]
OPERATORS = [
    check_operators,
    check_operators_of_messages,
    check_operators_of_windows,
    check_refusals_of_operators,
]


def main(gpu, rank, size, file, only=None):
    device = f"cuda:{gpu}"
    torch.cuda.set_device(int(gpu))
    headrace.distributed.register("python")
    store = dist.FileStore(file, int(size))
    dist.init_process_group(
        "headrace", store=store, rank=int(rank), world_size=int(size), timeout=timedelta(seconds=60)
    )
    by_name = {check.__name__: [check] for check in [*CHECKS, *OPERATORS, *BY_NAME]}
    parts = {None: CHECKS, "operators": OPERATORS}
    for check in {**parts, **by_name}[only]:
        check(Rank(device))
        torch.cuda.synchronize()
        print(f"{check.__name__}: right", flush=True)
    dist.destroy_process_group()


main(*sys.argv[1:])
