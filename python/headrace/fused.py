# SPDX-License-Identifier: Apache-2.0
"""An all_reduce whose kernel ends in residual add, RMSNorm and a cast to fp8, for tensors of torch.

    fused = headrace.fused.FusedAllReduce(comm, columns=hidden, dtype=torch.bfloat16)  # all ranks
    for layer in layers:
        partial = layer(normed)  # each rank has a part of the sum
        normed = fused.rms_norm(partial, layer.weight, residual=residual)

On a GPU it is one kernel of Triton a call, in the order of the current stream, and may be captured in a CUDA
graph. On the CPU it is an all_reduce and then `reference`. As an operator, for torch.compile:

    headrace.fused.register(fused, "hidden")
    normed = torch.ops.headrace.all_reduce_rms_norm(partial, weight, 1e-6, residual, None, "hidden")
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import headrace

FP8 = torch.float8_e4m3fn
_MOST_FP8 = 448.0
_WORD_BYTES = 8


def reference(
    total: Tensor, weight: Tensor, epsilon: float, residual: Tensor | None, scale: Tensor | None
) -> Tensor:
    """What the kernel computes of the sum of all ranks, in float32. Changes the residual."""
    sum = total.float()
    if residual is not None:
        sum = sum + residual.float()
        residual.copy_(sum.to(residual.dtype))
    normed = sum * torch.rsqrt(sum.square().mean(-1, keepdim=True) + epsilon) * weight.float()
    if scale is None:
        return normed.to(total.dtype)
    return (normed / scale).clamp(-_MOST_FP8, _MOST_FP8).to(FP8)


class FusedAllReduce:
    """Rows of one length, reduced by all ranks of a communicator.

    The ranks' GPUs map each other's memory, so on a GPU the communicator is of `p2p`, or of `auto` where that
    opens. A call moves each row to all ranks at once: it is made for few rows, as a model decodes.
    Owns: GPU memory of 2 * programs * size rows, until `close`. It keeps the communicator.
    Threads: one at a time.
    """

    def __init__(self, comm: headrace.Comm, columns: int, dtype: torch.dtype, *, programs: int = 32) -> None:
        """All ranks call it, with the same arguments.

        dtype: torch.bfloat16, torch.float16 or torch.float32.
        programs: rows that are under way at a time, each on a multiprocessor: at most as many as the GPU has.
        Errors: InvalidArgument, NotSupported (the communicator has no windows for kernels; Triton or the
        bitcode is missing).
        """
        if dtype not in (torch.bfloat16, torch.float16, torch.float32):
            raise headrace.InvalidArgument(f"dtype is {dtype}: give torch.bfloat16, float16 or float32")
        if not 0 < columns <= 65536 or programs < 1:
            text = f"{columns} columns and {programs} programs: give 1 to 65536 columns, 1 program or more"
            raise headrace.InvalidArgument(text)
        self._comm, self._columns, self._dtype, self._programs = comm, columns, dtype, programs
        self._device = torch.device(comm.get_device())
        self._window: headrace.Window | None = None
        if self._device.type != "cpu":
            self._open()

    def _open(self) -> None:
        kernels, self._libraries = _load()
        self._kernel = kernels.reduce_rms_norm
        size = self._comm.get_size()
        self._block = max(128, 1 << (self._columns - 1).bit_length())
        words = self._programs * size * _WORD_BYTES
        self._data_bytes = -(-words // 256) * 256  # behind the words of the barriers
        slots = 2 * self._programs * size * self._block * self._dtype.itemsize
        self._memory = torch.zeros(self._data_bytes + slots, dtype=torch.uint8, device=self._device)
        self._late = torch.zeros(1, dtype=torch.int32, device=self._device)
        torch.cuda.synchronize(self._device)  # zeros, before another rank writes
        self._window = self._comm.new_window(self._memory)
        self._handle = self._window.get_device_window()

    def rms_norm(
        self,
        input: Tensor,
        weight: Tensor,
        epsilon: float = 1e-6,
        *,
        residual: Tensor | None = None,
        scale: Tensor | None = None,
        output: Tensor | None = None,
    ) -> Tensor:
        """The RMSNorm of the sum of all ranks' input, plus the residual. All ranks call it, with the same
        number of rows.

        input: (rows, columns) of the dtype, contiguous. Not changed.
        weight: (columns,), of any float type.
        residual: like input: it becomes the sum with it, which the next layer adds to.
        scale: one float32: the result is divided by it, and cast to float8_e4m3fn.
        output: of the result's type; None: a new tensor.
        Errors: InvalidArgument (a shape, type or device).
        """
        self._check(input, weight, residual, scale, output)
        if output is None:
            output = torch.empty_like(input, dtype=self._dtype if scale is None else FP8)
        if self._window is None:
            total = input.clone()
            self._comm.all_reduce(total, headrace.ReduceOp.SUM)
            return output.copy_(reference(total, weight, epsilon, residual, scale))
        if input.shape[0] > 0:
            self._launch(input, weight, epsilon, residual, scale, output)
        return output

    def _launch(
        self,
        input: Tensor,
        weight: Tensor,
        epsilon: float,
        residual: Tensor | None,
        scale: Tensor | None,
        output: Tensor,
    ) -> None:
        rows = input.shape[0]
        with torch.cuda.device(self._device):
            self._kernel[(min(rows, self._programs),)](
                self._handle,
                input,
                input if residual is None else residual,
                weight,
                self._late if scale is None else scale,
                output,
                self._late,
                rows,
                epsilon,
                COLUMNS=self._columns,
                RANKS=self._comm.get_size(),
                PROGRAMS=self._programs,
                DATA=self._data_bytes // self._dtype.itemsize,
                BLOCK=self._block,
                HAS_RESIDUAL=residual is not None,
                HAS_SCALE=scale is not None,
                num_warps=min(16, max(1, self._block // 512)),
                extern_libs=self._libraries,
            )

    def check(self) -> None:
        """Waits for the current stream, and raises TimedOut if a call has ended early: a rank was late, or
        the communicator has ended. Results are undefined then, and this object can be used no more."""
        if self._window is not None and self._late.item():
            raise headrace.TimedOut(
                f'rank {self._comm.get_rank()}, rms_norm of "{self._comm.get_name()}": a rank has not come '
                "within the timeout, or the communicator has ended"
            )

    def close(self) -> None:
        """Gives the memory back. All ranks call it, when no call or replay is under way on any of them."""
        if self._window is None:
            return
        torch.cuda.synchronize(self._device)
        self._window.tensor_deregister()
        self._window = None

    def _check(
        self,
        input: Tensor,
        weight: Tensor,
        residual: Tensor | None,
        scale: Tensor | None,
        output: Tensor | None,
    ) -> None:
        rows = input.shape[0] if input.dim() == 2 else 0
        result = self._dtype if scale is None else FP8
        self._expect("input", input, (rows, self._columns), self._dtype)
        self._expect("weight", weight, (self._columns,), weight.dtype)
        if residual is not None:
            self._expect("residual", residual, (rows, self._columns), self._dtype)
        if output is not None:
            self._expect("output", output, (rows, self._columns), result)
        if scale is not None:
            self._expect("scale", scale.reshape(-1), (1,), torch.float32)

    def _expect(self, name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        if (
            tuple(tensor.shape) == shape
            and tensor.dtype == dtype
            and tensor.device == self._device
            and tensor.is_contiguous()
        ):
            return
        raise headrace.InvalidArgument(
            f"{name} is {tensor.dtype} of shape {list(tensor.shape)} on {tensor.device}: give a contiguous "
            f"tensor of {dtype}, shape {list(shape)}, on {self._device}"
        )


_registered: dict[str, FusedAllReduce] = {}


def register(fused: FusedAllReduce, name: str) -> str:
    """Makes it known to the operator by a name, and keeps it. Returns the name.

    Errors: InvalidArgument (another one of this name is registered).
    """
    if _registered.setdefault(name, fused) is not fused:
        raise headrace.InvalidArgument(
            f'another FusedAllReduce "{name}" is registered: unregister it, or give this one another name'
        )
    return name


def unregister(name: str) -> None:
    """Forgets it. Does nothing if the name is not registered."""
    _registered.pop(name, None)


@torch.library.custom_op("headrace::all_reduce_rms_norm", mutates_args=("residual",))
def all_reduce_rms_norm(
    input: Tensor, weight: Tensor, epsilon: float, residual: Tensor | None, scale: Tensor | None, name: str
) -> Tensor:
    """FusedAllReduce.rms_norm of the one of this name. It has no gradient."""
    if name not in _registered:
        known = ", ".join(_registered) or "none"
        raise headrace.NotFound(
            f'no FusedAllReduce "{name}" is registered: call register(fused, name). Registered: {known}'
        )
    return _registered[name].rms_norm(input, weight, epsilon, residual=residual, scale=scale)


@all_reduce_rms_norm.register_fake
def _(
    input: Tensor, weight: Tensor, epsilon: float, residual: Tensor | None, scale: Tensor | None, name: str
) -> Tensor:
    return torch.empty_like(input, dtype=input.dtype if scale is None else FP8)


def _load() -> tuple[Any, dict[str, str]]:
    try:
        from . import _fused_kernels, triton
    except ImportError as error:
        raise headrace.NotSupported(f"the kernel is one of Triton: install triton ({error})") from None
    return _fused_kernels, triton.extern_libs()
