# SPDX-License-Identifier: Apache-2.0
"""pplx_garden.utils.torch: devices, profiles, and the values that pass through the layers of a model."""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from logging import Logger
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from torch.profiler import ProfilerActivity
from torch.utils.hooks import RemovableHandle

Call = TypeVar("Call", bound=Callable[..., Any])
Module = TypeVar("Module", bound=torch.nn.Module)

NAMES = {
    torch.int8: "INT8",
    torch.float8_e4m3fn: "FP8",
    torch.bfloat16: "BFP16",
    torch.float16: "FP16",
    torch.float32: "FP32",
}
RED, END = "\x1b[91m", "\x1b[0m"
TINY = 1e-12  # against a division by 0


# --- devices and their memory


def _free_unused() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def cleanup(fn: Call) -> Call:
    """The function, after which memory that nobody uses is given back to the device."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        _free_unused()
        return result

    return wrapper  # type: ignore[return-value]


@contextmanager
def cleanup_context() -> Iterator[None]:
    """Gives memory that nobody uses back to the device, before and after."""
    _free_unused()
    try:
        yield
    finally:
        _free_unused()


def has_cuda() -> bool:
    return torch.cuda.is_available()


def has_fp8() -> bool:
    """Whether the current GPU has 8-bit floating point numbers."""
    return has_cuda() and torch.cuda.get_device_capability() >= (8, 9)


def has_tp(tp: int) -> bool:
    """Whether there are so many GPUs."""
    return has_cuda() and torch.cuda.device_count() >= tp


def has_triton_interpreter() -> bool:
    """Whether Triton runs kernels on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def get_mem_info(device: torch.device) -> tuple[int, int]:
    """Free bytes and all bytes of a GPU; (0, 0) of the CPU."""
    if device.type == "cpu":
        gc.collect()
        return 0, 0
    _free_unused()
    return torch.cuda.mem_get_info(device)


def get_available_mem(device: torch.device) -> int:
    """Free bytes of a GPU."""
    return get_mem_info(device)[0]


class stream_context(ContextDecorator):  # pplx-garden's name
    """Runs work on a stream of its own, which the current stream waits for at the end. Nothing on the CPU."""

    def __init__(self, device: torch.device | None) -> None:
        on_gpu = device is not None and device.type != "cpu"
        self._stream = torch.cuda.Stream() if on_gpu else None
        self._entered: Any = None

    def __enter__(self) -> stream_context:
        if self._stream is not None:
            self._entered = torch.cuda.stream(self._stream)
            self._entered.__enter__()
        return self

    def __exit__(self, *exc: Any) -> Literal[False]:
        if self._stream is not None:
            self._entered.__exit__(*exc)
            torch.cuda.current_stream().wait_stream(self._stream)
        return False


# --- tensors and modules


def str_to_dtype(dtype: str) -> torch.dtype:
    """ "bfloat16" gives torch.bfloat16."""
    return getattr(torch, dtype)  # type: ignore[no-any-return]


def type_to_str(ty: torch.dtype) -> str:
    """Errors: ValueError (a type without a name)."""
    if ty not in NAMES:
        raise ValueError(f"{ty} has no name here: give one of {', '.join(map(str, NAMES))}")
    return NAMES[ty]


def is_weak_contiguous(inp: torch.Tensor) -> bool:
    """Whether it is contiguous, or its elements are all that its storage has from its beginning on."""
    left = inp.untyped_storage().nbytes() - inp.storage_offset() * inp.element_size()
    return inp.is_contiguous() or left == inp.numel() * inp.element_size()


@contextmanager
def set_default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class BorrowedModule(Generic[Module]):
    """Holds a module without making it a child of the module that has this object."""

    def __init__(self, module: Module) -> None:
        self.module = module


# --- profiles


@contextmanager
def profile_range(name: str) -> Iterator[None]:
    """A range for torch's profiler, and for NVTX where there is a GPU."""
    with torch.profiler.record_function(name):
        if not torch.cuda.is_available():
            yield
            return
        with torch.cuda.nvtx.range(name):
            yield


def add_nvtx(module: torch.nn.Module, name: str | None = None) -> None:
    """Marks the forward pass of a module and of all in it by NVTX ranges."""
    own_name = type(module).__name__
    full_name = f"{name}:{own_name}" if name else own_name
    module.register_forward_pre_hook(lambda *_: _nothing(torch.cuda.nvtx.range_push(full_name)))
    module.register_forward_hook(lambda *_: _nothing(torch.cuda.nvtx.range_pop()))
    for child_name, child in module.named_children():
        add_nvtx(child, child_name)


def _nothing(_: object) -> None:
    """What a hook returns that changes no value."""


@contextmanager
def capture_profile(trace_file: Path | None) -> Iterator[None]:
    """Writes a trace of the block for Chrome's viewer; without a file, no trace is taken."""
    if trace_file is None:
        yield
        return
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if has_cuda() else [])]
    with torch.profiler.profile(activities=activities, record_shapes=True) as taken:
        yield
    taken.export_chrome_trace(str(trace_file))


# --- values of layers


def _layers(module: torch.nn.Module) -> Iterator[tuple[str, str, torch.nn.Module]]:
    """Path, "Class@path" and module, of it and of all in it."""
    for path, layer in module.named_modules(remove_duplicate=False):
        yield path, f"{type(layer).__name__}@{path}", layer


def add_logger(module: torch.nn.Module, logger: Logger, negative_filters: list[str] | None = None) -> None:
    """Logs the arguments and the result of a module and of all in it.

    negative_filters: layers whose "Class@path" has one of these in it are not logged.
    """
    for path, name, layer in _layers(module):
        if any(part in name for part in negative_filters or ()):
            continue
        line = "  " * (path.count(".") + 1 if path else 0) + name
        layer.register_forward_pre_hook(_log_last(logger, f"{line} forward"))
        layer.register_forward_hook(_log_last(logger, f"{line} result"))


def _log_last(logger: Logger, text: str) -> Callable[..., None]:
    """A hook that logs the last of its arguments."""

    def log(*given: Any) -> None:
        logger.info("%s: %s", text, given[-1])

    return log


def capture_layer_io(
    module: torch.nn.Module, target_layers: list[str]
) -> tuple[dict[str, dict[str, Any]], list[RemovableHandle]]:
    """Keeps what the layers named "Class@path" get and give, as {"input": ..., "output": ...} of each.

    Returns a dict that each forward pass fills, and the hooks: remove them at the end.
    """
    kept: dict[str, dict[str, Any]] = {}

    def keep(name: str, inputs: tuple[Any, ...], outputs: Any) -> None:
        kept[name] = {"input": inputs, "output": outputs}

    return kept, _hook_layers(module, target_layers, keep)


def _hook_layers(
    module: torch.nn.Module, wanted: list[str], keep: Callable[[str, tuple[Any, ...], Any], None]
) -> list[RemovableHandle]:
    return [
        layer.register_forward_hook(lambda _, inputs, outputs, name=name: keep(name, inputs, outputs))
        for _, name, layer in _layers(module)
        if name in wanted
    ]


@dataclasses.dataclass(frozen=True)
class CapturedLayer:
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]


@dataclasses.dataclass(frozen=True)
class CapturedActivations:
    captured_layers: dict[str, CapturedLayer]
    all_activated_layers: list[str]
    hooks: list[RemovableHandle]

    def cleanup(self) -> None:
        """Removes the hooks."""
        for hook in self.hooks:
            hook.remove()


def copy_layer_io(io: Any) -> list[torch.Tensor]:
    """Copies of a tensor, or of the tensors in a tuple or list; none of anything else."""
    values = io if isinstance(io, (tuple, list)) else [io]
    return [value.clone() for value in values if isinstance(value, torch.Tensor)]


def capture_model_activations(module: torch.nn.Module, target_layers: list[str]) -> CapturedActivations:
    """Keeps copies of the tensors that the layers named "Class@path" get and give, and the names of all."""
    kept: dict[str, CapturedLayer] = {}

    def keep(name: str, inputs: tuple[Any, ...], outputs: Any) -> None:
        kept[name] = CapturedLayer(copy_layer_io(inputs), copy_layer_io(outputs))

    names = [name for _, name, _ in _layers(module)]
    return CapturedActivations(kept, names, _hook_layers(module, target_layers, keep))


def format_activations_diff(
    actual: torch.Tensor,
    expected: torch.Tensor,
    layer_name: str,
    atol: float = 1e-6,
    rtol: float = 1e-6,
) -> str:
    """A line that says how far two tensors are apart; parts in red are not as they should be."""
    actual, expected = actual.squeeze(), expected.squeeze()
    for what in ("shape", "dtype"):
        got, wanted = getattr(actual, what), getattr(expected, what)
        if got != wanted:
            return f"{RED}{layer_name} {what.upper()} MISMATCH{END} - Actual: {got}, Expected: {wanted}"
    expected = expected.to(actual.device).float()
    actual = actual.float()

    apart = (actual - expected).abs()
    l2, length = torch.linalg.vector_norm(apart).item(), torch.linalg.vector_norm(expected).item()
    cosine = torch.nn.functional.cosine_similarity(actual.flatten(), expected.flatten(), dim=0).item()
    beyond = _percent_in_red(apart > atol), _percent_in_red(apart / (expected.abs() + TINY) > rtol)
    return (
        f"{layer_name} L2 Abs.Diff: {l2:.6f} L2 Rel.Diff: {l2 / (length + TINY):.6f} "
        f"COS: {cosine:.4f} SNR: {length / (l2 + TINY):.2f} ATOL: {beyond[0]} RTOL: {beyond[1]} "
        f"Avg: {apart.mean().item():.6f} Max: {apart.max().item():.6f} "
        f"Std: {(actual - expected).std().item():.6f}"
    )


def _percent_in_red(wrong: torch.Tensor) -> str:
    percent = 100 * wrong.sum().item() / wrong.numel()
    return f"{RED}{percent:.1f}%{END}" if percent > 0 else f"{percent:.1f}%"
