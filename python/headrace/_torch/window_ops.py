# SPDX-License-Identifier: Apache-2.0
"""Operations of windows as operators of torch, `torch.ops.headrace.window_put` and others: headrace.torch_ops
has what programs call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
from torch._library.custom_ops import CustomOpDef
from torch.utils.dlpack import from_dlpack

import headrace


@dataclass
class _Registered:
    window: headrace.Window
    dtype: torch.dtype
    device: torch.device

    def stream(self) -> int | None:
        """Where put, get and signal run: the current stream of the GPU."""
        if self.device.type == "cpu":
            return None
        return torch._C._cuda_getCurrentRawStream(self.device.index)


_windows: dict[str, _Registered] = {}


def in_order(operator: CustomOpDef) -> CustomOpDef:
    """Says of an operator that its call is an effect: torch.compile leaves none of them out, and keeps their
    order."""
    _register_effectful_op(operator._opoverload, _EffectType.ORDERED)
    return operator


def register_window(window: headrace.Window, name: str) -> str:
    """Makes a window with its memory known to the operators, and keeps it. Returns the name.

    Errors: InvalidArgument (another window of this name is registered; the window has no memory yet).
    """
    memory = from_dlpack(window.get_tensor())
    if _windows.setdefault(name, _Registered(window, memory.dtype, memory.device)).window is not window:
        raise headrace.InvalidArgument(
            f'another window "{name}" is registered: unregister it, or give this one another name'
        )
    return name


def unregister_window(name: str) -> None:
    """Forgets a window. Does nothing if the name is not registered."""
    _windows.pop(name, None)


def _entry(name: str) -> _Registered:
    if name not in _windows:
        known = ", ".join(_windows) or "none"
        raise headrace.NotFound(
            f'no window "{name}" is registered: call register_window(window, name). Registered: {known}'
        )
    return _windows[name]


def _operator(name: str) -> Callable[[Callable[..., object]], CustomOpDef]:
    define = torch.library.custom_op(f"headrace::{name}", mutates_args=())
    return lambda function: in_order(define(function))


@_operator("window_put")
def window_put(input: Tensor, dst_rank: int, offset: int, window: str) -> None:
    """Writes the elements to those of a rank, from its element `offset` on."""
    found = _entry(window)
    plain = input.contiguous().resolve_conj().resolve_neg()
    found.window.put(plain, dst_rank, offset, stream=found.stream())


@_operator("window_get")
def window_get(src_rank: int, offset: int, count: int, window: str) -> Tensor:
    """A new tensor with `count` elements of a rank, also of this one, from its element `offset` on."""
    found = _entry(window)
    output = torch.empty(count, dtype=found.dtype, device=found.device)
    found.window.get(output, src_rank, offset, stream=found.stream())
    return output


@_operator("window_signal")
def window_signal(peer_rank: int, value: int, op: str, window: str) -> None:
    """Changes the word that this rank has at another one. op: "add" or "set"."""
    found = _entry(window)
    found.window.signal(peer_rank, value=value, op=op, stream=found.stream())


@_operator("window_wait_signal")
def window_wait_signal(peer_rank: int, window: str, condition: str | None = None, value: int = 1) -> None:
    """Waits in the call for the word that a rank has here. condition: as of headrace.Window.wait_signal."""
    _entry(window).window.wait_signal(peer_rank, condition=condition, value=value)


@_operator("window_atomic_add")
def window_atomic_add(dst_rank: int, offset: int, value: int, window: str) -> Tensor:
    """Adds to one element of a rank. Returns the value before, an int64 without dimensions."""
    return torch.tensor(_entry(window).window.atomic_add(dst_rank, offset, value), dtype=torch.int64)


@window_put.register_fake
def _(input: Tensor, dst_rank: int, offset: int, window: str) -> None:
    _check_dtype(input, window)


@window_get.register_fake
def _(src_rank: int, offset: int, count: int, window: str) -> Tensor:
    found = _entry(window)
    return torch.empty(count, dtype=found.dtype, device=found.device)


@window_signal.register_fake
def _(peer_rank: int, value: int, op: str, window: str) -> None:
    _entry(window)


@window_wait_signal.register_fake
def _(peer_rank: int, window: str, condition: str | None = None, value: int = 1) -> None:
    _entry(window)


@window_atomic_add.register_fake
def _(dst_rank: int, offset: int, value: int, window: str) -> Tensor:
    _entry(window)
    return torch.empty((), dtype=torch.int64)


def _check_dtype(input: Tensor, window: str) -> None:
    dtype = _entry(window).dtype
    if input.dtype != dtype:
        raise headrace.InvalidArgument(
            f'the tensor is {input.dtype}, window "{window}" has {dtype}: convert it by tensor.to({dtype})'
        )
