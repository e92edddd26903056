# SPDX-License-Identifier: Apache-2.0
"""The other process of test_compat_pplx_engine.py: writes to memory of the test what the test asks for."""

import ctypes
import dataclasses
import pickle
import random
import threading
import types

from headrace.compat.pplx.fabric_lib import (
    DomainInfo,
    MemoryRegionDescriptor,
    PageIndices,
    TransferEngine,
)

BYTES = 1 << 20
CARDS = ("127.0.0.1", "127.0.0.2")
CPU = types.SimpleNamespace(type="cpu")


@dataclasses.dataclass
class Paged:
    """Pages of `length` bytes at the same places on both sides."""

    target: MemoryRegionDescriptor
    indices: list[int]
    length: int
    stride: int
    offset: int
    immediate: int | None = None


@dataclasses.dataclass
class Single:
    target: MemoryRegionDescriptor
    offset: int
    length: int
    immediate: int | None = None
    shards: int | None = None


@dataclasses.dataclass
class Alone:
    """An immediate without bytes."""

    target: MemoryRegionDescriptor
    immediate: int


def new_engine():
    (group, *_) = TransferEngine.detect_topology()
    cards = [DomainInfo(card, 0) for card in CARDS]
    return TransferEngine.builder().add_gpu_domains(None, cards, group.cpus[0], group.cpus[-1]).build()


def contents(seed):
    return random.Random(seed).randbytes(BYTES)


class Ended:
    """The end of a post; `wait` raises its error."""

    def __init__(self):
        self.errors, self.event = [], threading.Event()

    def done(self):
        self.event.set()

    def failed(self, error):
        self.errors.append(error)
        self.event.set()

    def wait(self):
        assert self.event.wait(60), "the post does not end"
        assert not self.errors, self.errors


def submit(engine, source, asked):
    ended = Ended()
    match asked:
        case Paged(target, indices, length, stride, offset, immediate):
            pages = PageIndices(indices)
            both = pages, stride, offset
            args = length, source, *both, target, *both, immediate
            engine.submit_paged_writes(*args, ended.done, ended.failed)
        case Single(target, offset, length, immediate, shards):
            args = source, offset, length, immediate, target, offset
            engine.submit_write(*args, ended.done, ended.failed, num_shards=shards)
        case Alone(target, immediate):
            engine.submit_imm(immediate, target, ended.done, ended.failed)
    return ended


def send_back(engine, message):
    address, data = pickle.loads(message)
    engine.submit_send(address, data, lambda: None, print)


def serve(pipe, seed):
    """Each request is answered by None when its post has ended, or by the text of an error."""
    engine = new_engine()
    memory = ctypes.create_string_buffer(contents(seed), BYTES)
    source, _ = engine.register_memory(ctypes.addressof(memory), BYTES, CPU)
    engine.submit_bouncing_recvs(2, BYTES, lambda message: send_back(engine, message), print)
    pipe.send(str(engine.main_address))
    while (asked := pipe.recv()) is not None:
        try:
            submit(engine, source, asked).wait()
            pipe.send(None)
        except Exception as error:
            pipe.send(repr(error))
    engine.stop()
