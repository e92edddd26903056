# SPDX-License-Identifier: Apache-2.0
"""One process of bench/growth.py: agents of Headrace, and the work on them that is measured.

Reads one JSON message a line from stdin and answers each with one line. bench/growth_sets.py starts it, with
the interpreter whose Headrace is measured.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parent))
import numpy as np

import headrace
from comparison import serve

clock = time.perf_counter
WORD = 8
PATIENCE = 120  # seconds
RETRY = 0.0002  # seconds until a full queue is tried again


class Heap(ctypes.Structure):
    """struct mallinfo2."""

    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_: ClassVar = [(name, ctypes.c_size_t) for name in names.split()]


def heap_bytes() -> int:
    """Returns the bytes that the process has allocated and not freed."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Heap
    heap = mallinfo2()
    return heap.uordblks + heap.hblkhd


def numbered(count: int) -> np.ndarray:
    """Returns words that are all different."""
    return np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def send(agent: headrace.Agent, peer: str, payload: bytes) -> int:
    """Sends a notification, and returns how often the queue was full before."""
    full = 0
    while True:
        try:
            agent.notify(peer, payload)
            return full
        except headrace.WouldBlock:
            full += 1
            time.sleep(RETRY)


class Side:
    """The commands. A name says which agent of this process acts."""

    def __init__(self) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        self.agents: dict[str, headrace.Agent] = {}
        self.kept: dict[str, Any] = {}
        self.threads: list[threading.Thread] = []

    # agents

    def open(
        self, names: list[str], backends: list[str], options: dict[str, str] | None = None, store: str = ""
    ) -> None:
        for name in names:
            self.agents[name] = headrace.Agent(name, backends, options=options or {}, store=store)

    def export(self, names: list[str]) -> list[bytes]:
        return [self.agents[name].export_metadata() for name in names]

    def meet(self, name: str, metadata: list[bytes]) -> None:
        for one in metadata:
            self.agents[name].import_metadata(one)

    def connect(self, name: str, peers: list[str]) -> list[float]:
        """Returns the seconds for each peer."""
        seconds = []
        for peer in peers:
            start = clock()
            self.agents[name].connect(peer, timeout=PATIENCE)
            seconds.append(clock() - start)
        return seconds

    def usage(self) -> dict[str, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {
            "descriptors": len(os.listdir("/proc/self/fd")) - 1,  # without that of the list itself
            "threads": len(os.listdir("/proc/self/task")),
            "bytes": pages * resource.getpagesize(),
            "cpu": used.ru_utime + used.ru_stime,
        }

    def counter(self, name: str, counter: str) -> int:
        return self.agents[name].telemetry().counters.get(counter, 0)

    # pages and posts

    def allocate(self, name: str, bytes_: int) -> int:
        """Allocates memory with numbered words, and returns the region."""
        memory = self.agents[name].allocate(bytes_)
        memory.numpy("uint64")[:] = numbered(bytes_ // WORD)
        self.kept["memory"] = memory
        return memory.region.id

    def read_pages(self, name: str, peer: str, region: int, page: int, count: int) -> dict[str, Any]:
        """Reads `count` pages of the peer in random order to random places."""
        agent = self.agents[name]
        memory = agent.allocate(page * count)
        order = [np.random.default_rng(seed).permutation(count).astype(np.uint32) for seed in (1, 2)]
        rows = np.empty((count, 3), np.uint64)
        rows[:, 0], rows[:, 1], rows[:, 2] = region, order[1].astype(np.uint64) * page, page
        before = heap_bytes()
        start = clock()
        listed = agent.prepare(rows, peer)
        prepared = clock() - start
        list_bytes = heap_bytes() - before
        local = agent.prepare(headrace.UniformPages(memory, 0, page, page, count))
        remote = agent.prepare(headrace.UniformPages(region, 0, page, page, count), peer)
        before = heap_bytes()
        start = clock()
        request = agent.make_request("read", local, remote, order[0], order[1])
        made = clock()
        request_bytes = heap_bytes() - before
        posting = clock()
        request.post()
        posted = clock()
        request.wait(PATIENCE)
        done = clock()
        words = page // WORD
        have = memory.numpy("uint64").reshape(-1, words)
        want = numbered(count * words).reshape(-1, words)
        right = bool((have[order[0]] == want[order[1]]).all())
        del request, local, remote, listed
        agent.deregister(memory)
        return {
            "prepare": prepared / count, "make": (made - start) / count, "post": posted - posting,
            "move": (done - posting) / count, "list": list_bytes / count, "request": request_bytes / count,
            "right": right,
        }  # fmt: skip

    def make_singles(self, name: str, peer: str, region: int, count: int) -> None:
        """Makes `count` requests of one word each."""
        agent = self.agents[name]
        memory = agent.allocate(count * WORD)
        local = agent.prepare(headrace.UniformPages(memory, 0, WORD, WORD, count))
        remote = agent.prepare(headrace.UniformPages(region, 0, WORD, WORD, count), peer)
        numbers = np.arange(count, dtype=np.uint32)
        self.kept["target"] = memory
        self.kept["requests"] = [
            agent.make_request("read", local, remote, numbers[i : i + 1], numbers[i : i + 1])
            for i in range(count)
        ]
        self.kept["requests"][0].post()
        self.kept["requests"][0].wait(PATIENCE)

    def post_singles(self) -> float:
        """Returns the seconds of a post."""
        requests = self.kept["requests"]
        full = 0
        start = clock()
        for request in requests:
            while True:
                try:
                    request.post()
                    break
                except headrace.WouldBlock:
                    full += 1
                    time.sleep(RETRY)
        self.kept["posted"] = sum(not request.done for request in requests)
        return (clock() - start) / len(requests)

    def finish_singles(self) -> dict[str, Any]:
        """Waits for all posts. `seconds`: from the first end to the last, for each. `in_flight`: how many
        posts were so when the last was posted."""
        first, *others = self.kept["requests"]
        first.wait(PATIENCE)
        start = clock()
        for request in others:
            request.wait(PATIENCE)
        return {
            "seconds": (clock() - start) / len(others),
            "in_flight": self.kept["posted"],
            "right": self.singles_are_right(),
        }

    def singles_are_right(self) -> bool:
        target = self.kept["target"].numpy("uint64")
        right = bool((target == numbered(len(target))).all())
        target[:] = 0
        return right

    # awaits

    def begin_awaits(self) -> dict[str, int]:
        """Posts all requests, and awaits them in a loop of a thread of its own. Returns the descriptors that
        this takes."""
        before = len(os.listdir("/proc/self/fd"))
        waiting = threading.Event()

        async def wait_for_all() -> None:
            tasks = []
            for request in self.kept["requests"]:
                request.post()
                tasks.append(asyncio.ensure_future(self._ended(request)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            waiting.set()
            self.kept["results"] = await asyncio.gather(*tasks, return_exceptions=True)

        self.threads = [threading.Thread(target=lambda: asyncio.run(wait_for_all()))]
        self.threads[0].start()
        waiting.wait(PATIENCE)
        # Without those of the loop itself, which any loop has: its epoll set and its socket pair.
        return {"descriptors": len(os.listdir("/proc/self/fd")) - before - 3}

    async def _ended(self, request: headrace.Request) -> None:
        await request

    def end_awaits(self) -> dict[str, Any]:
        for thread in self.threads:
            thread.join(PATIENCE)
        failed = [str(result) for result in self.kept["results"] if result is not None]
        return {"failed": len(failed), "first": failed[:1], "right": self.singles_are_right()}

    def await_rounds(self, seconds: float) -> dict[str, Any]:
        """Posts and awaits all requests together, again and again. Returns awaits a second."""
        requests = self.kept["requests"]

        async def rounds() -> float:
            start, count = clock(), 0
            while clock() - start < seconds:
                for request in requests:
                    request.post()
                await asyncio.gather(*(self._ended(request) for request in requests))
                count += len(requests)
            return count / (clock() - start)

        return {"rate": asyncio.run(rounds()), "right": self.singles_are_right()}

    # regions

    def register(self, name: str, count: int) -> float:
        """Registers `count` ranges of one word. Returns the seconds for all."""
        memory = numbered(count)
        self.kept["buffer"] = memory
        ranges = [(memory.ctypes.data + i * WORD, WORD) for i in range(count)]
        start = clock()
        self.kept["regions"] = self.agents[name].register(ranges)
        return clock() - start

    def export_all(self, name: str) -> dict[str, Any]:
        start = clock()
        metadata = self.agents[name].export_metadata()
        seconds = clock() - start
        self.kept["version"] = self.agents[name].metadata_version
        return {"seconds": seconds, "metadata": metadata}

    def import_all(self, name: str, metadata: bytes) -> float:
        start = clock()
        self.agents[name].import_metadata(metadata)
        return clock() - start

    def load_all(self, name: str, peer: str, count: int) -> dict[str, Any]:
        """Reads a word of each region, so that all are loaded."""
        agent = self.agents[name]
        ids = np.array([region.id for region in agent.peer_regions(peer)], np.uint64)
        target = np.zeros(count, np.uint64)
        mine = agent.register(target)
        local = agent.prepare(headrace.UniformPages(mine, 0, WORD, WORD, count))
        rows = np.stack([ids, np.zeros(count, np.uint64), np.full(count, WORD, np.uint64)], axis=1)
        request = agent.make_request("read", local, agent.prepare(rows, peer))
        request.post()
        request.wait(PATIENCE)
        self.kept["loaded"] = request
        return {"right": bool((target == numbered(count)).all()), "regions": len(ids)}

    def deregister_singly(self, name: str, count: int) -> list[float]:
        """Deregisters regions spread over all. Returns the seconds of each."""
        regions = self.kept["regions"]
        step = max(1, len(regions) // (2 * count))
        gone = regions[1 : 1 + count * step : step]
        seconds = []
        for region in gone:
            start = clock()
            self.agents[name].deregister(region)
            seconds.append(clock() - start)
        ids = {region.id for region in gone}
        self.kept["regions"] = [region for region in regions if region.id not in ids]
        return seconds

    def deregister_every_second(self, name: str, of: int) -> float:
        """Deregisters every second of the last `of` regions in one call. Returns the seconds."""
        regions = self.kept["regions"]
        gone = regions[-of::2]
        start = clock()
        self.agents[name].deregister(gone)
        seconds = clock() - start
        ids = {region.id for region in gone}
        self.kept["regions"] = [region for region in regions if region.id not in ids]
        return seconds

    def deregister_all(self, name: str) -> float:
        start = clock()
        self.agents[name].deregister(self.kept["regions"])
        return clock() - start

    def updates(self, name: str, count: int) -> dict[str, Any]:
        """Registers `count` regions one by one. Returns the update of each, and the seconds of its export."""
        agent = self.agents[name]
        self.kept["more"] = numbered(count)
        metadata, seconds = [], []
        for i in range(count):
            self.kept["regions"].append(agent.register([(self.kept["more"].ctypes.data + i * WORD, WORD)])[0])
            start = clock()
            metadata.append(agent.export_metadata(since_version=self.kept["version"]))
            seconds.append(clock() - start)
            self.kept["version"] = agent.metadata_version
        return {"metadata": metadata, "seconds": seconds}

    def import_updates(self, name: str, metadata: list[bytes]) -> list[float]:
        seconds = []
        for one in metadata:
            start = clock()
            self.agents[name].import_metadata(one)
            seconds.append(clock() - start)
        return seconds

    def region_count(self, name: str, peer: str) -> int:
        return len(self.agents[name].peer_regions(peer))

    # notifications

    def send_many(self, name: str, peer: str, count: int, prefix: str, bytes_: int = 32) -> int:
        """Returns how often the queue was full."""
        agent, full = self.agents[name], 0
        for i in range(count):
            full += send(agent, peer, f"{prefix}{i}".encode().ljust(bytes_, b"."))
        return full

    def wait_for(self, name: str, prefix: str) -> None:
        """Waits for a notification with this prefix. Others stay."""
        end = clock() + PATIENCE
        while not self.agents[name].take_notifications(prefix=prefix.encode()):
            if clock() > end:
                raise TimeoutError(f"no notification {prefix} in {PATIENCE} s")
            time.sleep(0.01)

    def take_filtered(
        self, name: str, rounds: int, hits: bool, peer: str = "", prefix: str = ""
    ) -> dict[str, Any]:
        """Takes with a filter. Returns the seconds of each call, and whether each took what it should."""
        agent, seconds, right = self.agents[name], [], True
        for i in range(rounds):
            wanted = f"{prefix}{i}.".encode() if hits else prefix.encode()
            start = clock()
            taken = agent.take_notifications(peer, wanted)
            seconds.append(clock() - start)
            right = right and len(taken) == (1 if hits else 0)
        return {"seconds": seconds, "right": right}

    def take_all(self, name: str) -> dict[str, Any]:
        start = clock()
        taken = self.agents[name].take_notifications()
        return {"seconds": clock() - start, "count": len(taken)}

    def send_slowly(self, name: str, peer: str, count: int, prefix: str, pause: float) -> None:
        """Sends notifications that say when they were sent, in a thread of its own."""

        def work() -> None:
            for i in range(count):
                time.sleep(pause)
                send(self.agents[name], peer, f"{prefix}{i} {time.monotonic_ns()}".encode())

        self.threads = [threading.Thread(target=work)]
        self.threads[0].start()

    def join(self) -> None:
        for thread in self.threads:
            thread.join(PATIENCE)

    def take_late(self, name: str, count: int) -> list[float]:
        """Waits for `count` notifications of send_slowly. Returns by how many seconds each was late."""
        late = []
        for _ in range(count):
            payload = self.agents[name].wait_notification(timeout=PATIENCE)[1]
            late.append((time.monotonic_ns() - int(payload.split()[1])) * 1e-9)
        return late

    def iterate(self, name: str, prefix: str, count: int, idle: float) -> dict[str, Any]:
        """Iterates over notifications with this prefix: first none comes for `idle` seconds, then `count`.
        Returns the share of a core while none comes, and by how many seconds each was late."""
        agent = self.agents[name]

        async def take(late: list[float]) -> None:
            async for _, payload in agent.notifications(prefix=prefix.encode()):
                late.append((time.monotonic_ns() - int(payload.split()[1])) * 1e-9)
                if len(late) == count:
                    return

        async def both() -> dict[str, Any]:
            late: list[float] = []
            task = asyncio.ensure_future(take(late))
            await asyncio.sleep(0.1)
            cpu, start = time.process_time(), clock()
            await asyncio.sleep(idle)
            share = (time.process_time() - cpu) / (clock() - start)
            send(self.agents["starter"], self.kept["sender"], b"begin")
            await asyncio.wait_for(task, PATIENCE)
            return {"share": share, "late": late}

        return asyncio.run(both())

    def send_when_told(self, name: str, peer: str, count: int, prefix: str, pause: float) -> None:
        """The same as send_slowly, once a notification "begin" has come."""

        def work() -> None:
            self.agents[name].wait_notification(PATIENCE, prefix=b"begin")
            for i in range(count):
                time.sleep(pause)
                send(self.agents[name], peer, f"{prefix}{i} {time.monotonic_ns()}".encode())

        self.threads = [threading.Thread(target=work)]
        self.threads[0].start()

    def keep(self, key: str, value: Any) -> None:
        self.kept[key] = value

    def flood(self, names: list[str], peer: str, seconds: float) -> dict[str, int]:
        """Each agent sends as fast as it can, in a thread of its own."""
        sent, full, lost = [0] * len(names), [0] * len(names), [0] * len(names)

        def work(number: int) -> None:
            agent, payload, end = self.agents[names[number]], b"x" * 32, clock() + seconds
            while clock() < end:
                try:
                    agent.notify(peer, payload)
                    sent[number] += 1
                except headrace.WouldBlock:
                    full[number] += 1
                    time.sleep(RETRY)
                except headrace.Error:
                    lost[number] += 1
                    time.sleep(RETRY)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(names))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"sent": sum(sent), "would_block": sum(full), "errors": sum(lost)}

    def receive_slowly(self, name: str, pause: float, quiet: float) -> int:
        """Takes one notification after the other, with a pause after each while senders send, until none has
        come for `quiet` seconds. Returns their number."""
        agent, count = self.agents[name], 0
        while True:
            try:
                agent.wait_notification(timeout=quiet)
            except headrace.TimedOut:
                return count
            count += 1
            if not self.kept.get("hurry"):
                time.sleep(pause)
            if count % 64 == 0:
                self.kept["hurry"] = Path(self.kept["flag"]).exists()

    # a store

    def publish_all(self, names: list[str]) -> list[float]:
        """Each agent watches the namespace and publishes. Returns the seconds of each publish."""
        seconds = []
        self.kept["known"] = {name: set() for name in names}
        for name in names:
            known = self.kept["known"][name]

            def event(what: str, peer: str, known: set[str] = known) -> None:
                (known.add if what != "left" else known.discard)(peer)

            self.agents[name].watch_namespace(event)
            start = clock()
            self.agents[name].publish()
            seconds.append(clock() - start)
        return seconds

    def wait_until_known(self, count: int) -> float:
        """Waits until each agent knows `count` others. Returns when: all processes share the clock."""
        end = clock() + PATIENCE
        while not all(len(known - {name}) >= count for name, known in self.kept["known"].items()):
            if clock() > end:
                fewest = min(len(known) for known in self.kept["known"].values())
                raise TimeoutError(f"an agent knows {fewest} of {count} agents after {PATIENCE} s")
            time.sleep(0.005)
        return time.monotonic()


if __name__ == "__main__":
    serve(Side)
