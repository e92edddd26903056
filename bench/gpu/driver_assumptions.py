#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's driver does where tests/support/fake_cuda assumes it: one JSON line a question, with what was
observed.

Usage: driver_assumptions.py [--only NAME,NAME] [--out FILE]
Each question is asked by a process of its own, with an exporter as its child, so that one that hangs, or
breaks its context, spoils no other. Outcomes are the driver's numbers (201: invalid context, 1: invalid
value, ...) with its name beside.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

MIB = 1 << 20
BYTES = 64 * MIB
SECONDS = 25  # for one question
DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
LAZY_PEER_ACCESS = 1


class IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class AllocationProperties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class Failed(Exception):
    """A call that the question needs did not succeed."""


class Driver:
    """The driver's functions, by name; `ask` gives the outcome, `do` insists on success."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.do("cuInit", 0)

    def ask(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.library, name)(*arguments))

    def do(self, name: str, *arguments: Any) -> None:
        if code := self.ask(name, *arguments):
            raise Failed(f"{name}: {self.word(code)}")

    def word(self, code: int) -> str:
        name = ctypes.c_char_p()
        known = self.library.cuGetErrorName(code, ctypes.byref(name)) == 0 and name.value
        return f"{code} {name.value.decode() if known and name.value else 'unknown'}"

    def devices(self) -> int:
        count = ctypes.c_int()
        self.do("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def context(self, device: int) -> None:
        """Makes the GPU's primary context the current one."""
        context = ctypes.c_void_p()
        self.do("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.do("cuCtxSetCurrent", context)

    def allocate(self, bytes_: int, value: int) -> int:
        address = ctypes.c_uint64()
        self.do("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(bytes_))
        self.set(address.value, value, bytes_)
        return address.value

    def set(self, address: int, value: int, bytes_: int) -> None:
        self.do("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(value), ctypes.c_size_t(bytes_))
        self.do("cuCtxSynchronize")

    def free(self, address: int) -> None:
        self.do("cuMemFree_v2", ctypes.c_uint64(address))

    def handle(self, address: int) -> IpcHandle:
        handle = IpcHandle()
        self.do("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        return handle

    def open(self, handle: IpcHandle) -> tuple[int, int]:
        """The outcome, and the address."""
        address = ctypes.c_uint64()
        return self.ask(
            "cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, LAZY_PEER_ACCESS
        ), address.value

    def close(self, address: int) -> int:
        return self.ask("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def read(self, address: int, bytes_: int = 16) -> dict[str, Any]:
        """What a copy to the host says, and which byte values it brought."""
        buffer = (ctypes.c_ubyte * bytes_)()
        code = self.ask("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(address), ctypes.c_size_t(bytes_))
        return {"outcome": self.word(code), "values": sorted(set(buffer)) if code == 0 else None}

    def used(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.do("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value

    def buffer_id(self, address: int) -> int | str:
        value = ctypes.c_ulonglong()
        code = self.ask("cuPointerGetAttribute", ctypes.byref(value), 7, ctypes.c_uint64(address))
        return value.value if code == 0 else self.word(code)

    def range_of(self, address: int) -> list[int] | str:
        base, length = ctypes.c_uint64(), ctypes.c_size_t()
        code = self.ask(
            "cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(length), ctypes.c_uint64(address)
        )
        return [address - base.value, length.value] if code == 0 else self.word(code)

    # The virtual memory API

    def create(self, device: int, bytes_: int) -> int:
        properties = AllocationProperties(type=1, handle_types=DESCRIPTOR, location=Location(1, device))
        memory = ctypes.c_uint64()
        self.do(
            "cuMemCreate",
            ctypes.byref(memory),
            ctypes.c_size_t(bytes_),
            ctypes.byref(properties),
            ctypes.c_ulonglong(0),
        )
        return memory.value

    def reserve(self, bytes_: int) -> int:
        address = ctypes.c_uint64()
        self.do(
            "cuMemAddressReserve",
            ctypes.byref(address),
            ctypes.c_size_t(bytes_),
            ctypes.c_size_t(0),
            ctypes.c_uint64(0),
            ctypes.c_ulonglong(0),
        )
        return address.value

    def map_at(self, address: int, memory: int, device: int, bytes_: int) -> int:
        """The outcome of letting the GPU reach it."""
        self.do(
            "cuMemMap",
            ctypes.c_uint64(address),
            ctypes.c_size_t(bytes_),
            ctypes.c_size_t(0),
            ctypes.c_uint64(memory),
            ctypes.c_ulonglong(0),
        )
        access = Access(Location(1, device), 3)
        return self.ask(
            "cuMemSetAccess",
            ctypes.c_uint64(address),
            ctypes.c_size_t(bytes_),
            ctypes.byref(access),
            ctypes.c_size_t(1),
        )

    def unmap(self, address: int, bytes_: int) -> None:
        self.do("cuMemUnmap", ctypes.c_uint64(address), ctypes.c_size_t(bytes_))

    def release(self, memory: int) -> None:
        self.do("cuMemRelease", ctypes.c_uint64(memory))

    def descriptor(self, memory: int) -> int:
        descriptor = ctypes.c_int(-1)
        self.do(
            "cuMemExportToShareableHandle",
            ctypes.byref(descriptor),
            ctypes.c_uint64(memory),
            DESCRIPTOR,
            ctypes.c_ulonglong(0),
        )
        return descriptor.value

    def import_descriptor(self, descriptor: int) -> tuple[int, int]:
        memory = ctypes.c_uint64()
        code = self.ask(
            "cuMemImportFromShareableHandle", ctypes.byref(memory), ctypes.c_void_p(descriptor), DESCRIPTOR
        )
        return code, memory.value


# The exporter: a child that makes memory, gives handles to it, and frees it when it is told


class Exporter:
    def __init__(self, device: int, wrapper: list[str] | None = None):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(15)
        command = [
            *(wrapper or []),
            sys.executable,
            __file__,
            "--exporter",
            str(theirs.fileno()),
            str(device),
        ]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        self.facts = self._answer()[0]

    def ask(self, what: str, *arguments: Any) -> Any:
        """The answer; a descriptor that comes along is its `descriptor`."""
        self.socket.send(json.dumps([what, *arguments]).encode())
        answer, descriptors = self._answer()
        return {**answer, "descriptor": descriptors[0]} if descriptors else answer

    def _answer(self) -> tuple[dict[str, Any], list[int]]:
        data, descriptors, _, _ = socket.recv_fds(self.socket, 65536, 4)
        if not data:
            raise Failed(f"the exporter has ended with {ending_of(self.process.wait())}")
        answer = json.loads(data)
        if "failed" in answer:
            raise Failed(f"exporter: {answer['failed']}")
        return answer, descriptors

    def kill(self) -> None:
        os.kill(self.facts.get("outer", self.process.pid), signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        time.sleep(0.2)  # the driver clears away after it

    def leave(self) -> None:
        self.socket.close()
        self.process.wait(15)


def as_handle(text: str) -> IpcHandle:
    return IpcHandle((ctypes.c_ubyte * 64)(*bytes.fromhex(text)))


def serve(channel: socket.socket, device: int) -> None:
    """What the exporter does."""
    driver = Driver()
    driver.context(device)
    memories: dict[int, int] = {}

    def allocate(value: int) -> dict[str, Any]:
        address = driver.allocate(BYTES, value)
        return {
            "address": address,
            "handle": bytes(driver.handle(address).bytes).hex(),
            "buffer_id": driver.buffer_id(address),
        }

    def free(address: int) -> dict[str, Any]:
        driver.free(address)
        return {}

    def share(value: int) -> dict[str, Any]:
        memory = driver.create(device, BYTES)
        address = driver.reserve(BYTES)
        driver.map_at(address, memory, device, BYTES)
        driver.set(address, value, BYTES)
        memories[address] = memory
        return {"address": address, "fd": driver.descriptor(memory)}

    def unshare(address: int) -> dict[str, Any]:
        driver.unmap(address, BYTES)
        driver.release(memories.pop(address))
        return {}

    def look(address: int) -> dict[str, Any]:
        return driver.read(address, 4096)

    actions: dict[str, Callable[..., dict[str, Any]]] = {
        "allocate": allocate,
        "free": free,
        "share": share,
        "unshare": unshare,
        "look": look,
    }
    channel.send(json.dumps({"pid": os.getpid()}).encode())
    while data := channel.recv(65536):
        what, *arguments = json.loads(data)
        try:
            answer = actions[what](*arguments)
        except Failed as error:
            answer = {"failed": str(error)}
        descriptor = answer.pop("fd", None)
        socket.send_fds(channel, [json.dumps(answer).encode()], [] if descriptor is None else [descriptor])
        if descriptor is not None:
            os.close(descriptor)


# Questions. Each gets the driver with GPU 0 current, the number of the exporter's GPU, and the line that it
# adds to: what it has found before a call fails is kept


def open_freed(driver: Driver, far: int, result: dict[str, Any]) -> None:
    """A handle of memory that was freed; then of memory whose place other memory has."""
    exporter = Exporter(far)
    first = exporter.ask("allocate", 1)
    exporter.ask("free", first["address"])
    code, _ = driver.open(as_handle(first["handle"]))
    again = exporter.ask("allocate", 2)
    reused, address = driver.open(as_handle(first["handle"]))
    result |= {
        "freed": driver.word(code),
        "same_address": again["address"] == first["address"],
        "same_handle": again["handle"] == first["handle"],
        "same_buffer_id": again["buffer_id"] == first["buffer_id"],
        "old_handle_after_reuse": driver.word(reused),
    }
    if reused == 0:
        result["old_handle_reads"] = driver.read(address)
    fresh, address = driver.open(as_handle(again["handle"]))
    result["new_handle"] = driver.word(fresh)
    exporter.leave()


def open_of_dead_exporter(driver: Driver, far: int, result: dict[str, Any]) -> None:
    """A handle whose process was killed, and one whose process has ended."""
    for how in ("killed", "ended"):
        exporter = Exporter(far)
        handle = as_handle(exporter.ask("allocate", 1)["handle"])
        exporter.kill() if how == "killed" else exporter.leave()
        code, address = driver.open(handle)
        result[how] = driver.word(code)
        if code == 0:
            result[f"{how}_reads"] = driver.read(address)


def open_twice_and_on_two_gpus(driver: Driver, far: int, result: dict[str, Any]) -> None:
    """One handle opened again in the same context, and in the contexts of all GPUs."""
    exporter = Exporter(far)
    handle = as_handle(exporter.ask("allocate", 7)["handle"])
    result |= {"devices": driver.devices()}
    addresses = {}
    for device in range(driver.devices()):
        driver.context(device)
        code, addresses[device] = driver.open(handle)
        result[f"gpu{device}"] = driver.word(code)
        result[f"gpu{device}_reads"] = driver.read(addresses[device]) if code == 0 else None
    result["same_address"] = len(set(addresses.values())) == 1
    driver.context(0)
    code, again = driver.open(handle)
    result["again"], result["again_same_address"] = driver.word(code), again == addresses[0]
    result["close"] = [driver.word(driver.close(addresses[0])) for _ in range(2 if code == 0 else 1)]
    result["reads_after_all_closes_on_gpu0"] = driver.read(addresses[0])["outcome"]
    if len(addresses) > 1:
        driver.context(1)
        result["gpu1_reads_after_closes_on_gpu0"] = driver.read(addresses[1])
    exporter.leave()


def open_own(driver: Driver, far: int, result: dict[str, Any]) -> None:
    """A handle opened by the process that made it, in its GPU's context and in another's."""
    driver.context(far)
    handle = driver.handle(driver.allocate(BYTES, 3))
    result |= {"same_gpu": driver.word(driver.open(handle)[0])}
    driver.context(0)
    result["gpu0"] = driver.word(driver.open(handle)[0])


def handle_outlives_exporter(driver: Driver, far: int, result: dict[str, Any]) -> None:
    """Memory opened by handle, its process killed: what reading it gives, and when the memory is free
    again."""
    driver.context(far)
    driver.used()
    before = driver.used()
    driver.context(0)
    exporter = Exporter(far)
    code, address = driver.open(as_handle(exporter.ask("allocate", 9)["handle"]))
    exporter.kill()
    result |= {
        "open": driver.word(code),
        "read_after_death": driver.read(address, 4096),
        "end_of_it": driver.read(address + BYTES - 16),
    }
    driver.context(far)
    result["held_mib"] = (driver.used() - before) / MIB
    driver.context(0)
    result["close"] = driver.word(driver.close(address))
    time.sleep(0.2)
    driver.context(far)
    result["held_mib_after_close"] = (driver.used() - before) / MIB


def descriptor_outlives_exporter(driver: Driver, far: int, result: dict[str, Any]) -> None:
    """The same for memory mapped by descriptor; and what freeing it over there does to it."""
    driver.context(far)
    before = driver.used()
    driver.context(0)
    exporter = Exporter(far)
    shared = exporter.ask("share", 5)
    code, memory = driver.import_descriptor(shared["descriptor"])
    result |= {"import": driver.word(code)}
    address = driver.reserve(BYTES)
    result["set_access"] = driver.word(driver.map_at(address, memory, 0, BYTES))
    driver.release(memory)
    os.close(shared["descriptor"])
    exporter.ask("unshare", shared["address"])
    result["read_after_free"] = driver.read(address, 4096)
    exporter.kill()
    result["read_after_death"] = driver.read(address, 4096)
    driver.context(far)
    result["held_mib"] = (driver.used() - before) / MIB
    driver.context(0)
    driver.unmap(address, BYTES)
    time.sleep(0.2)
    driver.context(far)
    result["held_mib_after_unmap"] = (driver.used() - before) / MIB


def exporter_dies_under_work(driver: Driver, far: int, result: dict[str, Any]) -> None:
    """Its process killed while this GPU writes its memory by kernels (memset), then while it reads it by
    copies."""
    mine = driver.allocate(BYTES, 0)
    stream = ctypes.c_void_p()
    driver.do("cuStreamCreate", ctypes.byref(stream), 1)
    for how in ("kernels", "copies"):
        exporter = Exporter(far)
        code, address = driver.open(as_handle(exporter.ask("allocate", 6)["handle"]))
        for _ in range(2000):  # some 0.4 s at the speed of the link
            if how == "kernels":
                driver.do(
                    "cuMemsetD32Async",
                    ctypes.c_uint64(address),
                    ctypes.c_uint(0x06060606),
                    ctypes.c_size_t(BYTES // 4),
                    stream,
                )
            else:
                driver.do(
                    "cuMemcpyDtoDAsync_v2",
                    ctypes.c_uint64(mine),
                    ctypes.c_uint64(address),
                    ctypes.c_size_t(BYTES),
                    stream,
                )
        time.sleep(0.05)
        running = driver.ask("cuStreamQuery", stream)
        os.kill(exporter.process.pid, signal.SIGKILL)
        exporter.process.wait()
        result[how] = {
            "open": driver.word(code),
            "when_killed": driver.word(running),
            "synchronize": driver.word(driver.ask("cuStreamSynchronize", stream)),
            "reads": driver.read(address if how == "kernels" else mine, 4096),
            "close": driver.word(driver.close(address)),
        }


def descriptor_imported_by_its_maker(driver: Driver, far: int, result: dict[str, Any]) -> None:
    """Memory exported and imported in one process, mapped a second time for its own GPU and for GPU 0."""
    driver.context(far)
    memory = driver.create(far, BYTES)
    first = driver.reserve(BYTES)
    driver.map_at(first, memory, far, BYTES)
    driver.set(first, 4, BYTES)
    descriptor = driver.descriptor(memory)
    code, imported = driver.import_descriptor(descriptor)
    result |= {"import": driver.word(code), "same_handle": imported == memory}
    for device in {far, 0}:
        driver.context(device)
        second = driver.reserve(BYTES)
        result[f"gpu{device}_set_access"] = driver.word(driver.map_at(second, imported, device, BYTES))
        result[f"gpu{device}_reads"] = driver.read(second)


def identity_of_mapped_memory(driver: Driver, far: int, result: dict[str, Any]) -> None:
    """What the driver says of an address whose physical memory goes, and of the same address with other
    memory."""
    driver.context(far)
    address = driver.reserve(BYTES)

    def described() -> dict[str, Any]:
        return {"buffer_id": driver.buffer_id(address), "range": driver.range_of(address)}

    result |= {"reserved": described()}
    for name in ("first", "second"):
        memory = driver.create(far, BYTES)
        driver.map_at(address, memory, far, BYTES)
        driver.release(memory)
        result[name] = described()
        driver.unmap(address, BYTES)
        result[f"{name}_unmapped"] = described()
    plain = driver.allocate(BYTES, 1)
    result["plain"] = driver.buffer_id(plain)
    driver.free(plain)
    result["plain_freed"] = {"buffer_id": driver.buffer_id(plain), "range": driver.range_of(plain)}
    again = driver.allocate(BYTES, 1)
    result["plain_again"], result["plain_same_address"] = driver.buffer_id(again), again == plain


def ways_between_gpus(driver: Driver, far: int, result: dict[str, Any]) -> None:
    """Which GPU reaches which; descriptors mapped for each."""
    for device in range(driver.devices()):
        for peer in range(driver.devices()):
            can = ctypes.c_int(-1)
            driver.ask("cuDeviceCanAccessPeer", ctypes.byref(can), device, peer)
            result[f"{device}->{peer}"] = can.value
    exporter = Exporter(far)
    shared = exporter.ask("share", 5)
    code, memory = driver.import_descriptor(shared["descriptor"])
    for device in range(driver.devices()):
        driver.context(device)
        result[f"set_access_gpu{device}"] = (
            driver.word(driver.map_at(driver.reserve(BYTES), memory, device, BYTES))
            if code == 0
            else driver.word(code)
        )
    exporter.leave()


def what_opening_costs(driver: Driver, far: int, result: dict[str, Any]) -> None:
    """Milliseconds of opening, closing, mapping, unmapping, of a copy of 8 bytes, and of asking for handle
    and identity."""
    exporter = Exporter(far)
    times: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        value = call(*arguments)
        times.setdefault(name, []).append((time.perf_counter() - start) * 1e3)
        return value

    for value in range(10):
        by_handle, shared = exporter.ask("allocate", value), exporter.ask("share", value)
        code, address = timed("ipc_open", driver.open, as_handle(by_handle["handle"]))
        if code == 0:
            timed("copy_8_bytes", driver.read, address, 8)
            timed("ipc_close", driver.close, address)

        def map_shared(descriptor: int = shared["descriptor"]) -> int:
            _, memory = driver.import_descriptor(descriptor)
            place = driver.reserve(BYTES)
            driver.map_at(place, memory, 0, BYTES)
            driver.release(memory)
            return place

        place = timed("descriptor_map", map_shared)
        timed("descriptor_unmap", driver.unmap, place, BYTES)
        own = driver.allocate(BYTES, 1)
        timed("ipc_get_handle", driver.handle, own)
        timed("buffer_id", driver.buffer_id, own)
        timed("address_range", driver.range_of, own)
        driver.free(own)
        os.close(shared["descriptor"])
    exporter.leave()
    result |= {
        name: {"first": round(values[0], 4), "median": round(sorted(values)[len(values) // 2], 4)}
        for name, values in times.items()
    }


def exporter_in_another_pid_namespace(driver: Driver, far: int, result: dict[str, Any]) -> None:
    """With a /proc of its own; then with our own number there, by which handles name their process."""
    for case, number in (("other_number", None), ("our_number", os.getpid())):
        follow = f"echo {number - 1} > /proc/sys/kernel/ns_last_pid; " if number else ""
        wrapper = [
            "unshare",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            follow + '"$@"; exit $?',
            "sh",
        ]
        try:
            exporter = Exporter(far, wrapper)
            mine = driver.allocate(BYTES, 8) if number else 0
            answer = exporter.ask("allocate", 9)
            code, address = driver.open(as_handle(answer["handle"]))
            result[case] = {
                "its_number": exporter.facts["pid"], "ours": os.getpid(), "open": driver.word(code),
                "reads": driver.read(address) if code == 0 else None, "address_is_ours": address == mine,
            }  # fmt: skip
            shared = exporter.ask("share", 5)
            result[case]["import_descriptor"] = driver.word(driver.import_descriptor(shared["descriptor"])[0])
        except (Failed, OSError) as error:
            result[case] = {"failed": str(error)}


QUESTIONS: list[Callable[[Driver, int, dict[str, Any]], None]] = [
    open_freed,
    open_of_dead_exporter,
    open_twice_and_on_two_gpus,
    open_own,
    handle_outlives_exporter,
    descriptor_outlives_exporter,
    exporter_dies_under_work,
    descriptor_imported_by_its_maker,
    identity_of_mapped_memory,
    ways_between_gpus,
    what_opening_costs,
    exporter_in_another_pid_namespace,
]


def answer_one(name: str) -> int:
    """One question, in this process. Its line is the only thing on stdout."""
    question = next(one for one in QUESTIONS if one.__name__ == name)
    line: dict[str, Any] = {"what": "assumption", "case": name}
    try:
        driver = Driver()
        far = 1 if driver.devices() > 1 else 0
        driver.context(0)
        line["exporter_on"] = far
        question(driver, far, line)
    except Exception as error:
        line["failed"] = f"{type(error).__name__}: {error}"
    print(json.dumps(line), flush=True)
    os._exit(0)  # a broken context is not taken apart


def ending_of(code: int) -> str:
    """Of a process, by the code that subprocess gives."""
    return f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"


def run_one(name: str) -> dict[str, Any]:
    """The same in a process group of its own, with a limit."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--answer", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=SECONDS)
        ending = ending_of(process.returncode)
    except subprocess.TimeoutExpired:
        ending, out, err = f"no end within {SECONDS} s", "", ""
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    lines = [line for line in out.splitlines() if line.startswith("{")]
    return (
        json.loads(lines[-1])
        if lines
        else {"what": "assumption", "case": name, "failed": f"{ending}: {err[-500:]}"}
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help=f"some of: {', '.join(one.__name__ for one in QUESTIONS)}")
    parser.add_argument("--out", help="file for the lines, in addition to stdout")
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    parser.add_argument("--exporter", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.exporter:
        serve(socket.socket(fileno=options.exporter[0]), options.exporter[1])
        return 0
    if options.answer:
        return answer_one(options.answer)
    names = options.only.split(",") if options.only else [one.__name__ for one in QUESTIONS]
    failed = 0
    for name in names:
        start = time.monotonic()
        line = run_one(name)
        line["seconds"] = round(time.monotonic() - start, 2)
        failed += "failed" in line
        print(json.dumps(line), flush=True)
        if options.out:
            with open(options.out, "a") as file:
                file.write(json.dumps(line) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
