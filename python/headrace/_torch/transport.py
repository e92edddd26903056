# SPDX-License-Identifier: Apache-2.0
"""The transport "headrace" of torch 2.15's `torch.distributed._transport`, on headrace.Fabric.

torch finds it by the entry point `torch.distributed.transports`: `new_transport("headrace", "cpu")`. Older
torch has no such module, and nothing imports this file there.
"""

from __future__ import annotations

import functools
import importlib
import math
import operator
import secrets
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.distributed import Work

import headrace

from . import shared_fabric
from .errors import as_torch_error

if TYPE_CHECKING:
    Transport = object
    wait_all: Any
else:
    _torchs = importlib.import_module("torch.distributed._transport")
    Transport, wait_all = _torchs.Transport, _torchs.wait_all

__all__ = [
    "HeadraceMemory",
    "HeadraceMemoryView",
    "HeadraceMutableMemoryView",
    "HeadraceRemoteBuffer",
    "HeadraceTransport",
]

URL_MAGIC = b"headrace-endpoint-1:"
BUFFER_MAGIC = b"headrace-buffer-1:"
ENDPOINT_BYTES = 8


@dataclass(frozen=True)
class HeadraceRemoteBuffer:
    """Names registered memory to the peer of its transport."""

    endpoint: bytes
    descriptor: bytes
    length: int = field(init=False)

    def __post_init__(self) -> None:
        """Errors: ValueError (a damaged descriptor)."""
        object.__setattr__(self, "length", _descriptor_of(self.descriptor).length_bytes)

    def serialize(self) -> bytes:
        return BUFFER_MAGIC + self.endpoint + self.descriptor

    @classmethod
    def deserialize(cls, data: bytes) -> HeadraceRemoteBuffer:
        """Errors: TypeError (no bytes), ValueError (damaged, cut, of another transport)."""
        return cls(*_parts(data, BUFFER_MAGIC, "a remote buffer", "HeadraceRemoteBuffer.serialize"))


@dataclass
class _Registration:
    tensor: torch.Tensor
    memory: headrace.FabricMemory
    address: int
    length: int
    active: bool = True

    def check(self) -> None:
        """Errors: RuntimeError (unregistered, resized)."""
        if not self.active:
            raise RuntimeError("the memory was unregistered: register the tensor again")
        if (self.tensor.data_ptr(), self.tensor.nbytes) != (self.address, self.length):
            raise RuntimeError("the registered tensor was resized, or has another storage: register it again")


class HeadraceMemoryView:
    """Bytes of registered memory."""

    def __init__(self, memory: HeadraceMemory, offset: int, length: int) -> None:
        self._memory = memory
        self._offset = offset
        self._length = length

    def size(self) -> int:
        return self._length


class HeadraceMutableMemoryView(HeadraceMemoryView):
    """Bytes that a read may write to."""

    writable: Literal[True] = True


class HeadraceMemory:
    """A tensor that is registered with a transport. From HeadraceTransport.register_memory."""

    def __init__(self, transport: HeadraceTransport, registration: _Registration) -> None:
        self._transport = transport
        self._registration = registration

    def to_view(self, offset: int | None = None, length: int | None = None) -> HeadraceMemoryView:
        """Errors: ValueError (outside of the memory), RuntimeError (unregistered)."""
        return HeadraceMemoryView(self, *self._range(offset, length))

    def to_mutable_view(
        self, offset: int | None = None, length: int | None = None
    ) -> HeadraceMutableMemoryView:
        """Errors: as to_view."""
        return HeadraceMutableMemoryView(self, *self._range(offset, length))

    def _range(self, offset: int | None, length: int | None) -> tuple[int, int]:
        self._registration.check()
        whole = self._registration.length
        offset = 0 if offset is None else operator.index(offset)
        length = whole - offset if length is None else operator.index(length)
        if not 0 <= offset <= offset + length <= whole:
            raise ValueError(
                f"bytes {offset} to {offset + length} are outside of the memory, which has {whole} bytes"
            )
        return offset, length

    def to_remote_buffer(self, *, timeout: float | None = None) -> HeadraceRemoteBuffer:
        """Errors: RuntimeError (unregistered)."""
        _check_timeout(timeout)
        self._registration.check()
        return HeadraceRemoteBuffer(
            self._transport._endpoint, bytes(_present(self._registration.memory.descriptor))
        )


class HeadraceWork(Work):
    """A transfer. It goes on without this object, and keeps its memory until it has ended."""

    def __init__(self, post: headrace.FabricWork, view: HeadraceMemoryView, timeout: float | None) -> None:
        super().__init__()
        self._post = post
        self._registration = view._memory._registration
        self._timeout = timeout
        self._future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        post.add_done_callback(self._ended)

    def _ended(self, post: headrace.FabricWork) -> None:
        """On the callback thread of the fabric, which keeps this object until then."""
        error = self.exception()
        if error is None:
            self._future.set_result([])
        else:
            self._future.set_exception(error)  # type: ignore[arg-type]  # torch's types are wrong here

    def is_completed(self) -> bool:
        return self._post.done

    def is_success(self) -> bool:
        return self._post.state == "done"

    def exception(self) -> Exception | None:
        if not self._post.done or self._post.state == "done":
            return None
        return as_torch_error(self._post.error or headrace.Canceled("the transfer was canceled"))

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits until the transfer has ended. 0: the timeout of the call that began it.

        Errors: those of the transfer; TimeoutError (it goes on).
        """
        seconds = timeout.total_seconds()
        _check_timeout(seconds)
        try:
            self._post.wait(seconds or self._timeout)
        except headrace.Error as error:
            if not self._post.done:
                raise TimeoutError(f"the transfer has not ended, and goes on: {error}") from error
            raise (self.exception() or as_torch_error(error)) from None
        return True

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return []

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self._future

    def _cancel(self) -> None:
        self._post.cancel()


class HeadraceTransport(Transport):
    """One-sided transfers over sockets and between processes of this host, for tensors on the CPU and GPUs.

    Options of `new_transport`: `timeout=30.0`, that of calls without one. Transports of a process share one
    fabric. A call that waits and times out has canceled its transfer: its buffers can be used again. `close`
    cancels what it could not wait for, so that a second `close` ends. Any thread may call.
    """

    def __init__(self, device: torch.device | str | None = None, *, timeout: float = 30.0) -> None:
        super().__init__(device)  # type: ignore[call-arg]
        self.device: torch.device | None = torch.device(device) if device is not None else None
        if self.device is not None and self.device.type not in ("cpu", "cuda"):
            raise ValueError(f"a transport has no use for {device}: give a device of type cpu or cuda")
        _check_timeout(timeout)
        self._timeout = self._default_timeout = timeout
        self._shared = shared_fabric.shared_fabric()
        self._endpoint = secrets.token_bytes(ENDPOINT_BYTES)
        self._peer: bytes | None = None
        self._registrations: dict[tuple[int, int, str], _Registration] = {}
        self._pending: set[HeadraceWork] = set()
        self._lock = threading.RLock()
        self._closing = self._closed = False

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self._release()

    @staticmethod
    def supported() -> bool:
        return shared_fabric.is_supported()

    # --- the peer

    def bind(self, *, timeout: float | None = None) -> bytes:
        _check_timeout(timeout)
        self._check_open()
        return URL_MAGIC + self._endpoint + bytes(self._shared.fabric.address)

    def connect(self, peer_url: bytes, *, timeout: float | None = None) -> int:
        """Begins to connect. Whether the peer can be reached is told by the first transfer.

        Errors: ValueError (no URL of `bind`), RuntimeError (connected already, closed).
        """
        _check_timeout(timeout)
        endpoint, rest = _parts(peer_url, URL_MAGIC, "the peer's URL", "bind of its transport")
        with self._lock:
            self._check_open()
            if self._peer is not None:
                raise RuntimeError("the transport is connected already: make another one for another peer")
            try:
                self._shared.fabric.connect(headrace.FabricAddress(rest))
            except headrace.Error as error:
                raise ValueError(f"the peer's URL: {error}") from error
            self._peer = endpoint
        return 0

    def connected(self) -> bool:
        return self._peer is not None and not self._closing

    # --- memory

    def register_memory(self, tensor: torch.Tensor, *, timeout: float | None = None) -> HeadraceMemory:
        """Registers a contiguous tensor, which is kept until it is unregistered.

        Errors: TypeError, ValueError (gaps, no bytes, another device), RuntimeError (closed).
        """
        _check_timeout(timeout)
        memory = shared_fabric.memory_of(tensor)
        if self.device is not None:
            self._check_device(tensor.device)
        key = tensor.data_ptr(), tensor.nbytes, str(tensor.device)
        with self._lock:
            self._check_open()
            registration = self._registrations.get(key)
            if registration is None:
                try:
                    registered = self._shared.fabric.register(memory, access="writable")
                except headrace.Error as error:
                    raise as_torch_error(error) from None
                registration = _Registration(tensor, registered, *key[:2])
                self._registrations[key] = registration
        return HeadraceMemory(self, registration)

    def unregister_memory(self, memory: HeadraceMemory, *, timeout: float | None = None) -> None:
        """No peer reaches the memory afterwards.

        Errors: TypeError (of another transport), RuntimeError (transfers use it).
        """
        _check_timeout(timeout)
        with self._lock:
            self._check_open()
            if not isinstance(memory, HeadraceMemory) or memory._transport is not self:
                raise TypeError("the memory was not registered by this transport")
            registration = memory._registration
            if not registration.active:
                return
            streams = [view._memory._registration for view in self._cuda_stream_views()]
            if registration in streams or any(w._registration is registration for w in self._unended()):
                raise RuntimeError("transfers use the memory: wait for them before it is unregistered")
            self._registrations = {k: r for k, r in self._registrations.items() if r is not registration}
            self._drop(registration)

    def _drop(self, registration: _Registration) -> None:
        registration.active = False
        shared_fabric.deregister(self._shared, registration.memory)

    # --- transfers

    def write(
        self,
        local_buffer: HeadraceMemoryView,
        remote_buffer: HeadraceRemoteBuffer,
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> int | HeadraceWork:
        """Writes the view to the begin of the remote buffer.

        Errors: TypeError, ValueError (longer than the buffer, not of the peer), RuntimeError (not connected,
        unregistered, closed, those of the transfer), TimeoutError.
        """
        return self._transfer("write", local_buffer, remote_buffer, async_op, timeout)

    def read(
        self,
        local_buffer: HeadraceMutableMemoryView,
        remote_buffer: HeadraceRemoteBuffer,
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> int | HeadraceWork:
        """Reads from the begin of the remote buffer into the view. Errors: as write."""
        return self._transfer("read", local_buffer, remote_buffer, async_op, timeout)

    def _transfer(
        self, operation: str, local: Any, remote: Any, async_op: bool, timeout: float | None
    ) -> int | HeadraceWork:
        timeout = self._timeout if timeout is None else timeout
        _check_timeout(timeout)
        self._check_transfer(local, remote, mutable=operation == "read")
        # One that nobody can wait for ends with the call.
        work = self._post(operation, local, remote, timeout, None if async_op else timeout)
        if async_op:
            return work
        work._timeout = None
        work.wait()
        return 0

    def _post(
        self, operation: str, local: HeadraceMemoryView, remote: HeadraceRemoteBuffer, *timeouts: float | None
    ) -> HeadraceWork:
        memory, target = local._memory._registration.memory, _descriptor_of(remote.descriptor)
        fabric = self._shared.fabric
        call: Any = fabric.write if operation == "write" else fabric.read
        offset = {"source_offset" if operation == "write" else "target_offset": local._offset}
        post = functools.partial(call, memory, target, local.size(), timeout=timeouts[1], **offset)
        with self._lock:
            self._check_open()
            try:
                work = HeadraceWork(shared_fabric.posted(post), local, timeouts[0])
            except headrace.Error as error:
                raise as_torch_error(error) from None
            self._pending = set(self._unended())
            self._pending.add(work)
        return work

    def _unended(self) -> list[HeadraceWork]:
        return [work for work in self._pending if not work.is_completed()]

    def _check_transfer(self, local_buffer: Any, remote_buffer: Any, *, mutable: bool) -> None:
        expected = HeadraceMutableMemoryView if mutable else HeadraceMemoryView
        if not isinstance(local_buffer, expected) or local_buffer._memory._transport is not self:
            raise TypeError(
                f"the local buffer is no {expected.__name__} of this transport: give "
                f"register_memory(tensor).{'to_mutable_view' if mutable else 'to_view'}()"
            )
        if not isinstance(remote_buffer, HeadraceRemoteBuffer):
            raise TypeError(f"the remote buffer is a {type(remote_buffer).__name__}, no HeadraceRemoteBuffer")
        self._check_open()
        if self._peer is None:
            raise RuntimeError("the transport is not connected: call connect with the URL of the peer first")
        if remote_buffer.endpoint != self._peer:
            raise ValueError("the remote buffer is not of the peer to which this transport is connected")
        if local_buffer.size() > remote_buffer.length:
            raise ValueError(
                f"the view has {local_buffer.size()} bytes, and the remote buffer only {remote_buffer.length}"
            )
        local_buffer._memory._registration.check()

    # --- the end

    def close(self, *, timeout: float | None = None) -> None:
        """Waits for transfers, and unregisters all memory.

        Errors: TimeoutError (what has not ended is canceled: close again), that of a transfer.
        """
        timeout = self._begin_close(timeout)
        deadline, failure = time.monotonic() + timeout, None
        for work in self._unended():
            try:
                work.wait(timedelta(seconds=max(1e-6, deadline - time.monotonic())))
            except Exception as error:
                if not work.is_completed():
                    self._cancel_all()
                    raise
                failure = failure or error
        self._end_close(failure)

    async def close_async(self, *, timeout: float | None = None) -> None:
        """As close, in asyncio."""
        timeout, failure = self._begin_close(timeout), None
        try:
            await wait_all(self._unended(), timeout=timeout)
        except BaseException as error:
            if self._unended():
                self._cancel_all()
                raise
            failure = error
        self._end_close(failure)

    def _begin_close(self, timeout: float | None) -> float:
        timeout = self._timeout if timeout is None else timeout
        _check_timeout(timeout)
        self._close_cuda_streams()
        with self._lock:
            self._closing = True
        return timeout

    def _cancel_all(self) -> None:
        for work in self._unended():
            work._cancel()

    def _end_close(self, failure: BaseException | None) -> None:
        if self._closed:
            return
        self._release()
        if failure is not None:
            raise failure

    def _release(self) -> None:
        with self._lock:
            self._closing = self._closed = True
            self._pending.clear()
            for registration in self._registrations.values():
                self._drop(registration)
            self._registrations.clear()

    def _check_open(self) -> None:
        if self._closing:
            raise RuntimeError("the transport is closed")

    if TYPE_CHECKING:  # torch's, which it calls

        def _check_device(self, device: torch.device) -> None: ...
        def _cuda_stream_views(self) -> list[HeadraceMemoryView]: ...
        def _close_cuda_streams(self) -> None: ...


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and (not math.isfinite(timeout) or timeout < 0):
        raise ValueError(f"timeout is {timeout}: give seconds, 0 or more, or None")


def _present(descriptor: headrace.FabricDescriptor | None) -> headrace.FabricDescriptor:
    assert descriptor is not None  # the memory is not local
    return descriptor


@functools.lru_cache(maxsize=1024)
def _descriptor_of(data: bytes) -> headrace.FabricDescriptor:
    try:
        return headrace.FabricDescriptor(data)
    except headrace.Error as error:
        raise ValueError(f"the remote buffer is damaged: {error}") from error


def _parts(data: bytes, magic: bytes, what: str, source: str) -> tuple[bytes, bytes]:
    """The endpoint, and what follows it."""
    if not isinstance(data, bytes):
        raise TypeError(f"{what} is bytes, not {type(data).__name__}")
    if not data.startswith(magic) or len(data) <= len(magic) + ENDPOINT_BYTES:
        raise ValueError(f"{what} is none of Headrace, or is cut: give what {source} returned")
    data = data[len(magic) :]
    return data[:ENDPOINT_BYTES], data[ENDPOINT_BYTES:]
