# SPDX-License-Identifier: Apache-2.0
"""One rank of tests/python/test_gpu_comm.py: opens a communicator on a GPU and compares what its operations
give with torch's own on the CPU. Prints a line for each check, and ends with code 1 at the first difference.

    gpu_comm_rank.py BACKEND GPU RANK SIZE FOLDER [CHECK]

CHECK: one of them; none: all but check_billions, which needs 25 GB of GPU memory for each rank, and
check_device_window, check_triton and check_fused, which need cupy with nvcc, and Triton.
"""

import os
import sys

import torch

import headrace
import headrace.torch_tools

SUM, AVG, MAX = headrace.ReduceOp.SUM, headrace.ReduceOp.AVG, headrace.ReduceOp.MAX
TIMEOUT = 60  # seconds
# Elements: fewer than a packet, odd, and as long as chunks.
COUNTS = [1, 3, 257, 40_003, 1_000_001]


class Rank:
    def __init__(self, comm, device):
        self.comm, self.device = comm, device
        self.rank, self.size = comm.get_rank(), comm.get_size()
        self.turn = 0

    def inputs(self, count, dtype):
        """Every rank's elements: all ranks make the same. Small whole numbers, whose sums are exact."""
        self.turn += 1
        generator = torch.Generator().manual_seed(1000 * count + self.turn)
        return [torch.randint(0, 8, (count,), generator=generator).to(dtype) for _ in range(self.size)]

    def on_gpu(self, tensor):
        return tensor.to(self.device)

    def same(self, got, expected, what):
        torch.cuda.synchronize()
        if not torch.equal(got.cpu(), expected):
            first = int((got.cpu() != expected).nonzero()[0])
            sys.exit(f"rank {self.rank}: {what}: element {first} is {got[first]}, not {expected[first]}")


def check_all_reduce(r):
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        for count in COUNTS:
            inputs = r.inputs(count, dtype)
            tensor = r.on_gpu(inputs[r.rank])
            r.comm.all_reduce(tensor, SUM)
            r.same(tensor, torch.stack(inputs).to(torch.float64).sum(0).to(dtype), f"sum of {count} {dtype}")
            tensor, output = r.on_gpu(inputs[r.rank]), torch.empty(count, dtype=dtype, device=r.device)
            r.comm.all_reduce(tensor, MAX, output=output)
            r.same(output, torch.stack(inputs).amax(0), f"maximum of {count} {dtype}")


def check_parts(r):
    for count in COUNTS:
        inputs = r.inputs(count, torch.float32)
        mine = r.on_gpu(inputs[r.rank])
        whole = torch.empty(r.size * count, device=r.device)
        r.comm.all_gather_single(whole, mine)
        r.same(whole, torch.cat(inputs), f"all_gather_single of {count}")
        parts = [torch.empty(count, device=r.device) for _ in range(r.size)]
        r.comm.all_gather(parts, mine)
        r.same(torch.cat(parts), torch.cat(inputs), f"all_gather of {count}")

        rows = r.inputs(r.size * count, torch.float32)
        output = torch.empty(count, device=r.device)
        r.comm.reduce_scatter_single(output, r.on_gpu(rows[r.rank]), SUM)
        part = slice(r.rank * count, (r.rank + 1) * count)
        r.same(output, torch.stack(rows).sum(0)[part], f"reduce_scatter_single of {count}")
        exchanged = torch.empty(r.size * count, device=r.device)
        r.comm.all_to_all_single(exchanged, r.on_gpu(rows[r.rank]))
        r.same(exchanged, torch.cat([row[part] for row in rows]), f"all_to_all_single of {count}")


def check_roots(r):
    for root in range(r.size):
        inputs = r.inputs(4099, torch.float32)
        tensor = r.on_gpu(inputs[r.rank])
        r.comm.broadcast(tensor, root)
        r.same(tensor, inputs[root], f"broadcast from {root}")
        tensor = r.on_gpu(inputs[r.rank])
        r.comm.reduce(tensor, root, SUM)
        if r.rank == root:
            r.same(tensor, torch.stack(inputs).sum(0), f"reduce to {root}")
        output = torch.empty(r.size * 4099, device=r.device) if r.rank == root else None
        r.comm.gather_single(output, r.on_gpu(inputs[r.rank]), root)
        if output is not None:
            r.same(output, torch.cat(inputs), f"gather to {root}")
        r.comm.barrier()


def check_messages(r):
    """From each rank to the next one and back: alone, and a batch whose first are the receives."""
    after, before = (r.rank + 1) % r.size, (r.rank - 1) % r.size
    for count in COUNTS:
        inputs = r.inputs(count, torch.float32)
        passed = r.on_gpu(inputs[r.rank])
        if r.rank != 0:
            r.comm.recv(passed, before, False)
        if after != 0:
            r.comm.send(passed, after, False)
        r.same(passed, inputs[0], f"message of {count}, passed on")
        mine = r.on_gpu(inputs[r.rank])
        got = [torch.empty(count, device=r.device) for _ in range(4)]
        batch = r.comm.batch_op_create()
        for i, peer in enumerate((before, after, before, after)):
            batch.recv(got[i], peer)
        for peer in (before, after, before, after):
            batch.send(mine, peer)
        batch.issue(False)
        for i, peer in enumerate((before, after, before, after)):
            r.same(got[i], inputs[peer], f"message {i} of a batch of {count}")


def check_streams(r):
    """An operation sees what was queued on its stream, and its result comes before what is queued later."""
    stream = torch.cuda.Stream(r.device)
    count = 1 << 20
    with torch.cuda.stream(stream):
        for is_async in (False, True):
            tensor = torch.zeros(count, device=r.device)
            for _ in range(100):
                tensor += r.rank + 1
            work = r.comm.all_reduce(tensor, SUM, async_op=is_async, stream=stream)
            if is_async:
                work.wait_on(stream)
            tensor *= 2
            expected = 200.0 * r.size * (r.size + 1) / 2
            r.same(tensor, torch.full((count,), expected), f"stream, async_op={is_async}")


def check_graph(r):
    """The graph is replayed with other elements, in and behind work of torch's own."""
    stream = torch.cuda.Stream(r.device)
    for count in (257, 40_003, 1_000_001):
        tensor = torch.empty(count, device=r.device)
        source = torch.empty(count, device=r.device)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            tensor.copy_(source)
            for _ in range(3):
                r.comm.all_reduce(tensor, AVG, stream=stream)
            tensor += 1
        for _ in range(5):
            # All averages after the first are the same, and exact: the elements are multiples of the size.
            inputs = [values * r.size for values in r.inputs(count, torch.float32)]
            source.copy_(inputs[r.rank])
            torch.cuda.synchronize()
            graph.replay()
            r.same(tensor, torch.stack(inputs).sum(0) / r.size + 1, f"replay of {count}")
        r.comm.barrier()
        torch.cuda.synchronize()
        del graph


def check_split(r):
    """Pairs of ranks, and the whole after them."""
    group = [r.rank // 2 * 2, r.rank // 2 * 2 + 1]
    with r.comm.split(group, f"pair of {group[0]}") as pair:
        tensor = torch.full((1000,), r.rank + 1.0, device=r.device)
        pair.all_reduce(tensor, SUM)
        r.same(tensor, torch.full((1000,), sum(group) + 2.0), "sum of the split")
        pair.finalize()
    r.comm.barrier()


def check_registered(r):
    """Tensors of torch's allocator, whole and in part."""
    count = (4 << 20) + 64
    tensor = torch.empty(count, device=r.device)
    whole = torch.empty(r.size * count, device=r.device)
    r.comm.tensor_register(tensor)
    r.comm.tensor_register(whole)
    for part in (slice(0, count), slice(64, 64 + (1 << 20))):
        inputs = r.inputs(count, torch.float32)
        tensor.copy_(inputs[r.rank])
        r.comm.all_reduce(tensor[part], SUM)
        expected = inputs[r.rank].clone()
        expected[part] = torch.stack(inputs).sum(0)[part]
        r.same(tensor, expected, "sum of a registered tensor")
    inputs = r.inputs(count, torch.float32)
    tensor.copy_(inputs[r.rank])
    r.comm.all_gather_single(whole, tensor)
    r.same(whole, torch.cat(inputs), "registered tensors, gathered")
    r.comm.tensor_deregister(tensor)
    r.comm.tensor_deregister(whole)


def check_pool(r):
    """Tensors of a pool of torch with Headrace's allocator."""
    pool = torch.cuda.MemPool(headrace.torch_tools.mem_allocator())
    with torch.cuda.use_mem_pool(pool):
        tensors = [torch.empty(count, device=r.device) for count in (1 << 20, 40_000, (3 << 20) + 5)]
    for tensor in tensors:
        r.comm.tensor_register(tensor)
        inputs = r.inputs(tensor.numel(), torch.float32)
        tensor.copy_(inputs[r.rank])
        r.comm.all_reduce(tensor, SUM)
        r.same(tensor, torch.stack(inputs).sum(0), f"sum of {tensor.numel()} elements of a pool")
    for tensor in tensors:
        r.comm.tensor_deregister(tensor)
    del tensor, tensors
    r.comm.barrier()
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    del pool
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < before + (16 << 20):
        sys.exit(f"rank {r.rank}: the pool's memory was not given back")


def check_billions(r):
    """More elements than 32 bits count, also in each part. Sums of bytes wrap around."""
    count = 5_000_000_000 + 1018 * r.size
    tensor = torch.empty(count, dtype=torch.uint8, device=r.device)
    step = 1 << 28

    def pieces():
        for first in range(0, count, step):
            yield first, torch.arange(first, min(first + step, count), device=r.device)

    for first, index in pieces():
        tensor[first : first + step] = (index * 7 + r.rank) % 251
    r.comm.all_reduce(tensor, SUM)
    for first, index in pieces():
        expected = sum(((index * 7 + rank) % 251).to(torch.uint8) for rank in range(r.size))
        if not torch.equal(tensor[first : first + step], expected):
            sys.exit(f"rank {r.rank}: a sum of {count} elements is wrong from {first} on")
        tensor[first : first + step] = (index * 7 + r.rank) % 251
    exchanged = torch.empty_like(tensor)
    r.comm.all_to_all_single(exchanged, tensor)
    part = count // r.size
    for first, index in pieces():
        source = index // part
        expected = ((r.rank * part + index % part) * 7 + source) % 251
        if not torch.equal(exchanged[first : first + step], expected.to(torch.uint8)):
            sys.exit(f"rank {r.rank}: an exchange of {count} elements is wrong from {first} on")


def check_windows(r):
    """Each rank puts to the next one on a stream of its own, and signals; kernels read mapped memory."""
    following, before = (r.rank + 1) % r.size, (r.rank - 1) % r.size
    stream = torch.cuda.Stream(r.device)
    for count in COUNTS:
        inputs = r.inputs(count, torch.float32)
        mine = torch.zeros(count + 5, device=r.device)
        torch.cuda.synchronize()
        window = r.comm.new_window(mine)
        for is_async in (False, True):
            with torch.cuda.stream(stream):
                sent = r.on_gpu(inputs[r.rank]) + 1
                window.put(sent, following, 5, async_op=is_async, stream=stream)
                window.signal(following, async_op=is_async, stream=stream)
            if window.wait_signal(before) != 1:
                sys.exit(f"rank {r.rank}: the signal is not 1")
            r.same(mine[5:], inputs[before] + 1, f"put of {count}")
            r.same(mine[:5], torch.zeros(5), f"before a put of {count}")
            window.flush()
            r.comm.barrier()
            mine.zero_()
            torch.cuda.synchronize()
            r.comm.barrier()
            torch.cuda.synchronize()
        mine[0] = r.rank
        torch.cuda.synchronize()
        r.comm.barrier()
        got = torch.empty(1, device=r.device)
        window.get(got, following, 0)
        r.same(got, torch.tensor([float(following)]), "get")
        mapped = torch.from_dlpack(window.map_remote_tensor(following))
        r.same(mapped[:1] + 1, torch.tensor([following + 1.0]), "mapped memory")
        r.comm.barrier()
        torch.cuda.synchronize()
        del mapped
        window.tensor_deregister()
    numbers = torch.zeros(3, dtype=torch.int64, device=r.device)
    torch.cuda.synchronize()
    window = r.comm.new_window(numbers)
    for _ in range(10):
        window.atomic_add(0, 1, r.rank + 1)
    r.comm.barrier()
    if r.rank == 0:
        r.same(numbers, torch.tensor([0, 10 * r.size * (r.size + 1) // 2, 0]), "sum of atomic_add")
    try:
        window.wait_signal(before, timeout=0.05)
        sys.exit(f"rank {r.rank}: a wait in vain has ended")
    except headrace.TimedOut as error:
        sys.stdout.write(f"a wait in vain: {error}\n")
    r.comm.barrier()
    window.tensor_deregister()


RING = r"""
#include <headrace/device/window.cuh>
using namespace headrace::device;

// Counters of the rank, from all blocks of the grid to its first one, at each scope.
template <Scope scope>
__device__ void count(const headrace_device_window_v1* handle, unsigned number, unsigned* failed) {
  const Window window(handle);
  const unsigned scopes = blockDim.x / detail::lanes<scope>() * gridDim.x;
  window.add_counter<scope>(number, 1);
  if (blockIdx.x != 0) return;
  if (!window.wait_counter<scope>(number, Comparison::ge, scopes)) *failed = 5;
  if (window.read_counter(number) != scopes) *failed = 6;
  __syncthreads();
  if (threadIdx.x == 0) window.reset_counter(number);
  __syncthreads();
  if (window.read_counter(number) != 0) *failed = 7;
}
extern "C" __global__ void counters(const headrace_device_window_v1* handle, unsigned* failed) {
  count<Scope::block>(handle, 0, failed);
  count<Scope::warp>(handle, 1, failed);
  count<Scope::thread>(handle, 15, failed);
}

template <Scope scope>
__device__ void ring(const headrace_device_window_v1* handle, const float* from, float* sums, int count,
                     int rounds, unsigned* failed) {
  const Window window(handle);
  const unsigned following = (window.rank() + 1) % window.size();
  const unsigned before = (window.rank() + window.size() - 1) % window.size();
  const unsigned lane = detail::lane<scope>(), lanes = detail::lanes<scope>();
  for (int round = 0; round < rounds; ++round) {
    if (!window.put<scope>(following, 4, from + round * count, 4ull * count)) { *failed = 1; return; }
    window.signal<scope>(following, 3, 1);
    if (!window.wait_signal<scope>(before, 3, Comparison::ge, round + 1)) { *failed = 2; return; }
    const float* const mine = static_cast<const float*>(window.peer_address(window.rank())) + 1;
    for (int i = lane; i < count; i += lanes) sums[i] += mine[i];
    if (!window.barrier<scope>(5)) { *failed = 3; return; }
  }
  if (window.put<scope>(following, 8, from, 4ull * count)) *failed = 4;  // it does not fit
}

extern "C" __global__ void by_block(const headrace_device_window_v1* handle, const float* from, float* sums,
                                    int count, int rounds, unsigned* failed) {
  ring<Scope::block>(handle, from, sums, count, rounds, failed);
}
extern "C" __global__ void by_warp(const headrace_device_window_v1* handle, const float* from, float* sums,
                                    int count, int rounds, unsigned* failed) {
  ring<Scope::warp>(handle, from, sums, count, rounds, failed);
}
extern "C" __global__ void by_thread(const headrace_device_window_v1* handle, const float* from, float* sums,
                                    int count, int rounds, unsigned* failed) {
  ring<Scope::thread>(handle, from, sums, count, rounds, failed);
}
"""


def check_device_window(r):
    """Kernels put to the next rank, signal, wait and meet, at each scope; cupy compiles them with nvcc."""
    import cupy
    import numpy

    header = os.path.join(os.path.dirname(__file__), "..", "..", "include")
    module = cupy.RawModule(code=RING, backend="nvcc", options=("-std=c++17", f"-I{os.path.abspath(header)}"))
    rounds = 20
    for name, threads, count in (("by_block", 256, 4099), ("by_warp", 32, 515), ("by_thread", 1, 33)):
        inputs = r.inputs(rounds * count, torch.float32)
        mine, sums = torch.zeros(count + 1, device=r.device), torch.zeros(count, device=r.device)
        source, failed = r.on_gpu(inputs[r.rank]), torch.zeros(1, dtype=torch.int32, device=r.device)
        window = r.comm.new_window(mine)
        handle = numpy.uint64(window.get_device_window())
        pointers = [numpy.uint64(tensor.data_ptr()) for tensor in (source, sums, failed)]
        torch.cuda.synchronize()
        module.get_function(name)(
            (1,), (threads,), (handle, *pointers[:2], numpy.int32(count), numpy.int32(rounds), pointers[2])
        )
        torch.cuda.synchronize()
        r.same(failed, torch.zeros(1, dtype=torch.int32), f"what {name} found")
        r.same(sums, inputs[(r.rank - 1) % r.size].reshape(rounds, count).sum(0), name)
        module.get_function("counters")((4,), (64,), (handle, pointers[2]))
        torch.cuda.synchronize()
        r.same(failed, torch.zeros(1, dtype=torch.int32), "what the counters found")
        r.comm.barrier()
        torch.cuda.synchronize()
        window.tensor_deregister()


def check_triton(r):
    """The same by kernels of Triton, which also store to the memory of the next rank, and count programs."""
    import headrace.triton
    import triton_kernels

    libraries = headrace.triton.extern_libs()
    rounds = 20
    for scope, warps, count in (("block", 8, 4099), ("warp", 4, 515), ("thread", 1, 33), ("block", 1, 1000)):
        inputs = r.inputs(rounds * count, torch.float32)
        mine, sums = torch.zeros(count + 1, device=r.device), torch.zeros(count, device=r.device)
        source, found = r.on_gpu(inputs[r.rank]), torch.zeros(32, dtype=torch.int32, device=r.device)
        window = r.comm.new_window(mine)
        handle = window.get_device_window()
        more = {"num_warps": warps, "extern_libs": libraries}
        # Compiled before any rank waits: that takes a while.
        triton_kernels.ring.warmup(handle, source, sums, found, count, rounds, scope, 256, grid=(1,), **more)
        torch.cuda.synchronize()
        r.comm.barrier()
        triton_kernels.ring[(1,)](handle, source, sums, found, count, rounds, scope, 256, **more)
        r.same(found, torch.zeros(32, dtype=torch.int32), f"what the ring found, by {scope}")
        r.same(
            sums, inputs[(r.rank - 1) % r.size].reshape(rounds, count).sum(0), f"ring of Triton by {scope}"
        )
        triton_kernels.count_programs[(24,)](handle, found, COUNTER=7, **more)
        expected = torch.cat([torch.zeros(1), torch.arange(24), torch.zeros(7)]).to(torch.int32)
        r.same(found, expected, "what the programs counted")
        r.comm.barrier()
        torch.cuda.synchronize()
        window.tensor_deregister()
    tile, found = torch.zeros(128, dtype=torch.int32, device=r.device), torch.zeros_like(found)
    torch.cuda.synchronize()
    window = r.comm.new_window(tile)
    triton_kernels.store_to_peer[(1,)](window.get_device_window(), 100, found, 128, extern_libs=libraries)
    r.same(found, torch.zeros(32, dtype=torch.int32), "what was stored in the memory of the next rank")
    r.comm.barrier()
    torch.cuda.synchronize()
    window.tensor_deregister()


def check_fused(r):
    """headrace.fused beside what it is to compute, with more rows than programs, and in a graph."""
    from headrace.fused import FusedAllReduce, reference, register, unregister

    for dtype, columns, programs in (
        (torch.bfloat16, 1000, 8),
        (torch.float16, 7168, 32),
        (torch.float32, 64, 3),
    ):
        fused = FusedAllReduce(r.comm, columns, dtype, programs=programs)
        weight, scale = torch.linspace(0.5, 2, columns, device=r.device), torch.tensor(0.125, device=r.device)

        def same(got, residual, rows, inputs, before, with_scale, fused=fused, weight=weight, scale=scale):
            fused.check()
            total = torch.stack(inputs).sum(0).reshape(rows, -1).to(got.device)
            if before is not None:
                before = before.clone()
            expected = reference(total, weight, 1e-5, before, scale if with_scale else None)
            if before is not None:
                r.same(residual, before.cpu(), f"residual of {rows} rows of {weight.numel()} {total.dtype}")
            # A step of the type apart: the sum of squares is added up in another order.
            step = 0.13 if with_scale else {torch.float32: 1e-5}.get(total.dtype, 1e-2)
            torch.testing.assert_close(got.float(), expected.float(), rtol=step, atol=step / 10)

        for rows in (1, 5, programs, 3 * programs + 1):
            for with_residual, with_scale in ((False, False), (True, False), (True, True)):
                inputs = r.inputs(rows * columns, dtype)
                mine = r.on_gpu(inputs[r.rank]).reshape(rows, columns)
                before = torch.full_like(mine, 3) if with_residual else None
                residual = before.clone() if with_residual else None
                more = {"residual": residual, "scale": scale if with_scale else None}
                same(fused.rms_norm(mine, weight, 1e-5, **more), residual, rows, inputs, before, with_scale)
        source = torch.empty(5, columns, dtype=dtype, device=r.device)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            first = fused.rms_norm(source, weight, 1e-5)
            second = fused.rms_norm(source * 2, weight, 1e-5)
        for _ in range(5):
            inputs = r.inputs(5 * columns, dtype)
            source.copy_(inputs[r.rank].reshape(5, columns))
            graph.replay()
            same(first, None, 5, inputs, None, False)
            same(second, None, 5, [values * 2 for values in inputs], None, False)

        def program(*given):
            return torch.ops.headrace.all_reduce_rms_norm(*given)

        compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
        name, residual = register(fused, f"{columns} columns"), torch.full_like(source, 2)
        same(
            compiled(source, weight, 1e-5, residual, None, name), residual, 5, inputs, residual * 0 + 2, False
        )
        unregister(name)
        r.comm.barrier()
        torch.cuda.synchronize()
        del graph
        fused.close()


def check_errors(r):
    """What does not fit is refused on this rank, and the communicator goes on."""
    for tensor, what in (
        (torch.ones(4), "host memory"),
        (torch.ones(4, 4, device=r.device).t()[::2], "gaps"),
    ):
        try:
            r.comm.all_reduce(tensor, SUM)
            sys.exit(f"rank {r.rank}: {what} is no error")
        except (headrace.InvalidArgument, headrace.NotSupported) as error:
            sys.stdout.write(f"{what}: {error}\n")
    tensor = torch.ones(4, device=r.device)
    r.comm.all_reduce(tensor, SUM)
    r.same(tensor, torch.full((4,), float(r.size)), "sum after errors")


CHECKS = [
    check_all_reduce,
    check_parts,
    check_roots,
    check_messages,
    check_streams,
    check_graph,
    check_split,
    check_registered,
    check_pool,
    check_windows,
    check_errors,
]
BY_NAME = [check_billions, check_device_window, check_triton, check_fused]


def main(backend, gpu, rank, size, folder, only=None):
    device = f"cuda:{gpu}"
    torch.cuda.set_device(int(gpu))
    options = {"meeting": f"file://{folder}", "timeout": TIMEOUT, "meeting_timeout": TIMEOUT}
    with headrace.new_comm(backend, device, rank=int(rank), size=int(size), **options) as comm:
        for check in [*CHECKS, *BY_NAME]:
            is_wanted = check.__name__ == only if only else check not in BY_NAME
            if not is_wanted or (check in (check_split, check_messages) and int(size) < 2):
                continue
            if check is check_windows and backend != "p2p":
                continue
            check(Rank(comm, device))
            sys.stdout.write(f"{check.__name__}: right\n")
            sys.stdout.flush()
        torch.cuda.synchronize()
        comm.finalize()


main(*sys.argv[1:])
