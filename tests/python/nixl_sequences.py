# SPDX-License-Identifier: Apache-2.0
"""Calls in the order in which NIXL's users make them; each runs on NIXL's wheel and on the drop-in, and what
each call gave is noted.

    python nixl_sequences.py dropin|wheel SEQUENCE      prints a JSON list of [call, outcome, type, value]
    python nixl_sequences.py record [SEQUENCE...]       on a machine with NIXL's wheel: writes
    nixl_results/SEQUENCE.json

Outcome is "gave" or "raised"; a value is left out where it cannot be the same (numbers of handles, times,
metadata). What differs on purpose stands in test_compat_nixl_sequences.py, with the reason.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

SECONDS = 30
RESULTS = Path(__file__).resolve().parent / "nixl_results"
LAYERS, BLOCK = 4, 256


def plain(value: Any) -> Any:
    """A value as JSON can hold it; what differs from run to run is left out."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, Enum) or type(value).__name__.endswith("_t"):
        return str(value)
    return "..."


class Notes:
    """What each call gave."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []

    def __call__(self, call: str, act: Callable[[], Any], *, value: bool = True) -> Any:
        """value: note it, not its type alone. Gives the result, or None for a call that raised."""
        try:
            result = act()
        except Exception as error:
            self.rows.append([call, "raised", type(error).__name__, ""])
            return None
        self.rows.append([call, "gave", type(result).__name__, plain(result) if value else ""])
        return result


def until(condition: Callable[[], Any]) -> Any:
    """Waits for what another thread or process does."""
    end = time.monotonic() + SECONDS
    while True:
        result = condition()
        if result or time.monotonic() > end:
            return result
        time.sleep(0.001)


def finished(agent: Any, handle: Any) -> str:
    """How a transfer ended."""
    return str(until(lambda: (state := agent.check_xfer_state(handle)) != "PROC" and state))


def stays_true(ask: Callable[[], bool], seconds: float = 2) -> bool:
    """Whether the answer is still True after this time."""
    end = time.monotonic() + seconds
    while ask():
        if time.monotonic() > end:
            return True
        time.sleep(0.01)
    return False


def address(memory: np.ndarray) -> int:
    return int(memory.ctypes.data)


def block_rows(memory: np.ndarray, blocks: int, layers: int = LAYERS) -> np.ndarray:
    """Rows of (address, length, device) for each block of each layer."""
    at = address(memory) + np.arange(layers * blocks, dtype=np.uint64) * np.uint64(BLOCK)
    return np.stack([at, np.full(len(at), BLOCK, np.uint64), np.zeros(len(at), np.uint64)], axis=1)


class Peer:
    """An agent in a process of its own: this file, called with `serve`."""

    def __init__(self, library: str, name: str, size: int, fill: int):
        command = [sys.executable, __file__, "serve", library, name, str(size), str(fill)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        # Libraries write to stdout as well.
        line = until(lambda: self._line())
        answer = json.loads(line)
        self.metadata, self.address = base64.b64decode(answer["metadata"]), answer["address"]

    def _line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        return line if line.startswith("{") or not line else ""

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def serve(name: str, size: int, fill: int) -> None:
    from nixl._api import nixl_agent, nixl_agent_config

    memory = np.full(size, fill, np.uint8)
    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    agent.register_memory([(address(memory), size, 0, "")], "DRAM")
    answer = {"metadata": base64.b64encode(agent.get_agent_metadata()).decode(), "address": address(memory)}
    print(json.dumps(answer), flush=True)
    import threading

    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    while True:
        agent.get_new_notifs()
        time.sleep(0.001)


# vLLM: a prefill worker registers its layers; a decode worker with another number of blocks reads blocks of
# it.


def vllm(note: Notes, library: str) -> None:
    from nixl._api import nixl_agent, nixl_agent_config
    from nixl._bindings import nixlXferTelemetry

    note("telemetry's class", lambda: nixlXferTelemetry.__name__)
    config = note(
        "config", lambda: nixl_agent_config(backends=["UCX"], num_threads=2, capture_telemetry=True)
    )
    prefill = note("prefill agent", lambda: nixl_agent("prefill-0", config))
    decode = note("decode agent", lambda: nixl_agent("decode-0", config))
    theirs, ours = np.arange(LAYERS * 16 * BLOCK).astype(np.uint8), np.zeros(LAYERS * 40 * BLOCK, np.uint8)

    def layers(memory: np.ndarray, blocks: int) -> list[tuple[int, int, int, str]]:
        return [(address(memory) + i * blocks * BLOCK, blocks * BLOCK, 0, "") for i in range(LAYERS)]

    their_regions = note("get_reg_descs", lambda: prefill.get_reg_descs(layers(theirs, 16), "DRAM"))
    note("register_memory", lambda: prefill.register_memory(their_regions, backends=["UCX"]))
    our_regions = decode.get_reg_descs(layers(ours, 40), "DRAM")
    decode.register_memory(our_regions, backends=["UCX"])
    metadata = note("get_agent_metadata", prefill.get_agent_metadata, value=False)
    note("add_remote_agent", lambda: decode.add_remote_agent(metadata))
    local_descs = note(
        "get_xfer_descs of an array", lambda: decode.get_xfer_descs(block_rows(ours, 40), "DRAM")
    )
    tuples = [tuple(int(word) for word in row) for row in block_rows(theirs, 16)]
    remote_descs = note("get_xfer_descs of tuples", lambda: decode.get_xfer_descs(tuples, "DRAM"))
    local = note("prep_xfer_dlist local", lambda: decode.prep_xfer_dlist("NIXL_INIT_AGENT", local_descs))
    remote = note("prep_xfer_dlist remote", lambda: decode.prep_xfer_dlist("prefill-0", remote_descs))
    here = np.array([40 * layer + block for layer in range(LAYERS) for block in (7, 8, 30)], np.int64)
    there = np.array([16 * layer + block for layer in range(LAYERS) for block in (3, 4, 15)], np.int64)
    read = note(
        "make_prepped_xfer",
        lambda: decode.make_prepped_xfer("READ", local, here, remote, there, notif_msg=b"request-1:1"),
    )
    note("transfer", lambda: decode.transfer(read) in ("DONE", "PROC"))
    note("check_xfer_state", lambda: finished(decode, read))
    moved = [
        bool((ours[BLOCK * h :][:BLOCK] == theirs[BLOCK * t :][:BLOCK]).all())
        for h, t in zip(here, there, strict=True)
    ]
    note("blocks that came", lambda: moved)
    telemetry = note("get_xfer_telemetry", lambda: decode.get_xfer_telemetry(read))
    for field in ("startTime", "postDuration", "xferDuration"):
        note(field, lambda field=field: getattr(telemetry, field), value=False)
    note("totalBytes", lambda: telemetry.totalBytes)
    note("descCount", lambda: telemetry.descCount)
    note("release_xfer_handle", lambda: decode.release_xfer_handle(read))
    note("get_new_notifs", lambda: until(prefill.get_new_notifs))
    note("get_new_notifs, nothing new", prefill.get_new_notifs)
    note("send_notif", lambda: decode.send_notif("prefill-0", notif_msg=b"HB:decode-0"))
    note("heartbeat", lambda: until(prefill.get_new_notifs))
    note("unequal indices", lambda: decode.make_prepped_xfer("READ", local, here[:2], remote, there))
    note(
        "index beyond its list",
        lambda: decode.make_prepped_xfer("READ", local, np.array([160]), remote, np.array([0])),
    )
    note("release_dlist_handle", lambda: decode.release_dlist_handle(remote))
    note("remove_remote_agent", lambda: decode.remove_remote_agent("prefill-0"))
    note("prep after remove", lambda: decode.prep_xfer_dlist("prefill-0", remote_descs))
    note("deregister_memory", lambda: prefill.deregister_memory(their_regions))
    note("deregister_memory again", lambda: prefill.deregister_memory(their_regions))


def vllm_peer_returns(note: Notes, library: str) -> None:
    """The peer's process is killed, and comes again under its name."""
    from nixl._api import nixl_agent, nixl_agent_config

    agent = nixl_agent("decode", nixl_agent_config(backends=["UCX"]))
    memory = np.zeros(4096, np.uint8)
    agent.register_memory([(address(memory), 4096, 0, "")], "DRAM")
    local = agent.prep_xfer_dlist("NIXL_INIT_AGENT", [(address(memory), 4096, 0)], "DRAM")

    def read_all(peer: Peer) -> Any:
        remote = agent.prep_xfer_dlist("prefill", [(peer.address, 4096, 0)], "DRAM")
        return remote, agent.make_prepped_xfer("READ", local, [0], remote, [0], b"read")

    peer = Peer(library, "prefill", 4096, 7)
    note("add_remote_agent", lambda: agent.add_remote_agent(peer.metadata))
    remote, read = read_all(peer)
    agent.transfer(read)
    note("read", lambda: finished(agent, read))
    note("what came", lambda: int(memory.sum()))
    peer.kill()

    def fails() -> str:
        """The first call that tells of the death."""
        try:
            until(lambda: agent.transfer(read) == "ERR" or finished(agent, read) == "ERR")
        except Exception as error:
            return type(error).__name__
        return "still works"

    note("after its death", fails)
    # A transfer may fail before the agent knows that the whole process is gone.
    note("check_remote_metadata", lambda: stays_true(lambda: agent.check_remote_metadata("prefill")))
    note("remove_remote_agent", lambda: agent.remove_remote_agent("prefill"))
    note("check_remote_metadata after remove", lambda: agent.check_remote_metadata("prefill"))
    note("send_notif after remove", lambda: agent.send_notif("prefill", b"anyone?"))
    memory.fill(0)
    peer = Peer(library, "prefill", 4096, 9)
    note("add_remote_agent of the new one", lambda: agent.add_remote_agent(peer.metadata))
    note("old request", lambda: agent.transfer(read))
    note("old list", lambda: agent.make_prepped_xfer("READ", local, [0], remote, [0]))
    _, again = read_all(peer)
    agent.transfer(again)
    note("read again", lambda: finished(agent, again))
    note("what came again", lambda: int(memory.sum()))
    note("release of the old one", lambda: agent.release_xfer_handle(read))
    peer.end()


# SGLang: no backend in the configuration; one is created by name; prefill writes to decode.


def sglang(note: Notes, library: str) -> None:
    from nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t
    from nixl._bindings import nixlRemoteDisconnectError

    note("exception", lambda: nixlRemoteDisconnectError.__name__)
    strict = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
    config = note("config", lambda: nixl_agent_config(backends=[], num_threads=2, sync_mode=strict))
    prefill, decode = nixl_agent("prefill-1", config), nixl_agent("decode-1", config)
    note("metadata without a backend", prefill.get_agent_metadata, value=False)
    note("UCX in get_plugin_list", lambda: "UCX" in prefill.get_plugin_list())
    note("create_backend", lambda: prefill.create_backend("UCX", {"num_threads": "2"}))
    note("create_backend again", lambda: prefill.create_backend("UCX"))
    note("create_backend of none", lambda: prefill.create_backend("NOSUCH"))
    note("get_backend_params", lambda: prefill.get_backend_params("UCX"))
    decode.create_backend("UCX")
    note("name", lambda: prefill.name)
    theirs, ours = np.zeros(8192, np.uint8), np.arange(8192).astype(np.uint8)
    note("register_memory", lambda: prefill.register_memory([(address(ours), 8192, 0, "")], "DRAM"))
    decode.register_memory([(address(theirs), 4096, 0, ""), (address(theirs) + 4096, 4096, 0, "")], "DRAM")
    note("add_remote_agent", lambda: prefill.add_remote_agent(decode.get_agent_metadata()))
    source = note(
        "get_xfer_descs",
        lambda: prefill.get_xfer_descs([(address(ours) + 64 * i, 64, 0) for i in range(8)], "DRAM"),
    )
    target = prefill.get_xfer_descs([(address(theirs) + 1024 * i, 64, 0) for i in range(8)], "DRAM")
    write = note(
        "initialize_xfer",
        lambda: prefill.initialize_xfer("WRITE", source, target, "decode-1", b"room_3_kv_1_2"),
    )
    note("state before transfer", lambda: prefill.check_xfer_state(write))
    note("transfer", lambda: prefill.transfer(write) in ("DONE", "PROC"))
    note("check_xfer_state", lambda: finished(prefill, write))
    note("bytes that came", lambda: [int(theirs[1024 * i : 1024 * i + 64].sum()) for i in range(8)])
    note("get_new_notifs", lambda: until(decode.get_new_notifs))
    note(
        "repeated with another message",
        lambda: (prefill.transfer(write, b"room_3_aux") in ("DONE", "PROC"), finished(prefill, write)),
    )
    note("get_new_notifs of it", lambda: until(decode.get_new_notifs))
    note(
        "repeated without one",
        lambda: (prefill.transfer(write) in ("DONE", "PROC"), finished(prefill, write)),
    )
    note("get_new_notifs once more", lambda: until(decode.get_new_notifs))
    note("release_xfer_handle", lambda: prefill.release_xfer_handle(write))
    strided = np.array([[address(theirs), 64, 0, 128, 4], [address(theirs) + 4096, 64, 0, 64, 2]], np.uint64)
    lists = (
        note("prep local", lambda: prefill.prep_xfer_dlist("", source)),
        note("prep strided", lambda: prefill.prep_xfer_dlist("decode-1", strided, "DRAM")),
    )
    again = note(
        "make of both",
        lambda: prefill.make_prepped_xfer(
            "WRITE", lists[0], [0, 1, 2, 3, 4, 5], lists[1], np.array([5, 4, 3, 2, 1, 0], np.int32), b"tail"
        ),
    )
    note("transfer of it", lambda: (prefill.transfer(again) in ("DONE", "PROC"), finished(prefill, again)))
    note("strided bytes", lambda: [int(theirs[at : at + 64].sum()) for at in (0, 128, 256, 384, 4096, 4160)])
    note("strided without a kind", lambda: prefill.prep_xfer_dlist("decode-1", strided))
    note("strided of int32", lambda: prefill.prep_xfer_dlist("decode-1", strided.astype(np.int32), "DRAM"))
    note(
        "strided, overlapping blocks",
        lambda: prefill.prep_xfer_dlist(
            "decode-1", np.array([[address(theirs), 64, 0, 32, 4]], np.uint64), "DRAM"
        ),
    )
    note(
        "strided, no blocks",
        lambda: prefill.prep_xfer_dlist(
            "decode-1", np.array([[address(theirs), 64, 0, 64, 0]], np.uint64), "DRAM"
        ),
    )
    note(
        "strided, past the end",
        lambda: prefill.prep_xfer_dlist(
            "decode-1", np.array([[address(theirs), 64, 0, 4096, 3]], np.uint64), "DRAM"
        ),
    )
    note("query_memory without a backend", lambda: prefill.query_memory([(0, 0, 0, "/")], "FILES", "FILE"))
    note("query_memory of a network", lambda: prefill.query_memory([(0, 0, 0, "/")], "UCX", "FILE"))
    note("register_memory of files", lambda: prefill.register_memory([(0, 4096, 3, "")], "FILE"))
    note("register_memory of objects", lambda: prefill.register_memory([(0, 4096, 3, "key")], "OBJ"))
    note("prep of files", lambda: prefill.prep_xfer_dlist("", [(0, 4096, 3)], "FILE"))


# LMCache: transfers inside one agent and to another, by prepared lists, with raw lists of the bindings.


def lmcache(note: Notes, library: str) -> None:
    import nixl._bindings as bind
    from nixl._api import (
        nixl_agent,
        nixl_agent_config,
        nixl_prepped_dlist_handle,
        nixl_thread_sync_t,
        nixl_xfer_handle,
    )

    agent = nixl_agent(
        "cache", nixl_agent_config(backends=[], sync_mode=nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT)
    )
    note("create_backend", lambda: agent.create_backend("UCX", {}))
    pool = np.arange(32 * BLOCK).astype(np.uint8)
    regions = note(
        "nixlRegDList", lambda: bind.nixlRegDList(bind.DRAM_SEG, [(address(pool), pool.nbytes, 0, "")])
    )
    note("register_memory", lambda: agent.register_memory(regions))
    slots = note(
        "nixlXferDList",
        lambda: bind.nixlXferDList(bind.DRAM_SEG, [(address(pool) + BLOCK * i, BLOCK, 0) for i in range(32)]),
    )
    note("get_xfer_descs of a list", lambda: agent.get_xfer_descs(slots) is slots)
    local = note("prep_xfer_dlist local", lambda: agent.prep_xfer_dlist("", slots))
    own = note("prep_xfer_dlist of ourselves", lambda: agent.prep_xfer_dlist("cache", slots))
    note("handle's class", lambda: isinstance(local, nixl_prepped_dlist_handle))
    write = note(
        "make_prepped_xfer",
        lambda: agent.make_prepped_xfer("WRITE", local, list(range(4)), own, list(range(16, 20))),
    )
    note("handle's class of it", lambda: isinstance(write, nixl_xfer_handle))
    note("transfer", lambda: (agent.transfer(write) in ("DONE", "PROC"), finished(agent, write)))
    note("what came", lambda: bool((pool[: 4 * BLOCK] == pool[16 * BLOCK : 20 * BLOCK]).all()))
    note("no notification", agent.get_new_notifs)
    note("query_xfer_backend", lambda: agent.query_xfer_backend(write))
    note("estimate_xfer_cost", lambda: agent.estimate_xfer_cost(write), value=False)
    note("both sides local", lambda: agent.make_prepped_xfer("WRITE", local, [0], local, [1]))
    note("sides swapped", lambda: agent.make_prepped_xfer("WRITE", own, [0], local, [1]))
    note("no indices", lambda: agent.make_prepped_xfer("WRITE", local, [], own, []))
    note("negative index", lambda: agent.make_prepped_xfer("WRITE", local, [-1], own, [0]))
    note(
        "indices of two dimensions",
        lambda: agent.make_prepped_xfer("WRITE", local, np.zeros((1, 1), int), own, np.zeros((1, 1), int)),
    )
    for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float64", "bool"):
        index = np.arange(2).astype(name)
        note(
            f"indices of {name}",
            lambda index=index: agent.make_prepped_xfer("WRITE", local, index, own, index),
        )
    note(
        "indices with gaps",
        lambda: agent.make_prepped_xfer("WRITE", local, np.arange(8)[::2], own, np.arange(8)[::2]),
    )
    note("a tuple of indices", lambda: agent.make_prepped_xfer("WRITE", local, (0, 1), own, (2, 3)))
    note("a message that is a str", lambda: agent.make_prepped_xfer("WRITE", local, [0], own, [1], "text"))
    note("a message that is None", lambda: agent.make_prepped_xfer("WRITE", local, [0], own, [1], None))
    note("an operation that is none", lambda: agent.make_prepped_xfer("COPY", local, [0], own, [1]))
    note(
        "a backend that is none",
        lambda: agent.make_prepped_xfer("WRITE", local, [0], own, [1], b"", ["NOSUCH"]),
    )
    note(
        "a backend that is one", lambda: agent.make_prepped_xfer("WRITE", local, [0], own, [1], b"", ["UCX"])
    )
    note(
        "other lengths",
        lambda: agent.make_prepped_xfer(
            "WRITE", agent.prep_xfer_dlist("", [(address(pool), 8, 0)], "DRAM"), [0], own, [0]
        ),
    )
    note("telemetry that is off", lambda: agent.get_xfer_telemetry(write))
    note("release_xfer_handle", lambda: agent.release_xfer_handle(write))
    note("release_xfer_handle again", lambda: agent.release_xfer_handle(write))
    note(
        "release_dlist_handle", lambda: (agent.release_dlist_handle(local), agent.release_dlist_handle(local))
    )
    note("deregister_memory", lambda: agent.deregister_memory(regions))
    note("deregister_memory again", lambda: agent.deregister_memory(regions))


# LMCache and SGLang: a tier of files, by descriptor and by path.


def storage(note: Notes, library: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        storage_in(note, Path(folder))


def storage_in(note: Notes, folder: Path) -> None:
    from nixl._api import nixl_agent, nixl_agent_config

    agent = nixl_agent("tier", nixl_agent_config(backends=[]))
    note("POSIX in get_plugin_list", lambda: "POSIX" in agent.get_plugin_list())
    note("get_plugin_params", lambda: sorted(agent.get_plugin_params("POSIX").items()))
    note("get_plugin_mem_types", lambda: sorted(agent.get_plugin_mem_types("POSIX")))
    note("create_backend", lambda: agent.create_backend("POSIX", {"ios_pool_size": "1024"}))
    note("create_backend again", lambda: agent.create_backend("POSIX"))
    note("get_backend_params", lambda: agent.get_backend_params("POSIX"))
    note("get_backend_mem_types", lambda: sorted(agent.get_backend_mem_types("POSIX")))
    note("get_agent_metadata", agent.get_agent_metadata, value=False)

    content = np.random.default_rng(5).integers(0, 256, 16384, dtype=np.uint8)
    file, missing = folder / "kv", folder / "missing"
    file.write_bytes(content.tobytes())
    memory = np.zeros(16384, np.uint8)
    note(
        "register_memory of DRAM",
        lambda: agent.register_memory([(address(memory), memory.nbytes, 0, "")], "DRAM"),
    )
    descriptor, reader = os.open(file, os.O_RDWR), os.open(file, os.O_RDONLY)
    whole = note(
        "register_memory of a descriptor", lambda: agent.register_memory([(0, 16384, descriptor, "")], "FILE")
    )
    unbounded = note(
        "register_memory of all of a file", lambda: agent.register_memory([(0, 0, reader, "")], "FILE")
    )

    def move(what: str, op: str, offset: int, size: int, device: int, at: int = 0) -> None:
        def transferred() -> str:
            source = agent.get_xfer_descs([(address(memory) + at, size, 0)], "DRAM")
            handle = agent.initialize_xfer(
                op, source, agent.get_xfer_descs([(offset, size, device)], "FILE"), "tier"
            )
            try:
                state = agent.transfer(handle)
                return state if state == "DONE" else finished(agent, handle)
            finally:
                agent.release_xfer_handle(handle)

        note(what, transferred)

    def same(offset: int, size: int, at: int = 0) -> bool:
        return file.read_bytes()[offset : offset + size] == memory[at : at + size].tobytes()

    move("read all", "READ", 0, 16384, descriptor)
    note("what was read", lambda: same(0, 16384))
    memory[:] = np.random.default_rng(6).integers(0, 256, 16384, dtype=np.uint8)
    move("write an odd part", "WRITE", 1001, 777, descriptor, 3)
    note("what was written", lambda: same(1001, 777, 3))
    move("read an odd part", "READ", 13, 4097, reader, 1)
    note("what was read of it", lambda: same(13, 4097, 1))
    move("past the end of what is registered", "READ", 16000, 1000, descriptor)
    move("up to the end of the file", "READ", 16000, 384, reader)
    move("past the end of the file", "READ", 16000, 1000, reader)
    move("far past the end of the file", "READ", 1 << 30, 1000, reader)
    move("write what is open for reading", "WRITE", 0, 10, reader)
    move("a device that is not registered", "READ", 0, 10, 777)

    path_device, other_device, new_device = 50001, 50002, 50003
    by_path = note(
        "register_memory of a path",
        lambda: agent.register_memory([(0, 0, path_device, f"rw:{file}")], "FILE"),
    )
    move("read of the path", "READ", 5, 4096, path_device)
    note("what was read of the path", lambda: same(5, 4096))
    move("write beyond the end", "WRITE", 20000, 100, path_device)
    note("how long it is then", lambda: file.stat().st_size)
    note(
        "a number that stands for a file",
        lambda: agent.register_memory([(0, 0, path_device, f"rw:{file}")], "FILE"),
    )
    two = [(0, 0, 50009, f"rw:{file}"), (0, 0, 50009, f"ro:{file}")]
    note("one number for two paths", lambda: agent.register_memory(two, "FILE"))
    note(
        "register_memory for reading",
        lambda: agent.register_memory([(0, 0, other_device, f"ro:{file}")], "FILE"),
    )
    move("read of it", "READ", 0, 100, other_device)
    move("write to it", "WRITE", 0, 100, other_device)
    note(
        "register_memory of a missing path",
        lambda: agent.register_memory([(0, 0, new_device, f"rw:{missing}")], "FILE"),
    )
    note(
        "register_memory that creates",
        lambda: agent.register_memory([(0, 0, new_device, f"rw,create:{missing}")], "FILE"),
    )
    move("write to the new file", "WRITE", 0, 4096, new_device)
    note("what stands in it", lambda: missing.read_bytes() == memory[:4096].tobytes())
    note("as whom it was created", lambda: missing.stat().st_mode & 0o700)
    note(
        "register_memory of every flag",
        lambda: agent.register_memory([(0, 0, 50004, f"rw,sync,create,noatime:{file}")], "FILE"),
    )
    move("read with every flag", "READ", 0, 4096, 50004)
    note("deregister_memory of a path", lambda: agent.deregister_memory(by_path))
    move("read after it", "READ", 0, 10, path_device)
    note(
        "the number is free again", lambda: agent.register_memory([(0, 0, path_device, f"ro:{file}")], "FILE")
    )

    def asked(what: str, *said: str) -> None:
        def query() -> Any:
            answers = agent.query_memory([(0, 0, 0, one) for one in said], "POSIX", "FILE")
            return [
                answer
                and {**answer, "mode": int(answer["mode"]) & 0o170000, "mtime": answer["mtime"].isdigit()}
                for answer in answers
            ]

        note(what, query)

    asked("query_memory", str(file), str(folder / "nothing"), str(missing))
    asked("query_memory without a path", "")
    asked("query_memory as it would be opened", f"ro:{file}")
    note(
        "query_memory of a folder",
        lambda: sorted(agent.query_memory([(0, 0, 0, str(folder))], "POSIX", "FILE")[0]),
    )

    blocks = [(address(memory) + 512 * i, 512, 0) for i in range(8)]
    local = note("prep_xfer_dlist of memory", lambda: agent.prep_xfer_dlist("", blocks, "DRAM"))
    own = note(
        "prep_xfer_dlist of a file",
        lambda: agent.prep_xfer_dlist("tier", [(512 * i, 512, descriptor) for i in range(8)], "FILE"),
    )
    here = note(
        "prep_xfer_dlist of a file, local",
        lambda: agent.prep_xfer_dlist("", [(512 * i, 512, descriptor) for i in range(8)], "FILE"),
    )
    read = note(
        "make_prepped_xfer", lambda: agent.make_prepped_xfer("READ", local, [0, 1, 2], own, [3, 4, 5])
    )
    note("state before transfer", lambda: agent.check_xfer_state(read))
    note("transfer", lambda: (agent.transfer(read) in ("DONE", "PROC"), finished(agent, read)))
    note("what came", lambda: same(512 * 3, 512 * 3))
    note("transfer again", lambda: (agent.transfer(read) in ("DONE", "PROC"), finished(agent, read)))
    note("query_xfer_backend", lambda: agent.query_xfer_backend(read))
    note("estimate_xfer_cost", lambda: agent.estimate_xfer_cost(read), value=False)
    note("release_xfer_handle", lambda: agent.release_xfer_handle(read))
    note("file to file", lambda: agent.make_prepped_xfer("READ", here, [0], own, [1]))
    note("with a notification", lambda: agent.make_prepped_xfer("READ", local, [0], own, [0], b"read"))
    memory_rows, file_rows = (
        agent.get_xfer_descs([(address(memory), 10, 0)], "DRAM"),
        agent.get_xfer_descs([(0, 10, descriptor)], "FILE"),
    )
    note("memory to memory", lambda: agent.initialize_xfer("READ", memory_rows, memory_rows, "tier"))
    note("a file on the local side", lambda: agent.initialize_xfer("READ", file_rows, memory_rows, "tier"))
    note("deregister_memory", lambda: (agent.deregister_memory(whole), agent.deregister_memory(unbounded)))
    note("deregister_memory again", lambda: agent.deregister_memory(whole))


# The rest of nixl_agent: what can be given wrongly.


def wrong_calls(note: Notes, library: str) -> None:
    import nixl._bindings as bind
    from nixl._api import nixl_agent, nixl_agent_config

    note("an empty name", lambda: nixl_agent(""))
    note("no name", lambda: nixl_agent(None))
    note("a name of bytes", lambda: nixl_agent(b"bytes").name)
    note("a bad sync mode", lambda: nixl_agent_config(sync_mode=1))
    note("a missing backend", lambda: list(nixl_agent("m", nixl_agent_config(backends=["NOSUCH"])).backends))
    left, right = nixl_agent("left"), nixl_agent("right")
    here, there = np.zeros(4096, np.uint8), np.zeros(4096, np.uint8)
    whole = [(address(here), 4096, 0, "")]
    note("register_memory", lambda: left.register_memory(whole, "DRAM"))
    note("registered twice", lambda: left.register_memory(whole, "DRAM"))
    inside = [(address(here) + 8, 8, 0, "")]
    note("registered inside", lambda: left.register_memory(inside, "DRAM"))
    # NIXL does not find what lies in overlapping registrations.
    note("deregistered inside", lambda: left.deregister_memory(left.get_reg_descs(inside, "DRAM")))
    note("on another device", lambda: left.register_memory([(address(here), 4096, 3, "")], "DRAM"))
    note("of length 0", lambda: left.register_memory([(address(here), 0, 0, "")], "DRAM"))
    note("an empty list", lambda: left.register_memory(bind.nixlRegDList(bind.DRAM_SEG)))
    note("an empty Python list", lambda: left.register_memory([], "DRAM"))
    note("no such kind", lambda: left.register_memory(whole, "TAPE"))
    note("no kind", lambda: left.register_memory(whole))
    note("tuples of three", lambda: left.register_memory([(address(here), 8, 0)], "DRAM"))
    note("a list for transfers", lambda: left.register_memory(left.get_xfer_descs([(1, 2, 3)], "DRAM")))
    note("a backend that is none", lambda: left.register_memory(whole, "DRAM", ["NOSUCH"]))
    note(
        "deregister what is not", lambda: left.deregister_memory(left.get_reg_descs([(5, 8, 0, "")], "DRAM"))
    )
    note("deregister None", lambda: left.deregister_memory(None))
    right.register_memory([(address(there), 4096, 0, "")], "DRAM")
    metadata = right.get_agent_metadata()
    note("check before", lambda: left.check_remote_metadata("right"))
    note("check ourselves", lambda: left.check_remote_metadata("left"))
    note("send_notif before", lambda: left.send_notif("right", b"x"))
    note("our own metadata", lambda: left.add_remote_agent(left.get_agent_metadata()))
    note("add_remote_agent", lambda: left.add_remote_agent(metadata))
    note("add_remote_agent again", lambda: left.add_remote_agent(metadata))
    for what, blob in (
        ("garbage", b"garbage"),
        ("nothing", b""),
        ("half", metadata[: len(metadata) // 2]),
        ("text", "text"),
        ("None", None),
    ):
        note(f"metadata: {what}", lambda blob=blob: left.add_remote_agent(blob))
    good, bad = [(address(there), 64, 0)], [(64, 64, 0)]
    note("check", lambda: left.check_remote_metadata("right"))
    note("check by bytes", lambda: left.check_remote_metadata(b"right"))
    note("check of memory", lambda: left.check_remote_metadata("right", left.get_xfer_descs(good, "DRAM")))
    note(
        "check of other memory", lambda: left.check_remote_metadata("right", left.get_xfer_descs(bad, "DRAM"))
    )
    note("make_connection", lambda: left.make_connection("right"))
    note("make_connection to nobody", lambda: left.make_connection("nobody"))
    local, remote = left.get_xfer_descs([(address(here), 64, 0)], "DRAM"), left.get_xfer_descs(good, "DRAM")

    def initialize(
        what: str, op: str = "WRITE", source: Any = local, target: Any = remote, peer: Any = "right"
    ) -> None:
        note(f"initialize_xfer: {what}", lambda: left.initialize_xfer(op, source, target, peer))

    def descs(*rows: tuple[int, int, int]) -> Any:
        return left.get_xfer_descs(list(rows), "DRAM")

    initialize("right")
    initialize("an operation that is none", op="MOVE")
    initialize("nobody", peer="nobody")
    initialize("a name of bytes", peer=b"right")
    initialize("other counts", source=descs((address(here), 64, 0), (address(here), 64, 0)))
    initialize("other lengths", source=descs((address(here), 63, 0)))
    initialize("local memory that is not registered", source=descs((64, 64, 0)))
    initialize("remote memory that is not registered", target=descs((64, 64, 0)))
    initialize(
        "past the end", source=descs((address(here), 200, 0)), target=descs((address(there) + 4000, 200, 0))
    )
    initialize("another device", target=descs((address(there), 64, 1)))
    initialize(
        "empty lists", source=bind.nixlXferDList(bind.DRAM_SEG), target=bind.nixlXferDList(bind.DRAM_SEG)
    )
    initialize("None", source=None)
    initialize("ourselves", target=descs((address(here) + 512, 64, 0)), peer="left")
    for what, rows in (
        ("int32", np.array([[address(there) % 1000, 64, 0]], np.int32)),
        ("float64", np.array([[1.0, 64, 0]])),
        ("four columns", np.zeros((2, 4), np.uint64)),
        ("one dimension", np.zeros(3, np.uint64)),
        ("with gaps", np.zeros((4, 3), np.uint64)[::2]),
        ("memory that is not registered", np.array([[64, 64, 0]], np.uint64)),
    ):
        note(f"prep_xfer_dlist: {what}", lambda rows=rows: left.prep_xfer_dlist("right", rows, "DRAM"))
    note("prep_xfer_dlist: nobody", lambda: left.prep_xfer_dlist("nobody", remote))
    note("prep_xfer_dlist: a name of bytes", lambda: left.prep_xfer_dlist(b"right", remote))
    note("prep_xfer_dlist: no such kind", lambda: left.prep_xfer_dlist("right", good, "TAPE"))
    note("prep_xfer_dlist: files", lambda: left.prep_xfer_dlist("right", good, "FILE"))
    note("prep_xfer_dlist: None", lambda: left.prep_xfer_dlist("right", None))
    note("send_notif", lambda: left.send_notif("right", b"tag and more"))
    note("check_remote_xfer_done", lambda: until(lambda: right.check_remote_xfer_done("left", b"tag")))
    note("check_remote_xfer_done again", lambda: right.check_remote_xfer_done("left", b"tag"))
    left.send_notif("right", "text")
    note(
        "a tag inside",
        lambda: until(lambda: right.check_remote_xfer_done("left", b"ex", tag_is_prefix=False)),
    )
    note("a tag of nobody", lambda: right.check_remote_xfer_done("nobody", b"tag"))
    note("send_notif of nothing", lambda: left.send_notif("right", b""))
    note("update_notifs", lambda: until(lambda: any(right.update_notifs().values())))
    note("update_notifs keeps them", right.update_notifs)
    note("send_notif to ourselves", lambda: left.send_notif("left", b"self"))
    note("from ourselves", lambda: until(left.get_new_notifs))
    note("send_notif to nobody", lambda: left.send_notif("nobody", b"x"))
    note("send_notif by a name of bytes", lambda: left.send_notif(b"right", b"x"))
    note("remove_remote_agent", lambda: left.remove_remote_agent("right"))
    note("remove_remote_agent again", lambda: left.remove_remote_agent("right"))
    note("remove ourselves", lambda: left.remove_remote_agent("left"))
    note("check after", lambda: left.check_remote_metadata("right"))
    note("get_plugin_mem_types of none", lambda: left.get_plugin_mem_types("NOSUCH"))
    note("get_plugin_params", lambda: sorted(left.get_plugin_params("UCX").items()))
    note("get_plugin_params of none", lambda: left.get_plugin_params("NOSUCH"))
    note("get_backend_mem_types of none", lambda: left.get_backend_mem_types("NOSUCH"))
    note("get_backend_params of none", lambda: left.get_backend_params("NOSUCH"))
    note("prep_mem_view", lambda: left.prep_mem_view(local))
    note("prep_mem_view of None", lambda: left.prep_mem_view(None))
    note("memories", lambda: left.nixl_mems)
    note("operations", lambda: left.nixl_ops)
    note("configuration", lambda: vars(nixl_agent_config()))


# Descriptor lists, enumerations, the raw configuration.


def descriptors(note: Notes, library: str) -> None:
    import pickle

    import nixl._bindings as bind
    from nixl._api import nixl_agent, nixl_agent_config

    agent = nixl_agent("lists", nixl_agent_config(backends=[]))
    rows = [(1000, 105, 0), (2000, 30, 0), (1010, 20, 0)]
    kinds = {
        "xfer": (bind.nixlXferDList, ()),
        "reg": (bind.nixlRegDList, ("what",)),
        "remote": (bind.nixlRemoteDList, ("agent",)),
    }
    for name, (kind, extra) in kinds.items():
        full = [(*row, *extra) for row in rows]
        made = note(f"{name}: of tuples", lambda kind=kind, full=full: kind(bind.VRAM_SEG, full))
        note(f"{name}: getType", made.getType)
        note(f"{name}: descCount", made.descCount)
        note(f"{name}: isEmpty", made.isEmpty)
        note(f"{name}: an element", lambda made=made: made[1])
        note(f"{name}: a negative index", lambda made=made: made[-1])
        note(f"{name}: a slice", lambda made=made: made[0:1])
        note(f"{name}: len", lambda made=made: len(made))
        note(f"{name}: set an element", lambda made=made, extra=extra: made.__setitem__(1, (5, 6, 7, *extra)))
        note(f"{name}: addDesc", lambda made=made, extra=extra: made.addDesc((7, 8, 9, *extra)))
        note(f"{name}: append", lambda made=made, extra=extra: made.append((7, 8, 10, *extra)))
        note(f"{name}: append a list", lambda made=made, extra=extra: made.append([7, 8, 10, *extra]))
        note(f"{name}: remDesc", lambda made=made: made.remDesc(0))
        note(f"{name}: all", lambda made=made: [made[i] for i in range(made.descCount())])
        note(
            f"{name}: equal",
            lambda kind=kind, full=full: kind(bind.DRAM_SEG, full) == kind(bind.DRAM_SEG, full),
        )
        note(
            f"{name}: of another kind",
            lambda kind=kind, full=full: kind(bind.DRAM_SEG, full) == kind(bind.VRAM_SEG, full),
        )
        note(f"{name}: equal to None", lambda made=made: made == None)  # noqa: E711
        note(f"{name}: hash", lambda made=made: hash(made))
        note(
            f"{name}: of lists", lambda kind=kind, full=full: kind(bind.DRAM_SEG, [list(row) for row in full])
        )
        note(f"{name}: of a tuple", lambda kind=kind, full=full: kind(bind.DRAM_SEG, tuple(full)))
        note(f"{name}: of short tuples", lambda kind=kind: kind(bind.DRAM_SEG, [(1, 2)]))
        note(f"{name}: of a kind that is an int", lambda kind=kind: kind(0))
        note(f"{name}: of nothing", lambda kind=kind: kind())
        note(
            f"{name}: by name", lambda kind=kind, full=full: kind(type=bind.FILE_SEG, descs=full).descCount()
        )
        note(f"{name}: of a size", lambda kind=kind: kind(type=bind.FILE_SEG, init_size=2).descCount())
        note(f"{name}: clear", lambda made=made: (made.clear(), made.isEmpty()))
        note(
            f"{name}: pickled",
            lambda kind=kind, full=full: (
                pickle.loads(pickle.dumps(kind(bind.OBJ_SEG, full))) == kind(bind.OBJ_SEG, full)
            ),
        )
        note(
            f"{name}: serialized",
            lambda kind=kind, full=full: (
                agent.deserialize_descs(agent.get_serialized_descs(kind(bind.OBJ_SEG, full)))
                == kind(bind.OBJ_SEG, full)
            ),
        )
    xfer = bind.nixlXferDList(bind.DRAM_SEG, rows)
    note("index", lambda: xfer.index((2000, 30, 0)))
    note("index of none", lambda: xfer.index((2000, 30, 1)))
    reg = bind.nixlRegDList(bind.BLK_SEG, [(1, 2, 3, "m"), (4, 5, 6, b"\xff")])
    note("what owners say", lambda: [reg[0], reg[1]])
    note("index without what is said", lambda: reg.index((1, 2, 3, "other")))
    note("trim", lambda: (reg.trim()[1], reg.trim().getType()))
    note(
        "what is said counts",
        lambda: reg == bind.nixlRegDList(bind.BLK_SEG, [(1, 2, 3, "n"), (4, 5, 6, b"\xff")]),
    )
    note("another class", lambda: bind.nixlXferDList(bind.DRAM_SEG) == bind.nixlRegDList(bind.DRAM_SEG))
    for what, array in (
        ("uint64", np.array(rows, np.uint64)),
        ("int64", np.array(rows, np.int64)),
        ("negative", np.array([[-1, 2, 3]], np.int64)),
        ("empty", np.zeros((0, 3), np.uint64)),
        ("int32", np.array(rows, np.int32)),
        ("gaps", np.array(rows * 2, np.uint64)[::2]),
        ("columns first", np.asfortranarray(np.array(rows, np.uint64))),
        ("one dimension", np.zeros(3, np.uint64)),
    ):
        note(
            f"xfer of an array: {what}",
            lambda array=array: [
                list(made[i])
                for made in [bind.nixlXferDList(bind.DRAM_SEG, array)]
                for i in range(made.descCount())
            ],
        )
        note(
            f"reg of an array: {what}",
            lambda array=array: [
                list(made[i])
                for made in [bind.nixlRegDList(bind.DRAM_SEG, array)]
                for i in range(made.descCount())
            ],
        )
    note("remote of an array", lambda: bind.nixlRemoteDList(bind.DRAM_SEG, np.zeros((1, 3), np.uint64)))
    note(
        "an array is copied",
        lambda: (
            array := np.array(rows, np.uint64),
            made := bind.nixlXferDList(bind.DRAM_SEG, array),
            array.fill(0),
            made[0],
        )[-1],
    )
    note("get_xfer_descs of four", lambda: agent.get_xfer_descs([(1, 2, 3, 4)], "DRAM"))
    note("get_xfer_descs without a kind", lambda: agent.get_xfer_descs(rows))
    note("get_xfer_descs of registered", lambda: agent.get_xfer_descs(reg))
    note("get_xfer_descs of no such kind", lambda: agent.get_xfer_descs(rows, "TAPE"))
    note("get_reg_descs of three", lambda: agent.get_reg_descs(rows, "DRAM"))
    note("get_reg_descs of transfers", lambda: agent.get_reg_descs(xfer))
    note("get_reg_descs of a list", lambda: agent.get_reg_descs(reg) is reg)
    note("get_remote_descs", lambda: agent.get_remote_descs([(1, 2, 3, "a")], "VRAM")[0])
    note("get_remote_descs without a kind", lambda: agent.get_remote_descs([(1, 2, 3, "a")]))
    note(
        "serialized containers",
        lambda: (
            agent.deserialize_descs(
                agent.get_serialized_descs([xfer, {"x": reg, "y": (1, "s", b"b", None)}])
            )[0]
            == xfer
        ),
    )
    note("pickle of nothing", lambda: agent.deserialize_descs(b""))
    note("pickle cut short", lambda: agent.deserialize_descs(agent.get_serialized_descs(xfer)[:-20]))
    for member in (
        bind.DRAM_SEG,
        bind.NIXL_WRITE,
        bind.NIXL_ERR_NOT_FOUND,
        bind.NIXL_THREAD_SYNC_DEFAULT,
        bind.nixl_mem_t(99),
    ):
        note(
            f"{member}",
            lambda member=member: (
                str(member),
                repr(member),
                int(member),
                member.name,
                member.value,
                hash(member) == hash(int(member)),
            ),
        )
        note(f"{member}: pickled", lambda member=member: pickle.loads(pickle.dumps(member)) == member)
    note(
        "equal to its number",
        lambda: (bind.FILE_SEG == 4, bind.FILE_SEG != 4, bind.FILE_SEG == None, [0, 1][bind.VRAM_SEG]),  # noqa: E711
    )
    note("order", lambda: bind.DRAM_SEG < bind.VRAM_SEG)
    note("an int", lambda: isinstance(bind.DRAM_SEG, int))
    note("of a str", lambda: bind.nixl_mem_t("DRAM"))
    note("members", lambda: {name: int(value) for name, value in bind.nixl_status_t.__members__.items()})
    note("names", lambda: sorted(name for name in dir(bind) if not name.startswith("_")))
    config = note("nixlAgentConfig", bind.nixlAgentConfig)
    for field in (
        "useProgThread",
        "useListenThread",
        "listenPort",
        "syncMode",
        "captureTelemetry",
        "pthrDelay",
        "lthrDelay",
    ):
        note(f"config: {field}", lambda field=field: getattr(config, field))
    note("config: etcdWatchTimeout", lambda: config.etcdWatchTimeout.total_seconds(), value=True)
    note(
        "config: of eight",
        lambda: bind.nixlAgentConfig(True, True, 1, bind.NIXL_THREAD_SYNC_RW, 2, 3, 4, True).lthrDelay,
    )
    note(
        "config: of nine",
        lambda: bind.nixlAgentConfig(True, True, 1, bind.NIXL_THREAD_SYNC_RW, 2, 3, 4, True, 5),
    )
    note("config: by name", lambda: bind.nixlAgentConfig(useProgThread=True))
    note("config: another attribute", lambda: setattr(config, "nosuch", 1))
    note("config: another type", lambda: setattr(config, "listenPort", "x"))
    note("telemetry of nothing", lambda: bind.nixlXferTelemetry().totalBytes, value=False)


# The raw agent, with handles that are ints.


def raw(note: Notes, library: str) -> None:
    import nixl._bindings as bind

    left, right = (
        bind.nixlAgent("left", bind.nixlAgentConfig(True)),
        bind.nixlAgent("right", bind.nixlAgentConfig(True)),
    )
    note("nixlAgent without configuration", lambda: bind.nixlAgent("x"))
    backend = note("createBackend", lambda: left.createBackend("UCX", {}), value=False)
    right.createBackend("UCX", {})
    note("createBackend again", lambda: left.createBackend("UCX", {}))
    note("createBackend of none", lambda: left.createBackend("NOSUCH", {}))
    note("getBackendParams", lambda: left.getBackendParams(backend)[0])
    note("getPluginParams of none", lambda: left.getPluginParams("NOSUCH"))
    note("UCX in getAvailPlugins", lambda: "UCX" in left.getAvailPlugins())
    here, there = np.arange(4096).astype(np.uint8), np.zeros(4096, np.uint8)
    ours = bind.nixlRegDList(bind.DRAM_SEG, [(address(here), 4096, 0, "")])
    theirs = bind.nixlRegDList(bind.DRAM_SEG, [(address(there), 4096, 0, "")])
    note("registerMem", lambda: left.registerMem(ours, [backend]))
    note("registerMem without backends", lambda: right.registerMem(theirs))
    note("getLocalMD", right.getLocalMD, value=False)
    note("loadRemoteMD", lambda: left.loadRemoteMD(right.getLocalMD()))
    empty = bind.nixlXferDList(bind.DRAM_SEG)
    note("checkRemoteMD", lambda: left.checkRemoteMD("right", empty))
    note("checkRemoteMD of nobody", lambda: left.checkRemoteMD("nobody", empty))
    note(
        "checkRemoteMD of other memory",
        lambda: left.checkRemoteMD("right", bind.nixlXferDList(bind.DRAM_SEG, [(5, 6, 0)])),
    )
    source = bind.nixlXferDList(bind.DRAM_SEG, [(address(here), 64, 0)])
    target = bind.nixlXferDList(bind.DRAM_SEG, [(address(there), 64, 0)])
    note("makeConnection", lambda: left.makeConnection("right", []))
    write = note(
        "createXferReq",
        lambda: left.createXferReq(bind.NIXL_WRITE, source, target, "right", "no\0te"),
        value=False,
    )
    named = {
        "operation": bind.NIXL_WRITE,
        "local_descs": source,
        "remote_descs": target,
        "remote_agent": "right",
        "backend": [backend],
    }
    note("createXferReq by name", lambda: left.createXferReq(**named), value=False)
    note("createXferReq of an int", lambda: left.createXferReq(1, source, target, "right"))
    note("getXferStatus before", lambda: left.getXferStatus(write))
    note("postXferReq", lambda: left.postXferReq(write), value=False)
    note(
        "getXferStatus",
        lambda: until(lambda: (status := left.getXferStatus(write)) == bind.NIXL_SUCCESS and status),
    )
    note("queryXferBackend", lambda: left.queryXferBackend(write) == backend)
    note("estimateXferCost", lambda: [type(part).__name__ for part in left.estimateXferCost(write)])
    note("getXferTelemetry", lambda: left.getXferTelemetry(write))
    note("getNotifs", lambda: until(lambda: right.getNotifs({})))
    note("genNotif", lambda: left.genNotif("right", "x"))
    kept = {"left": [b"old"]}
    note(
        "getNotifs behind others",
        lambda: until(lambda: len((found := right.getNotifs(kept))["left"]) == 2 and found),
    )
    note("getNotifs leaves the map", lambda: kept)
    note("getNotifs of None", lambda: right.getNotifs(None))
    local = note("prepXferDlist local", lambda: left.prepXferDlist("", source), value=False)
    note("prepXferDlist without a name", lambda: left.prepXferDlist(source), value=False)
    remote = note("prepXferDlist remote", lambda: left.prepXferDlist("right", target), value=False)
    rows = np.array([[address(there), 64, 0, 128, 4]], np.uint64)
    note("prepXferDlist strided", lambda: left.prepXferDlist("right", bind.DRAM_SEG, rows), value=False)
    note("prepXferDlist by its word", lambda: left.prepXferDlist("NIXL_INIT_AGENT", source))
    made = note(
        "makeXferReq",
        lambda: left.makeXferReq(bind.NIXL_READ, local, [0], remote, [0], b"n", [backend], True),
        value=False,
    )
    note("releaseXferReq", lambda: left.releaseXferReq(made))
    note("releasedDlistH", lambda: left.releasedDlistH(remote))
    note("getXferStatus of a str", lambda: left.getXferStatus("x"))
    note("deregisterMem", lambda: left.deregisterMem(ours, [backend]))
    note("invalidateRemoteMD", lambda: left.invalidateRemoteMD("right"))
    note("invalidateRemoteMD again", lambda: left.invalidateRemoteMD("right"))


# Metadata in parts and by socket.


def metadata(note: Notes, library: str) -> None:
    import socket

    import nixl._bindings as bind
    from nixl._api import nixl_agent, nixl_agent_config

    def port() -> int:
        with socket.create_server(("127.0.0.1", 0)) as held:
            return int(held.getsockname()[1])

    ports = {"here": port(), "there": port()}
    here = nixl_agent("here", nixl_agent_config(enable_listen_thread=True, listen_port=ports["here"]))
    there = nixl_agent("there", nixl_agent_config(enable_listen_thread=True, listen_port=ports["there"]))
    memory = np.zeros(8192, np.uint8)
    rows = [(address(memory), 4096, 0, ""), (address(memory) + 4096, 4096, 0, "")]
    both = there.register_memory(rows, "DRAM")
    own = np.zeros(4096, np.uint8)
    ours = here.register_memory([(address(own), 4096, 0, "")], "DRAM")
    first, nothing = there.get_reg_descs(rows[:1], "DRAM"), bind.nixlRegDList(bind.DRAM_SEG)
    part = note("a part", lambda: there.get_partial_agent_metadata(first), value=False)
    note(
        "a part with connection", lambda: there.get_partial_agent_metadata(first, True, ["UCX"]), value=False
    )
    connection = note(
        "connection alone", lambda: there.get_partial_agent_metadata(nothing, True), value=False
    )
    note(
        "a part that is not registered",
        lambda: there.get_partial_agent_metadata(there.get_reg_descs([(5, 8, 0, "")], "DRAM")),
    )
    note(
        "a part inside",
        lambda: there.get_partial_agent_metadata(
            there.get_reg_descs([(address(memory) + 8, 8, 0, "")], "DRAM")
        ),
    )
    note("add the connection", lambda: here.add_remote_agent(connection))
    note("check", lambda: here.check_remote_metadata("there"))
    note("check of all", lambda: here.check_remote_metadata("there", both.trim()))
    note("add the part", lambda: here.add_remote_agent(part))
    note("check of the part", lambda: here.check_remote_metadata("there", first.trim()))
    note("check of all then", lambda: here.check_remote_metadata("there", both.trim()))
    here.remove_remote_agent("there")
    note("fetch by socket", lambda: here.fetch_remote_metadata("there", "127.0.0.1", ports["there"]))
    note("it comes", lambda: until(lambda: here.check_remote_metadata("there", both.trim())))
    note("send by socket", lambda: here.send_local_metadata("127.0.0.1", ports["there"]))
    note("it comes there", lambda: until(lambda: there.check_remote_metadata("here")))
    note("withdraw by socket", lambda: here.invalidate_local_metadata("127.0.0.1", ports["there"]))
    note("it goes there", lambda: until(lambda: not there.check_remote_metadata("here")))
    note(
        "send a part by socket",
        lambda: here.send_partial_agent_metadata(ours, True, ["UCX"], "127.0.0.1", ports["there"]),
    )
    note("the part comes there", lambda: until(lambda: there.check_remote_metadata("here", ours.trim())))
    note("fetch from nobody", lambda: here.fetch_remote_metadata("nobody", "127.0.0.1", port()))
    note("nobody comes", lambda: here.check_remote_metadata("nobody"))
    note("send to no store", here.send_local_metadata)
    note("fetch from no store", lambda: here.fetch_remote_metadata("there"))
    note("withdraw from no store", here.invalidate_local_metadata)
    note("send a part to no store", lambda: here.send_partial_agent_metadata(ours, label="x"))


SEQUENCES = {
    sequence.__name__: sequence
    for sequence in (
        vllm,
        vllm_peer_returns,
        sglang,
        lmcache,
        storage,
        wrong_calls,
        descriptors,
        raw,
        metadata,
    )
}


def take_library(library: str) -> None:
    """From now on `import nixl` gives it. Where a module lies tells nothing: any folder of a path may be
    called headrace."""
    if library == "dropin":
        import headrace.compat.nixl.install  # noqa: F401
    import nixl
    from nixl._api import nixl_agent

    from_headrace = nixl_agent.__module__.partition(".")[0] == "headrace"
    assert from_headrace == (library == "dropin"), (
        f"nixl_agent is of {nixl_agent.__module__}, in {nixl.__file__}"
    )


def run(library: str, sequence: str) -> list[list[Any]]:
    take_library(library)
    note = Notes()
    SEQUENCES[sequence](note, library)
    return note.rows


def record(names: list[str]) -> None:
    RESULTS.mkdir(exist_ok=True)
    for name in names or list(SEQUENCES):
        done = subprocess.run(
            [sys.executable, __file__, "wheel", name], stdout=subprocess.PIPE, text=True, check=False
        )
        # UCX may crash when its process ends, after all is said.
        rows = json.loads(done.stdout.splitlines()[-1])
        lines = ",\n".join(json.dumps(row) for row in rows)
        (RESULTS / f"{name}.json").write_text(f"[\n{lines}\n]\n")
        print(f"{name}: {len(rows)} calls")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        take_library(sys.argv[2])
        serve(sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    elif sys.argv[1] == "record":
        record(sys.argv[2:])
    else:
        rows = json.dumps(run(sys.argv[1], sys.argv[2]))
        print(rows, flush=True)
