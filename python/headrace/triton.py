# SPDX-License-Identifier: Apache-2.0
"""Windows in kernels of Triton: put, signals, counters, fences, barriers, and memory of peers.

    import headrace.triton as windows

    @triton.jit
    def send(window, source, bytes):
        windows.put(window, 1, 0, source, bytes)  # to rank 1, by all threads of the program
        windows.signal(window, 1, 0, 1)           # adds 1 to its signal 0, after these bytes

    @triton.jit
    def receive(window, late):
        if windows.wait_signal(window, 0, 0, "ge", 1) == 0:
            tl.store(late, 1)

    send[(1,)](window.get_device_window(), tensor, 4096, extern_libs=windows.extern_libs())

They are those of `headrace/device/window.cuh` at the scope of a block: a program calls them as a whole, with
numbers, not with tensors of them, and gets the same answer in all its threads. `window` is what
Window.get_device_window() gives. Needs Triton 3.4 or newer.
"""

from __future__ import annotations

import os
from typing import Any, TypeVar

import triton.language as tl
from triton.language import core

import headrace

__all__ = [
    "add_counter",
    "barrier",
    "barrier_at",
    "extern_libs",
    "fence",
    "flush",
    "peer_address",
    "peer_bytes",
    "put",
    "rank",
    "read_counter",
    "read_signal",
    "reset_counter",
    "reset_signal",
    "signal",
    "size",
    "wait_counter",
    "wait_signal",
]


def extern_libs() -> dict[str, str]:
    """What a kernel that calls these functions is launched with, as the argument `extern_libs`.

    Errors: NotSupported (this build has no bitcode).
    """
    path = os.path.join(os.path.dirname(headrace.__file__), "lib", "headrace_window.bc")
    if not os.path.exists(path):
        raise headrace.NotSupported(
            f"{path} does not exist: Headrace was built where no clang compiles for NVIDIA's GPUs. "
            "Install clang 16 or newer and build again"
        )
    return {"headrace_window": path}


Function = TypeVar("Function")

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")  # as headrace::device::Comparison counts them
_SCOPES = ("thread", "warp", "block")


def _extern(function: Function) -> Function:
    extern: Function = core.extern(function)
    return extern


def _plain(value: Any) -> Any:
    return getattr(value, "value", value) if isinstance(value, tl.constexpr) else value


def _one_of(value: Any, known: tuple[str, ...], what: str) -> str:
    value = _plain(value)
    if value not in known:
        raise ValueError(f"{what} is {value!r}: give one of {', '.join(known)}")
    return str(value)


def _call(name: str, types: str, arguments: list[Any], semantic: Any, answer: str = "int32") -> Any:
    """Calls a function of the bitcode. types: of its arguments, i for 32 bits and l for 64."""
    wanted = [tl.int32 if letter == "i" else tl.int64 for letter in types]
    numbers = [semantic.cast(semantic.to_tensor(given), dtype) for given, dtype in zip(arguments, wanted)]
    if any(number.type.is_block() for number in numbers):
        raise ValueError(f"{name} takes numbers, one for a program: it was given a tensor of them")
    symbol = (f"headrace_window_{name}", core.dtype(answer))
    return core.extern_elementwise("", "", numbers, {tuple(wanted): symbol}, False, _semantic=semantic)


def _holds(answer: Any, semantic: Any) -> Any:
    return semantic.not_equal(answer, semantic.to_tensor(0))


def _read(address: Any, semantic: Any) -> Any:
    """One thread reads, and all are told."""
    word = semantic.cast(address, tl.pointer_type(tl.int64))
    zero = semantic.cast(semantic.to_tensor(0), tl.int64)
    return core.atomic_add(word, zero, sem="acquire", scope="sys", _semantic=semantic)


# --- ranks and their memory


@_extern
def rank(window: Any, _semantic: Any = None) -> Any:
    return _call("rank", "l", [window], _semantic)


@_extern
def size(window: Any, _semantic: Any = None) -> Any:
    return _call("size", "l", [window], _semantic)


@_extern
def peer_address(window: Any, rank: Any, dtype: Any, _semantic: Any = None) -> Any:
    """The elements of a rank as a pointer to `dtype` (tl.float32), for tl.load and tl.store; 0: it has none.

    A later signal or barrier shows the rank what was stored.
    """
    address = _call("peer_address", "li", [window, rank], _semantic, "int64")
    return _semantic.cast(address, tl.pointer_type(_plain(dtype)))


@_extern
def peer_bytes(window: Any, rank: Any, _semantic: Any = None) -> Any:
    return _call("peer_bytes", "li", [window, rank], _semantic, "int64")


@_extern
def put(
    window: Any, rank: Any, at_byte: Any, source: Any, bytes: Any, scope: Any = "block", _semantic: Any = None
) -> Any:
    """Writes bytes to the elements of a rank, from its byte `at_byte` on. False: they do not fit, and nothing
    was written.

    source: a pointer. What the program has stored there before is among the bytes.
    scope: what copies: all threads of the program ("block"), its first "warp", or its first "thread".
    """
    name = "put_" + _one_of(scope, _SCOPES, "scope")
    return _holds(_call(name, "lilll", [window, rank, at_byte, source, bytes], _semantic), _semantic)


@_extern
def fence(window: Any, _semantic: Any = None) -> Any:
    """Orders what each thread has written before what it writes later, for all GPUs and the CPU."""
    return _call("fence", "l", [window], _semantic)


@_extern
def flush(window: Any, _semantic: Any = None) -> Any:
    """What the program has put or stored is in the memory of its ranks before anything that it does later."""
    return _call("flush", "l", [window], _semantic)


# --- signals


@_extern
def signal(window: Any, rank: Any, number: Any, value: Any, kind: Any = "add", _semantic: Any = None) -> Any:
    """Changes signal `number` that this rank has at another one, after all that the program has put or
    stored.

    kind: "add" or "set".
    """
    name = "signal_" + _one_of(kind, ("add", "set"), "kind")
    return _call(name, "liil", [window, rank, number, value], _semantic)


@_extern
def wait_signal(
    window: Any, rank: Any, number: Any, comparison: Any, value: Any, _semantic: Any = None
) -> Any:
    """Waits until signal `number` of a rank compares so with a value: "eq", "ne", "lt", "le", "gt" or "ge".
    False: it is late, or the communicator has ended."""
    index = _COMPARISONS.index(_one_of(comparison, _COMPARISONS, "comparison"))
    return _holds(_call("wait_signal", "liiil", [window, rank, number, index, value], _semantic), _semantic)


@_extern
def read_signal(window: Any, rank: Any, number: Any, _semantic: Any = None) -> Any:
    return _read(_call("signal_word", "lii", [window, rank, number], _semantic, "int64"), _semantic)


@_extern
def reset_signal(window: Any, rank: Any, number: Any, _semantic: Any = None) -> Any:
    """By the rank that waits, while no signal is on its way."""
    return _call("reset_signal", "lii", [window, rank, number], _semantic)


# --- counters of this rank, between its own programs and kernels


@_extern
def add_counter(window: Any, number: Any, value: Any, _semantic: Any = None) -> Any:
    """Adds to a counter, after all that the program has done."""
    return _call("add_counter", "lil", [window, number, value], _semantic)


@_extern
def wait_counter(window: Any, number: Any, comparison: Any, value: Any, _semantic: Any = None) -> Any:
    """As wait_signal, for a counter."""
    index = _COMPARISONS.index(_one_of(comparison, _COMPARISONS, "comparison"))
    return _holds(_call("wait_counter", "liil", [window, number, index, value], _semantic), _semantic)


@_extern
def read_counter(window: Any, number: Any, _semantic: Any = None) -> Any:
    return _read(_call("counter_word", "li", [window, number], _semantic, "int64"), _semantic)


@_extern
def reset_counter(window: Any, number: Any, _semantic: Any = None) -> Any:
    return _call("reset_counter", "li", [window, number], _semantic)


# --- all ranks


@_extern
def barrier(window: Any, number: Any, _semantic: Any = None) -> Any:
    """Waits until all ranks have called it as often with this number, one program of each rank at a time.
    What they have put or stored before is seen then. False: a rank is late, or the communicator has ended;
    then the barrier of this number can be used no more."""
    return _holds(_call("barrier", "li", [window, number], _semantic), _semantic)


@_extern
def barrier_at(window: Any, at_byte: Any, _semantic: Any = None) -> Any:
    """The same with words among the elements, for as many barriers as are needed: size(window) words of 8
    bytes from that byte on, at the same place on all ranks, 0 at first. That of this rank counts its calls.
    """
    return _holds(_call("barrier_at", "ll", [window, at_byte], _semantic), _semantic)
