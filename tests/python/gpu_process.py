# SPDX-License-Identifier: Apache-2.0
"""An agent with memory of one GPU in a process of its own, for test_gpu.py. It reads one JSON object a line
and answers with one.

Usage: gpu_process.py NAME DEVICE BACKENDS
  DEVICE: the ordinal of a GPU, or -1 for host memory
  BACKENDS: separated by commas

The bytes of a tensor follow from a seed, and the pages of a move from a plan, so both processes know them
without asking.
"""

import base64
import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

import headrace

WORD = 8

# Waits for a count, with a limit of some 20 s, then compares bytes; `told`: the count that it saw, the bytes
# that differ, the number of bytes (given).
SPIN_ON_COUNTER = """
extern "C" __global__ void spin_on_counter(const long long* word, const long long* at_least,
                                           const unsigned char* bytes, const unsigned char* expected,
                                           unsigned long long* told) {
  if (threadIdx.x == 0) {
    const long long limit = clock64() + (40LL << 30);
    long long seen = 0;
    do seen = *(const volatile long long*)word;
    while (seen < *at_least && clock64() < limit);
    __threadfence_system();
    told[0] = seen;
  }
  __syncthreads();
  const volatile unsigned char* now = bytes;
  for (unsigned long long i = threadIdx.x; i < told[2]; i += blockDim.x)
    if (now[i] != expected[i]) atomicAdd(told + 1, 1ULL);
}
"""


# Known to both processes


def pattern(bytes_, seed, device):
    """Bytes that follow from the seed, the same on every device."""
    words = torch.arange(-(-bytes_ // WORD), dtype=torch.int64, device=device)
    words = (words + seed * 1_000_003) * -7046029254386353131
    return (words ^ (words >> 29)).view(torch.uint8)[:bytes_]


class Plan:
    """Pages of a source and the pages of a target that they move to. No two pages of the target overlap."""

    def __init__(self, sources, targets, lengths, page=0):
        self.sources, self.targets, self.lengths = sources, targets, lengths
        self.page = page  # the length of all pages of uniform lists, else 0

    @staticmethod
    def make(kind, buffer, page, count, seed):
        rng = np.random.default_rng(seed)
        if kind == "uniform":  # pages at multiples of their length
            slots = buffer // page
            sources, targets = (rng.permutation(slots)[:count].astype(np.int64) * page for _ in range(2))
            return Plan(sources, targets, np.full(count, page, np.int64), page)
        # Pages of any length up to `page`, at any offset.
        lengths = rng.integers(1, page + 1, count)
        room = buffer - int(lengths.sum())
        gaps = rng.integers(0, max(1, room // count), count)
        order = rng.permutation(count)
        ends = np.cumsum(lengths[order] + gaps[order])
        targets = np.empty(count, np.int64)
        targets[order] = ends - lengths[order]
        sources = (rng.random(count) * (buffer - lengths)).astype(np.int64)
        return Plan(sources, targets, lengths)

    def apply(self, target, source):
        """The reference: the effect of a request, computed by torch."""
        device = target.device
        if self.page:
            slots = target.numel() // self.page
            rows = [torch.from_numpy(side // self.page).to(device) for side in (self.targets, self.sources)]
            target[: slots * self.page].view(slots, self.page)[rows[0]] = source[: slots * self.page].view(
                slots, self.page
            )[rows[1]]
            return
        lengths = torch.from_numpy(self.lengths).to(device)
        before = torch.cumsum(lengths, 0) - lengths
        at = torch.arange(int(self.lengths.sum()), device=device)
        to, where = (
            torch.repeat_interleave(torch.from_numpy(side).to(device) - before, lengths) + at
            for side in (self.targets, self.sources)
        )
        target[to] = source[where]


# The process


class Process:
    def __init__(self, name, device, backends):
        self.device = torch.device("cpu") if device < 0 else torch.device("cuda", device)
        self.ordinal = device
        if device >= 0:
            torch.cuda.set_device(device)
        self.agent = headrace.Agent(name, backends=backends or None)
        self.tensors, self.regions, self.requests, self.graphs, self.mappings = {}, {}, {}, {}, {}
        self.spins = {}

    # Names and peers

    def hello(self):
        return {"name": self.agent.name, "pid": os.getpid()}

    def metadata(self):
        return base64.b64encode(self.agent.export_metadata()).decode()

    def load(self, metadata):
        report = self.agent.import_metadata(base64.b64decode(metadata))
        return {"peer": report.peer, "restarted": report.restarted}

    def forget(self, peer):
        self.requests.clear()
        gc.collect()
        self.agent.forget(peer)

    # Memory

    def _empty(self, bytes):
        """A tensor in a segment of its own. Where torch's segments do not grow, none of its cached segments
        is free now."""
        self.release_memory()
        return torch.empty(bytes, dtype=torch.uint8, device=self.device)

    def fill(self, key, bytes, seed):
        """Fills the tensor `key`, and makes and registers it if it is new. Returns the id of its region."""
        if key not in self.tensors:
            self.tensors[key] = self._empty(bytes)
            self.regions[key] = self.agent.register(self.tensors[key], name=key)
        self.tensors[key].copy_(pattern(bytes, seed, self.device))
        self._quiet()
        return self.regions[key].id

    def fill_unregistered(self, key, bytes, seed):
        self.tensors[key] = self._empty(bytes)
        self.tensors[key].copy_(pattern(bytes, seed, self.device))
        self._quiet()
        return {
            "address": self.tensors[key].data_ptr(),
            "storage": self.tensors[key].untyped_storage().data_ptr(),
        }

    def fill_allocated(self, key, bytes, seed):
        """As `fill`, in host memory that the agent allocates."""
        memory = self.agent.allocate(bytes, name=key)
        self.tensors[key] = torch.from_numpy(memory.numpy("uint8"))
        self.regions[key] = memory.region
        self.tensors[key].copy_(pattern(bytes, seed, self.device))
        return memory.region.id

    def fill_host(self, key, bytes, seed):
        """As `fill`, in host memory that is registered and not allocated."""
        self.tensors[key] = pattern(bytes, seed, torch.device("cpu")).clone()
        self.regions[key] = self.agent.register(self.tensors[key], name=key)
        return self.regions[key].id

    def fill_cache(self, key, blocks, seed):
        """A KV cache in vLLM's layout: keys and values, blocks, tokens, heads, elements."""
        cache = self._empty(2 * blocks * 16 * 8 * 128 * 2).view(torch.bfloat16).view(2, blocks, 16, 8, 128)
        cache.view(torch.uint8).view(-1).copy_(pattern(cache.numel() * 2, seed, self.device))
        self.tensors[key] = cache
        self.regions[key] = self.agent.register(cache, name=key)
        self._quiet()
        return self.regions[key].id

    def register_address(self, key, length, device=None):
        device = self.ordinal if device is None else device
        memory = headrace.MemoryRange("vram", self.tensors[key].data_ptr(), length, device=device)
        self.regions[key] = self.agent.register(memory, name=key)
        return self.regions[key].id

    def register_part(self, key, part, length):
        """Registers the first bytes of a host tensor as another region."""
        self.regions[part] = self.agent.register(
            headrace.MemoryRange("dram", self.tensors[key].data_ptr(), length), name=part
        )
        return self.regions[part].id

    def register_while_current(self, key, current):
        """Registers a tensor while another GPU is the current one."""
        torch.cuda.set_device(current)
        try:
            self.regions[key] = self.agent.register(self.tensors[key], name=key)
        finally:
            torch.cuda.set_device(self.ordinal)
        return self.regions[key].id

    def free(self, key):
        """Frees the tensor and torch's memory. Its region stays registered."""
        self.tensors.pop(key, None)
        return self.release_memory()

    def release_memory(self):
        gc.collect()
        if self.ordinal >= 0:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            return torch.cuda.memory_reserved(self.ordinal)
        return 0

    def deregister(self, key, timeout=10.0):
        self.agent.deregister(self.regions.pop(key), timeout=timeout)

    def try_deregister(self, key, timeout):
        """As `deregister`; if the agent refuses, the region stays known here."""
        self.agent.deregister(self.regions[key], timeout=timeout)
        del self.regions[key]

    def fill_on(self, key, device, bytes, seed):
        """As `fill`, on the given GPU."""
        with torch.cuda.device(device):
            self.tensors[key] = pattern(bytes, seed, torch.device("cuda", device)).clone()
            torch.cuda.synchronize()
        self.regions[key] = self.agent.register(self.tensors[key], name=key)
        return self.regions[key].id

    def read_from_several(self, peer, mine, theirs, page, pages, seeds):
        """One read of pages that lie in turn in each of the peer's regions. Returns the differences in our
        tensor."""
        tensor, turns = self.tensors[mine], len(theirs)
        rows = np.array([[theirs[i % turns], i // turns * page, page] for i in range(pages)], dtype=np.uint64)
        remote = self.agent.prepare(rows, peer=peer)
        local = self.agent.prepare(headrace.UniformPages(self.regions[mine], 0, 0, page, pages))
        request = self.agent.make_request("read", local, remote)
        request.post()
        request.wait(30)
        expected = tensor.clone()
        sources = [pattern(page * pages, seed, self.device) for seed in seeds]
        for i in range(pages):
            at = i // turns * page
            expected[i * page : (i + 1) * page] = sources[i % turns][at : at + page]
        return self._differences(tensor, expected)

    def regions_by_name(self):
        return {region.name: region.id for region in self.agent.regions()}

    def used(self):
        """Bytes of this GPU that are in use by any process."""
        if self.ordinal < 0:
            return 0
        free, total = torch.cuda.mem_get_info(self.ordinal)
        return total - free

    # Requests

    def _side(self, region, offsets, plan, indexed, peer=None):
        """A prepared list, and the indices of the plan's pages in it."""
        if plan.page and indexed:
            slots = self._length(region, peer) // plan.page
            return self.agent.prepare(
                headrace.UniformPages(region, 0, 0, plan.page, slots), peer=peer
            ), offsets // plan.page
        rows = np.column_stack([np.full(len(offsets), region), offsets, plan.lengths]).astype(np.uint64)
        return self.agent.prepare(rows, peer=peer), None

    def _length(self, region, peer):
        known = self.agent.peer_regions(peer) if peer and peer != self.agent.name else self.agent.regions()
        return next(one.length_bytes for one in known if one.id == region)

    def make(self, handle, op, peer, mine, theirs, plan, indexed=True, backends=None, timeout=None):
        """Makes the request `handle` for the plan's pages between our tensor and the peer's region."""
        plan = Plan.make(*plan)
        ours, others = (plan.targets, plan.sources) if op == "read" else (plan.sources, plan.targets)
        local, local_index = self._side(self.regions[mine].id, ours, plan, indexed)
        remote, remote_index = self._side(theirs, others, plan, indexed, peer)
        self.requests[handle] = self.agent.make_request(
            op, local, remote, local_index, remote_index, backends=backends, timeout=timeout
        )
        return {"backend": self.requests[handle].backend, "explain": self.requests[handle].explain()}

    def post(self, handle, notification=None, timeout=30):
        """Posts the request and waits for its completion."""
        request = self.requests[handle]
        start = time.monotonic()
        request.post(notification.encode() if notification else None)
        request.wait(timeout)
        return {"backend": request.backend, "explain": request.explain(), "seconds": time.monotonic() - start}

    def drop(self, handle):
        del self.requests[handle]

    def move(self, op, peer, mine, theirs, plan, indexed=True, notification=None, backends=None):
        self.make("one", op, peer, mine, theirs, plan, indexed, backends)
        try:
            return self.post("one", notification)
        finally:
            self.drop("one")

    def in_stream_order(self, op, peer, mine, theirs, seed):
        """Moves a whole tensor between earlier and later work of its stream, without a wait in between.

        A write sends the pattern of `seed`, which the stream writes late, and not the zeros that it writes
        next. A read gets the bytes that the stream copies away right after it. Returns the differences.
        """
        tensor = self.tensors[mine]
        stream = torch.cuda.Stream(self.device)
        wanted = pattern(tensor.numel(), seed, self.device)
        local = self.agent.prepare([(self.regions[mine], 0, tensor.numel())])
        request = self.agent.make_request(op, local, self.agent.prepare([(theirs, 0, tensor.numel())], peer))
        request.post()  # makes the link ready
        request.wait(30)
        self._quiet()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)  # cycles: about 50 ms
            if op == "write":
                tensor.copy_(wanted)
            else:
                tensor.zero_()
        request.post(stream=stream)
        in_flight = request.state == "posted"
        with torch.cuda.stream(stream):
            taken = tensor.clone()
            tensor.zero_()
        stream.synchronize()
        request.wait(30)
        return {"in_flight": in_flight, "wrong": self._differences(taken, wanted)}

    def move_on_stream(self, op, peer, mine, theirs, plan, default):
        """Moves the plan's pages in the order of torch's default stream, or of another one. Returns the state
        of the request.

        Before, it moves one page of a similar plan, which makes the link ready. That page must be checked,
        too.
        """
        self.move(op, peer, mine, theirs, [*plan[:3], 1, plan[4]])
        self._quiet()
        stream = torch.cuda.default_stream(self.device) if default else torch.cuda.Stream(self.device)
        self.make("one", op, peer, mine, theirs, plan)
        try:
            request = self.requests["one"]
            request.post(stream=stream)
            stream.synchronize()
            request.wait(30)
            return request.state
        finally:
            self.drop("one")

    # CUDA graphs

    def capture(self, handle, op, peer, mine, theirs, page, pages, numbers="host", immediate=None):
        """Makes the request `handle` for `pages` pages of the two regions, and captures a post of it as torch
        captures.

        numbers: the source of the indices of a replay: "host", "gpu" (both before the replay), or "graph"
        (the graph itself reads them from a tensor).
        """
        sides = [self._length(self.regions[mine].id, None) // page, self._length(theirs, peer) // page]
        lists = [
            self.agent.prepare(headrace.UniformPages(region, 0, 0, page, slots), peer=whom)
            for region, slots, whom in ((self.regions[mine], sides[0], None), (theirs, sides[1], peer))
        ]
        first = np.arange(pages, dtype=np.int64)
        request = self.agent.make_request(op, *lists, first, first)
        request.post()  # makes the link ready
        request.wait(30)
        self._quiet()
        graph = torch.cuda.CUDAGraph()
        tables = [torch.zeros(pages, dtype=torch.int32, device=self.device) for _ in sides]
        given = dict(zip(("local", "remote"), tables)) if numbers == "graph" else {}
        self._quiet()
        with torch.cuda.graph(graph):
            request.post(stream=torch.cuda.current_stream(), immediate=immediate, **given)
        self.graphs[handle] = graph, request, sides, numbers, tables
        return request.state

    def replay(self, handle, op, mine, page, pages, replays, seed, source_seed):
        """Replays with other pages each time. Returns the differences in our tensor for a read, and the
        indices of the last replay for a write.

        Each read is compared with the source's pattern here; a write is compared by its owner.
        """
        graph, request, sides, numbers, tables = self.graphs[handle]
        rng = np.random.default_rng(seed)
        stream = torch.cuda.Stream(self.device)
        tensor = self.tensors[mine]
        before = request.check()
        for replay in range(replays):
            count = pages if numbers == "graph" or replay % 3 else int(rng.integers(0, pages + 1))
            chosen = [rng.permutation(side)[:count].astype(np.int32) for side in sides]
            with torch.cuda.stream(stream):
                if op == "read":
                    tensor.zero_()
                self._name_pages(request, numbers, tables, chosen, stream)
                graph.replay()
            stream.synchronize()
            if op == "read" and (wrong := self._wrong_pages(tensor, source_seed, page, *chosen)):
                return f"replay {replay} of {count} pages: {wrong}"
        if request.check() != before + replays:
            return f"{request.check()} replays were counted, {before} before"
        return "" if op == "read" else [side.tolist() for side in chosen]

    def _name_pages(self, request, numbers, tables, chosen, stream):
        if numbers == "host":
            request.set_indices(*chosen, stream=stream)
            return
        on_gpu = [torch.from_numpy(side).to(self.device) for side in chosen]
        if numbers == "gpu":
            request.set_indices(*on_gpu, stream=stream)
            stream.synchronize()  # before the tables are freed
            return
        for table, side in zip(tables, on_gpu):
            table[: side.numel()].copy_(side)

    def _wrong_pages(self, tensor, source_seed, page, locals_, remotes):
        expected = torch.zeros_like(tensor)
        self.copy_pages(expected, pattern(tensor.numel(), source_seed, self.device), page, locals_, remotes)
        return self._differences(tensor, expected)

    def copy_pages(self, target, source, page, into, out_of):
        slots = target.numel() // page
        rows = [
            torch.as_tensor(np.asarray(side, dtype=np.int64), device=self.device) for side in (into, out_of)
        ]
        target[: slots * page].view(slots, page)[rows[0]] = source[: slots * page].view(slots, page)[rows[1]]

    def check_written(self, key, target_seed, source_seed, page, locals_, remotes):
        """The differences in a tensor that held the target's pattern before a write moved these pages of the
        source there."""
        expected = pattern(self.tensors[key].numel(), target_seed, self.device)
        self.copy_pages(expected, pattern(expected.numel(), source_seed, self.device), page, remotes, locals_)
        return self._differences(self.tensors[key], expected)

    def replay_with_bad_numbers(self, handle, mine, page, pages, source_seed):
        """A read with one index out of bounds on each side in turn, written by a GPU. Returns the errors of
        `check` and the differences."""
        graph, request, sides, _, _ = self.graphs[handle]
        tensor = self.tensors[mine]
        told = []
        for side, bad in ((0, sides[0]), (1, -1)):
            chosen = [torch.arange(pages, dtype=torch.int32, device=self.device) for _ in sides]
            chosen[side][pages // 2] = bad
            tensor.zero_()
            self._quiet()
            stream = torch.cuda.Stream(self.device)
            request.set_indices(*chosen, stream=stream)
            with torch.cuda.stream(stream):
                graph.replay()
            stream.synchronize()
            good = [number for number in range(pages) if number != pages // 2]
            wrong = self._wrong_pages(tensor, source_seed, page, good, good)
            try:
                told.append(
                    {"text": f"nothing was said of {request.check()} replays", "page": None, "wrong": wrong}
                )
            except headrace.InvalidArgument as error:
                told.append({"text": str(error), "page": error.page, "wrong": wrong})
            request.check()  # the error is reported once
        return told

    def wait_for_replays(self, handle, replays):
        """Queues replays behind other work of the GPU, and sees their ends by polling memory only."""
        graph, request, _, _, _ = self.graphs[handle]
        before = request.check()
        stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)  # cycles: about 50 ms
            for _ in range(replays):
                graph.replay()
        at_once = request.check()
        end = time.monotonic() + 30
        while request.check() < before + replays and time.monotonic() < end:
            pass
        return {"at_once": at_once - before, "in_the_end": request.check() - before}

    def ask_graph(self, handle, member):
        """The result of a method, or the value of a property, of a captured request."""
        found = getattr(self.graphs[handle][1], member)
        return found() if callable(found) else found

    def replay_blindly(self, handle):
        self.graphs[handle][0].replay()
        self._quiet()

    def replay_and_cancel(self, handle, replays):
        """Queues replays, one behind the other, and takes the request out of the graph when they have
        ended."""
        graph, request, _, _, _ = self.graphs[handle]
        stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(stream):
            for _ in range(replays):
                graph.replay()
        stream.synchronize()
        request.cancel()

    def drop_graph(self, handle):
        self._quiet()
        del self.graphs[handle]
        gc.collect()

    def check(self, key, target_seed, source_seed, plans):
        """The differences in a tensor that held the target's pattern before these plans moved pages of the
        source there."""
        expected = pattern(self.tensors[key].numel(), target_seed, self.device)
        source = pattern(expected.numel(), source_seed, self.device)
        for plan in plans:
            Plan.make(*plan).apply(expected, source)
        return self._differences(self.tensors[key], expected)

    # Views. A layout describes a part of a buffer with elements of two bytes: {"shape", "cut": [first, last]
    # of each dimension, "order"}

    @staticmethod
    def _view(tensor, layout):
        size = int(np.prod(layout["shape"])) * 2
        whole = tensor[:size].view(torch.int16).view(layout["shape"])
        return whole[tuple(slice(*cut) for cut in layout["cut"])].permute(layout["order"])

    def tell_view(self, key, layout):
        """The pages that the layout makes of a tensor, so that a peer can prepare them."""
        pages, view = headrace.pages_of(self.regions[key], self._view(self.tensors[key], layout))
        return [
            [pages.region, pages.base_bytes, pages.stride_bytes, pages.page_bytes, pages.count],
            [view.shape, view.strides_bytes, view.item_bytes],
        ]

    def _views(self, peer, mine, layout, theirs):
        """Both lists: ours, and that of the peer's pages."""
        ours = self.tell_view(mine, layout)
        return [
            self.agent.prepare(headrace.UniformPages(*pages), peer=whom, view=headrace.PageView(*view))
            for (pages, view), whom in ((ours, None), (theirs, peer))
        ]

    def move_views(self, op, peer, mine, layout, theirs, here, there):
        """Moves our pages `here` to or from their pages `there`."""
        request = self.agent.make_request(op, *self._views(peer, mine, layout, theirs), here, there)
        start = time.monotonic()
        request.post()
        request.wait(30)
        return {"backend": request.backend, "explain": request.explain(), "seconds": time.monotonic() - start}

    def replay_views(self, peer, mine, layout, theirs, turns):
        """Captured reads with other pages at each replay. The last pages are those of the last turn."""
        here, there = turns[0]
        request = self.agent.make_request("read", *self._views(peer, mine, layout, theirs), here, there)
        request.post()  # makes the link ready
        request.wait(30)
        self._quiet()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(self.device)
        with torch.cuda.graph(graph):
            request.post(stream=torch.cuda.current_stream())
        for here, there in turns[1:]:
            request.set_indices(
                local=np.array(here, np.uint32), remote=np.array(there, np.uint32), stream=stream
            )
            with torch.cuda.stream(stream):
                graph.replay()
        stream.synchronize()
        return request.check()

    def check_views(self, key, layout, target_seed, source_bytes, source_layout, source_seed, moved):
        """The differences in a tensor that held the target's pattern before the pages `moved` ([into, out
        of]) came from the source."""
        device = self.tensors[key].device
        expected = pattern(self.tensors[key].numel(), target_seed, device)
        source = self._view(pattern(source_bytes, source_seed, device), source_layout)
        for into, out_of in moved:
            self._view(expected, layout)[into] = source[out_of]
        return self._differences(self.tensors[key], expected)

    def _differences(self, have, expected):
        if torch.equal(have, expected):
            return ""
        wrong = torch.nonzero(have != expected).view(-1)
        return f"{wrong.numel()} of {have.numel()} bytes are wrong, from {int(wrong[0])} to {int(wrong[-1])}"

    def take(self, timeout=30):
        peer, payload = self.agent.wait_notification(timeout)
        return {"peer": peer, "payload": payload.decode()}

    # Mappings: a peer's memory as a tensor of this GPU, or of the CPU where host memory replaces it

    def fill_read_only(self, key, bytes, seed):
        """As `fill`, in memory that requests and mappings only read."""
        self.fill_unregistered(key, bytes, seed)
        self.regions[key] = self.agent.register(self.tensors[key], name=key, writable=False)
        return self.regions[key].id

    def map(self, handle, peer, theirs, device=None):
        """Makes the mapping `handle` for this process's GPU, or for `device`. Returns its properties."""
        if device is None and self.ordinal >= 0:
            device = self.ordinal
        mapping = self.mappings[handle] = self.agent.map(peer, theirs, device=device)
        return {
            "device": mapping.device,
            "bytes": len(mapping),
            "writable": mapping.writable,
            "dlpack": list(mapping.__dlpack_device__()),
        }

    def is_mapping_alive(self, handle):
        return self.mappings[handle].alive

    def mapping_address(self, handle):
        return self.mappings[handle].address

    def check_mapping(self, handle, seed):
        """The differences in a mapping that kernels of this GPU read in place."""
        tensor = torch.from_dlpack(self.mappings[handle])
        assert tensor.dtype == torch.uint8 and tensor.device == self.device and tensor.dim() == 1, (
            tensor.dtype,
            tensor.device,
            tensor.shape,
        )
        expected = pattern(tensor.numel(), seed, self.device)
        sums = [int(side.sum(dtype=torch.int64)) for side in (tensor, expected)]
        return self._differences(tensor, expected) or (
            "" if sums[0] == sums[1] else f"the sum is {sums[0]}, not {sums[1]}"
        )

    def spin_on_counter(self, key, immediate, at_least, seed):
        """Starts a kernel that waits for a count and then compares a tensor with the pattern of `seed`."""
        kernel = torch.cuda._compile_kernel(SPIN_ON_COUNTER, "spin_on_counter")
        bytes_ = self.tensors[key]
        word = self.agent.counter(immediate).word(self.ordinal)
        words = torch.as_tensor(word, device=self.device)
        told = torch.tensor([0, 0, bytes_.numel()], dtype=torch.int64, device=self.device)
        wanted = torch.tensor([at_least], dtype=torch.int64, device=self.device)
        expected = pattern(bytes_.numel(), seed, self.device)
        self._quiet()
        stream = torch.cuda.Stream(self.device)
        kernel(
            grid=(1, 1, 1),
            block=(256, 1, 1),
            args=[words, wanted, bytes_, expected, told],
            stream=stream,
        )
        self.spins[key] = stream, told, (word, words, wanted, expected)
        return stream.query()

    def end_of_spin(self, key):
        """The count that the kernel saw, and how many bytes then differed."""
        stream, told, kept = self.spins.pop(key)
        stream.synchronize()
        del kept
        return told.tolist()[:2]

    def wait_for_count(self, immediate, at_least):
        counter = self.agent.counter(immediate)
        counter.wait(at_least, timeout=60)
        return counter.value

    def write_counted(self, peer, mine, theirs, page, threads, each, immediate):
        """`threads` threads write each page once, by posts of their own with the same immediate."""

        def write(first):
            for i in range(first, first + each):
                self.agent.write(
                    peer,
                    headrace.UniformPages(self.regions[mine], i * page, page, page, 1),
                    headrace.UniformPages(theirs, i * page, page, page, 1),
                    immediate=immediate,
                )

        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(write, t * each) for t in range(threads)]:
                done.result()

    def check_copies_of_mapping(self, handle, seed):
        """The differences in copies of a mapping, on this GPU and on the host."""
        tensor = torch.from_dlpack(self.mappings[handle])
        expected = pattern(tensor.numel(), seed, self.device)
        return self._differences(tensor.clone(), expected) or self._differences(tensor.cpu(), expected.cpu())

    def write_mapping(self, handle, seed, peer=None):
        """Writes a mapping in place, by a kernel, and then notifies the peer."""
        tensor = torch.from_dlpack(self.mappings[handle])
        torch.bitwise_xor(pattern(tensor.numel(), seed, self.device), 0, out=tensor)
        self._quiet()
        if peer:
            self.agent.notify(peer, b"written")

    def unmap(self, handle):
        del self.mappings[handle]
        gc.collect()

    def let_go_of_mapping_in_use(self, handle, seed):
        """Releases a mapping while a kernel that reads it is queued. Returns the differences in the bytes
        that the kernel read."""
        expected = pattern(len(self.mappings[handle]), seed, self.device)
        read = torch.bitwise_xor(
            expected, 0
        ).zero_()  # the kernel is loaded, and memory there, before anything is queued
        self._quiet()
        stream = torch.cuda.Stream(self.device)
        tensor = torch.from_dlpack(self.mappings[handle])
        with torch.cuda.stream(stream):
            torch.cuda._sleep(400_000_000)  # cycles: some 200 ms
            torch.bitwise_xor(tensor, 0, out=read)
        in_flight = not stream.query()
        del tensor
        self.unmap(handle)
        self._quiet()
        return {"in_flight": in_flight, "wrong": self._differences(read, expected)}

    def let_go_of_last_tensor(self, handle, seed):
        """Releases a mapping first and its last tensor later. The end of the tensor waits for a kernel; the
        result says whether other Python threads run meanwhile."""
        expected = pattern(len(self.mappings[handle]), seed, self.device)
        read = torch.bitwise_xor(expected, 0).zero_()
        self._quiet()
        tensor = torch.from_dlpack(self.mappings[handle])
        self.unmap(handle)
        turns, over = [0], threading.Event()

        def take_turns():
            while not over.wait(0.001):
                turns[0] += 1

        other = threading.Thread(target=take_turns)
        other.start()
        stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(400_000_000)  # cycles: some 200 ms
            torch.bitwise_xor(tensor, 0, out=read)
        in_flight, before = not stream.query(), turns[0]
        del tensor
        meanwhile = turns[0] - before
        over.set()
        other.join()
        self._quiet()
        return {
            "in_flight": in_flight,
            "others_ran": meanwhile >= 20,
            "wrong": self._differences(read, expected),
        }

    def refuse_host_views(self, handle):
        """The errors of calls that want a mapping for a GPU as memory of the CPU."""
        mapping, said = self.mappings[handle], []
        for wish in (
            lambda: memoryview(mapping),
            lambda: bytes(mapping),
            mapping.numpy,
            lambda: mapping.numpy("uint16", (8,)),
        ):
            try:
                wish()
            except BufferError as error:
                said.append(str(error))
        return said

    def describe_mapping(self, handle):
        """The __cuda_array_interface__ of a mapping, and whether it supports consumers older than version 1
        of DLPack."""
        mapping = self.mappings[handle]
        try:
            mapping.__dlpack__()
            plain = True
        except BufferError:
            plain = False
        return {"interface": mapping.__cuda_array_interface__, "address": mapping.address, "plain": plain}

    # Several peers at once

    def _slot_side(self, region, base, slot, offsets, plan, peer=None):
        """A prepared list of the pages in the slot that begins at `base`, and the indices of the plan's pages
        in it."""
        if plan.page:
            return self.agent.prepare(
                headrace.UniformPages(region, base, 0, plan.page, slot // plan.page), peer=peer
            ), offsets // plan.page
        rows = np.column_stack([np.full(len(offsets), region), offsets + base, plan.lengths]).astype(
            np.uint64
        )
        return self.agent.prepare(rows, peer=peer), None

    def make_exchange(self, handle, op, mine, slot, parts):
        """Makes one request to several peers. The plan's pages of each part lie in slot `ours` here and in
        slot `others` there."""
        given = []
        for part in parts:
            plan = Plan.make(*part["plan"])
            ours, others = (plan.targets, plan.sources) if op == "read" else (plan.sources, plan.targets)
            local, local_index = self._slot_side(self.regions[mine].id, part["ours"] * slot, slot, ours, plan)
            remote, remote_index = self._slot_side(
                part["theirs"], part["others"] * slot, slot, others, plan, part["peer"]
            )
            given.append((local, remote, local_index, remote_index))
        self.requests[handle] = self.agent.make_request(op, given)
        return [part.backend for part in self.requests[handle].parts]

    def exchange(self, handle, rounds=1, notification=None, on_stream=False):
        """Posts the request `rounds` times, and waits for each completion."""
        request = self.requests[handle]
        stream = torch.cuda.Stream(self.device) if on_stream else None
        for _ in range(rounds):
            request.post(notification.encode() if notification else None, stream=stream)
            if on_stream:
                stream.synchronize()
            request.wait(60)

    def capture_exchange(self, handle):
        """Captures a post of a request that has been posted before."""
        request = self.requests[handle]
        graph = torch.cuda.CUDAGraph()
        self._quiet()
        with torch.cuda.graph(graph):
            request.post(stream=torch.cuda.current_stream())
        self.graphs[handle] = graph, request
        return request.state

    def replay_exchange(self, handle, op, plans):
        """A replay with the pages of the given plans, one a part, or without plans with the current pages.
        Returns the number of replays that have ended."""
        graph, request = self.graphs[handle]
        stream = torch.cuda.Stream(self.device)
        for number, plan in enumerate(plans):
            plan = Plan.make(*plan)
            ours, others = (plan.targets, plan.sources) if op == "read" else (plan.sources, plan.targets)
            request.set_indices(ours // plan.page, others // plan.page, stream=stream, part=number)
        with torch.cuda.stream(stream):
            graph.replay()
        stream.synchronize()
        return request.check()

    def check_slots(self, key, target_seed, slot, takes):
        """The differences in a tensor that held the target's pattern before each slot got a plan's pages of a
        source slot."""
        expected = pattern(self.tensors[key].numel(), target_seed, self.device)
        for take in takes:
            source = pattern(take["source_bytes"], take["source_seed"], self.device)
            into, out_of = take["into"] * slot, take["out_of"] * slot
            Plan.make(*take["plan"]).apply(expected[into : into + slot], source[out_of : out_of + slot])
        return self._differences(self.tensors[key], expected)

    def check_first_slot(self, slot, plan, source_seed):
        """The differences in the first slot of a tensor of zeros that got a plan's pages."""
        expected = torch.zeros(slot, dtype=torch.uint8, device=self.device)
        Plan.make(*plan).apply(expected, pattern(slot, source_seed, self.device))
        return self._differences(self.tensors["in"][:slot], expected)

    def exchange_until_lost(self, handle, seconds):
        """Posts the request until it fails. Its tensor is zeroed before each post. Returns the number of
        completions, the error, and the state of each part."""
        request, done, end = self.requests[handle], 0, time.monotonic() + seconds
        while time.monotonic() < end:
            self.tensors["in"].zero_()
            self._quiet()
            try:
                request.post(timeout=20)
                request.wait(30)
            except headrace.Error as error:
                return {
                    "done": done,
                    "code": error.code,
                    "text": str(error),
                    "parts": [part.state for part in request.parts],
                }
            done += 1
        return {"done": done, "code": "", "text": "", "parts": []}

    # KV cache

    def move_blocks(self, op, peer, mine, theirs, blocks, ours, others):
        """Moves the blocks `ours` of our cache, keys and values, and the blocks `others` of the peer's."""
        block = 16 * 8 * 128 * 2
        local = self.agent.prepare(headrace.UniformPages(self.regions[mine], 0, 0, block, 2 * blocks))
        remote = self.agent.prepare(headrace.UniformPages(theirs, 0, 0, block, 2 * blocks), peer=peer)
        indices = [np.concatenate([np.array(side), np.array(side) + blocks]) for side in (ours, others)]
        request = self.agent.make_request(op, local, remote, *indices)
        request.post()
        request.wait(30)
        return request.backend

    def check_blocks(self, key, target_seed, source_seed, sources, targets):
        shape = self.tensors[key].shape
        expected, source = (
            pattern(self.tensors[key].numel() * 2, seed, self.device).view(torch.int16).view(shape)
            for seed in (target_seed, source_seed)
        )
        expected[:, targets] = source[:, sources]
        return self._differences(self.tensors[key].view(torch.int16).view(-1), expected.view(-1))

    # Many requests

    def storm(self, op, peer, mine, theirs, plans):
        """Moves one plan after another, each with a request of its own."""
        for plan in plans:
            self.move(op, peer, mine, theirs, plan)

    def parts(self, op, peer, mine, theirs, plan, requests):
        """Distributes the plan's pages over `requests` requests that are all in flight at once. Returns the
        number of requests."""
        whole = Plan.make(*plan)
        made = []
        for part in range(requests):
            which = slice(part, None, requests)
            sides = [
                np.ascontiguousarray(side[which]) for side in (whole.sources, whole.targets, whole.lengths)
            ]
            if not len(sides[0]):
                continue
            dealt = Plan(*sides)
            ours, others = (dealt.targets, dealt.sources) if op == "read" else (dealt.sources, dealt.targets)
            local, _ = self._side(self.regions[mine].id, ours, dealt, False)
            remote, _ = self._side(theirs, others, dealt, False, peer)
            made.append(self.agent.make_request(op, local, remote))
        for request in made:
            while True:
                try:
                    request.post()
                    break
                except headrace.WouldBlock:
                    for other in made:
                        other.poll()
        for request in made:
            request.wait(60)
        return len(made)

    def post_and_synchronise(self, handle, times):
        """Posts the request, waits for it and then for the whole GPU, again and again. Returns the seconds of
        the waits for the GPU."""
        request, seconds = self.requests[handle], []
        for _ in range(times):
            request.post()
            request.wait(30)
            start = time.monotonic()
            self._quiet()
            seconds.append(time.monotonic() - start)
        return seconds

    def synchronise_beside_posts(self, handle, times):
        """Waits for the whole GPU `times` times while another thread posts without a pause. Returns the
        number of posts and the seconds of each wait."""
        request, stop, posts, failed = self.requests[handle], threading.Event(), [0], []

        def post():
            try:
                while not stop.is_set():
                    request.post()
                    request.wait(30)
                    posts[0] += 1
            except headrace.Error as error:
                failed.append(error)

        poster = threading.Thread(target=post)
        poster.start()
        seconds = []
        try:
            while len(seconds) < times and not failed:
                before = posts[0]
                start = time.monotonic()
                self._quiet()
                seconds.append(time.monotonic() - start)
                while posts[0] == before and not failed:
                    time.sleep(0.0001)
        finally:
            stop.set()
            poster.join()
        if failed:
            raise failed[0]
        return {"posts": posts[0], "seconds": seconds}

    def read_until_refused(self, peer, mine, theirs, bytes, source_seed, seconds):
        """Reads a whole region again and again. Returns the number of reads, the differences, and the error
        that ended the loop."""
        request = self.agent.make_request(
            "read",
            self.agent.prepare([(self.regions[mine], 0, bytes)]),
            self.agent.prepare([(theirs, 0, bytes)], peer),
        )
        expected = pattern(bytes, source_seed, self.device)
        done, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            self.tensors[mine].zero_()
            self._quiet()
            try:
                request.post()
                request.wait(30)
            except headrace.Error as error:
                return {"done": done, "code": error.code, "wrong": ""}
            if wrong := self._differences(self.tensors[mine][:bytes], expected):
                return {"done": done, "code": "", "wrong": wrong}
            done += 1
        return {"done": done, "code": "", "wrong": ""}

    def kill_in_the_middle(self, peer, pid, mine, theirs, bytes, count, after, page, timeout, source_seed):
        """Posts `count` reads of the peer's region, each into a slot of its own, and kills the peer when
        `after` of them are done.

        Returns the end and the time of each read, and the wrong slots among those that are done.
        """
        requests = []
        pages = bytes // page
        remote = self.agent.prepare(headrace.UniformPages(theirs, 0, 0, page, pages), peer=peer)
        local = self.agent.prepare(headrace.UniformPages(self.regions[mine], 0, 0, page, pages * count))
        shuffled = np.random.default_rng(after).permutation(pages).astype(np.int64)
        for slot in range(count):
            requests.append(
                self.agent.make_request(
                    "read", local, remote, shuffled + slot * pages, shuffled, timeout=timeout
                )
            )
        self.tensors[mine].zero_()
        self._quiet()
        starts, codes = [], [None] * count
        for slot, request in enumerate(requests):
            starts.append(time.monotonic())
            try:
                request.post()
            except headrace.Error as error:
                codes[slot] = error.code
        if after == 0:
            os.kill(pid, signal.SIGKILL)
        seconds = []
        for slot, request in enumerate(requests):
            if codes[slot] is None:
                try:
                    request.wait(timeout + 5)
                    codes[slot] = "done"
                except headrace.Error as error:
                    codes[slot] = error.code
            seconds.append(time.monotonic() - starts[slot])
            if slot + 1 == after:
                os.kill(pid, signal.SIGKILL)
        expected = pattern(bytes, source_seed, self.device)
        slots = self.tensors[mine].view(count, bytes)
        wrong = [
            slot for slot in range(count) if codes[slot] == "done" and not torch.equal(slots[slot], expected)
        ]
        later = []
        for request in requests[:3]:
            start = time.monotonic()
            try:
                request.post()
                request.wait(timeout)
                later.append(("done", time.monotonic() - start))
            except headrace.Error as error:
                later.append((error.code, time.monotonic() - start))
        return {"codes": codes, "seconds": max(seconds), "wrong": wrong, "later": later}

    def peers(self):
        return {peer.name: {"lost": peer.lost, "detail": peer.detail} for peer in self.agent.peers()}

    def _quiet(self):
        """Waits for the work that torch has queued: requests do not wait for torch's streams."""
        if self.ordinal >= 0:
            torch.cuda.synchronize()


def end_with_parent():
    """Ends this process with its parent, so that a killed test run leaves no process that holds a GPU's
    memory."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main(name, device, backends):
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries goes to stderr, not between the answers
    process = Process(name, int(device), [part for part in backends.split(",") if part])
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"value": getattr(process, request.pop("do"))(**request)}
        except headrace.Error as error:
            answer = {"error": error.code, "text": str(error)}
        except Exception:
            answer = {"error": "exception", "text": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    process.requests.clear()
    process.graphs.clear()
    process.mappings.clear()
    process.agent.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
