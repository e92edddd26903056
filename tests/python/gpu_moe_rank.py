# SPDX-License-Identifier: Apache-2.0
"""Ranks of tests/python/test_gpu_moe.py: dispatch and combine on GPUs, compared with plain loops on the CPU.
Prints a line for each check, and ends with code 1 at the first difference.

    gpu_moe_rank.py rank CHECKS GPU RANK RANKS FOLDER    one rank, a process
    gpu_moe_rank.py threads CHECKS GPUS RANKS            all ranks, threads of this process

CHECKS: names of the functions check_*, with commas.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from functools import partial

import torch
from torch.utils.dlpack import from_dlpack

import headrace
import moe_plain

SECONDS = 60  # until a rank must have come
LIMIT = 2  # seconds of a wait for a rank that is killed


_steps, _steps_lock = {}, threading.Lock()


def plain_step(shape, seed, active=None, cached=None):
    """moe_plain.step, made once for all threads."""
    key = (shape.ranks, str(shape.fields), seed, str(active), cached)
    with _steps_lock:
        if key not in _steps:
            _steps[key] = moe_plain.step(shape, seed, active=active, cached=cached)
        return _steps[key]


def shapes(ranks):
    yield moe_plain.Shape(ranks)
    yield moe_plain.Shape(
        ranks, layout="batched", dtype="float8_e4m3fn", scale_bytes=12, combine_dtype="float16"
    )
    yield moe_plain.Shape(ranks, layout="by_rank", dtype="float32", combine_dtype="float32", top_k=3)
    yield moe_plain.Shape(
        ranks, experts=2 * ranks + 3, top_k=4, hidden=200, dtype="float16", row_alignment=8, zero_padding=True
    )
    yield moe_plain.Shape(ranks, hidden=2048, max_tokens=300, experts=8 * ranks, top_k=4)
    uneven = [3 * (rank % 2) for rank in range(ranks)]
    if sum(uneven) > 1:
        yield moe_plain.Shape(ranks, experts=sum(uneven), experts_of_ranks=uneven, scale_bytes=8)


class Rank:
    """A MoE that has joined, a stream, and memory for a step: nothing is allocated while launches wait."""

    def __init__(self, shape, rank, gpu, agent, names, *, meet, wait_limit=SECONDS):
        self.shape, self.rank, self.meet = shape, rank, meet
        self.device = torch.device("cuda", gpu)
        torch.cuda.set_device(self.device)
        self.stream = torch.cuda.Stream()
        self.moe = headrace.MoE(agent, shape.config(rank, device=str(self.device), wait_limit=wait_limit))
        self.names = names

    def join(self):
        self.moe.join(self.names, timeout=SECONDS)
        self.got = self.moe.new_rows()
        self.routing = self.moe.new_routing()
        config, shape = self.moe.config, self.shape
        self.rows = from_dlpack(self.got.rows).view(torch.uint8)
        self.scales = None if self.got.scales is None else from_dlpack(self.got.scales)
        self.counts, self.first_rows = from_dlpack(self.got.counts), from_dlpack(self.got.first_rows)
        self.host_counts = from_dlpack(self.got.host_counts)
        most = {"device": self.device}
        self.given = torch.zeros(shape.max_tokens, shape.row_bytes, dtype=torch.uint8, **most)
        self.given_scales = torch.zeros(shape.max_tokens, shape.scale_bytes, dtype=torch.uint8, **most)
        self.experts = torch.full((shape.max_tokens, shape.top_k), -1, dtype=torch.int64, **most)
        self.weights = torch.zeros(shape.max_tokens, shape.top_k, **most)
        self.results = torch.zeros(config.output_rows, shape.hidden, dtype=shape.dtypes[1], **most)
        self.sums = torch.zeros(shape.max_tokens, shape.hidden, dtype=shape.dtypes[1], **most)
        self.count = torch.zeros(1, dtype=torch.int32, **most)
        torch.cuda.synchronize()
        self.meet()

    def fill(self, seed, cached=None):
        tokens = self.shape.tokens(self.rank, seed)
        if cached is not None:
            tokens = moe_plain.again(self.shape, tokens, self.rank, seed, cached)
        self.tokens = count = tokens.rows.shape[0]
        with torch.cuda.stream(self.stream):
            self.given[:count], self.given_scales[:count] = tokens.rows.cuda(), tokens.scales.cuda()
            self.experts[:count], self.weights[:count] = tokens.experts.cuda(), tokens.weights.cuda()
            self.results.copy_(self.shape.results(self.rank, seed))
            self.count.fill_(count)
            self.rows.fill_(moe_plain.UNTOUCHED)
            if self.scales is not None:
                self.scales.fill_(moe_plain.UNTOUCHED)
        self.stream.synchronize()

    def arguments(self, count, experts):
        rows = self.given[:count].view(self.shape.dtypes[0])
        if rows.dtype.itemsize == 1:
            rows = rows.view(torch.uint8)
        scales = self.given_scales[:count] if self.shape.scale_bytes else None
        if not experts:
            return (rows, None), {"scales": scales}
        return (rows, self.experts[:count], self.weights[:count]), {"scales": scales}

    @property
    def weighted(self):
        return self.shape.layout != "by_rank"

    def dispatch(self, given, experts=True, **more):
        tensors, others = self.arguments(given, experts)
        self.moe.dispatch(*tensors, routing=self.routing, out=self.got, stream=self.stream, **others, **more)

    def combine(self, count):
        self.moe.combine(
            self.results, routing=self.routing, out=self.sums[:count], weighted=self.weighted,
            stream=self.stream,
        )  # fmt: skip

    def step(self, **more):
        self.dispatch(self.tokens, **more)
        self.combine(self.tokens)

    def step_of_count(self):
        """The GPU reads how many of the rows are tokens."""
        self.dispatch(self.shape.max_tokens, count=self.count)
        self.combine(self.shape.max_tokens)

    def halves(self, count):
        (rows, experts, weights), others = self.arguments(count, True)
        on = {"routing": self.routing, "stream": self.stream}
        self.moe.dispatch_send(rows, experts, weights, **on, **others)
        self.moe.dispatch_receive(out=self.got, **on)
        self.moe.combine_send(self.results, weighted=self.weighted, **on)
        self.moe.combine_receive(out=self.sums[:count], **on)

    def compare(self, what, expected, count):
        expected = expected[self.rank]
        wrong = []
        if not torch.equal(self.rows.cpu(), expected.rows):
            first = int((self.rows.cpu() != expected.rows).any(1).nonzero()[0])
            wrong.append(f"row {first} of the dispatch differs")
        if self.scales is not None and not torch.equal(self.scales.cpu(), expected.scales):
            wrong.append("scales differ")
        if self.counts.tolist() != expected.counts:
            wrong.append(f"counts are {self.counts.tolist()}, expected {expected.counts}")
        if self.host_counts.tolist() != expected.counts:
            wrong.append(f"counts on the host are {self.host_counts.tolist()}, expected {expected.counts}")
        if self.first_rows.tolist() != expected.first_rows:
            wrong.append(f"first rows are {self.first_rows.tolist()}, expected {expected.first_rows}")
        if self.shape.layout == "by_rank":
            used = expected.used
            if not torch.equal(from_dlpack(self.got.experts).cpu()[used], expected.experts[used]):
                wrong.append("experts of rows differ")
        if not torch.equal(self.sums[:count].cpu(), expected.sums):
            difference = (self.sums[:count].cpu().float() - expected.sums.float()).abs().max()
            wrong.append(f"sums differ by up to {difference}")
        self.must(not wrong, f"{what}: {'; '.join(wrong)}")

    def must(self, right, what):
        if not right:
            raise AssertionError(f"rank {self.rank} of {self.shape.ranks}, {self.shape.fields}: {what}")

    def run(self, what, expected, body):
        """All ranks launch at the same time, and compare when all have ended."""
        self.meet()
        body()
        self.stream.synchronize()
        self.moe.check()
        self.meet()
        self.compare(what, expected, self.tokens)


def check_steps(opened, ranks):
    """Every layout and type: whole, in halves, with a count on the GPU, and by a routing used again."""
    for shape in shapes(ranks):
        with opened(shape) as r:
            for seed in range(1, 5):
                r.fill(seed)
                body = r.step if seed % 2 else partial(r.halves, r.tokens)
                r.run(f"step {seed}", plain_step(shape, seed), body)
            for seed, cached in ((11, 4), (12, 4)):
                r.fill(seed, cached)
                again = plain_step(shape, seed, cached=cached)
                r.run(f"again {seed}", again, partial(r.step, experts=False))
            r.fill(13)
            r.run("count on the GPU", plain_step(shape, 13), r.step_of_count)
        print(f"{shape.fields}: right", flush=True)


def columns(ranks):
    """What the plain loops do not have: fields of a configuration, and options of its dispatch."""
    yield {"payload_bytes": [8, 24]}, {}
    yield {"dtype": "float8_e4m3fn", "hidden": 512, "scale_bytes": 16}, {"cast": "float32"}
    yield {"dtype": "float8_e4m3fn", "hidden": 512, "scale_bytes": 4, "layout": "batched"}, {"cast": "ue8m0"}
    yield {"float8_combine": True, "hidden": 256, "combine_dtype": "float32"}, {}
    if ranks > 1:
        yield {"group_size": ranks}, {}


def check_columns(opened, ranks):
    """Payloads, casts, float8 sums and groups give the same bytes as a MoE in host memory."""
    for fields, options in columns(ranks):
        shape = moe_plain.Shape(ranks, **fields)
        with opened(shape) as r:
            host_shape = moe_plain.Shape(ranks, **{**shape.fields, "name": f"host-{shape.name}"})
            host = headrace.MoE(opened.agent, host_shape.config(r.rank, wait_limit=SECONDS))
            opened.agent.publish()
            host.join(r.names, timeout=SECONDS)
            for seed in range(1, 4):
                compare_with_host(r, host, seed, options)
            r.meet()
            host.close()
        print(f"{fields}, {options}: as in host memory", flush=True)


def compare_with_host(r, host, seed, options):
    shape = r.shape
    of_group = r.rank - r.rank % shape.fields.get("group_size", 1)
    tokens = shape.tokens(of_group, seed)
    count = tokens.rows.shape[0]
    random = torch.Generator().manual_seed(100 * seed + of_group)
    rows, scales = tokens.rows.view(shape.dtypes[0]), tokens.scales
    if options:
        rows, scales = torch.randn(count, shape.hidden, generator=random).to(torch.bfloat16), None
    payloads = [
        torch.randint(0, 256, (count, width), generator=random).to(torch.uint8)
        for width in shape.fields.get("payload_bytes", [])
    ]
    results = shape.results(r.rank, seed)
    answers = []
    for moe, device in ((host, torch.device("cpu")), (r.moe, r.device)):
        on = {"stream": r.stream} if moe is r.moe else {}
        given = [each.to(device) for each in (rows, tokens.experts, tokens.weights)]
        more = {"payloads": tuple(each.to(device) for each in payloads), **options}
        if scales is not None and shape.scale_bytes:
            more["scales"] = scales.to(device)
        got, routing = moe.new_rows(), moe.new_routing()
        memory = [from_dlpack(got.rows).view(torch.uint8), *(from_dlpack(each) for each in got.payloads)]
        memory += [] if got.scales is None else [from_dlpack(got.scales)]
        for each in memory:
            each.fill_(moe_plain.UNTOUCHED)
        results_there = results.to(device)
        sums = torch.zeros(count, shape.hidden, dtype=shape.dtypes[1], device=device)
        torch.cuda.synchronize()
        r.meet()  # nothing is allocated from here on
        moe.dispatch(*given, routing=routing, out=got, **more, **on)
        moe.combine(results_there, routing=routing, out=sums, **on)
        r.stream.synchronize()
        moe.check()
        r.meet()
        numbers = [from_dlpack(got.counts), from_dlpack(got.first_rows), sums]
        answers.append([each.cpu() for each in (*memory, *numbers)])
    for number, (expected, got) in enumerate(zip(*answers)):
        r.must(torch.equal(expected, got), f"step {seed} with {options}: answer {number} differs")


def check_graph(opened, ranks, replays=1000, routings=16):
    """A captured step, replayed with other tokens, experts and counts."""
    shape = moe_plain.Shape(ranks, hidden=256, max_tokens=64, experts=4 * ranks, top_k=3)
    with opened(shape) as r:
        kept = []
        for seed in range(1, routings + 1):
            r.fill(seed)
            kept.append([each.clone() for each in (r.given, r.experts, r.weights, r.results, r.count)])
        expected = [plain_step(shape, seed)[r.rank] for seed in range(1, routings + 1)]
        wanted = [(each.rows.cuda(), each.sums.cuda()) for each in expected]
        used = [each.used.cuda() for each in expected]
        r.run("before the capture", plain_step(shape, routings), r.step_of_count)
        graph = torch.cuda.CUDAGraph()
        # A capture waits for the GPU.
        with r.alone(), torch.cuda.graph(graph, stream=r.stream, capture_error_mode="thread_local"):
            r.step_of_count()
        r.meet()
        wrong = torch.zeros(1, dtype=torch.int64, device=r.device)
        torch.cuda.synchronize()
        r.meet()
        for replay in range(replays):
            which = (replay * 7 + replay // 3) % routings
            with torch.cuda.stream(r.stream):
                for to, of in zip((r.given, r.experts, r.weights, r.results, r.count), kept[which]):
                    to.copy_(of)
                graph.replay()
                rows, sums = wanted[which]
                count = sums.shape[0]
                wrong += (r.rows != rows)[used[which]].any().long() if replay % 50 == 0 else 0
                wrong += (r.sums[:count] != sums).any().long()
            if replay % 50 == 49:
                r.stream.synchronize()
                r.moe.check()
        r.stream.synchronize()
        r.moe.check()
        r.must(int(wrong) == 0, f"{int(wrong)} of {replays} replays differ")
        r.meet()
        mask_between_replays(r, graph, kept)
        del graph
    print(f"{replays} replays: right", flush=True)


def mask_between_replays(r, graph, kept):
    """The mask of a graph is read at each replay."""
    if r.shape.ranks < 2:
        return
    gone = r.shape.ranks - 1
    mask = (1 << r.shape.ranks) - 1 & ~(1 << gone)
    if r.rank == gone:
        r.meet()
        return
    with torch.cuda.stream(r.stream):
        for to, of in zip((r.given, r.experts, r.weights, r.results, r.count), kept[0]):
            to.copy_(of)
        r.rows.fill_(moe_plain.UNTOUCHED)
    r.moe.set_active(mask, stream=r.stream)
    graph.replay()
    r.stream.synchronize()
    with contextlib.suppress(headrace.PeerLost):  # one that another rank has left out first
        r.moe.check()
    expected = plain_step(r.shape, 1, active=set(range(gone)))
    r.compare("a replay with a mask", expected, expected[r.rank].sums.shape[0])
    r.meet()


def check_masks(opened, ranks):
    """A rank that is left out by one rank is left out by all; it hears it."""
    if ranks < 2:
        return
    shape = moe_plain.Shape(ranks)
    with opened(shape) as r:
        gone = ranks - 1
        mask = (1 << ranks) - 1 & ~(1 << gone)
        if r.rank == 0:
            r.moe.set_active(mask, stream=r.stream)
            r.stream.synchronize()
        r.meet()
        r.must(r.moe.active == mask, f"the mask is {r.moe.active}")
        r.fill(3)
        r.meet()
        if r.rank == gone:
            try:
                r.dispatch(r.tokens)
                raise AssertionError("the rank that was left out is not told")
            except headrace.Canceled as error:
                r.must(f"rank {gone}" in str(error), str(error))
        else:
            for call in (r.dispatch, r.combine):
                with contextlib.suppress(headrace.PeerLost):  # told once
                    call(r.tokens)
            r.stream.synchronize()
            r.moe.check()
            r.compare("without one", plain_step(shape, 3, active=set(range(gone))), r.tokens)
    print("masks: right", flush=True)


def check_abort(opened, ranks):
    """A thread ends the wait of a launch whose peers do not come."""
    if ranks < 2:
        return
    with opened(moe_plain.Shape(ranks)) as r:
        r.fill(1)
        r.meet()
        if r.rank == 0:
            r.dispatch(r.tokens)
            timer = threading.Timer(0.5, r.moe.abort)
            timer.start()
            began = time.monotonic()
            r.stream.synchronize()
            r.must(time.monotonic() - began < 20, "an abort took long to end a launch")
            timer.join()
            try:
                r.moe.check()
                raise AssertionError("nothing is raised after an abort")
            except headrace.Canceled as error:
                r.must("was aborted" in str(error), str(error))
    print("abort: right", flush=True)


def check_refusals(opened, ranks):
    """Tensors that are elsewhere, or have the wrong shape, are named; nothing is queued."""
    with opened(moe_plain.Shape(ranks)) as r:
        r.fill(2)
        rows, experts = r.given.view(torch.bfloat16), r.experts
        on = {"routing": r.routing, "out": r.got, "stream": r.stream}
        no_count = torch.zeros(1, dtype=torch.int32)
        wrong = [
            (lambda: r.moe.dispatch(rows.cpu(), experts, **on), "argument rows is on cpu"),
            (lambda: r.moe.dispatch(rows, experts.cpu(), **on), "argument experts is on cpu"),
            (lambda: r.moe.dispatch(rows, experts, r.weights.cpu(), **on), "argument weights is on cpu"),
            (lambda: r.moe.dispatch(rows, experts.t().contiguous().t(), **on), "contiguous memory"),
            (lambda: r.moe.dispatch(rows[:, :8], experts, **on), "argument rows has shape"),
            (lambda: r.moe.dispatch(rows, experts, count=no_count, **on), "argument count is on cpu"),
            (lambda: r.moe.combine(r.results.cpu(), routing=r.routing, out=r.sums), "results is on cpu"),
            (lambda: r.moe.combine(r.results, routing=r.routing, out=r.sums[:0]), "dispatch"),
        ]  # fmt: skip
        for call, sentence in wrong:
            try:
                call()
                raise AssertionError(f"not refused: {sentence}")
            except headrace.InvalidArgument as error:
                r.must(sentence in str(error), f"expected {sentence!r}: {error}")
        try:
            r.moe.regroup(r.names, 1, timeout=1)
            raise AssertionError("regroup is not refused")
        except headrace.NotSupported as error:
            r.must("open a new MoE" in str(error), str(error))
        r.run("after refusals", plain_step(r.shape, 2), r.step)
        # An expert that cannot be is told by the next call, and goes nowhere.
        r.experts[:1, 0] = r.shape.experts
        torch.cuda.synchronize()
        r.meet()
        r.dispatch(1)
        r.stream.synchronize()
        try:
            r.moe.check()
            raise AssertionError("an expert out of range is not told")
        except headrace.InvalidArgument as error:
            r.must(f"names expert {r.shape.experts}" in str(error), str(error))
        r.combine(1)
        r.stream.synchronize()
        r.moe.check()
    print("refusals: right", flush=True)


def check_killed(opened, ranks):
    """Rank 1 dies between two steps. Each other one names it within the bound, and goes on without it."""
    shape = moe_plain.Shape(ranks)
    others = set(range(ranks)) - {1}
    with opened(shape, wait_limit=LIMIT) as r:
        for seed in range(1, 4):
            r.fill(seed)
            r.run(f"step {seed}", plain_step(shape, seed), r.step)
        if r.rank == 1:
            r.meet.leave()
            os.kill(os.getpid(), signal.SIGKILL)
        r.fill(4)
        began, told = time.monotonic(), []
        for call in (r.dispatch, r.combine):
            try:
                call(r.tokens)
            except headrace.Error as error:
                told.append(error)
        r.stream.synchronize()
        try:
            r.moe.check()
        except headrace.Error as error:
            told.append(error)
        took = time.monotonic() - began
        # Processes take turns on a GPU: each wait is bounded, its turn is not.
        r.must(took < 3 * LIMIT + 10, f"it took {took} s")
        r.must(len(told) == 1, f"told {told}")
        r.must(isinstance(told[0], (headrace.TimedOut, headrace.PeerLost)), repr(told))
        r.must("rank 1" in str(told[0]), str(told[0]))
        r.must(r.moe.failure.peer == 1, str(r.moe.failure))
        r.compare("without the killed", plain_step(shape, 4, active=others), r.tokens)
        r.must(r.moe.active == sum(1 << rank for rank in others), f"the mask is {r.moe.active}")
        for seed in range(5, 8):
            r.fill(seed)
            with contextlib.suppress(headrace.PeerLost):  # told by the votes of others, once
                r.dispatch(r.tokens)
            r.combine(r.tokens)
            r.stream.synchronize()
            r.moe.check()
            r.compare(f"step {seed}", plain_step(shape, seed, active=others), r.tokens)
    print(f"named: {told[0]}", flush=True)


def check_memory(opened, ranks):
    """GPU memory is back where it was after each MoE."""
    shape = moe_plain.Shape(ranks, hidden=2048, max_tokens=300)

    def use():
        with opened(shape) as r:
            r.fill(1)
            r.run("step", plain_step(shape, 1), r.step)

    free = []
    for _ in range(4):
        use()
        opened.meet()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        opened.meet()
        free.append(torch.cuda.mem_get_info()[0])
        opened.meet()
    if free[-1] < free[0]:
        raise AssertionError(f"free bytes after each MoE: {free}")
    print("memory: back", flush=True)


def check_operators(opened, ranks):
    """torch.ops.headrace.moe_*, with gradients, on the current stream."""
    import headrace.torch_ops

    tokens, hidden, experts = 40, 64, 2 * ranks
    shape = moe_plain.Shape(
        ranks, experts=experts, hidden=hidden, max_tokens=tokens, dtype="float32", combine_dtype="float32"
    )
    with opened(shape) as r:
        ops, name = torch.ops.headrace, f"layer{r.rank}"
        headrace.torch_ops.register_moe(r.moe, name, torch.float32)
        random = torch.Generator().manual_seed(r.rank)
        rows = torch.randint(-4, 5, (tokens, hidden), generator=random).float()
        chosen = torch.rand(tokens, experts, generator=random).argsort(1)[:, :2].contiguous()
        weights = torch.randint(1, 4, (tokens, 2), generator=random).float()
        upstream = torch.arange(tokens * hidden).reshape(tokens, hidden).remainder(5).float()
        first = r.moe.config.first_expert(r.rank)
        torch.cuda.synchronize()
        for turn in range(3):
            with torch.cuda.stream(r.stream):
                on_gpu = [tensor.cuda() for tensor in (rows, chosen, weights, upstream)]
                on_gpu[0].requires_grad_(), on_gpu[2].requires_grad_()
                r.stream.synchronize()
                r.meet()
                got, _, _, firsts, *_, routing = ops.moe_dispatch(*on_gpu[:3], None, name)
                local = torch.searchsorted(
                    firsts[1:], torch.arange(got.shape[0], device=got.device), right=True
                )
                factors = (first + local.clamp(max=r.moe.config.local_experts - 1) + 1).float()
                sums = ops.moe_combine(got * factors[:, None], on_gpu[2], routing, [], name)
                sums.backward(on_gpu[3])
                r.stream.synchronize()
            r.moe.check()
            r.meet()
            by_hand = (rows[:, None] * (chosen + 1)[..., None] * weights[..., None]).sum(1)
            r.must(torch.equal(sums.cpu(), by_hand), f"turn {turn}: the sums of the operators differ")
            of_rows = upstream * (weights * (chosen + 1)).sum(1, keepdim=True)
            r.must(torch.equal(on_gpu[0].grad.cpu(), of_rows), f"turn {turn}: gradients of rows differ")
            of_weights = (upstream[:, None] * rows[:, None] * (chosen + 1)[..., None]).sum(2)
            r.must(torch.equal(on_gpu[2].grad.cpu(), of_weights), f"turn {turn}: gradients of weights differ")
        headrace.torch_ops.unregister_moe(name)
    print("operators: right", flush=True)


class Opened:
    """Opens MoEs of one rank one after another; all ranks open the same."""

    def __init__(self, rank, gpu, names, agent, meet, alone):
        self.rank, self.gpu, self.names, self.agent = rank, gpu, names, agent
        self.meet, self.alone, self._made = meet, alone, 0

    @contextlib.contextmanager
    def __call__(self, shape, wait_limit=SECONDS):
        shape.fields["name"] = f"moe{self._made}"
        self._made += 1
        r = Rank(shape, self.rank, self.gpu, self.agent, self.names, meet=self.meet, wait_limit=wait_limit)
        r.alone = self.alone
        try:
            self.agent.publish()
            r.join()
            yield r
            r.meet()
        finally:
            r.moe.close()


class FileBarrier:
    """A barrier of processes: files in a folder."""

    def __init__(self, folder, rank, ranks):
        self.folder, self.rank, self.ranks, self.turn = folder, rank, ranks, 0

    def leave(self):
        """No rank waits for this one any more."""
        open(os.path.join(self.folder, f"left-{self.rank}"), "w").close()

    def __call__(self):
        self.turn += 1
        open(os.path.join(self.folder, f"turn{self.turn}-{self.rank}"), "w").close()
        until = time.monotonic() + SECONDS
        for other in range(self.ranks):
            while not os.path.exists(os.path.join(self.folder, f"turn{self.turn}-{other}")):
                if os.path.exists(os.path.join(self.folder, f"left-{other}")):
                    break
                if time.monotonic() > until:
                    raise TimeoutError(f"rank {self.rank} waited for rank {other} at turn {self.turn}")
                time.sleep(0.002)


CHECKS = {name[6:]: value for name, value in list(globals().items()) if name.startswith("check_")}


def run_process(checks, gpu, rank, ranks, folder):
    names = [f"rank{number}" for number in range(ranks)]
    meet = FileBarrier(folder, rank, ranks)
    torch.cuda.set_device(gpu)
    with headrace.Agent(names[rank], backends=["shm", "cuda_ipc"], store=f"file://{folder}/store") as agent:
        opened = Opened(rank, gpu, names, agent, meet, contextlib.nullcontext)
        for check in checks.split(","):
            more = {"replays": 100, "routings": 4} if check == "graph" else {}
            CHECKS[check](opened, ranks, **more)


def run_threads(checks, gpus, ranks):
    names = [f"rank{number}" for number in range(ranks)]
    barrier, one_at_a_time, failed = threading.Barrier(ranks), threading.Lock(), []
    store = f"memory:moe-{os.getpid()}"
    for gpu in range(gpus):
        torch.zeros(1, device=torch.device("cuda", gpu))

    def body(rank):
        try:
            torch.cuda.set_device(rank % gpus)
            with headrace.Agent(names[rank], backends=["shm", "cuda_ipc"], store=store) as agent:
                opened = Opened(
                    rank, rank % gpus, names, agent, lambda: barrier.wait(SECONDS), lambda: one_at_a_time
                )
                for check in checks.split(","):
                    CHECKS[check](opened, ranks)
        except threading.BrokenBarrierError:
            pass  # another rank says why
        except BaseException:
            failed.append(f"rank {rank}:\n{traceback.format_exc()}")
            barrier.abort()

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    kind, checks, *numbers = sys.argv[1:]
    if kind == "threads":
        run_threads(checks, *(int(number) for number in numbers))
    else:
        run_process(checks, *(int(number) for number in numbers[:3]), numbers[3])
