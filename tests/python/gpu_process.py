# SPDX-License-Identifier: Apache-2.0
"""An agent with memory of one GPU in a process of its own, for test_gpu.py: one JSON object a line comes in,
one goes out.

Usage: gpu_process.py NAME DEVICE BACKENDS    DEVICE: a GPU's ordinal, or -1 for host memory; BACKENDS: with
commas between What a tensor holds follows from a seed, and which pages go where from a plan, so that both
sides know without asking.
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

import numpy as np
import torch

import headrace

WORD = 8


# What both sides know


def pattern(bytes_, seed, device):
    """Bytes that the seed decides, the same on every device."""
    words = torch.arange(-(-bytes_ // WORD), dtype=torch.int64, device=device)
    words = (words + seed * 1_000_003) * -7046029254386353131
    return (words ^ (words >> 29)).view(torch.uint8)[:bytes_]


class Plan:
    """Pages of a source and a target that belong together. No two of the target overlap."""

    def __init__(self, sources, targets, lengths, page=0):
        self.sources, self.targets, self.lengths = sources, targets, lengths
        self.page = page  # of uniform lists, else 0

    @staticmethod
    def make(kind, buffer, page, count, seed):
        rng = np.random.default_rng(seed)
        if kind == "uniform":  # pages that lie at multiples of their length
            slots = buffer // page
            sources, targets = (rng.permutation(slots)[:count].astype(np.int64) * page for _ in range(2))
            return Plan(sources, targets, np.full(count, page, np.int64), page)
        # Pages of any length up to `page`, at any place.
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
        """The reference: what a transfer shall do, in torch's own words."""
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

    # Who is who

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
        """In a segment of its own, where torch's segments do not grow: none of those that it has kept is
        free."""
        self.release_memory()
        return torch.empty(bytes, dtype=torch.uint8, device=self.device)

    def fill(self, key, bytes, seed):
        """A tensor of that name; registered if it is new. Its region's id."""
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
        """The same in host memory that the agent allocates."""
        memory = self.agent.allocate(bytes, name=key)
        self.tensors[key] = torch.from_numpy(memory.numpy("uint8"))
        self.regions[key] = memory.region
        self.tensors[key].copy_(pattern(bytes, seed, self.device))
        return memory.region.id

    def fill_host(self, key, bytes, seed):
        """The same in host memory that is merely registered."""
        self.tensors[key] = pattern(bytes, seed, torch.device("cpu")).clone()
        self.regions[key] = self.agent.register(self.tensors[key], name=key)
        return self.regions[key].id

    def fill_cache(self, key, blocks, seed):
        """A KV cache as vLLM lays it out: keys and values, blocks, tokens, heads, elements."""
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
        """Another region, of the first bytes of a tensor on the host."""
        self.regions[part] = self.agent.register(
            headrace.MemoryRange("dram", self.tensors[key].data_ptr(), length), name=part
        )
        return self.regions[part].id

    def register_while_current(self, key, current):
        """With another GPU the current one."""
        torch.cuda.set_device(current)
        try:
            self.regions[key] = self.agent.register(self.tensors[key], name=key)
        finally:
            torch.cuda.set_device(self.ordinal)
        return self.regions[key].id

    def free(self, key):
        """Lets go of the tensor, and torch of its memory. Its region stays."""
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
        """The region stays known here if it is refused."""
        self.agent.deregister(self.regions[key], timeout=timeout)
        del self.regions[key]

    def fill_on(self, key, device, bytes, seed):
        """The same as fill, on a GPU of one's choice."""
        with torch.cuda.device(device):
            self.tensors[key] = pattern(bytes, seed, torch.device("cuda", device)).clone()
            torch.cuda.synchronize()
        self.regions[key] = self.agent.register(self.tensors[key], name=key)
        return self.regions[key].id

    def read_from_several(self, peer, mine, theirs, page, pages, seeds):
        """One read of pages that lie in turn in each of the peer's regions. What is wrong with ours."""
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
        """Bytes of this GPU that are not free, whoever has them."""
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
        """A request of that name: the plan's pages between our tensor and the peer's region."""
        plan = Plan.make(*plan)
        ours, others = (plan.targets, plan.sources) if op == "read" else (plan.sources, plan.targets)
        local, local_index = self._side(self.regions[mine].id, ours, plan, indexed)
        remote, remote_index = self._side(theirs, others, plan, indexed, peer)
        self.requests[handle] = self.agent.make_request(
            op, local, remote, local_index, remote_index, backends=backends, timeout=timeout
        )
        return {"backend": self.requests[handle].backend, "explain": self.requests[handle].explain()}

    def post(self, handle, notification=None, timeout=30):
        """Posts it and waits for its end."""
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
        """Moves a whole tensor between what its stream does before and after, and waits for nothing in
        between.

        A write sends the pattern of `seed` that the stream puts there late, and not the zeros that it puts
        there next. A read gives what the stream copies away right after it: what is wrong with that.
        """
        tensor = self.tensors[mine]
        stream = torch.cuda.Stream(self.device)
        wanted = pattern(tensor.numel(), seed, self.device)
        local = self.agent.prepare([(self.regions[mine], 0, tensor.numel())])
        request = self.agent.make_request(op, local, self.agent.prepare([(theirs, 0, tensor.numel())], peer))
        request.post()  # makes the way
        request.wait(30)
        self._quiet()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)  # cycles: some 50 ms
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
        """Moves the plan's pages in the order of torch's default stream, or of another one; the request's
        state at the end.

        One page of a like plan is moved before, which makes the way: it is to be checked, too.
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

    def capture(self, handle, op, peer, mine, theirs, page, pages, numbers="host"):
        """A request of that name for `pages` pages of the two regions, posted into a graph that is captured
        as torch does it.

        numbers: who names the pages of a replay: "host", "gpu" (both before the replay), or "graph" (the
        graph itself reads them from a tensor).
        """
        sides = [self._length(self.regions[mine].id, None) // page, self._length(theirs, peer) // page]
        lists = [
            self.agent.prepare(headrace.UniformPages(region, 0, 0, page, slots), peer=whom)
            for region, slots, whom in ((self.regions[mine], sides[0], None), (theirs, sides[1], peer))
        ]
        first = np.arange(pages, dtype=np.int64)
        request = self.agent.make_request(op, *lists, first, first)
        request.post()  # makes the way
        request.wait(30)
        self._quiet()
        graph = torch.cuda.CUDAGraph()
        tables = [torch.zeros(pages, dtype=torch.int32, device=self.device) for _ in sides]
        given = dict(zip(("local", "remote"), tables)) if numbers == "graph" else {}
        self._quiet()
        with torch.cuda.graph(graph):
            request.post(stream=torch.cuda.current_stream(), **given)
        self.graphs[handle] = graph, request, sides, numbers, tables
        return request.state

    def replay(self, handle, op, mine, page, pages, replays, seed, source_seed):
        """Replays with other pages each time. What is wrong with our tensor (read); for a write, the numbers
        of the last replay.

        Reads are compared with the source's pattern each time; a write is compared by its owner.
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
            stream.synchronize()  # before they go
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
        """What is wrong with a tensor that held the target's pattern before a write took these pages of the
        source's."""
        expected = pattern(self.tensors[key].numel(), target_seed, self.device)
        self.copy_pages(expected, pattern(expected.numel(), source_seed, self.device), page, remotes, locals_)
        return self._differences(self.tensors[key], expected)

    def replay_with_bad_numbers(self, handle, mine, page, pages, source_seed):
        """A read with one number out of bounds on each side in turn, written by a GPU: what `check` says, and
        what is wrong."""
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
            request.check()  # it was told once
        return told

    def wait_for_replays(self, handle, replays):
        """Queues replays behind work of the GPU's, and sees their ends by looking into memory alone."""
        graph, request, _, _, _ = self.graphs[handle]
        before = request.check()
        stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)  # cycles: some 50 ms
            for _ in range(replays):
                graph.replay()
        at_once = request.check()
        end = time.monotonic() + 30
        while request.check() < before + replays and time.monotonic() < end:
            pass
        return {"at_once": at_once - before, "in_the_end": request.check() - before}

    def ask_graph(self, handle, member):
        """What a method of a captured request answers, or a property of it is."""
        found = getattr(self.graphs[handle][1], member)
        return found() if callable(found) else found

    def replay_blindly(self, handle):
        self.graphs[handle][0].replay()
        self._quiet()

    def drop_graph(self, handle):
        self._quiet()
        del self.graphs[handle]
        gc.collect()

    def check(self, key, target_seed, source_seed, plans):
        """What is wrong with a tensor that held the target's pattern before these plans took pages of the
        source's."""
        expected = pattern(self.tensors[key].numel(), target_seed, self.device)
        source = pattern(expected.numel(), source_seed, self.device)
        for plan in plans:
            Plan.make(*plan).apply(expected, source)
        return self._differences(self.tensors[key], expected)

    # Views. A layout says how a buffer of elements of two bytes is cut: {"shape", "cut": [first, last] of
    # each dimension, "order"}

    @staticmethod
    def _view(tensor, layout):
        size = int(np.prod(layout["shape"])) * 2
        whole = tensor[:size].view(torch.int16).view(layout["shape"])
        return whole[tuple(slice(*cut) for cut in layout["cut"])].permute(layout["order"])

    def tell_view(self, key, layout):
        """The pages that the layout makes of a tensor, for a peer to prepare."""
        pages, view = headrace.pages_of(self.regions[key], self._view(self.tensors[key], layout))
        return [
            [pages.region, pages.base_bytes, pages.stride_bytes, pages.page_bytes, pages.count],
            [view.shape, view.strides_bytes, view.item_bytes],
        ]

    def _views(self, peer, mine, layout, theirs):
        """Both lists, ours and the one that the peer told."""
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
        """Reads in a graph, whose pages change with each replay: the last ones are those of the last turn."""
        here, there = turns[0]
        request = self.agent.make_request("read", *self._views(peer, mine, layout, theirs), here, there)
        request.post()  # makes the way
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
        """What is wrong with a tensor that held the target's pattern before `moved` ([into, out of]) came
        from the source's."""
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

    # Mappings: a peer's memory as a tensor of this GPU, or of the CPU where host memory stands in

    def fill_read_only(self, key, bytes, seed):
        """The same as fill, in memory that requests and mappings only read."""
        self.fill_unregistered(key, bytes, seed)
        self.regions[key] = self.agent.register(self.tensors[key], name=key, writable=False)
        return self.regions[key].id

    def map(self, handle, peer, theirs, device=None):
        """A mapping of that name for this process's GPU, or `device`; what it says of itself."""
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
        """What is wrong with it, as kernels of this GPU read it in place."""
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

    def check_copies_of_mapping(self, handle, seed):
        """What is wrong with copies of it: on this GPU, and on the host."""
        tensor = torch.from_dlpack(self.mappings[handle])
        expected = pattern(tensor.numel(), seed, self.device)
        return self._differences(tensor.clone(), expected) or self._differences(tensor.cpu(), expected.cpu())

    def write_mapping(self, handle, seed, peer=None):
        """By a kernel, in place; tells the peer once it is done."""
        tensor = torch.from_dlpack(self.mappings[handle])
        torch.bitwise_xor(pattern(tensor.numel(), seed, self.device), 0, out=tensor)
        self._quiet()
        if peer:
            self.agent.notify(peer, b"written")

    def unmap(self, handle):
        del self.mappings[handle]
        gc.collect()

    def let_go_of_mapping_in_use(self, handle, seed):
        """Lets go of it while a kernel that reads it is queued; what is wrong with what that kernel read."""
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
        """The mapping goes before what was made of it, whose end waits for a kernel. How other threads of
        Python get on meanwhile."""
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
        """What is said to those who want a mapping for a GPU as memory of the CPU."""
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
        """Its __cuda_array_interface__, and whether a reader who knows no version 1 of DLPack gets it."""
        mapping = self.mappings[handle]
        try:
            mapping.__dlpack__()
            plain = True
        except BufferError:
            plain = False
        return {"interface": mapping.__cuda_array_interface__, "address": mapping.address, "plain": plain}

    # Several peers at once

    def _slot_side(self, region, base, slot, offsets, plan, peer=None):
        """A prepared list of what lies in the slot that begins at `base`, and the indices of the plan's pages
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
        """One request to several peers. Of each part the plan's pages lie in slot `ours` here and in slot
        `others` there."""
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
        """Posts it so often, and waits for each end."""
        request = self.requests[handle]
        stream = torch.cuda.Stream(self.device) if on_stream else None
        for _ in range(rounds):
            request.post(notification.encode() if notification else None, stream=stream)
            if on_stream:
                stream.synchronize()
            request.wait(60)

    def capture_exchange(self, handle):
        """The request, which has been posted before, becomes part of a graph."""
        request = self.requests[handle]
        graph = torch.cuda.CUDAGraph()
        self._quiet()
        with torch.cuda.graph(graph):
            request.post(stream=torch.cuda.current_stream())
        self.graphs[handle] = graph, request
        return request.state

    def replay_exchange(self, handle, op, plans):
        """A replay with the pages of other plans, one a part, or, without any, of those that it has. How many
        have ended."""
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
        """What is wrong with a tensor that held the target's pattern before each slot took a plan's pages of
        a source slot."""
        expected = pattern(self.tensors[key].numel(), target_seed, self.device)
        for take in takes:
            source = pattern(take["source_bytes"], take["source_seed"], self.device)
            into, out_of = take["into"] * slot, take["out_of"] * slot
            Plan.make(*take["plan"]).apply(expected[into : into + slot], source[out_of : out_of + slot])
        return self._differences(self.tensors[key], expected)

    def check_first_slot(self, slot, plan, source_seed):
        """What is wrong with the first slot of a tensor of zeros that took a plan's pages there."""
        expected = torch.zeros(slot, dtype=torch.uint8, device=self.device)
        Plan.make(*plan).apply(expected, pattern(slot, source_seed, self.device))
        return self._differences(self.tensors["in"][:slot], expected)

    def exchange_until_lost(self, handle, seconds):
        """Posts it until it fails: how often it was done, the error, and how each part stands. Its tensor is
        zeroed before each."""
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
        """Blocks `ours` of our cache, keys and values, and blocks `others` of the peer's."""
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

    # Many at once

    def storm(self, op, peer, mine, theirs, plans):
        """One after another, each with a request of its own."""
        for plan in plans:
            self.move(op, peer, mine, theirs, plan)

    def parts(self, op, peer, mine, theirs, plan, requests):
        """The plan's pages dealt out to so many requests, all in flight at once. How many there were."""
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
        """Posts it, waits for it and then for the whole GPU, again and again; the seconds of the latter."""
        request, seconds = self.requests[handle], []
        for _ in range(times):
            request.post()
            request.wait(30)
            start = time.monotonic()
            self._quiet()
            seconds.append(time.monotonic() - start)
        return seconds

    def synchronise_beside_posts(self, handle, times):
        """Waits for the whole GPU so many times while another thread posts without a pause. How many posts
        there were, and the seconds of each wait."""
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
        """Reads a whole region again and again; how often it was read, whether each read was right, and how
        it ended."""
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

        For each, how it ended and when; for those that are done, what is wrong with the bytes.
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
        """What torch was told to do has been done: requests do not wait for its streams."""
        if self.ordinal >= 0:
            torch.cuda.synchronize()


def end_with_parent():
    """A test run that is killed leaves no process behind that keeps a GPU's memory."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main(name, device, backends):
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not get between the answers
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
