# SPDX-License-Identifier: Apache-2.0
"""Communicators whose backend is a Python class: calls its methods with what the compiled part passes on.

The compiled module imports this file at first use.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import errors
from ._headrace import Work, is_comm_backend_left_out, list_comm_backends, register_backend

if TYPE_CHECKING:
    from ._headrace import CommLink, ReduceOp, Tensor

GROUP = "headrace.comm_backends"
_loading = threading.Lock()
_registering = threading.Lock()
_has_registered = False


def register_own() -> None:
    """Registers the backends of Headrace that are Python classes. list_comm_backends calls it."""
    global _has_registered
    with _registering:
        if _has_registered:
            return
        _has_registered = True
        from ._gloo import NAME, Gloo

        if is_comm_backend_left_out(NAME):
            return
        try:
            register_backend(NAME, Gloo)
        except errors.InvalidArgument:
            pass  # the program has one of this name


def load(name: str) -> None:
    """Registers the backend of a name: one of Headrace, or the entry point of an installed package."""
    register_own()
    with _loading:
        if name in list_comm_backends():
            return
        for point in importlib.metadata.entry_points(group=GROUP, name=name):
            register_backend(name, point.load())
            return


@dataclass
class Store:
    """Where the ranks find each other, as torch's Stores: only while a communicator opens."""

    _link: CommLink
    _timeout: datetime.timedelta | None

    def set(self, key: str, value: str | bytes) -> None:
        self._link.set(key, value.encode() if isinstance(value, str) else value)

    def check(self, keys: list[str]) -> bool:
        return all(self._link.get(key) is not None for key in keys)

    def get(self, key: str) -> bytes:
        self.wait([key])
        value = self._link.get(key)
        assert value is not None
        return value

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        limit = self._timeout if timeout is None else timeout
        end = math.inf if limit is None else time.monotonic() + limit.total_seconds()
        while not self.check(keys):
            if time.monotonic() >= end:
                raise errors.TimedOut(f"no value for one of {keys} within {limit}")
            time.sleep(0.002)


@dataclass
class Options:
    """What a communicator is opened or split with: the third argument of init and split."""

    rank: int
    size: int
    ranks: list[int]
    timeout: datetime.timedelta | None
    meeting_timeout: datetime.timedelta | None
    hints: dict[str, str]
    store: Store
    ended: Callable[[BaseException], None]
    """Ends the communicator on this rank, from any thread: another rank has ended it, or is gone."""


@dataclass
class CallOptions:
    """What goes with one call: the last argument of every operation."""

    timeout: datetime.timedelta | None
    hints: dict[str, str]
    tag: int
    number: int


@dataclass
class Call:
    """One call, as the compiled part has it."""

    operation: str
    work: int
    inputs: list[Tensor]
    outputs: list[Tensor]
    input_splits: list[int]
    output_splits: list[int]
    op: ReduceOp
    peer: int
    async_op: bool
    options: CallOptions = field(repr=False)

    def arguments(self) -> tuple[Any, ...]:
        """Returns what the method of the operation's name takes before async_op and options."""
        output = self.outputs[0] if self.outputs else None
        match self.operation:
            case "barrier":
                return ()
            case "send":
                return self.inputs[0], self.peer
            case "recv" | "broadcast":
                return output, self.peer
            case "all_reduce":
                return output, self.op
            case "reduce":
                return output, self.peer, self.op
            case "all_gather" | "all_gather_v":
                return self.outputs, self.inputs[0]
            case "all_gather_single" | "all_to_all_single":
                return output, self.inputs[0]
            case "reduce_scatter" | "reduce_scatter_v":
                return output, self.inputs, self.op
            case "reduce_scatter_single":
                return output, self.inputs[0], self.op
            case "all_to_all":
                return self.outputs, self.inputs
            case "all_to_all_v_single":
                return output, self.inputs[0], self.output_splits, self.input_splits
            case "device_all_to_all_v_single":
                return output, *self.inputs
            case "gather":
                return self.outputs, self.inputs[0], self.peer
            case "gather_single":
                return output, self.inputs[0], self.peer
            case "scatter":
                return output, self.inputs, self.peer
        raise errors.NotSupported(f"no operation {self.operation} of Python backends")


def open_comm(cls: type, link: CommLink, name: str, /, **setup: Any) -> Adapter:
    """Opens a communicator on a class."""
    options = _options(link, **setup)
    with _refusals():
        backend = cls()
        backend.init("cpu", name, options)
    return Adapter(backend, link)


def _options(link: CommLink, timeout: float | None, meeting_timeout: float | None, **setup: Any) -> Options:
    meeting = _timedelta(meeting_timeout)
    store = Store(link, meeting)
    return Options(
        timeout=_timedelta(timeout), meeting_timeout=meeting, store=store, ended=link.ended, **setup
    )


def _timedelta(seconds: float | None) -> datetime.timedelta | None:
    return None if seconds is None else datetime.timedelta(seconds=seconds)


@contextmanager
def _refusals() -> Iterator[None]:
    """Raises Python's own errors that refuse a call as those of Headrace."""
    try:
        yield
    except errors.Error:
        raise
    except NotImplementedError as error:
        raise errors.NotSupported(str(error) or f"it raised {error!r}") from error
    except ValueError as error:
        raise errors.InvalidArgument(str(error) or f"it raised {error!r}") from error


def _waited_for(result: Any) -> Future[None]:
    future: Future[None] = Future()

    def wait() -> None:
        try:
            result.wait()
        except BaseException as error:  # all of them end the work
            future.set_exception(error)
        else:
            future.set_result(None)

    # A daemon: a wait that never ends does not keep the process.
    threading.Thread(target=wait, name="headrace-backend", daemon=True).start()
    return future


class Adapter:
    """One communicator: an object of the class, and the link to the compiled part."""

    def __init__(self, backend: Any, link: CommLink) -> None:
        self._backend = backend
        self._link = link
        self._registered: dict[int, Tensor] = {}
        self._last_registration = 0

    def issue(self, timeout: float | None, hints: dict[str, str], tag: int, number: int, **call: Any) -> bool:
        """Begins an operation. Returns whether it goes on: then the link ends it."""
        options = CallOptions(_timedelta(timeout), hints, tag, number)
        one = Call(options=options, **call)
        method = self._method(one.operation)
        try:
            with _refusals():
                result = method(*one.arguments(), one.async_op, options)
            future = None if result is None else self._future_of(result)
        except (errors.InvalidArgument, errors.NotSupported):  # refused: nothing has begun
            raise
        except BaseException as error:  # it may have moved something: the communicator ends
            self._link.end(one.work, error, -1)
            return True
        if future is None:
            return False
        future.add_done_callback(lambda future: self._end(one, result, future))
        return True

    def abort(self, reason: str) -> None:
        if hasattr(self._backend, "abort"):
            self._backend.abort(reason)

    def close(self) -> None:
        if hasattr(self._backend, "finalize"):
            self._backend.finalize()

    def split(self, group: list[int], name: str, link: CommLink | None, /, **setup: Any) -> Adapter | None:
        options = None if link is None else _options(link, **setup)
        with _refusals():
            part = self._method("split")(group, name, options)
        if link is None:
            return None
        if part is None:
            raise errors.BackendFailed(
                f"split of {type(self._backend).__name__} returned None for a rank of it"
            )
        return Adapter(part, link)

    def tensor_register(self, tensor: Tensor) -> int:
        """Returns the number for tensor_deregister."""
        if hasattr(self._backend, "tensor_register"):
            with _refusals():
                self._backend.tensor_register(tensor)
        self._last_registration += 1
        self._registered[self._last_registration] = tensor
        return self._last_registration

    def tensor_deregister(self, number: int) -> None:
        if hasattr(self._backend, "tensor_deregister"):
            with _refusals():
                self._backend.tensor_deregister(self._registered[number])
        del self._registered[number]

    def set_hints(self, hints: dict[str, str]) -> None:
        with _refusals():
            self._method("set_hints")(hints)

    def set_timeout(self, timeout: float | None) -> None:
        if hasattr(self._backend, "set_timeout"):
            self._backend.set_timeout(_timedelta(timeout))

    def _method(self, name: str) -> Any:
        method = getattr(self._backend, name, None)
        if method is None:
            raise errors.NotSupported(f"{type(self._backend).__name__} has no method {name}")
        return method

    @staticmethod
    def _future_of(result: Any) -> Future[Any]:
        """A future, a Work, or another object with a method wait, for which a thread waits.

        Of a receive a Work, and an object with a method source, tells which rank has sent."""
        if isinstance(result, Future):
            return result
        if isinstance(result, Work):
            return result.get_future()
        if not hasattr(result, "wait"):
            raise errors.BackendFailed(
                f"an operation returned {result!r}: return None, a Future or an object with a method wait"
            )
        return _waited_for(result)

    def _end(self, call: Call, result: Any, future: Future[Any]) -> None:
        error = errors.Canceled("its future was cancelled") if future.cancelled() else future.exception()
        source = call.peer
        if call.operation == "recv" and error is None and hasattr(result, "source"):
            source = result.source()
        self._link.end(call.work, error, source)
