# SPDX-License-Identifier: Apache-2.0
"""One rank of tests/python/test_gpu_torch_order.py: a torch process group of Headrace on a GPU, in a program
that gives it every occasion to read or write memory too early or too late. Calls come from several streams,
each stream and rank is held up at random, memory is dropped right after a call and written again by whoever
gets it, and works are waited for on other streams. All results are compared with what the CPU computes.
Prints a line for each check, and ends with code 1 at the first difference.

    gpu_torch_order_rank.py DEVICE CURRENT RANK SIZE FILE ROUNDS SEED CHECK...

DEVICE: that of the tensors, "cuda:0"; "cpu": to try the program itself. CURRENT: torch's current GPU, which
may be another one. The SEED is printed with a difference.
"""

import contextlib
import itertools
import random
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import headrace
import headrace.distributed

LONGEST_SLEEP = 1_000_000  # clocks of the GPU: half a millisecond
COUNTS = [1, 100, 5_000, 100_000, 1_500_000]  # of floats: packets in one step and two, chunks, NCCL


class Rank:
    def __init__(self, device, rounds, seed):
        self.device, self.rounds, self.seed = torch.device(device), rounds, seed
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.shared = random.Random(seed)  # the same on all ranks
        self.own = random.Random(f"{seed} of rank {self.rank}")
        self.on_gpu = self.device.type == "cuda"
        streams = [torch.cuda.Stream(self.device) for _ in range(3)] if self.on_gpu else [None] * 3
        self.streams = [None, *streams]  # None: the default stream
        self.round = 0

    def on(self, stream):
        return torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext()

    def any_stream(self):
        return self.on(self.own.choice(self.streams))

    def delay(self):
        """Holds up the current stream, or the program, or nothing."""
        kind = self.own.randrange(4)
        if kind == 0:
            time.sleep(self.own.random() / 1000)
        elif kind < 3 and self.on_gpu:
            self.hold_up(self.own.randrange(LONGEST_SLEEP))

    def hold_up(self, clocks=LONGEST_SLEEP):
        with torch.cuda.device(self.device):
            torch.cuda._sleep(clocks)

    def take_freed(self, like, value=777):
        """Gets memory of the current stream that has just been freed, if it is there, and writes to it."""
        return [torch.full_like(like, value) for _ in range(3)]

    def numbers(self, count):
        """Every rank's elements: all ranks make the same. Small whole numbers, whose sums are exact."""
        generator = torch.Generator().manual_seed(self.shared.randrange(1 << 30))
        return [torch.randint(0, 8, (count,), generator=generator).float() for _ in range(self.size)]

    def mine(self, inputs):
        return inputs[self.rank].to(self.device, copy=True)

    def mark(self):
        """A function that makes its caller's stream wait for what the current stream holds now."""
        if not self.on_gpu:
            return lambda: None
        event = torch.cuda.current_stream(self.device).record_event()
        return lambda: torch.cuda.current_stream(self.device).wait_event(event)

    def same(self, got, expected, what):
        got = got.cpu()
        if torch.equal(got, expected):
            return
        wrong = (got != expected).nonzero().flatten()
        where = [int(index) for index in wrong[:4]]
        values = [(got.flatten()[index].item(), expected.flatten()[index].item()) for index in where]
        sys.exit(
            f"rank {self.rank}: {what}, round {self.round}, seed {self.seed}: {len(wrong)} of {got.numel()} "
            f"elements are wrong, at {where}: (got, expected) {values}"
        )

    def each_round(self):
        for number in range(self.rounds):
            self.round = number
            yield number


def check_inputs_freed(r):
    """The input goes right after the call; its memory is written while the operation may run."""
    for _ in r.each_round():
        count, turn = r.shared.choice(COUNTS), r.shared.randrange(3)
        inputs = r.numbers(count)
        with r.any_stream():
            mine = r.mine(inputs)
            output = torch.empty(r.size * count, device=r.device)
            r.delay()
            mine += 1
            if turn == 0:
                work = dist.all_gather_into_tensor(output, mine, async_op=True)
            elif turn == 1:
                work = dist.all_gather(list(output.chunk(r.size)), mine, async_op=True)
            else:
                parts = mine.repeat(r.size)
                work = dist.all_to_all_single(output, parts, async_op=True)
                r.take_freed(parts)
                del parts
            like = torch.empty_like(mine)
            del mine
            r.take_freed(like)
        with r.any_stream():
            r.delay()
            work.wait()
            r.same(output, torch.cat(inputs) + 1, "a gather of an input that is gone")


def check_outputs_dropped(r):
    """Nobody waits for the operation or keeps its output: it writes to no memory that has a new owner."""
    for _ in r.each_round():
        count = r.shared.choice(COUNTS)
        with r.any_stream():
            tensor = torch.ones(count, device=r.device)
            r.delay()
            dist.all_reduce(tensor, async_op=True)
            whole = torch.empty(r.size * count, device=r.device)
            dist.all_gather_into_tensor(whole, tensor.clone(), async_op=True)
            like, like_whole = torch.empty_like(tensor), torch.empty_like(whole)
            del tensor, whole
            owned = [*r.take_freed(like, 5), *r.take_freed(like_whole, 5)]
            last = torch.zeros(1, device=r.device)
            dist.all_reduce(last)
            last.item()  # those before it have ended
            for one in owned:
                r.same(one, torch.full((one.numel(),), 5.0), "memory that an operation used before")


def check_crosswise(r):
    """Sums from several streams at once, waited for in any order on any stream."""
    for _ in r.each_round():
        inputs = [r.numbers(r.shared.choice(COUNTS)) for _ in range(6)]
        begun = []
        for number, each in enumerate(inputs):
            with r.any_stream():
                tensor = r.mine(each)
                r.delay()
                tensor *= 2
                work = dist.all_reduce(tensor, async_op=number % 3 != 2)
                begun.append((number, tensor, work.wait if work is not None else r.mark()))
                r.delay()
        r.own.shuffle(begun)
        for number, tensor, wait in begun:
            with r.any_stream():
                r.delay()
                wait()
                r.same(tensor, torch.stack(inputs[number]).sum(0) * 2, f"sum {number} of six")


def check_small_gathers(r):
    """One number of each rank, as DDP gathers counts of parameters: into memory that was zeros, or others."""
    for turn in r.each_round():
        value = r.shared.randrange(1, 1 << 40)
        with r.any_stream():
            r.take_freed(torch.empty(1, dtype=torch.int64, device=r.device), turn % 2)
            mine = torch.tensor([value + r.rank], device=r.device)
            outputs = [torch.empty_like(mine) for _ in range(r.size)]
            r.delay()
            work = dist.all_gather(outputs, mine, async_op=bool(turn % 3))
            if work is not None:
                work.wait()
            got = [output.item() for output in outputs]
            if got != [value + rank for rank in range(r.size)]:
                sys.exit(f"rank {r.rank}: gathered {got}, {value} and on is right: seed {r.seed}")


def check_first_calls(r):
    """The same as the first operation of a group, which opens its communicator on the GPU."""
    for turn in range(max(2, r.rounds // 10)):
        group = dist.new_group(timeout=timedelta(seconds=60))
        with r.any_stream():
            mine = torch.tensor([turn + r.rank + 1], device=r.device)
            outputs = [torch.empty_like(mine) for _ in range(r.size)]
            r.delay()
            dist.all_gather(outputs, mine, group=group, async_op=True).wait()
            got = [output.item() for output in outputs]
            if got != [turn + rank + 1 for rank in range(r.size)]:
                sys.exit(f"rank {r.rank}: the first gather of a group has {got}: seed {r.seed}")
        dist.destroy_process_group(group)


def check_futures(r):
    """Callbacks of futures, of tensors with gaps too, whose owners drop all but the future."""
    for _ in r.each_round():
        count = r.shared.choice(COUNTS[:4])
        inputs = r.numbers(2 * count)
        with r.any_stream():
            tensor = r.mine(inputs).reshape(-1, 2)
            r.delay()
            half = tensor[:, 0] if r.shared.randrange(2) else tensor[:, 0].contiguous()
            future = dist.all_reduce(half, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
            like = torch.empty_like(half)
            del tensor, half
            r.take_freed(like)
        with r.any_stream():
            expected = torch.stack(inputs).sum(0).reshape(-1, 2)[:, 0] * 2
            r.same(future.wait(), expected, "a future's sum")


def check_captured_futures(r):
    """A graph with the future of an operation, as DDP takes one for each bucket: its replays."""
    tensor = torch.zeros(5_000, device=r.device)
    source = torch.zeros_like(tensor)
    dist.all_reduce(tensor)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(r.device)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        tensor.copy_(source)
        dist.all_reduce(tensor, async_op=True).get_future().wait()
        tensor *= 2
    for _ in r.each_round():
        inputs = r.numbers(5_000)
        source.copy_(r.mine(inputs))
        torch.cuda.synchronize(r.device)
        graph.replay()
        r.same(tensor, torch.stack(inputs).sum(0) * 2, "a replay with a future")
    dist.barrier()
    del graph


def check_two_groups(r):
    """Communicators side by side on one GPU."""
    other = dist.new_group(list(reversed(range(r.size))))
    for _ in r.each_round():
        inputs = [r.numbers(r.shared.choice(COUNTS)) for _ in range(4)]
        tensors, works = [], []
        for number, each in enumerate(inputs):
            with r.any_stream():
                tensors.append(r.mine(each))
                r.delay()
                group = other if number % 2 else None
                works.append(dist.all_reduce(tensors[-1], group=group, async_op=True))
        for each, tensor, work in zip(inputs, tensors, works, strict=True):
            work.wait()
            r.same(tensor, torch.stack(each).sum(0), "the sum of one of two groups")
    dist.destroy_process_group(other)


def check_to_itself(r):
    """A message to itself is copied after its receiver's stream has done with the memory, and stays whole."""
    if not r.on_gpu:
        return
    for turn in r.each_round():
        count, value = r.shared.choice(COUNTS[:4]), float(turn)
        first, second = r.own.sample(r.streams[1:], 2)
        mine = torch.full((count,), value, device=r.device)
        target = torch.empty_like(mine)
        torch.cuda.synchronize(r.device)
        if turn % 2:  # the receive comes first, and its stream still writes to the target
            with r.on(first):
                r.hold_up()
                target.fill_(-1)
                received = dist.irecv(target, r.rank)
            with r.on(second):
                sent = dist.isend(mine, r.rank)
        else:  # the copy that the send keeps goes when the receive has begun to read it
            with r.on(first):
                sent = dist.isend(mine, r.rank)
            with r.on(second):
                r.hold_up()
                received = dist.irecv(target, r.rank)
            with r.on(first):
                r.take_freed(mine)
        with r.any_stream():
            received.wait()
            sent.wait()
            r.same(target, torch.full((count,), value), "a message to itself")


def check_batches(r):
    """Batches that begin with receives, of several messages for each pair of ranks."""
    for _ in r.each_round():
        inputs = [r.numbers(r.shared.choice(COUNTS)) for _ in range(2)]
        after, before = (r.rank + 1) % r.size, (r.rank - 1) % r.size
        receives_first = r.own.randrange(2)
        with r.any_stream():
            sent = [r.mine(each) for each in inputs]
            got = [torch.empty_like(tensor) for tensor in sent]
            r.delay()
            batch = [dist.P2POp(dist.irecv, tensor, before) for tensor in got]
            sends = [dist.P2POp(dist.isend, tensor, after) for tensor in sent]
            works = dist.batch_isend_irecv(batch + sends if receives_first else sends + batch)
            likes = [torch.empty_like(tensor) for tensor in sent]
            del sent, sends, batch
            for like in likes:
                r.take_freed(like)
        with r.any_stream():
            for work in works:
                work.wait()
            for tensor, each in zip(got, inputs, strict=True):
                r.same(tensor, each[before], "a message of a batch")


class Model(torch.nn.Module):
    """Small layers, each a bucket of DDP, that are held up at random forward and backward."""

    def __init__(self, r):
        super().__init__()
        self.r = [r]  # no part of the model
        sizes = itertools.pairwise([2, 10, 50, 300, 4])
        self.layers = torch.nn.ModuleList(torch.nn.Linear(inner, outer) for inner, outer in sizes)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
            if x.requires_grad:
                x.register_hook(self._held_up)
            self.r[0].delay()
        return torch.softmax(x, 1)

    def _held_up(self, gradient):
        self.r[0].delay()
        return gradient


def check_ddp(r):
    """Steps of DDP beside those of one process with the whole batch, as torch's own test has them."""
    loss = torch.nn.MSELoss()
    devices = [r.device.index] if r.on_gpu else None
    for turn in range(max(2, r.rounds // 4)):
        r.round = turn
        torch.manual_seed(r.shared.randrange(1 << 30))
        alone = Model(r).to(r.device)
        shared = Model(r).to(r.device)
        shared.load_state_dict(alone.state_dict())
        parallel = torch.nn.parallel.DistributedDataParallel(
            shared,
            device_ids=devices,
            bucket_cap_mb=0.001,
            gradient_as_bucket_view=bool(turn % 2),
            static_graph=bool(turn // 2 % 2),
        )
        for step in range(5):
            inputs, targets = torch.randn(r.size, 2).to(r.device), torch.randn(r.size, 4).to(r.device)
            before = r.mark()
            with r.any_stream():
                before()
                loss(alone(inputs), targets).backward()
                mine = slice(r.rank, r.rank + 1)
                loss(parallel(inputs[mine]), targets[mine]).backward()
                r.take_freed(next(shared.parameters()).detach())
                for one in (alone, shared):
                    for parameter in one.parameters():
                        with torch.no_grad():
                            parameter -= parameter.grad
                        parameter.grad = None
                after = r.mark()
            after()
            for number, (want, got) in enumerate(zip(alone.parameters(), shared.parameters(), strict=True)):
                if not torch.allclose(got, want, rtol=1e-4, atol=1e-5):
                    sys.exit(
                        f"rank {r.rank}: parameter {number} after step {step} of model {turn} differs by "
                        f"{(got - want).abs().max().item()} from that of one process, seed {r.seed}"
                    )


def check_late_calls_raise(r):
    """With TORCH_NCCL_BLOCKING_WAIT=1 a late call raises before anybody reads what it has not written. The
    last rank does not come."""
    group = dist.new_group(timeout=timedelta(seconds=6))
    mine = torch.tensor([7], device=r.device)
    dist.all_reduce(mine, group=group)
    if r.rank != r.size - 1:
        outputs = [torch.zeros_like(mine) for _ in range(r.size)]
        try:
            dist.all_gather(outputs, mine, group=group)
        except headrace.Error as error:
            print(f"it raised: {error}")
        else:
            sys.exit(f"rank {r.rank}: a gather without rank {r.size - 1} has {outputs} and no error")
    dist.barrier()


def main(device, current, rank, size, file, rounds, seed, *names):
    if device != "cpu":
        torch.cuda.set_device(int(current))
    torch.set_num_threads(1)
    headrace.distributed.register("python")
    dist.init_process_group(
        "headrace",
        store=dist.FileStore(file, int(size)),
        rank=int(rank),
        world_size=int(size),
        timeout=timedelta(seconds=120),
    )
    for name in names:
        begin = time.monotonic()
        globals()[name](Rank(device, int(rounds), int(seed)))
        if device != "cpu":
            torch.cuda.synchronize(device)
        print(f"{name}: right, {time.monotonic() - begin:.1f} s", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main(*sys.argv[1:])
