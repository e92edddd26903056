# SPDX-License-Identifier: Apache-2.0
"""One process of a comparison: an agent of NIXL or of Headrace, a buffer, and the checks of the moved
data.

Reads one JSON message a line from stdin and answers each with one line. Started by bench/compare_*.py.
"""

from __future__ import annotations

import sys
import time
import types
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parent))
import numpy as np

from comparison import serve
from page_memory import memory_of


class Nixl:
    """The peer, used as in its users' programs: prepare, make, transfer, check."""

    words: ClassVar[dict[str, str]] = {"read": "READ", "write": "WRITE"}

    def __init__(self, name: str, settings: dict[str, Any]):
        # Its Python face asks whether what it is given is a tensor, and needs torch for nothing else here.
        try:
            import torch  # noqa: F401
        except ImportError:
            torch_standin = types.ModuleType("torch")
            torch_standin.Tensor = type("Tensor", (), {})  # type: ignore[attr-defined]
            torch_standin.device = type("device", (), {})  # type: ignore[attr-defined]
            sys.modules["torch"] = torch_standin
        from nixl._api import nixl_agent, nixl_agent_config

        self.agent = nixl_agent(name, nixl_agent_config(backends=["UCX"], **settings))

    def register(self, memory: Any) -> dict[str, Any]:
        """Host memory as a NumPy array, or a tensor of a GPU."""
        if isinstance(memory, np.ndarray):
            self.address, self.device, self.kind = memory.ctypes.data, 0, "DRAM"
        else:
            self.address, self.device, self.kind = memory.data_ptr(), memory.device.index, "VRAM"
        self.agent.register_memory([(self.address, memory.nbytes, self.device, "")], mem_type=self.kind)
        return {"address": self.address, "device": self.device, "kind": self.kind}

    def register_many(self, memory: np.ndarray, count: int) -> float:
        step = memory.nbytes // count
        ranges = np.stack(
            [memory.ctypes.data + np.arange(count) * step, np.full(count, step), np.zeros(count)], axis=1
        ).astype(np.uint64)  # fmt: skip
        start = time.perf_counter()
        self.agent.register_memory(ranges, mem_type="DRAM")
        return time.perf_counter() - start

    def metadata(self) -> bytes:
        return bytes(self.agent.get_agent_metadata())

    def load(self, metadata: bytes) -> str:
        name = self.agent.add_remote_agent(metadata)
        return name.decode() if isinstance(name, bytes) else name

    def prepare(self, peer: str, there: dict[str, Any], page: int, slots: int) -> tuple[Any, Any]:
        return self.prepare_rows(peer, there, self.rows(there, page, np.arange(slots, dtype=np.uint64)))

    def rows(self, there: dict[str, Any], page: int, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both sides' pages in that order, as (address, length, device)."""
        at, length = order * np.uint64(page), np.full(len(order), page, np.uint64)

        def of(address: int, device: int) -> np.ndarray:
            return np.stack([np.uint64(address) + at, length, np.full(len(order), device, np.uint64)], axis=1)

        return of(self.address, self.device), of(there["address"], there["device"])

    def prepare_rows(
        self, peer: str, there: dict[str, Any], rows: tuple[np.ndarray, np.ndarray]
    ) -> tuple[Any, Any]:
        local = self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", self.agent.get_xfer_descs(rows[0], self.kind))
        remote = self.agent.prep_xfer_dlist(peer, self.agent.get_xfer_descs(rows[1], there["kind"]))
        return local, remote

    def drop(self, lists: tuple[Any, Any]) -> None:
        for handle in lists:
            self.agent.release_dlist_handle(handle)

    def make(self, word: str, lists: tuple[Any, Any], here: np.ndarray, there: np.ndarray) -> Any:
        return self.agent.make_prepped_xfer(word, lists[0], here, lists[1], there)

    def release(self, request: Any) -> None:
        self.agent.release_xfer_handle(request)

    def carry_out(self, request: Any) -> None:
        state = self.agent.transfer(request)
        while state == "PROC":
            state = self.agent.check_xfer_state(request)
        if state != "DONE":
            raise RuntimeError(f"transfer ended in state {state}")

    def path(self, request: Any) -> str:
        return "UCX"


class Headrace:
    words: ClassVar[dict[str, str]] = {"read": "read", "write": "write"}

    def __init__(self, name: str, settings: dict[str, Any]):
        import headrace

        self.headrace = headrace
        self.agent = headrace.Agent(name, **settings)

    def register(self, memory: Any) -> dict[str, Any]:
        self.region = self.agent.register(memory, name="pages")
        return {"region": self.region.id}

    def allocate(self, length: int) -> tuple[np.ndarray, dict[str, Any]]:
        self.memory = self.agent.allocate(length, name="pages")
        self.region = self.memory.region
        return self.memory.numpy("uint64"), {"region": self.region.id}

    def register_many(self, memory: np.ndarray, count: int) -> float:
        step = memory.nbytes // count
        ranges = [(memory.ctypes.data + i * step, step) for i in range(count)]
        start = time.perf_counter()
        self.agent.register(ranges)
        return time.perf_counter() - start

    def metadata(self) -> bytes:
        return self.agent.export_metadata()

    def load(self, metadata: bytes) -> str:
        return self.agent.import_metadata(metadata).peer

    def prepare(self, peer: str, there: dict[str, Any], page: int, slots: int) -> tuple[Any, Any]:
        uniform = self.headrace.UniformPages
        local = self.agent.prepare(uniform(self.region, 0, 0, page, slots))
        remote = self.agent.prepare(uniform(there["region"], 0, 0, page, slots), peer=peer)
        return local, remote

    def rows(self, there: dict[str, Any], page: int, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both sides' pages in that order, as (region's id, offset, length)."""
        at, length = order * np.uint64(page), np.full(len(order), page, np.uint64)

        def of(region: int) -> np.ndarray:
            return np.stack([np.full(len(order), region, np.uint64), at, length], axis=1)

        return of(self.region.id), of(there["region"])

    def prepare_rows(
        self, peer: str, _there: dict[str, Any], rows: tuple[np.ndarray, np.ndarray]
    ) -> tuple[Any, Any]:
        return self.agent.prepare(rows[0]), self.agent.prepare(rows[1], peer=peer)

    def drop(self, lists: tuple[Any, Any]) -> None:
        pass

    def make(self, word: str, lists: tuple[Any, Any], here: np.ndarray, there: np.ndarray) -> Any:
        return self.agent.make_request(word, lists[0], lists[1], here, there)

    def release(self, request: Any) -> None:
        pass

    def carry_out(self, request: Any) -> None:
        request.post()
        request.wait()

    def path(self, request: Any) -> str:
        return request.backend


LIBRARIES = {"nixl": Nixl, "headrace": Headrace}


class Side:
    """The agent, its buffer, and the expected contents of the buffer."""

    def open(
        self,
        library: str,
        name: str,
        settings: dict[str, Any],
        buffer_bytes: int,
        allocated: bool,
        seed: int,
        device: int | None = None,
    ) -> dict[str, Any]:
        """device: the GPU of the buffer; None: host memory, the only kind that can be allocated."""
        self.space = memory_of(device)
        self.library = LIBRARIES[library](name, settings)
        self.words = self.space.words(buffer_bytes, seed)
        if allocated and device is None:
            self.buffer, self.own = self.library.allocate(buffer_bytes)
        else:
            self.buffer = self.space.empty(buffer_bytes)
            self.own = self.library.register(self.buffer)
        return {"metadata": self.library.metadata(), "own": self.own}

    def connect(self, metadata: bytes, own: dict[str, Any]) -> None:
        self.peer = self.library.load(metadata)
        self.there = own

    def stamp(self, delta: int) -> None:
        self.space.stamp(self.buffer, self.words, delta)

    def wipe(self) -> None:
        self.space.wipe(self.buffer)

    def check(self, page: int, slots: int, count: int, seed: int, delta: int) -> dict[str, Any]:
        """Returns how many of the expected pages were compared, and which page is wrong; empty if none is."""
        source, target = choose(slots, count, seed)
        i = self.space.first_wrong(self.buffer, self.words, page, source, target, delta)
        wrong = (
            ""
            if i is None
            else f"page {i} of {count}, {page} bytes, is wrong (from {source[i]} to {target[i]})"
        )
        return {"compared": len(source), "wrong": wrong}

    def prepare(self, page: int, slots: int) -> float:
        start = time.perf_counter()
        self.lists = self.library.prepare(self.peer, self.there, page, slots)
        return time.perf_counter() - start

    def drop(self) -> None:
        self.library.drop(self.lists)

    def prepare_rows(self, page: int, slots: int, shuffled: bool, rounds: int) -> list[float]:
        """Returns the seconds of preparing both lists from existing arrays of rows."""
        seconds = []
        for i in range(rounds):
            order = np.random.default_rng(i).permutation(slots) if shuffled else np.arange(slots)
            rows = self.library.rows(self.there, page, order.astype(np.uint64))
            start = time.perf_counter()
            lists = self.library.prepare_rows(self.peer, self.there, rows)
            seconds.append(time.perf_counter() - start)
            self.library.drop(lists)
            del lists
        return seconds

    def transfer(self, op: str, slots: int, count: int, seed: int, posts: int = 1) -> dict[str, Any]:
        """Makes a request and posts it `posts` times without a pause. Returns the seconds of making it and of
        one post."""
        source, target = choose(slots, count, seed)
        here, there = (target, source) if op == "read" else (source, target)
        word = self.library.words[op]
        start = time.perf_counter()
        request = self.library.make(word, self.lists, here, there)
        made = time.perf_counter()
        for _ in range(posts):
            self.library.carry_out(request)
        done = time.perf_counter()
        path = self.library.path(request)
        self.library.release(request)
        return {"make": made - start, "seconds": (done - made) / posts, "path": path}

    def singles(self, op: str, slots: int, count: int, seed: int, rounds: int) -> list[float]:
        """Moves one page per request; each page has a place of its own."""
        source, target = choose(slots, count, seed)
        here, there = (target, source) if op == "read" else (source, target)
        word = self.library.words[op]
        requests = [
            self.library.make(word, self.lists, here[i : i + 1], there[i : i + 1]) for i in range(count)
        ]
        seconds = []
        clock = time.perf_counter
        carry_out = self.library.carry_out
        for _ in range(rounds):
            for request in requests:
                start = clock()
                carry_out(request)
                seconds.append(clock() - start)
        for request in requests:
            self.library.release(request)
        return seconds

    def make(self, slots: int, count: int, dtype: str, rounds: int) -> list[float]:
        """Returns the seconds of making a request, with other pages each time, as in a user's program."""
        word = self.library.words["read"]  # as it stands in a program
        seconds = []
        for i in range(rounds):
            source, target = (index.astype(dtype) for index in choose(slots, count, i))
            start = time.perf_counter()
            request = self.library.make(word, self.lists, source, target)
            seconds.append(time.perf_counter() - start)
            self.library.release(request)
            del request  # Headrace's ends here, and not inside the next one's time
        return seconds

    def make_in_turn(self, slots: int, count: int, dtype: str, rounds: int) -> dict[str, list[float]]:
        """Makes the same requests of the same lists through the drop-in and through its Headrace agent, call
        by call. Two processes differ more by the places of their memory than by the drop-in."""
        agent, native, (local, remote) = self.library.agent, self.library.agent._native, self.lists

        def through_dropin(here: np.ndarray, there: np.ndarray) -> Any:
            return agent.make_prepped_xfer("READ", local, here, remote, there)

        our_pages, peer_pages = local._pages, remote._pages

        def natively(here: np.ndarray, there: np.ndarray) -> Any:
            return native.make_request("read", our_pages, peer_pages, here, there)

        ways = {"drop-in": through_dropin, "native": natively}
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for i in range(rounds):
            for name in list(ways) if i % 2 else reversed(ways):
                make = ways[name]
                source, target = (index.astype(dtype) for index in choose(slots, count, i))
                start = time.perf_counter()
                request = make(source, target)
                seconds[name].append(time.perf_counter() - start)
                del request
        return seconds

    def register_many(self, count: int) -> dict[str, Any]:
        seconds = self.library.register_many(self.buffer, count)
        start = time.perf_counter()
        metadata = self.library.metadata()
        self.exported = metadata
        return {"register": seconds, "export": time.perf_counter() - start, "bytes": len(metadata)}

    def exported_metadata(self) -> bytes:
        return self.exported

    def load(self, metadata: bytes) -> float:
        start = time.perf_counter()
        self.library.load(metadata)
        return time.perf_counter() - start


def choose(slots: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns matching pages of source and target; the same in both processes."""
    random = np.random.default_rng(seed)
    return tuple(random.permutation(slots)[:count].astype(np.int64) for _ in range(2))  # type: ignore[return-value]


if __name__ == "__main__":
    serve(Side)
