# SPDX-License-Identifier: Apache-2.0
"""pplx-garden's TransferEngine on headrace.Fabric."""

from __future__ import annotations

import os
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import headrace

from ._fabric_types import DomainAddress, DomainInfo, PageIndices, TopologyGroup, UvmWatcher, groups_of
from ._immediates import Immediates, check_immediate
from ._opening import GpuDomains, Opened, open_by_hand, open_near
from ._regions import MemoryRegionDescriptor, MemoryRegionHandle
from .utils import logging_utils
from .utils.math import ceil_div, round_up

logger = logging_utils.get_logger(__name__)

# Of the immediates of programs; the other one is of those that a fabric sends to itself.
SCOPE, OWN_SCOPE = 0, 1
SHARD_UNIT = 8192  # bytes
RETRY_SECONDS = 0.0005

T = TypeVar("T")
Done = Callable[[], object]
Failed = Callable[[str], object]


class TransferEngineBuilder:
    """Chooses GPUs, network cards and CPUs."""

    def __init__(self) -> None:
        self._chosen: list[GpuDomains] = []

    def add_gpu_domains(
        self,
        cuda_device: int | None,
        domains: Sequence[DomainInfo],
        pin_worker_cpu: int,
        pin_uvm_cpu: int,
    ) -> TransferEngineBuilder:
        """cuda_device: None: host memory, as in the groups of a machine without GPUs."""
        cpus = sorted({pin_worker_cpu, pin_uvm_cpu})
        self._chosen.append(GpuDomains(cuda_device, [domain.name for domain in domains], cpus))
        return self

    def build(self) -> TransferEngine:
        """Errors: RuntimeError (a GPU or card twice, a card or CPU that is not near its GPU, none)."""
        with _as_runtime_errors():
            return TransferEngine._of(open_by_hand(self._chosen, TransferEngine.detect_topology()))


class TransferEngine:
    """Writes to the memory of peers over all network cards near each GPU.

    Callbacks run on one thread of the engine. One that raises is logged, and the engine goes on.
    Threads: every method, from any thread; also in a callback.
    """

    def __init__(self, nets_per_gpu: int, cuda_devices: Sequence[int]) -> None:
        """cuda_devices: none: host memory.

        Errors: RuntimeError (no such GPU, or fewer cards near it).
        """
        with _as_runtime_errors():
            self._begin(open_near(cuda_devices, nets_per_gpu, self.detect_topology()))

    @classmethod
    def _of(cls, opened: Opened) -> TransferEngine:
        engine = cls.__new__(cls)
        engine._begin(opened)
        return engine

    def _begin(self, opened: Opened) -> None:
        self._fabric, self._cards = opened
        fabric = self._fabric
        self._own = fabric.connect(fabric.address)
        self._nothing = fabric.register(bytearray(1))  # of posts without bytes
        self._regions: dict[int, list[headrace.FabricMemory]] = {}
        self._lock = threading.Lock()
        # The fabric keeps its functions; they do not keep the engine, whose end stops the fabric.
        self._immediates = immediates = Immediates(_caller_of(weakref.WeakMethod(self._later)))
        fabric.on_unexpected(partial(_arrived, immediates))
        fabric.on_error(_callback_failed)
        self._gpu = next((group.device for group in fabric.groups() if group.device is not None), None)
        self._pid = os.getpid()

    def _later(self, call: Callable[[], None]) -> None:
        """Runs it on the callback thread, where works tell their end."""
        work = self._fabric.post_immediate(self._own, 0, scope=OWN_SCOPE)
        work.add_done_callback(lambda _: call())

    def __del__(self) -> None:
        if getattr(self, "_pid", None) == os.getpid():
            self.stop()

    @staticmethod
    def detect_topology() -> list[TopologyGroup]:
        """The groups of the GPUs; on a machine without GPUs those of the NUMA nodes."""
        return groups_of(headrace.detect_topology().groups)

    @staticmethod
    def builder() -> TransferEngineBuilder:
        return TransferEngineBuilder()

    # --- what it is

    @property
    def main_address(self) -> DomainAddress:
        return DomainAddress(bytes(self._fabric.address))

    @property
    def num_domains(self) -> int:
        """Network cards of all groups."""
        return sum(self._cards)

    @property
    def nets_per_gpu(self) -> int:
        """Network cards of the first group."""
        return self._cards[0]

    @property
    def aggregated_link_speed(self) -> int:
        """Bits a second of the cards whose speed is known."""
        return self._fabric.bits_per_second

    def stop(self) -> None:
        """Ends all that is under way, with an error. Later calls raise."""
        self._fabric.close()

    # --- memory

    def register_tensor(self, tensor: Any) -> tuple[MemoryRegionHandle, MemoryRegionDescriptor]:
        """Registers a contiguous tensor, which is kept alive until it is unregistered.

        Errors: ValueError (gaps, no memory), RuntimeError (memory that no card reaches).
        """
        if not tensor.is_contiguous():
            raise ValueError("the tensor is not contiguous: register tensor.contiguous(), or its base")
        if not tensor.data_ptr():
            raise ValueError("the tensor has no memory")
        return self._register(tensor.data_ptr(), tensor)

    def register_memory(
        self, ptr: int, len: int, device: Any
    ) -> tuple[MemoryRegionHandle, MemoryRegionDescriptor]:
        """Registers memory that the caller keeps in place until it is unregistered.

        device: a torch.device, of type cpu or cuda.
        """
        if not ptr:
            raise ValueError("the pointer is null")
        return self._register(ptr, _range(ptr, len, device))

    def _register(self, ptr: int, memory: Any) -> tuple[MemoryRegionHandle, MemoryRegionDescriptor]:
        with _as_runtime_errors():
            registered = self._fabric.register(memory, access="writable")
        with self._lock:
            self._regions.setdefault(ptr, []).append(registered)
        descriptor = registered.descriptor
        assert descriptor is not None  # the memory is not local
        return MemoryRegionHandle(registered), MemoryRegionDescriptor(bytes(descriptor))

    def unregister_memory(self, ptr: int) -> None:
        """Ends the posts that use what was registered at this address; then no peer reaches it.

        Errors: RuntimeError (nothing was registered there).
        """
        with self._lock:
            regions = self._regions.pop(ptr, [])
        if not regions:
            raise RuntimeError(f"no memory is registered at 0x{ptr:x}: give the address that was registered")
        with _as_runtime_errors():
            for region in regions:
                self._fabric.deregister(region)

    # --- immediates and watchers

    def set_imm_callback(self, callback: Callable[[int], object]) -> None:
        """Told of each immediate that no counter takes. Those that came before are told, too."""
        self._immediates.set_callback(callback)

    def set_imm_count_expected(
        self, imm: int, expected_count: int, on_reached: Callable[[], object]
    ) -> tuple[int, int] | None:
        """Counts an immediate; at the expected count calls `on_reached` and counts no further.

        Returns count and expected count of the counter that it replaces.
        Errors: ValueError (0 is expected), OverflowError (an immediate of more than 32 bits).
        """
        return self._immediates.expect(imm, expected_count, on_reached)

    def remove_imm_count(self, imm: int) -> tuple[int, int] | None:
        """Ends a counter before it is reached. Returns its count and expected count."""
        return self._immediates.remove(imm)

    def alloc_scalar_watcher(self, callback: Callable[[int, int], bool]) -> UvmWatcher:
        """A number of 64 bits, 0 at first, that kernels of the engine's GPUs change; without GPUs, threads.

        Calls callback(old, new) until it returns False. Numbers between two calls are not told.

        Errors: RuntimeError (too many, the engine has stopped).
        """
        with _as_runtime_errors():
            word = self._fabric.watch(callback, device=self._gpu)
        return UvmWatcher(word.address, word)

    # --- posts

    def submit_imm(
        self, imm_data: int, dst_mr: MemoryRegionDescriptor, on_done: Done, on_error: Failed
    ) -> None:
        """An immediate alone, to the owner of the memory."""
        check_immediate(imm_data)
        self._write([(0, 0)], self._nothing, 0, dst_mr, 0, imm_data, _Ends(on_done, on_error))

    def submit_write(
        self,
        src_mr: MemoryRegionHandle,
        offset: int,
        length: int,
        imm_data: int | None,
        dst_mr: MemoryRegionDescriptor,
        dst_offset: int,
        on_done: Done,
        on_error: Failed,
        num_shards: int | None = None,
    ) -> None:
        """One range. The peer counts its immediate once a shard, when the bytes of the shard are there.

        num_shards: default: one for each card of the first group.
        """
        shards = self.nets_per_gpu if num_shards is None else num_shards
        if not 1 <= shards <= self.num_domains:
            raise ValueError(f"num_shards is {shards}: give 1 to {self.num_domains}, the number of cards")
        if imm_data is None:
            shards = 1  # the cards share the bytes of a post
        else:
            check_immediate(imm_data)
        _check_range("source", offset, length, src_mr._memory.length_bytes)
        _check_range("target", dst_offset, length, dst_mr._descriptor.length_bytes)
        ends = _Ends(on_done, on_error, shards)
        self._write(_shards(length, shards), src_mr._memory, offset, dst_mr, dst_offset, imm_data, ends)

    def _write(
        self,
        parts: Sequence[tuple[int, int]],
        source: headrace.FabricMemory,
        offset: int,
        target: MemoryRegionDescriptor,
        target_offset: int,
        immediate: int | None,
        ends: _Ends,
    ) -> None:
        """parts: where each begins, and its length."""
        for number, (begin, length) in enumerate(parts):
            try:
                work = self._post(
                    self._fabric.write,
                    source,
                    target._descriptor,
                    length,
                    source_offset=offset + begin,
                    target_offset=target_offset + begin,
                    immediate=immediate,
                    scope=SCOPE,
                )
            except RuntimeError as error:
                if number == 0:
                    raise
                # Some parts are on their way, and the others are not: that is an end, and no refusal.
                self._later(partial(ends.failed, str(error), len(parts) - number))
                return
            work.add_done_callback(ends.ended)

    def _post(self, call: Callable[..., headrace.FabricWork], *args: Any, **more: Any) -> headrace.FabricWork:
        """Posts. While too many other posts run, waits."""
        while True:
            try:
                with _as_runtime_errors():
                    return call(*args, **more)
            except headrace.WouldBlock:
                time.sleep(RETRY_SECONDS)

    def submit_paged_writes(
        self,
        length: int,
        src_mr: MemoryRegionHandle,
        src_page_indices: PageIndices,
        src_stride: int,
        src_offset: int,
        dst_mr: MemoryRegionDescriptor,
        dst_page_indices: PageIndices,
        dst_stride: int,
        dst_offset: int,
        imm_data: int | None,
        on_done: Done,
        on_error: Failed,
    ) -> None:
        """Pages of `length` bytes, page i of the one list to page i of the other. A page begins at offset +
        index * stride. The peer counts the immediate once a page, when all pages are there."""
        if imm_data is not None:
            check_immediate(imm_data)
        ends = _Ends(on_done, on_error)
        work = self._post(
            self._fabric.write_pages,
            src_mr._memory,
            dst_mr._descriptor,
            length,
            **_pages("source", src_page_indices, src_stride, src_offset, length),
            **_pages("target", dst_page_indices, dst_stride, dst_offset, length),
            immediate=imm_data,
            scope=SCOPE,
            count_by="page",
        )
        work.add_done_callback(ends.ended)

    # --- messages

    def submit_send(self, addr: DomainAddress, data: bytes, on_done: Done, on_error: Failed) -> None:
        """Sends a message, which is copied, to the next receive of the peer; it waits until there is one."""
        ends = _Ends(on_done, on_error)
        with _as_runtime_errors():
            peer = self._fabric.connect(headrace.FabricAddress(addr.as_bytes()))
            memory = self._fabric.register(bytearray(data)) if data else self._nothing
        drop = partial(_drop, self._fabric, memory if data else None)
        try:
            work = self._post(self._fabric.send, peer, memory, len(data))
        except RuntimeError:
            drop()
            raise
        work.add_done_callback(lambda _: drop())
        work.add_done_callback(ends.ended)

    def submit_bouncing_recvs(
        self, count: int, len: int, on_recv: Callable[[bytes], object], on_error: Failed
    ) -> None:
        """Receives messages of up to `len` bytes, until the engine stops. `count` of them may come at a time.

        on_error: not called: a message that does not fit is an error of its sender.
        Errors: RuntimeError (no buffer, empty ones).
        """
        with _as_runtime_errors():
            self._fabric.receive_all(count, len, on_recv)


def _drop(fabric: headrace.Fabric, memory: headrace.FabricMemory | None) -> None:
    """Of a message. A fabric that is closed has dropped it already."""
    try:
        if memory is not None:
            fabric.deregister(memory)
    except headrace.Error:
        pass


def _arrived(immediates: Immediates, immediate: int, scope: int, arrivals: int) -> None:
    if scope == SCOPE:
        immediates.arrived(immediate, arrivals)


def _callback_failed(error: BaseException) -> None:
    logger.error("a callback failed; the engine goes on", exc_info=error)


def _caller_of(method: weakref.WeakMethod[Callable[[T], None]]) -> Callable[[T], None]:
    """Calls the method while its object is there."""

    def call(argument: T) -> None:
        alive = method()
        if alive:
            alive(argument)

    return call


class _Ends:
    """Tells the end of a post, which is that of its last part: the first error, if there was one."""

    def __init__(self, on_done: Done, on_error: Failed, parts: int = 1) -> None:
        self._on_done = on_done
        self._on_error = on_error
        self._left = parts
        self._error = ""

    def ended(self, work: headrace.FabricWork) -> None:
        """On the callback thread, as `failed`."""
        self._end("" if work.state == "done" else str(work.error or work.state), 1)

    def failed(self, error: str, parts: int) -> None:
        """Parts that could not be posted."""
        self._end(error, parts)

    def _end(self, error: str, parts: int) -> None:
        self._error = self._error or error
        self._left -= parts
        if self._left:
            return
        if self._error:
            self._on_error(self._error)
        else:
            self._on_done()


def _range(ptr: int, length: int, device: Any) -> headrace.MemoryRange:
    if device.type == "cpu":
        return headrace.MemoryRange("dram", ptr, length)
    if device.type == "cuda":
        return headrace.MemoryRange("vram", ptr, length, device.index or 0)
    raise ValueError(f"no network card reaches memory of {device}: give a device of type cpu or cuda")


def _check_range(side: str, offset: int, length: int, whole: int) -> None:
    """Before the first part of a post goes off: a fabric checks each by itself."""
    if not 0 <= offset <= whole - length:
        raise RuntimeError(
            f"bytes {offset} to {offset + length} are outside of the {side}, which has {whole} bytes"
        )


def _shards(length: int, count: int) -> list[tuple[int, int]]:
    """Where each begins, and its length: whole units but for the last with bytes; later ones are empty."""
    each = round_up(ceil_div(length, count), SHARD_UNIT)
    bounds = [min(length, each * shard) for shard in range(count + 1)]
    return [(begin, end - begin) for begin, end in pairwise(bounds)]


def _pages(side: str, pages: PageIndices, stride: int, offset: int, length: int) -> dict[str, Any]:
    """For a fabric a stride of 0 is the length of a page; here it means that all pages are one."""
    indices = pages._indices if stride or not length else array("I", bytes(4 * len(pages)))
    return {f"{side}_indices": indices, f"{side}_stride": stride, f"{side}_offset": offset}


@contextmanager
def _as_runtime_errors() -> Iterator[None]:
    """pplx-garden's errors are RuntimeError."""
    try:
        yield
    except headrace.WouldBlock:
        raise
    except headrace.Error as error:
        raise RuntimeError(str(error)) from error
