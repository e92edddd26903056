# SPDX-License-Identifier: Apache-2.0
"""One process of tests/python/test_gpu_fabric.py: a fabric with kernels of one GPU, which cupy compiles with
nvcc. Prints what it has seen, and ends with code 1 at the first thing that is wrong.

    gpu_fabric_rank.py CHECK RANK SIZE FOLDER ROUNDS [cuda_ipc | tcp] [pinned | gpu]

ROUNDS: of flags, or replays of a graph. The two last ones: how bytes travel, and where the flag lies.
"""

import ctypes
import json
import os
import pathlib
import sys
import threading
import time

import cupy
import numpy

import headrace

SECONDS = 50  # longer than any step: a wait that needs it has failed
ROW, ROWS = 4096, 16  # bytes of a row, and different rows
ARRIVED, SEEN = 1, 2  # immediates
RIGHT, LATE, CLOSED, WRONG = range(4)
INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "include"

KERNELS = r"""
#include <headrace/device/fabric.cuh>
using namespace headrace::device;

// The byte of all of a row of a writer.
__device__ unsigned char byte_of(uint64_t round, uint64_t rows, uint64_t writer) {
  return static_cast<unsigned char>(round % rows * 37 + writer * 11 + 1);
}

// Waits for each round, compares all bytes with those that its writers have sent, and says so.
extern "C" __global__ void see_rounds(const uint64_t* flag, uint64_t first, uint64_t rounds,
                                      const unsigned char* bytes, uint64_t row_bytes, uint64_t rows,
                                      uint64_t writers, uint64_t* watched, int64_t timeout_ns,
                                      uint64_t* result) {
  __shared__ unsigned wrong;
  if (threadIdx.x == 0) wrong = 0;
  for (uint64_t round = first; round < first + rounds; ++round) {
    const Waited waited = wait_flag<Scope::block>(flag, round, timeout_ns);
    if (waited == Waited::reached)
      for (uint64_t i = threadIdx.x; i < row_bytes * writers; i += blockDim.x)
        if (bytes[i] != byte_of(round, rows, i / row_bytes)) wrong = 1 + bytes[i];
    __syncthreads();
    if (waited != Waited::reached || wrong != 0) {
      if (threadIdx.x != 0) return;
      result[1] = round;
      result[2] = wrong;
      result[0] = waited == Waited::late ? 1 : waited == Waited::closed ? 2 : 3;
      return;
    }
    bump<Scope::block>(watched);
  }
}

// state: replays; failed ones; the last command of each row.
extern "C" __global__ void send_row(headrace_fabric_queue_v1* queue, unsigned char* memory,
                                    uint64_t row_bytes, uint64_t rows, uint64_t* watched, uint64_t* state) {
  Commands commands(queue);
  const uint64_t replay = state[0], row = replay % rows;
  bool good = replay < rows || commands.wait<Scope::block>(state[2 + row]) == Waited::reached;
  for (uint64_t i = threadIdx.x; i < row_bytes; i += blockDim.x)
    memory[row * row_bytes + i] = static_cast<unsigned char>(replay * 31 + i);
  const uint64_t number = commands.post<Scope::block>(0, static_cast<uint32_t>(row), 1);
  if (threadIdx.x == 0) {
    if (number == 0 || !good) ++state[1];
    state[2 + row] = number;
    state[0] = replay + 1;
  }
  bump<Scope::block>(watched);
}

extern "C" __global__ void copy_pages(const uint4* from, uint4* to, uint64_t units) {
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < units; i += gridDim.x * blockDim.x)
    to[i] = from[i];
}
"""


def kernels():
    return cupy.RawModule(code=KERNELS, backend="nvcc", options=("-std=c++17", f"-I{INCLUDE}"))


def say(text):
    print(text, flush=True)


def expect(condition, text):
    if not condition:
        sys.exit(f"wrong: {text}")


class Folder:
    """What the processes tell one another."""

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def put(self, name, content=b"-"):
        part = self.path / f".{name}.{os.getpid()}"
        part.write_bytes(content)
        part.rename(self.path / name)

    def get(self, name):
        deadline = time.monotonic() + SECONDS
        while not (self.path / name).exists():
            if time.monotonic() > deadline:
                sys.exit(f"{name} has not come")
            time.sleep(0.001)
        return (self.path / name).read_bytes()


class Bytes:
    """Memory that kernels read: of the GPU, or pinned host memory for cards that take no other."""

    def __init__(self, count, on_gpu):
        if on_gpu:
            self.array = cupy.zeros(count, cupy.uint8)
            self.address = self.array.data.ptr
            self.range = headrace.MemoryRange("vram", self.address, count, 0)
        else:
            self.pinned = cupy.cuda.alloc_pinned_memory(count)
            self.array = numpy.frombuffer(self.pinned, numpy.uint8, count)
            self.array[:] = 0
            self.address = self.array.ctypes.data
            self.range = headrace.MemoryRange("dram", self.address, count)

    def fill(self, values):
        self.array[:] = cupy.asarray(values) if isinstance(self.array, cupy.ndarray) else values
        cupy.cuda.Device().synchronize()

    def registered(self, fabric, access="local"):
        return fabric.register(self.range, access, group=0)

    def host(self):
        return cupy.asnumpy(self.array)


def open_fabric(transport="cuda_ipc"):
    card = "this host" if transport == "cuda_ipc" else "127.0.0.1"
    fabric = headrace.Fabric(groups=[headrace.FabricGroupOptions([card])])
    fabric.on_error(lambda error: say(f"on_error: {error}"))
    return fabric


def row_of(round_, writer):
    return (round_ % ROWS * 37 + writer * 11 + 1) % 256


class Reader:
    """Its kernel sees all rounds; what it has seen, it tells the writers by a watched word."""

    def __init__(self, process, transport, place):
        self.folder, self.writers = process.folder, process.size - 1
        self.fabric = open_fabric(transport)
        self.bytes = Bytes(ROW * self.writers, transport == "cuda_ipc")
        memory = self.bytes.registered(self.fabric, "writable")
        self.arrivals = self.fabric.expect(ARRIVED, self.writers)
        self.word = cupy.zeros(1, cupy.int64)
        where = headrace.MemoryRange("vram", self.word.data.ptr, 8, 0)
        self.flag = self.arrivals.flag(memory=where) if place == "gpu" else self.arrivals.flag(device=0)
        self.watcher = self.fabric.watch(self.tell, device=0)
        self.result = cupy.zeros(3, cupy.uint64)
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.kernel = kernels().get_function("see_rounds")
        self.folder.put("target", bytes(memory.descriptor))
        self.peers = [
            self.fabric.connect(headrace.FabricAddress(self.folder.get(f"address{rank}")))
            for rank in range(1, self.writers + 1)
        ]

    def tell(self, before, now):
        for peer in self.peers:
            self.fabric.post_immediate(peer, SEEN)
        return True

    def begin(self, rounds, timeout):
        """The first round is none of the kernel's: with it all is loaded and opened that is so at first use,
        which may wait for kernels."""
        self.arrivals.wait(SECONDS)
        n = numpy.uint64
        self.kernel(
            (1,),
            (256,),
            (
                n(self.flag.address),
                n(2),
                n(rounds),
                n(self.bytes.address),
                n(ROW),
                n(ROWS),
                n(self.writers),
                n(self.watcher.address),
                numpy.int64(timeout * 1e9),
                self.result,
            ),
            stream=self.stream,
        )
        self.tell(0, 1)

    def end(self):
        self.stream.synchronize()
        return [int(number) for number in cupy.asnumpy(self.result)]


class Writer:
    """It has no kernel at work: on one GPU those of other processes have turns of milliseconds."""

    def __init__(self, process, transport):
        self.fabric = open_fabric(transport)
        self.number = process.rank - 1
        source = Bytes(ROW * ROWS, transport == "cuda_ipc")
        rows = numpy.array([row_of(r, self.number) for r in range(ROWS)], numpy.uint8)
        source.fill(numpy.repeat(rows, ROW))
        self.memory = source.registered(self.fabric)
        self.seen = self.fabric.expect(SEEN, 1)
        process.folder.put(f"address{process.rank}", bytes(self.fabric.address))
        self.target = headrace.FabricDescriptor(process.folder.get("target"))

    def post(self, round_, immediate=None, timeout=SECONDS):
        return self.fabric.write(
            self.memory,
            self.target,
            ROW,
            source_offset=round_ % ROWS * ROW,
            target_offset=self.number * ROW,
            immediate=immediate,
            timeout=timeout,
        )

    def write_rounds(self, rounds):
        for round_ in range(1, rounds + 1):
            work = self.post(round_, ARRIVED)
            self.seen.wait(SECONDS)
            work.wait(SECONDS)


def check_rounds(process, transport, place):
    """A kernel that waits for a flag reads right bytes."""
    if process.rank:
        writer = Writer(process, transport)
        writer.write_rounds(process.rounds + 1)
        writer.fabric.deregister(writer.memory)  # fails if the reader does not close it
        process.folder.put(f"done{process.rank}")
        process.folder.get("closed")
        return writer.fabric.close()
    reader = Reader(process, transport, place)
    began = time.monotonic()
    reader.begin(process.rounds, 20)
    ended = reader.end()
    expect(ended[0] == RIGHT, f"the kernel ended so, at this round, with this byte + 1: {ended}")
    for rank in range(1, process.size):
        process.folder.get(f"done{rank}")
    expect(reader.flag.rounds == process.rounds + 1, f"rounds of the flag: {reader.flag.rounds}")
    process.folder.put("closed")
    each = (time.monotonic() - began) / process.rounds
    say(f"{process.rounds} rounds of {process.size - 1} writers are right, {each * 1e6:.0f} us each")
    reader.fabric.close()


def be_killed(process, transport, rounds):
    writer = Writer(process, transport)
    writer.write_rounds(rounds)
    process.folder.put("kill")
    time.sleep(SECONDS)
    sys.exit("it was not killed")


def check_killed(process, transport, place):
    """A kernel whose peer was killed is late and leaves; the fabric and the GPU go on."""
    if process.rank == 1:
        return be_killed(process, transport, 50)
    reader = Reader(process, transport, place)
    reader.begin(1000, 3)
    ended = reader.end()
    expect(ended[:2] == [LATE, 51], f"the kernel ended so, at this round: {ended}")
    say("a kernel whose peer was killed has left")
    more = [Bytes(ROW, transport == "cuda_ipc") for _ in range(2)]
    target = more[0].registered(reader.fabric, "writable")
    own = more[1].registered(reader.fabric)
    reader.fabric.write(own, target.descriptor, timeout=SECONDS).wait()

    # And one without a time limit, by the close of the fabric.
    reader.result[:] = 0
    n = numpy.uint64
    arguments = (n(reader.flag.address), n(1000), n(1), n(reader.bytes.address), n(ROW), n(ROWS), n(1))
    reader.kernel(
        (1,),
        (256,),
        (*arguments, n(reader.watcher.address), numpy.int64(-1), reader.result),
        stream=reader.stream,
    )
    closing = threading.Timer(0.5, reader.fabric.close)
    closing.start()
    ended = reader.end()
    closing.join()
    expect(ended[:2] == [CLOSED, 1000], f"the kernel ended so, at this round: {ended}")
    expect(reader.flag.ended, "the flag has not ended")
    say("a kernel without a time limit has left at the close")


def wait_until_lost(fabric, peer):
    """Fails if the worker stands: then a post to the dead peer ends at its time."""
    for _ in range(1000):
        try:
            fabric.post_immediate(peer, SEEN, timeout=10).wait()
        except headrace.TimedOut:
            sys.exit("wrong: the worker has stood still for 10 s after the death of a peer")
        except headrace.Error:
            return
        time.sleep(0.01)
    sys.exit("wrong: the peer is not lost")


def check_others(process, transport, place):
    """A peer that is killed while a kernel waits holds up no other, though closing its memory waits."""
    writes = 200
    if process.rank == 1:
        return be_killed(process, transport, 1)
    if process.rank == 2:
        writer = Writer(process, transport)
        writer.write_rounds(1)
        process.folder.get("lost")
        began = time.monotonic()
        for round_ in range(writes):
            writer.post(round_, timeout=10).wait()
        seconds = time.monotonic() - began
        say(f"{writes} writes after the death of a peer: {seconds / writes * 1e6:.0f} us each")
        process.folder.put("written")
        process.folder.get("closed")
        return writer.fabric.close()
    reader = Reader(process, transport, place)
    reader.begin(1000, 40)
    process.folder.get("kill")
    wait_until_lost(reader.fabric, reader.peers[0])
    process.folder.put("lost")
    process.folder.get("written")
    expect(not reader.stream.done, "the kernel has left before the writes of the other peer")
    reader.fabric.close()
    ended = reader.end()
    expect(ended[0] == CLOSED, f"the kernel ended so, at this round: {ended}")
    expect((reader.bytes.host()[ROW:] == row_of(writes - 1, 1)).all(), "the row of the other peer")
    process.folder.put("closed")


def check_replays(process, transport, place):
    """Watched words and commands in replays of a graph: all are told, all rows lie at the peer."""
    rows = 64
    fabric = open_fabric(transport)
    memory = Bytes(ROW * rows, transport == "cuda_ipc")
    if process.rank == 0:
        target = memory.registered(fabric, "writable")
        arrivals = fabric.expect(ARRIVED, 1)
        process.folder.put("target", bytes(target.descriptor))
        deadline = time.monotonic() + SECONDS
        while arrivals.rounds < process.rounds:
            expect(time.monotonic() < deadline, f"{arrivals.rounds} of {process.rounds} commands have come")
            time.sleep(0.001)
        process.folder.get("sent")
        expect(arrivals.rounds == process.rounds, f"{arrivals.rounds} commands, not {process.rounds}")
        got = memory.host().reshape(rows, ROW)
        for replay in range(process.rounds - rows, process.rounds):
            sent = (replay * 31 + numpy.arange(ROW)) % 256
            expect((got[replay % rows] == sent).all(), f"the row of replay {replay}")
        process.folder.put("received")
        say(f"{process.rounds} commands of a graph have come, each once, with their bytes")
        return fabric.close()
    source = memory.registered(fabric)
    target = headrace.FabricDescriptor(process.folder.get("target"))
    fabric.write(source, target, timeout=SECONDS).wait()  # opens what is opened at first use
    queue = fabric.command_queue(
        [headrace.FabricQueueWrite(source, target, ROW, rows, immediate=ARRIVED)],
        device=0,
        capacity=32,
        timeout=20,
    )
    told = []
    watcher = fabric.watch(lambda before, now: told.append(now - before), device=0)
    state = cupy.zeros(2 + rows, cupy.uint64)
    stream, kernel = cupy.cuda.Stream(non_blocking=True), kernels().get_function("send_row")
    n = numpy.uint64
    arguments = (n(queue.address), n(memory.address), n(ROW), n(rows), n(watcher.address), state)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        kernel((1,), (128,), arguments)
        graph = stream.end_capture()
    for _ in range(process.rounds):
        graph.launch(stream)
    stream.synchronize()
    replays, failed = (int(number) for number in cupy.asnumpy(state[:2]))
    expect(
        (replays, failed) == (process.rounds, 0), f"replays, failed: {replays}, {failed}; {queue.status()}"
    )
    deadline = time.monotonic() + SECONDS
    while sum(told) < process.rounds or queue.ended < process.rounds:
        expect(time.monotonic() < deadline, f"told {sum(told)}, ended {queue.ended} of {process.rounds}")
        time.sleep(0.001)
    expect((sum(told), queue.ended, queue.failed) == (process.rounds, process.rounds, 0), "counts")
    say(f"{process.rounds} bumps of a graph were told in {len(told)} calls")
    process.folder.put("sent")
    process.folder.get("received")
    fabric.close()


class Driver:
    """Streams' own waits and stores."""

    GEQ = 0

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")

    def call(self, name, stream, word, value, flags=0):
        function = getattr(self.library, name)
        code = function(
            ctypes.c_void_p(stream.ptr), ctypes.c_uint64(word), ctypes.c_uint64(value), ctypes.c_uint(flags)
        )
        expect(code == 0, f"{name} returned {code}")

    def wait(self, stream, word, value):
        self.call("cuStreamWaitValue64_v2", stream, word, value, self.GEQ)

    def write(self, stream, word, value):
        self.call("cuStreamWriteValue64_v2", stream, word, value)


def check_streams(process, transport, place):
    """A stream's wait for a flag is before what it does next; a stream's store in a graph is told."""
    fabric, driver = open_fabric(transport), Driver()
    source, target = Bytes(ROW * ROWS, True), Bytes(ROW, True)
    source.fill(numpy.repeat(numpy.array([row_of(r, 0) for r in range(ROWS)], numpy.uint8), ROW))
    here, there = source.registered(fabric), target.registered(fabric, "writable")
    fabric.write(here, there.descriptor, ROW, timeout=SECONDS).wait()  # opens what is opened at first use
    arrivals = fabric.expect(ARRIVED, 1)
    word = cupy.zeros(1, cupy.int64)
    where = headrace.MemoryRange("vram", word.data.ptr, 8, 0)
    flag = arrivals.flag(memory=where) if place == "gpu" else arrivals.flag(device=0)
    stream = cupy.cuda.Stream(non_blocking=True)
    copy = cupy.zeros(ROW, cupy.uint8)
    rounds = min(process.rounds, 2000)
    for round_ in range(1, rounds + 1):
        driver.wait(stream, flag.address, round_)
        copy.data.copy_from_device_async(target.array.data, ROW, stream)
        offset = round_ % ROWS * ROW
        fabric.write(here, there.descriptor, ROW, source_offset=offset, immediate=ARRIVED)
        stream.synchronize()
        got = cupy.asnumpy(copy)
        expect((got == row_of(round_, 0)).all(), f"round {round_}: {set(got.tolist())}")
    say(f"{rounds} waits of a stream are right")
    told = []
    watcher = fabric.watch(lambda before, now: told.append(now), device=0)
    graphs = []
    for value in (1, 2):
        with stream:
            stream.begin_capture()
            driver.write(stream, watcher.address, value)
            graphs.append(stream.end_capture())
    for replay in range(1000):
        graphs[replay % 2].launch(stream)
        stream.synchronize()
        deadline = time.monotonic() + SECONDS
        while not told or told[-1] != replay % 2 + 1:
            expect(time.monotonic() < deadline, f"replay {replay} was not told")
    expect(len(told) == 1000, f"{len(told)} of 1000 stores were told")
    say("1000 stores of a graph were told")
    driver.wait(stream, flag.address, 1 << 40)
    fabric.close()
    stream.synchronize()
    say("a stream that waits has gone on at the close")


def check_messages(process, transport, place):
    """Messages into and out of memory of the GPU by each way: process 1 sends back what it got."""
    lengths = [0, 1, 1000, 5000, 100_000, (8 << 20) + 5]
    fabric = open_fabric(transport) if process.rank == 1 else open_two_cards()
    memory = Bytes(max(lengths) + 1, process.rank == 0)
    registered = memory.registered(fabric)
    process.folder.put(f"address{process.rank}", bytes(fabric.address))
    peer = fabric.connect(headrace.FabricAddress(process.folder.get(f"address{1 - process.rank}")))

    def receive(length):
        memory.fill(numpy.full(max(lengths) + 1, 255, numpy.uint8))
        work = fabric.receive(registered, timeout=SECONDS)
        work.wait()
        expect(work.length_bytes == length, f"{work.length_bytes} bytes have come, not {length}")
        got = memory.host()
        expect((got[:length] == numpy.arange(length) * 7 % 251).all(), f"the message of {length} bytes")
        expect((got[length:] == 255).all(), f"bytes behind the message of {length}")

    for length in lengths:
        if process.rank == 1:
            receive(length)
        else:
            memory.fill(numpy.arange(max(lengths) + 1) * 7 % 251)
        fabric.send(peer, registered, length, timeout=SECONDS).wait()
        if process.rank == 0:
            receive(length)
    say(f"messages of {lengths} bytes over {transport}, out of and into memory of the GPU")
    process.folder.put(f"received{process.rank}")
    process.folder.get(f"received{1 - process.rank}")
    fabric.close()


def open_two_cards():
    return headrace.Fabric(groups=[headrace.FabricGroupOptions(["this host", "127.0.0.1"])])


def check_killed_sender(process, transport, place):
    """Process 1 receives nothing and is killed: the messages for it end in time, and the memory is free."""
    fabric = open_fabric(transport) if process.rank == 1 else open_two_cards()
    process.folder.put(f"address{process.rank}", bytes(fabric.address))
    if process.rank == 1:
        process.folder.get("kill")
        time.sleep(2 * SECONDS)
        return
    peer = fabric.connect(headrace.FabricAddress(process.folder.get("address1")))
    memory = Bytes(8 << 20, True)
    registered = memory.registered(fabric)
    works = [fabric.send(peer, registered, timeout=SECONDS) for _ in range(20)]
    time.sleep(0.5)  # most wait for the memory of others, some for a receive
    process.folder.put("kill")
    for number, work in enumerate(works):
        try:
            work.wait()
        except headrace.PeerLost as error:
            expect("message of" in str(error), f"message {number}: {error}")
        else:
            expect(False, f"message {number} has ended well, and nothing has received it")
    fabric.deregister(registered)
    say(f"20 messages of 8 MiB over {transport} ended with the peer")
    fabric.close()


def check_memory(process, transport, place):
    """What fabrics with flags, watched words and queues have taken of the GPU comes back."""

    def turn():
        with open_fabric() as fabric:
            memory, other = Bytes(ROW, True), Bytes(ROW, True)
            here, there = memory.registered(fabric), other.registered(fabric, "writable")
            flags = [fabric.expect(value, 1).flag(device=0) for value in range(100)]
            watchers = [fabric.watch(lambda before, now: False, device=0) for _ in range(100)]
            write = headrace.FabricQueueWrite(here, there.descriptor, ROW)
            queues = [fabric.command_queue([write], device=0) for _ in range(10)]
            fabric.write(here, there.descriptor, timeout=SECONDS).wait()
            del flags, watchers, queues
        del memory, other
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.cuda.Device().synchronize()
        return cupy.cuda.runtime.memGetInfo()[0]

    turn()
    first = turn()
    free = [turn() for _ in range(10)]
    expect(free[-1] >= first, f"free bytes of the GPU: {first}, later {free}")
    say("the GPU has as many free bytes as at the start")


def seconds_of(call, turns=20):
    call()
    best = []
    for _ in range(turns):
        began = time.perf_counter()
        call()
        best.append(time.perf_counter() - began)
    return sorted(best)[len(best) // 2]


def check_speed(process, transport, place):
    """Single and paged writes to another process beside a bare copy kernel. Prints a line of JSON each."""
    count = 256 << 20
    fabric = open_fabric()
    memory = Bytes(count, True)
    if process.rank == 0:
        target = memory.registered(fabric, "writable")
        process.folder.put("target", bytes(target.descriptor))
        process.folder.get("measured")
        expect((memory.array == 7).all(), "the bytes")
        return fabric.close()
    memory.fill(numpy.full(count, 7, numpy.uint8))
    source = memory.registered(fabric)
    target = headrace.FabricDescriptor(process.folder.get("target"))
    other, copy = Bytes(count, True), kernels().get_function("copy_pages")
    n = numpy.uint64

    def bare(length):
        copy((264,), (512,), (n(memory.address), n(other.address), n(length // 16)))
        cupy.cuda.Device().synchronize()

    cases = [(f"single/{length >> 10}K", length, 0) for length in (4096, 65536, 1 << 20, 64 << 20, count)]
    cases += [(f"paged/{page >> 10}K", count, page) for page in (4096, 16384, 65536)]
    for case, length, page in cases:
        pages = length // page if page else 0
        order = numpy.random.default_rng(1).permutation(pages).astype(numpy.uint32)

        def ours(length=length, page=page, order=order):
            if page:
                fabric.write_pages(
                    source, target, page, source_indices=order, target_indices=order, timeout=SECONDS
                ).wait()
            else:
                fabric.write(source, target, length, timeout=SECONDS).wait()

        seconds, bare_seconds = seconds_of(ours), seconds_of(lambda length=length: bare(length))
        row = {"case": f"gpu1/{case}", "us": seconds * 1e6, "bare_us": bare_seconds * 1e6}
        row["ratio"] = bare_seconds / seconds
        row["GB/s"] = length / seconds / 1e9
        say(json.dumps(row))
    process.folder.put("measured")
    fabric.close()


class Process:
    def __init__(self, rank, size, folder, rounds):
        self.rank, self.size, self.rounds = int(rank), int(size), int(rounds)
        self.folder = Folder(folder)


CHECKS = [
    check_rounds,
    check_killed,
    check_others,
    check_replays,
    check_streams,
    check_messages,
    check_killed_sender,
    check_memory,
    check_speed,
]

if __name__ == "__main__":
    name, rank, size, folder, rounds, *more = sys.argv[1:]
    transport, place = more + ["cuda_ipc", "pinned"][len(more) :]
    check = {each.__name__: each for each in CHECKS}[name]
    check(Process(rank, size, folder, rounds), transport, place)
