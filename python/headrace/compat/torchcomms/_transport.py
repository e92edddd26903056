# SPDX-License-Identifier: Apache-2.0
"""torchcomms' RdmaTransport on headrace.Fabric: over sockets and between processes of this host, for host
memory and memory of GPUs. No RDMA device and no NCCLX is needed.

    server, client = RdmaTransport(device), RdmaTransport(device)   # in two processes
    server.connect(client.bind()), client.connect(server.bind())    # the bytes travel by any way
    client.write(RdmaMemory(tensor).to_view(), remote_buffer)       # of the server: memory.to_remote_buffer()

`notify`, `timeout`, `wait_for_write` and `last_error` are those of torchcomms' C++ class, or of ours.
"""

from __future__ import annotations

import functools
import logging
import threading
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import headrace
from headrace._torch import shared_fabric
from headrace._torch.shared_fabric import SharedFabric

if TYPE_CHECKING:
    import torch

__all__ = [
    "CommResult",
    "RdmaMemory",
    "RdmaMemoryMutableView",
    "RdmaMemoryView",
    "RdmaRemoteBuffer",
    "RdmaTransport",
    "attach_rdma_memory_hook",
]

logger = logging.getLogger(__name__)

URL_MAGIC = b"headrace-transport-1:"
WRITTEN = 1  # the immediate of a write that notifies, in the scope of the transport that waits

Seconds = float | timedelta | None


class CommResult(IntEnum):
    """What calls return, with torchcomms' numbers (commResult_t)."""

    SUCCESS = 0
    UNHANDLED_CUDA_ERROR = 1
    SYSTEM_ERROR = 2
    INTERNAL_ERROR = 3
    INVALID_ARGUMENT = 4
    INVALID_USAGE = 5
    REMOTE_ERROR = 6
    IN_PROGRESS = 7
    TIMEOUT = 8
    USER_ABORT = 9


class RdmaMemoryView:
    """Bytes of an RdmaMemory, which it keeps."""

    __slots__ = ("_length", "_memory", "_offset")

    def __init__(self, memory: RdmaMemory, offset: int, length: int) -> None:
        self._memory = memory
        self._offset = offset
        self._length = length

    def size(self) -> int:
        return self._length


class RdmaMemoryMutableView(RdmaMemoryView):
    """Bytes that `read` may write to."""

    __slots__ = ()


class RdmaRemoteBuffer:
    """Names memory to the peer: from RdmaMemory.to_remote_buffer, or of its pickle."""

    __slots__ = ("_access_key", "_len", "_ptr")

    def __init__(self, ptr: int, len: int, access_key: str) -> None:
        self._ptr = ptr
        self._len = len
        self._access_key = access_key

    @property
    def ptr(self) -> int:
        """The address in the owner's process."""
        return self._ptr

    @property
    def len(self) -> int:
        return self._len

    @property
    def access_key(self) -> str:
        return self._access_key

    def __getstate__(self) -> tuple[int, int, str]:
        return self._ptr, self._len, self._access_key

    def __reduce__(self) -> tuple[object, tuple[int, int, str]]:
        return type(self), self.__getstate__()

    def __repr__(self) -> str:
        return f"<RdmaRemoteBuffer {self._len} bytes at 0x{self._ptr:x}>"


class RdmaMemory:
    """A contiguous tensor that transports of this process read and write, and peers that have its remote
    buffer. It keeps the tensor. Its end waits until posts have left the memory; then no peer reaches it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Errors: TypeError (no tensor), ValueError (gaps, no bytes), RuntimeError (memory that no card
        reaches)."""
        memory = shared_fabric.memory_of(tensor)
        try:
            self._shared = shared_fabric.shared_fabric()
            self._memory = self._shared.fabric.register(memory, access="writable")
        except headrace.Error as error:
            raise RuntimeError(f"the tensor cannot be registered: {error}") from error
        self._tensor = tensor

    def __del__(self) -> None:
        if hasattr(self, "_tensor"):
            shared_fabric.deregister(self._shared, self._memory)

    def to_view(self, offset: int | None = None, length: int | None = None) -> RdmaMemoryView:
        """Errors: ValueError (outside of the memory)."""
        return RdmaMemoryView(self, *self._range(offset, length))

    def to_mutable_view(self, offset: int | None = None, length: int | None = None) -> RdmaMemoryMutableView:
        """Errors: ValueError (outside of the memory)."""
        return RdmaMemoryMutableView(self, *self._range(offset, length))

    def _range(self, offset: int | None, length: int | None) -> tuple[int, int]:
        whole = self._memory.length_bytes
        offset = 0 if offset is None else offset
        length = whole - offset if length is None else length
        if not 0 <= offset <= offset + length <= whole:
            raise ValueError(
                f"bytes {offset} to {offset + length} are outside of the memory, which has {whole} bytes"
            )
        return offset, length

    def to_remote_buffer(self) -> RdmaRemoteBuffer:
        descriptor = self._memory.descriptor
        assert descriptor is not None  # the memory is not local
        key = _AccessKey(self._shared.id, self._memory.address, descriptor)
        return RdmaRemoteBuffer(self._memory.address, self._memory.length_bytes, key.text())

    def reused_registration(self) -> bool:
        """False: each memory is registered by itself."""
        return False


class _AccessKey:
    """What a remote buffer has of its memory: the process, where it begins there, the descriptor."""

    def __init__(self, owner: bytes, address: int, descriptor: headrace.FabricDescriptor) -> None:
        self.owner = owner
        self.address = address
        self.descriptor = descriptor

    def text(self) -> str:
        return f"{self.owner.hex()}:{self.address:x}:{bytes(self.descriptor).hex()}"

    @staticmethod
    @functools.lru_cache(maxsize=1024)
    def of(text: str) -> _AccessKey:
        """Errors: ValueError (damaged, cut, of another library)."""
        try:
            owner, address, descriptor = text.split(":")
            parts = bytes.fromhex(owner), int(address, 16), bytes.fromhex(descriptor)
            return _AccessKey(*parts[:2], headrace.FabricDescriptor(parts[2]))
        except (ValueError, headrace.Error) as error:
            raise ValueError(
                f"the access key names no memory of Headrace ({error}): give what to_remote_buffer "
                "returned in the process of the peer"
            ) from error


class _Arrivals:
    """Writes with `notify` that have come, each for one `wait_for_write`. It does not hold the transport."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._come = 0
        self._end: CommResult | None = None

    def arrived(self) -> bool:
        with self._changed:
            self._come += 1
            self._changed.notify()
        return True

    def end(self, result: CommResult) -> None:
        """Nothing will come any more. What has come is still taken."""
        with self._changed:
            self._end = self._end or result
            self._changed.notify_all()

    def take(self, timeout: float | None) -> CommResult:
        with self._changed:
            self._changed.wait_for(lambda: self._come or self._end is not None, timeout)
            if self._come:
                self._come -= 1
                return CommResult.SUCCESS
            return CommResult.TIMEOUT if self._end is None else self._end


class _Peer:
    """The far transport: its process, its fabric's address, the scope in which it counts."""

    def __init__(self, url: bytes) -> None:
        """Errors: ValueError (damaged, cut, of another library)."""
        try:
            if not url.startswith(URL_MAGIC):
                raise ValueError("it begins with other bytes")
            rest = url[len(URL_MAGIC) :]
            self.process, self.scope = rest[:8], int.from_bytes(rest[8:12], "little")
            self.address = headrace.FabricAddress(rest[12:])
        except (ValueError, headrace.Error) as error:
            raise ValueError(
                f"the peer's URL is none of Headrace ({error}): give what RdmaTransport.bind returned there"
            ) from error


def _url(shared: SharedFabric, scope: int) -> bytes:
    return URL_MAGIC + shared.id + scope.to_bytes(4, "little") + bytes(shared.fabric.address)


class RdmaTransport:
    """Writes to memory of one peer, and reads from it. Any thread may call; calls that wait release the GIL.

    A call returns 0 (CommResult.SUCCESS), 8 (TIMEOUT: the memory is quiet), 9 (USER_ABORT: the memory was
    closed meanwhile) or 3 (INTERNAL_ERROR: the peer is lost, or has no such memory any more). After a 3 the
    transport is broken, and each call returns 3 at once; `last_error` says why. Bad arguments raise.
    """

    def __init__(self, device: torch.device) -> None:
        """device: torch.device("cuda:0"), torch.device("cpu"). Memory of any device goes over any transport.

        Errors: ValueError (a device without number, or of another kind), RuntimeError (no fabric opens).
        """
        _check_device(device)
        try:
            self._shared = shared_fabric.shared_fabric()
        except headrace.Error as error:
            raise RuntimeError(f"the transport cannot be opened: {error}") from error
        fabric = self._shared.fabric
        self._scope = shared_fabric.new_scope()
        self._arrivals = _Arrivals()
        self._expectation = fabric.expect(WRITTEN, 1, scope=self._scope)
        self._expectation.on_reached(self._arrivals.arrived)
        self._peer: _Peer | None = None
        self._watch: headrace.FabricWork | None = None
        self._lock = threading.Lock()
        self._failure = _Failure()

    def __del__(self) -> None:
        if not hasattr(self, "_failure") or not self._shared.is_usable:
            return
        self._arrivals.end(CommResult.USER_ABORT)
        self._expectation.remove()
        if self._watch:
            self._watch.cancel()

    @staticmethod
    def supported() -> bool:
        """Whether a fabric opens here: true over sockets and shared memory, without an RDMA device."""
        return shared_fabric.is_supported()

    @property
    def last_error(self) -> str:
        """Why the transport is broken, or why the last call returned no 0; empty: none did."""
        return self._failure.text

    def bind(self) -> bytes:
        """The URL for the peer's `connect`. It holds addresses and no secret."""
        return _url(self._shared, self._scope)

    def connect(self, peer_url: bytes) -> int:
        """Begins to connect. Whether the peer can be reached is told by the first write or read.

        Errors: ValueError (no URL of `bind`), RuntimeError (connected already; no card reaches it).
        """
        peer = _Peer(bytes(peer_url))
        with self._lock:
            if self._peer:
                raise RuntimeError("the transport is connected already: make another one for another peer")
            try:
                self._watch = _watch(self._shared, peer)
            except headrace.Error as error:
                raise RuntimeError(f"no network card reaches the peer: {error}") from error
            self._peer = peer
        watched = functools.partial(_peer_ended, self._failure, self._arrivals)
        self._watch.add_done_callback(watched)
        return CommResult.SUCCESS

    def connected(self) -> bool:
        """Whether `connect` was called."""
        return self._peer is not None

    def write(
        self,
        local_buffer: RdmaMemoryView,
        remote_buffer: RdmaRemoteBuffer,
        notify: bool = False,
        timeout: Seconds = None,
    ) -> int:
        """Writes the view to the begin of the remote buffer, and waits until its bytes are there.

        notify: ends one `wait_for_write` of the peer, after the bytes. timeout: seconds or a timedelta.
        Errors: TypeError, ValueError, RuntimeError (not connected, longer than the buffer).
        """
        if not isinstance(local_buffer, RdmaMemoryView):
            raise TypeError(f"give a view: RdmaMemory(tensor).to_view(), not {type(local_buffer).__name__}")
        immediate = WRITTEN if notify else None
        return self._move("write", local_buffer, remote_buffer, timeout, immediate)

    def read(
        self,
        local_buffer: RdmaMemoryMutableView,
        remote_buffer: RdmaRemoteBuffer,
        timeout: Seconds = None,
    ) -> int:
        """Reads from the begin of the remote buffer into the view, and waits until its bytes are there.

        Errors: as write.
        """
        if not isinstance(local_buffer, RdmaMemoryMutableView):
            raise TypeError(
                "give a view that may be written to: RdmaMemory(tensor).to_mutable_view(), not "
                f"{type(local_buffer).__name__}"
            )
        return self._move("read", local_buffer, remote_buffer, timeout, None)

    def wait_for_write(self, timeout: Seconds = None) -> int:
        """Waits for one write of the peer with `notify`; its bytes can be read then.

        Returns also 3 if the peer's process ends, and no write of it is left to take.
        Errors: RuntimeError (not connected).
        """
        self._connected_peer()
        result = self._arrivals.take(_seconds(timeout))
        if result == CommResult.TIMEOUT:
            self._failure.note(f"no write has come in {timeout} s")
        return result

    def _connected_peer(self) -> _Peer:
        if self._peer is None:
            raise RuntimeError("the transport is not connected: call connect with the URL of the peer first")
        return self._peer

    def _move(
        self,
        operation: str,
        local: RdmaMemoryView,
        remote: RdmaRemoteBuffer,
        timeout: Seconds,
        immediate: int | None,
    ) -> int:
        peer = self._connected_peer()
        key, offset = _place(remote, local.size())
        if key.owner != peer.process:
            raise ValueError(
                "the remote buffer is not of the peer: use a transport that is connected to its owner"
            )
        if self._failure.is_broken:
            return CommResult.INTERNAL_ERROR
        fabric, memory = self._shared.fabric, local._memory._memory
        options: dict[str, Any] = {"timeout": _seconds(timeout)}
        if immediate is not None:
            options.update(immediate=immediate, scope=peer.scope)
        if operation == "write":
            post = functools.partial(fabric.write, memory, key.descriptor)
            offsets = {"source_offset": local._offset, "target_offset": offset}
        else:
            post = functools.partial(fabric.read, memory, key.descriptor)
            offsets = {"target_offset": local._offset, "source_offset": offset}
        return self._failure.result_of(functools.partial(post, local.size(), **offsets, **options))


class _Failure:
    """Results of posts, and the failure that broke a transport."""

    def __init__(self) -> None:
        self.is_broken = False
        self.text = ""

    def note(self, text: str) -> None:
        if not self.is_broken:
            self.text = text

    def breaks(self, text: str, level: int = logging.WARNING) -> None:
        if not self.is_broken:
            self.text, self.is_broken = text, True
            logger.log(level, "a transport is broken: %s", text)

    def result_of(self, post: Any) -> CommResult:
        try:
            shared_fabric.posted(post).wait()
        except headrace.TimedOut as error:
            self.note(str(error))
            return CommResult.TIMEOUT
        except headrace.Canceled as error:
            self.note(str(error))
            return CommResult.USER_ABORT
        except headrace.Error as error:
            self.breaks(str(error))
            return CommResult.INTERNAL_ERROR
        return CommResult.SUCCESS


def _watch(shared: SharedFabric, peer: _Peer) -> headrace.FabricWork:
    """A message that the peer never takes: it ends with an error when the peer's process ends."""
    return shared.fabric.send(shared.fabric.connect(peer.address), shared.nothing, 1)


def _peer_ended(failure: _Failure, arrivals: _Arrivals, watch: headrace.FabricWork) -> None:
    if watch.state == "failed":
        # It may have ended because all is done: the next call tells where it was not.
        failure.breaks(f"the peer has ended: {watch.error}", logging.INFO)
        arrivals.end(CommResult.INTERNAL_ERROR)


def _place(remote: RdmaRemoteBuffer, length: int) -> tuple[_AccessKey, int]:
    """The memory, and where in it the buffer begins.

    Errors: TypeError, ValueError (no key of ours, outside of the memory), RuntimeError (too long).
    """
    if not isinstance(remote, RdmaRemoteBuffer):
        raise TypeError(f"give the peer's RdmaMemory.to_remote_buffer(), not {type(remote).__name__}")
    if length > remote.len:
        raise RuntimeError(f"the view has {length} bytes, and the remote buffer only {remote.len}")
    key = _AccessKey.of(remote.access_key)
    offset, whole = remote.ptr - key.address, key.descriptor.length_bytes
    if not 0 <= offset <= whole - length:
        raise ValueError(
            f"bytes {offset} to {offset + length} are outside of the peer's memory, which has {whole} bytes"
        )
    return key, offset


def _check_device(device: Any) -> None:
    import torch

    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        raise ValueError('the device has no number: give torch.device("cuda:0"), or another number')
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"a transport has no use for {device}: give a device of type cpu or cuda")


def _seconds(timeout: Seconds) -> float | None:
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout


def attach_rdma_memory_hook(reg: object, dereg: object) -> None:
    """Does nothing: torchcomms registers all memory of the caching allocator beforehand, because that takes
    long with an RDMA device. Here RdmaMemory registers its tensor in microseconds."""
