# SPDX-License-Identifier: Apache-2.0
"""The backend `gloo` of communicators: torch's own ProcessGroupGloo, which moves tensors in host memory.

Every type is moved, as bytes. The reductions are gloo's.

Gloo itself has no time limit here, because Headrace has one for each call. A late operation of gloo closes
all connections of its communicator, so that operations of every rank end: this is how a communicator is
aborted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store
from torch.utils.dlpack import from_dlpack

import headrace

from .gloo_errors import as_headrace_error, gloo_errors
from .gloo_meeting import MeetingStore, PartStore, wait_for_readers
from .gloo_neighbour import NEIGHBOUR_TAG, NO_LIMIT, Neighbour
from .gloo_order import InOrder, Run

if not dist.is_gloo_available():
    raise ImportError(f"torch {torch.__version__} is built without gloo")

_ProcessGroupGloo: Any = dist.ProcessGroupGloo  # torch does not type its operations

_SOON = timedelta(milliseconds=1)
_LATER = timedelta(seconds=5)
_ADDRESS_BYTES = 1024  # of gloo: the name of a host, a socket's address, 8 bytes for each rank
_CLOSING_TAG = NEIGHBOUR_TAG - 1  # no message has it
_LAST_TAG = _CLOSING_TAG - 1

_FLOATS = ["sum", "product", "min", "max", "avg"]
_INTEGERS = ["sum", "product", "min", "max", "band", "bor", "bxor"]
_BOOL = _INTEGERS[1:]  # gloo adds two bools up to the byte 2, which is no bool
_COMPLEX = ["sum", "avg"]
_REDUCTIONS = {
    torch.float64: _FLOATS,
    torch.float32: _FLOATS,
    torch.float16: _FLOATS,
    torch.bfloat16: _FLOATS,
    torch.int64: _INTEGERS,
    torch.int32: _INTEGERS,
    torch.int8: _INTEGERS,
    torch.uint8: _INTEGERS,
    torch.bool: _BOOL,
    torch.complex64: _COMPLEX,
    torch.complex128: _COMPLEX,
}


def _collective(prepare: Callable[..., Run]) -> Callable[..., Future[None]]:
    """A method of a backend from one that checks its arguments and returns what runs the operation."""

    @wraps(prepare)
    def method(self: Gloo, *arguments: Any) -> Future[None]:
        *given, _, options = arguments
        _refuse_hints(options.hints, "an operation")
        return self._add(prepare(self, *given))

    return method


class Gloo:
    """One communicator."""

    def init(self, device: str, name: str, options: Any) -> None:
        if options.size == 1:
            self._open(options, HashStore())
            return
        self._open(options, MeetingStore(options.store))
        wait_for_readers(options.store, self._rank, self._size)

    def _open(self, options: Any, store: Store) -> None:
        self._rank, self._size = options.rank, options.size
        self._meeting_timeout, self._tell_host = options.meeting_timeout, options.ended
        self._store = store  # torch's object does not keep one that is written in Python
        self._group = _ProcessGroupGloo(self._store, self._rank, self._size, _settings(options))
        self._group.set_timeout(NO_LIMIT)
        self._lock = threading.Lock()  # of what follows, and held while elements are copied to the caller
        self._has_ended = False
        self._receiving: set[Received] = set()
        self._order = InOrder()
        self._neighbour: Neighbour | None = None
        if self._size > 1:
            self._neighbour = Neighbour(self._group, self._rank, self._size, options.ended)

    def split(self, ranks: list[int], name: str, options: Any) -> Gloo | None:
        store = PartStore(self._gather_bytes, ranks, name)
        try:
            if options is None:
                return None
            part = Gloo()
            part._open(options, store if options.size > 1 else HashStore())
            return part
        finally:
            store.come()

    def _gather_bytes(self, mine: bytes) -> list[bytes]:
        """The bytes of all ranks.

        Errors: TimedOut (the meeting timeout of the communicator, which has ended then).
        """
        length = _ADDRESS_BYTES + 16 * self._size
        given = torch.tensor(
            [*len(mine).to_bytes(4, "little"), *mine.ljust(length - 4, b"\0")], dtype=torch.uint8
        )
        row = torch.empty(self._size * length, dtype=torch.uint8)
        gathered = self._add(lambda: self._group._allgather_base(row, given).wait())
        try:
            gathered.result(self._meeting_timeout and self._meeting_timeout.total_seconds())
        except FutureTimeout:
            error = headrace.TimedOut(f"not all ranks have come to split within {self._meeting_timeout}")
            self._tell_host(error)
            raise error from None
        texts = [bytes(part.tolist()) for part in row.split(length)]
        return [text[4 : 4 + int.from_bytes(text[:4], "little")] for text in texts]

    def abort(self, reason: str) -> None:
        self._end(reason)

    def finalize(self) -> None:
        self._end("")
        self._order.close()
        if self._neighbour is not None:
            self._neighbour.join()
        del self._group, self._store

    def _end(self, reason: str) -> None:
        """Closes all connections, once. reason: for the other ranks; none: this rank leaves."""
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
            receiving, self._receiving = self._receiving, set()
        if self._neighbour is not None:
            self._neighbour.tell(reason)
        for peer in range(self._size):
            if peer != self._rank:
                try:
                    self._group.recv([torch.empty(1, dtype=torch.uint8)], peer, _CLOSING_TAG).wait(_SOON)
                except RuntimeError:
                    pass  # as wanted
        for received in receiving:
            received.set_exception(headrace.Canceled(reason or "the communicator has been closed"))

    # --- collectives

    def _add(self, run: Run) -> Future[None]:
        def checked() -> None:
            if self._has_ended:
                raise headrace.Canceled("the communicator has ended")
            run()

        return self._order.add(checked)

    @_collective
    def barrier(self) -> Run:
        return lambda: self._group.barrier().wait()

    @_collective
    def broadcast(self, tensor: Any, root: int) -> Run:
        elements, options = _bytes(tensor), dist.BroadcastOptions()
        options.rootRank = root
        return lambda: self._group.broadcast([elements], options).wait()

    @_collective
    def all_reduce(self, tensor: Any, op: headrace.ReduceOp) -> Run:
        elements, options = from_dlpack(tensor), dist.AllreduceOptions()
        options.reduceOp = _reduction(elements, op)
        return lambda: self._group.allreduce([elements], options).wait()

    @_collective
    def reduce(self, tensor: Any, root: int, op: headrace.ReduceOp) -> Run:
        elements, options = from_dlpack(tensor), dist.ReduceOptions()
        options.rootRank, options.reduceOp = root, _reduction(elements, op)

        def run() -> None:
            # Gloo writes to the elements of all ranks.
            self._group.reduce([elements if root == self._rank else elements.clone()], options).wait()

        return run

    @_collective
    def all_gather(self, outputs: list[Any], tensor: Any) -> Run:
        parts, given = [_bytes(output) for output in outputs], _bytes(tensor)
        return lambda: self._group.allgather([parts], [given]).wait()

    @_collective
    def all_gather_single(self, output: Any, tensor: Any) -> Run:
        row, given = _bytes(output), _bytes(tensor)
        return lambda: self._group._allgather_base(row, given).wait()

    @_collective
    def reduce_scatter(self, output: Any, inputs: list[Any], op: headrace.ReduceOp) -> Run:
        elements, options = from_dlpack(output), dist.ReduceScatterOptions()
        options.reduceOp = _reduction(elements, op)
        given = [from_dlpack(one) for one in inputs]
        return lambda: self._group.reduce_scatter([elements], [given], options).wait()

    reduce_scatter_v = reduce_scatter

    @_collective
    def reduce_scatter_single(self, output: Any, tensor: Any, op: headrace.ReduceOp) -> Run:
        elements, options = from_dlpack(output), dist.ReduceScatterOptions()
        options.reduceOp = _reduction(elements, op)
        given = from_dlpack(tensor)
        return lambda: self._group._reduce_scatter_base(elements, given, options).wait()

    @_collective
    def all_to_all(self, outputs: list[Any], inputs: list[Any]) -> Run:
        """Gloo has it for parts of one size alone, and for any in a row."""
        parts, given = [_bytes(output) for output in outputs], [_bytes(one) for one in inputs]
        row, lengths = torch.empty(sum(map(len, parts)), dtype=torch.uint8), [len(part) for part in parts]

        def run() -> None:
            self._group.alltoall_base(row, torch.cat(given), lengths, [len(one) for one in given]).wait()
            for part, received in zip(parts, row.split(lengths)):
                part.copy_(received)

        return run

    @_collective
    def all_to_all_single(self, output: Any, tensor: Any) -> Run:
        return self._exchange(_bytes(output), _bytes(tensor), [], [])

    @_collective
    def all_to_all_v_single(
        self, output: Any, tensor: Any, output_splits: list[int], input_splits: list[int]
    ) -> Run:
        size = from_dlpack(output).element_size()
        lengths = [[size * count for count in splits] for splits in (output_splits, input_splits)]
        return self._exchange(_bytes(output), _bytes(tensor), *lengths)

    def _exchange(
        self, output: torch.Tensor, given: torch.Tensor, to_lengths: list[int], from_lengths: list[int]
    ) -> Run:
        def run() -> None:
            # Gloo sends from the input while it writes the output.
            source = given.clone() if given.data_ptr() == output.data_ptr() else given
            self._group.alltoall_base(output, source, to_lengths, from_lengths).wait()

        return run

    @_collective
    def gather(self, outputs: list[Any], tensor: Any, root: int) -> Run:
        return self._gather([_bytes(output) for output in outputs], tensor, root)

    @_collective
    def gather_single(self, output: Any, tensor: Any, root: int) -> Run:
        if root != self._rank:
            return self._gather([], tensor, root)
        return self._gather([*_bytes(output).tensor_split(self._size)], tensor, root)

    def _gather(self, outputs: list[torch.Tensor], tensor: Any, root: int) -> Run:
        given, options = _bytes(tensor), dist.GatherOptions()
        options.rootRank = root
        lists = [outputs] if root == self._rank else []
        return lambda: self._group.gather(lists, [given], options).wait()

    @_collective
    def scatter(self, output: Any, inputs: list[Any], root: int) -> Run:
        part, options = _bytes(output), dist.ScatterOptions()
        options.rootRank = root
        lists = [[_bytes(one) for one in inputs]] if root == self._rank else []
        return lambda: self._group.scatter([part], lists, options).wait()

    def all_gather_v(self, *_: Any) -> None:
        raise headrace.NotSupported(
            "gloo gathers inputs of one size alone: use all_gather of the largest size, or the backend host"
        )

    def device_all_to_all_v_single(self, *_: Any) -> None:
        raise headrace.NotSupported(
            "gloo takes splits when it is called: use all_to_all_v_single, or the backend host"
        )

    # --- messages

    def send(self, tensor: Any, destination: int, async_op: bool, options: Any) -> Waited:
        self._check_message(destination, options)
        with gloo_errors():
            return Waited(self._group.send([_bytes(tensor)], destination, options.tag))

    def recv(self, tensor: Any, source: int, async_op: bool, options: Any) -> Waited | Received:
        self._check_message(source, options)
        with gloo_errors():
            if source == headrace.any_source:
                return self._recv_from_any(_bytes(tensor), options)
            return Waited(self._group.recv([_bytes(tensor)], source, options.tag))

    def _recv_from_any(self, output: torch.Tensor, options: Any) -> Received:
        """The end of the communicator does not end torch's work, so it writes to memory of its own."""
        room = torch.empty(max(len(output), 1), dtype=torch.uint8)  # gloo takes no empty one
        received = Received()
        with self._lock:
            if self._has_ended:
                raise headrace.Canceled("the communicator has ended")
            work = self._group.recv_anysource([room], options.tag)
            self._receiving.add(received)
        threading.Thread(
            target=self._receive,
            # Longer than the host's limit, which words the error.
            args=(received, work, options.timeout + _LATER if options.timeout else NO_LIMIT, output, room),
            name="headrace-gloo-recv",
            daemon=True,  # the wait may be long
        ).start()
        return received

    def _receive(
        self, received: Received, work: Any, limit: timedelta, output: torch.Tensor, room: torch.Tensor
    ) -> None:
        error = None
        try:
            work.wait(limit)
            received.rank = work._source_rank()
        except RuntimeError as raised:
            error = as_headrace_error(raised)
        with self._lock:
            if received not in self._receiving:
                return
            self._receiving.remove(received)
            if error is None:
                output.copy_(room[: len(output)])
        received.set_result(None) if error is None else received.set_exception(error)

    def _check_message(self, peer: int, options: Any) -> None:
        _refuse_hints(options.hints, "a message")
        if peer == self._rank:
            raise headrace.NotSupported(
                f"gloo sends no message from rank {peer} to itself: copy it, or use the backend host"
            )
        if options.tag > _LAST_TAG:
            raise headrace.NotSupported(f"tag {options.tag}: gloo takes tags up to {_LAST_TAG}")


class Waited:
    """A message for which a thread of Headrace waits: torch's works of messages have no futures."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self) -> None:
        with gloo_errors():
            self._work.wait(NO_LIMIT)


class Received(Future[None]):
    """A message from any rank."""

    rank = headrace.any_source

    def source(self) -> int:
        return self.rank


def _settings(options: Any) -> Any:
    """torch's settings from the hints.

    Errors: InvalidArgument (a hint that there is not, no such interface).
    """
    hints = dict(options.hints)
    interface = hints.pop("interface", os.environ.get("GLOO_SOCKET_IFNAME", ""))
    _refuse_hints(hints, "a communicator", 'but "interface"')
    settings = _ProcessGroupGloo._Options()
    settings._timeout = options.meeting_timeout or NO_LIMIT
    settings._threads = 1  # there is one operation at a time
    settings._devices = [_device(interface)]
    return settings


def _device(interface: str) -> Any:
    """Not lazy: the store, by which ranks connect, is gone when the communicator has opened."""
    if not interface:
        return _ProcessGroupGloo.create_default_device(lazy_init=False)
    try:
        if "," in interface:  # gloo would have connections for each, which _end does not close
            raise RuntimeError("give one interface")
        return _ProcessGroupGloo.create_device(interface=interface, lazy_init=False)
    except RuntimeError as error:
        raise headrace.InvalidArgument(
            f'network interface "{interface}" (hint interface, or GLOO_SOCKET_IFNAME): {error}'
        ) from error


def _refuse_hints(hints: dict[str, str], taker: str, others: str = "") -> None:
    if hints:
        text = f"hints {', '.join(hints)}: {taker} of gloo takes none {others}"
        raise headrace.InvalidArgument(text.rstrip())


def _reduction(elements: torch.Tensor, op: headrace.ReduceOp) -> Any:
    """torch's reduction.

    Errors: NotSupported (gloo does not have it for this type: what it has).
    """
    taken = _REDUCTIONS.get(elements.dtype, [])
    if op.name in taken:
        return getattr(dist.ReduceOp, op.name.upper())
    kind = str(elements.dtype).removeprefix("torch.")
    text = f"of {kind} gloo has {', '.join(taken)}" if taken else f"gloo reduces no {kind}"
    raise headrace.NotSupported(f"{op.name} of {kind}: {text}; the backend host has more")


def _bytes(tensor: Any) -> torch.Tensor:
    return from_dlpack(tensor).view(torch.uint8)
