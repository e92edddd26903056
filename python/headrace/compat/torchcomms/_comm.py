# SPDX-License-Identifier: Apache-2.0
"""torchcomms' communicator over headrace.Comm."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from itertools import count
from typing import Any, NoReturn
from weakref import WeakValueDictionary

import torch
from torch import Tensor

import headrace
from headrace import torch_tools
from headrace._torch.errors import as_torch_error
from headrace._torch.on_gpu import OnGpu
from headrace._torch.tensors import split_elements

from . import _hook_args as told
from ._batch import BatchSendRecv
from ._hook_args import Callback, RemovableHandle
from ._types import CommOptions, OpName, ReduceOp
from ._window import TorchCommWindow
from ._work import DONE, GlooWork, TorchWork

Hints = dict[str, str] | None
Timeout = timedelta | None
Tensors = list[Tensor]

_ON_GPUS = {"auto", "nccl", "ncclx", "p2p"}
_KNOWN_HINTS = {hint.name for hint in headrace.list_comm_hints()} | {"algorithm"}


def known(hints: Hints) -> Hints:
    """The hints that Headrace has. Backends drop those of other backends, as torchcomms' do."""
    return {name: value for name, value in hints.items() if name in _KNOWN_HINTS} if hints else None


_keys = count(1)
_by_key: WeakValueDictionary[str, TorchComm] = WeakValueDictionary()


def comm_of_key(key: str) -> TorchComm:
    """The communicator that a compiled program was traced with."""
    comm = _by_key.get(key)
    if comm is None:
        raise RuntimeError(
            f"the communicator {key} of this compiled program is gone: compile it again with one that is open"
        )
    return comm


def open_comms() -> list[TorchComm]:
    """The communicators of this process that are in use and not finalized."""
    return [comm for comm in _by_key.values() if not comm.is_finalized]


class _NotYet:
    """Stands for the communicator until the first reconfigure."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(
            "the communicator has no ranks yet: it was made with enable_reconfigure=True, so call "
            "reconfigure first"
        )


class TorchComm:
    """One rank of a communicator, from new_comm or split.

    Operations take tensors of its device, contiguous, of any shape. With async_op they return at once, and
    the work waits. On a GPU they run on the current stream, and no call waits on the host.
    timeout: a timedelta; None: the communicator's. hints: those of headrace.list_comm_hints().
    Errors: RuntimeError, which is the headrace.Error that says more. An operation that fails ends the
    communicator on all ranks.
    Threads: any.
    """

    def __init__(
        self, comm: Any, backend: str, name: str, options: CommOptions, *, is_ready: bool = True
    ) -> None:
        """Of new_comm and split: programs do not call it."""
        self._member = comm  # of the init handle
        self._comm: Any = _of_its_device(comm) if is_ready else _NotYet()
        self._backend = backend
        self._new_work: Callable[[Any], TorchWork] = GlooWork if backend == "gloo" else TorchWork
        self._name = name
        self._options = options
        self._pre: list[Callback] = []
        self._post: list[Callback] = []
        self._abort_hooks: list[_AbortHook] = []
        self._followers: list[Callable[[Any], object]] = []
        self._numbers = count()
        self.key = f"{name}:{next(_keys)}"
        """Names it in compiled programs of this process."""
        _by_key[self.key] = self
        self.is_finalized = False

    def __copy__(self) -> TorchComm:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TorchComm:
        memo[id(self)] = self  # a communicator is not copied: other ranks take part in making one
        return self

    # --- what it is

    def get_rank(self) -> int:
        rank: int = self._comm.get_rank()
        return rank

    def get_size(self) -> int:
        size: int = self._comm.get_size()
        return size

    def get_ranks(self) -> list[int]:
        """The ranks as those of the communicator that was opened first."""
        ranks: list[int] = self._comm.get_ranks()
        return ranks

    def get_name(self) -> str:
        return self._name

    def get_options(self) -> CommOptions:
        return self._options

    def get_device(self) -> torch.device:
        return torch.device(self._member.get_device())

    def get_backend(self) -> str:
        """The name that the program gave to new_comm."""
        return self._backend

    def get_backend_version(self) -> str:
        version: str = self._member.get_backend_version()
        return version

    def get_backend_impl(self) -> Any:
        """The headrace.Comm; of a backend in Python its object."""
        return getattr(self._member, "backend", self._member)

    def unsafe_get_backend(self) -> Any:
        """get_backend_impl, as it was called before."""
        warnings.warn(
            "unsafe_get_backend() is deprecated, use get_backend_impl() instead.",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.get_backend_impl()

    def set_timeout(self, timeout: timedelta) -> None:
        """That of operations that begin later."""
        self._checked(self._member.set_timeout, timeout)
        self._options.timeout = timeout

    def set_hints(self, hints: dict[str, str]) -> None:
        """Changes hints of Headrace, on every rank alike."""
        self._checked(self._member.set_hints, known(hints) or {})
        self._options.hints |= hints

    # --- its end, and other communicators

    def finalize(self) -> None:
        """Waits for operations that are queued, and leaves."""
        self.is_finalized = True
        self._control(
            told.FinalizePreHookArgs(),
            told.FinalizePostHookArgs(),
            lambda: self._checked(self._member.finalize),
        )

    def abort(self) -> None:
        """Ends every operation on all ranks. After it, reconfigure makes a new communicator."""
        self._member.abort()

    def is_abort_supported(self) -> bool:
        return True

    def is_aborted(self) -> bool:
        aborted: bool = self._member.is_aborted()
        return aborted

    def split(
        self, ranks: list[int], name: str, hints: Hints = None, timeout: Timeout = None
    ) -> TorchComm | None:
        """Makes a communicator of some ranks. All ranks call it; those with an empty list get None."""
        comm = self._control(
            told.SplitPreHookArgs(ranks, name),
            told.SplitPostHookArgs(),
            lambda: self._checked(self._comm.split, ranks, name, known(hints), timeout),
        )
        if comm is None:
            return None
        options = CommOptions()
        options.abort_process_on_timeout_or_error = self._options.abort_process_on_timeout_or_error
        options.timeout = timeout or self._options.timeout
        options.hints = hints if hints is not None else self._options.hints
        part = TorchComm(comm, self._backend, name, options)
        for follower in self._followers:
            part.follow(follower)
        return part

    def get_init_handle(self) -> str:
        """This rank as reconfigure takes it, for the program to bring to all ranks."""
        handle: bytes = self._checked(self._member.get_init_handle)
        return handle.hex()

    def reconfigure(
        self,
        uuid: int,
        init_handles: Iterable[str],
        timeout: Timeout = None,
        hints: Hints = None,
    ) -> TorchWork:
        """Makes this a communicator of the ranks behind these handles. Each of them calls it.

        uuid: the same on all of them, another one for each call.
        init_handles: a list has the ranks in order; of a set Headrace chooses the order.
        Returns: a work that is done. The init handle is another one afterwards.
        """
        ordered = sorted(init_handles) if isinstance(init_handles, (set, frozenset)) else init_handles
        handles = [_bytes_of(handle) for handle in ordered]
        comm = self._checked(
            self._member.reconfigure, str(uuid), handles, known(hints), None, meeting_timeout=timeout
        )
        former, self._member = self._member, comm
        self._comm = _of_its_device(comm)
        for hook in self._abort_hooks:
            hook.renew(comm)
        for follower in self._followers:
            follower(comm)
        _leave(former)
        return DONE

    # --- hooks

    def register_pre_hook(self, callback: Callback) -> RemovableHandle:
        """Calls callback(name, op_id, args) before each operation. An exception refuses the operation."""
        return told.add(self._pre, callback)

    def register_post_hook(self, callback: Callback) -> RemovableHandle:
        """Calls callback(op_id, args) when the call of an operation returns."""
        return told.add(self._post, callback)

    def register_abort_hook(self, callback: Callable[[], object]) -> RemovableHandle:
        """Calls callback() when the communicator ends by an abort or an operation that failed."""
        hook = _AbortHook(callback, self._member)
        self._abort_hooks.append(hook)

        def remove() -> None:
            self._abort_hooks.remove(hook)
            hook.remove()

        return RemovableHandle(remove)

    def follow(self, follower: Callable[[Any], object]) -> None:
        """Calls it with the headrace.Comm, and with that of every communicator that this one makes. For hooks
        of Headrace."""
        follower(self._member)
        self._followers.append(follower)

    # --- operations

    def send(
        self, tensor: Tensor, dst: int, async_op: bool, hints: Hints = None, timeout: Timeout = None
    ) -> TorchWork:
        call = async_op, hints, timeout
        return self._start(self._comm.send, (tensor, dst), call, told.SendPreHookArgs, (tensor, dst))

    def recv(
        self, tensor: Tensor, src: int, async_op: bool, hints: Hints = None, timeout: Timeout = None
    ) -> TorchWork:
        call = async_op, hints, timeout
        return self._start(self._comm.recv, (tensor, src), call, told.RecvPreHookArgs, (tensor, src))

    def batch_op_create(self) -> BatchSendRecv:
        """Makes a batch: sends and receives that are issued together."""
        return BatchSendRecv(self._comm)

    def broadcast(
        self, tensor: Tensor, root: int, async_op: bool, hints: Hints = None, timeout: Timeout = None
    ) -> TorchWork:
        call = async_op, hints, timeout
        return self._start(
            self._comm.broadcast, (tensor, root), call, told.BroadcastPreHookArgs, (tensor, root)
        )

    def all_reduce(
        self, tensor: Tensor, op: ReduceOp, async_op: bool, hints: Hints = None, timeout: Timeout = None
    ) -> TorchWork:
        call = async_op, hints, timeout
        return self._start(self._comm.all_reduce, (tensor, op.op), call, told.AllReducePreHookArgs, (tensor,))

    def reduce(
        self,
        tensor: Tensor,
        root: int,
        op: ReduceOp,
        async_op: bool,
        hints: Hints = None,
        timeout: Timeout = None,
    ) -> TorchWork:
        call = async_op, hints, timeout
        return self._start(
            self._comm.reduce, (tensor, root, op.op), call, told.ReducePreHookArgs, (tensor, root)
        )

    def all_gather(
        self,
        tensor_list: Tensors,
        tensor: Tensor,
        async_op: bool,
        hints: Hints = None,
        timeout: Timeout = None,
    ) -> TorchWork:
        call = async_op, hints, timeout
        return self._start(
            self._comm.all_gather,
            (tensor_list, tensor),
            call,
            told.AllGatherPreHookArgs,
            (tensor_list, tensor),
        )

    def all_gather_v(
        self,
        tensor_list: Tensors,
        tensor: Tensor,
        async_op: bool,
        hints: Hints = None,
        timeout: Timeout = None,
    ) -> TorchWork:
        call = async_op, hints, timeout
        return self._start(
            self._comm.all_gather_v,
            (tensor_list, tensor),
            call,
            told.AllGatherVPreHookArgs,
            (tensor_list, tensor),
        )

    def all_gather_single(
        self, output: Tensor, input: Tensor, async_op: bool, hints: Hints = None, timeout: Timeout = None
    ) -> TorchWork:
        call = async_op, hints, timeout
        return self._start(
            self._comm.all_gather_single,
            (output, input),
            call,
            told.AllGatherSinglePreHookArgs,
            (output, input),
        )

    def reduce_scatter(
        self,
        output: Tensor,
        input_list: Tensors,
        op: ReduceOp,
        async_op: bool,
        hints: Hints = None,
        timeout: Timeout = None,
    ) -> TorchWork:
        call = async_op, hints, timeout
        return self._start(
            self._comm.reduce_scatter,
            (output, input_list, op.op),
            call,
            told.ReduceScatterPreHookArgs,
            (output, input_list),
        )

    def reduce_scatter_v(
        self,
        output: Tensor,
        input_list: Tensors,
        op: ReduceOp,
        async_op: bool,
        hints: Hints = None,
        timeout: Timeout = None,
    ) -> TorchWork:
        call = async_op, hints, timeout
        return self._start(
            self._comm.reduce_scatter_v,
            (output, input_list, op.op),
            call,
            told.ReduceScatterVPreHookArgs,
            (output, input_list),
        )

    def reduce_scatter_single(
        self,
        output: Tensor,
        input: Tensor,
        op: ReduceOp,
        async_op: bool,
        hints: Hints = None,
        timeout: Timeout = None,
    ) -> TorchWork:
        call = async_op, hints, timeout
        return self._start(
            self._comm.reduce_scatter_single,
            (output, input, op.op),
            call,
            told.ReduceScatterSinglePreHookArgs,
            (output, input),
        )

    def all_to_all(
        self,
        output_tensor_list: Tensors,
        input_tensor_list: Tensors,
        async_op: bool,
        hints: Hints = None,
        timeout: Timeout = None,
    ) -> TorchWork:
        tensors = output_tensor_list, input_tensor_list
        call = async_op, hints, timeout
        return self._start(self._comm.all_to_all, tensors, call, told.AllToAllPreHookArgs, tensors)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, async_op: bool, hints: Hints = None, timeout: Timeout = None
    ) -> TorchWork:
        call = async_op, hints, timeout
        return self._start(
            self._comm.all_to_all_single,
            (output, input),
            call,
            told.AllToAllSinglePreHookArgs,
            (output, input),
        )

    def all_to_all_v_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        async_op: bool,
        hints: Hints = None,
        timeout: Timeout = None,
    ) -> TorchWork:
        seen = output, input, output_split_sizes, input_split_sizes
        arguments = output, input, *self._splits(*seen)
        call = async_op, hints, timeout
        return self._start(
            self._comm.all_to_all_v_single, arguments, call, told.AllToAllVSinglePreHookArgs, seen
        )

    def barrier(self, async_op: bool, hints: Hints = None, timeout: Timeout = None) -> TorchWork:
        call = async_op, hints, timeout
        return self._start(self._comm.barrier, (), call, told.BarrierPreHookArgs, ())

    def scatter(
        self,
        output_tensor: Tensor,
        input_tensor_list: Tensors | None,
        root: int,
        async_op: bool,
        hints: Hints = None,
        timeout: Timeout = None,
    ) -> TorchWork:
        seen = output_tensor, input_tensor_list, root
        arguments = output_tensor, self._at(root, input_tensor_list), root
        call = async_op, hints, timeout
        return self._start(self._comm.scatter, arguments, call, told.ScatterPreHookArgs, seen)

    def gather(
        self,
        output_tensor_list: Tensors | None,
        input_tensor: Tensor,
        root: int,
        async_op: bool,
        hints: Hints = None,
        timeout: Timeout = None,
    ) -> TorchWork:
        seen = output_tensor_list, input_tensor, root
        arguments = self._at(root, output_tensor_list), input_tensor, root
        call = async_op, hints, timeout
        return self._start(self._comm.gather, arguments, call, told.GatherPreHookArgs, seen)

    def gather_single(
        self,
        output: Tensor | None,
        input: Tensor,
        root: int,
        async_op: bool,
        hints: Hints = None,
        timeout: Timeout = None,
    ) -> TorchWork:
        seen = output, input, root
        arguments = self._at(root, output), input, root
        call = async_op, hints, timeout
        return self._start(self._comm.gather_single, arguments, call, told.GatherSinglePreHookArgs, seen)

    def _at(self, root: int, given: Any) -> Any:
        """What the root alone needs: programs of torchcomms may give it on other ranks."""
        return given if self.get_rank() == root else None

    def _splits(
        self, output: Tensor, input: Tensor, output_rows: Sequence[int], input_rows: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Elements of each part: torchcomms counts rows."""
        size = self.get_size()
        return split_elements(output, output_rows, size), split_elements(input, input_rows, size)

    def all_gather_p_init(
        self, output: Tensor, hints: Hints = None, timeout: Timeout = None
    ) -> headrace.AllGatherHandle:
        """Checks the output of all_gather_single once, for any number of all_gather_p_exec."""
        handle: headrace.AllGatherHandle = self._checked(self._comm.all_gather_p_init, output)
        return handle

    def all_gather_p_exec(
        self,
        handle: headrace.AllGatherHandle,
        input: Tensor,
        async_op: bool,
        hints: Hints = None,
        timeout: Timeout = None,
    ) -> TorchWork:
        """all_gather_single into the output of the handle. It has no hooks, as in torchcomms."""
        work = self._checked(self._comm.all_gather_p_exec, handle, input, async_op, known(hints), timeout)
        return self._new_work(work) if async_op else DONE

    def all_gather_p_free(self, handle: headrace.AllGatherHandle) -> None:
        self._checked(self._comm.all_gather_p_free, handle)

    # --- memory

    def new_window(self, tensor: Tensor | None = None) -> TorchCommWindow:
        """Makes a window. All ranks make their windows in the same order.

        tensor: registered at once, as by tensor_register.
        """
        window: TorchCommWindow = self._control(
            told.NewWindowPreHookArgs(),
            told.NewWindowPostHookArgs(),
            lambda: TorchCommWindow(self._comm),
        )
        if tensor is not None:
            window.tensor_register(tensor)
        return window

    def tensor_register(self, tensor: Tensor) -> None:
        """Tells the backend that calls will use this tensor again and again. All ranks call it."""
        self._checked(self._comm.tensor_register, tensor)

    def tensor_deregister(self, tensor: Tensor) -> None:
        """Takes it back. All ranks call it."""
        self._checked(self._comm.tensor_deregister, tensor)

    def get_mem_allocator(self) -> Any:
        """The allocator of torch.cuda.MemPool whose memory the GPUs of all ranks can map."""
        return mem_allocator(self._backend, self.get_device())

    @property
    def mem_allocator(self) -> Any:
        return self.get_mem_allocator()

    def get_device_transport(self) -> NoReturn:
        raise RuntimeError(
            "a communicator has no transport for kernels: use headrace.Agent and its GPU memory"
        )

    # --- how calls go

    def _start(
        self,
        operation: Callable[..., Any],
        arguments: tuple[Any, ...],
        call: tuple[bool, Hints, Timeout],
        kind: Any,
        seen: tuple[Any, ...],
    ) -> TorchWork:
        """Runs an operation, or begins it.

        kind: the class of what pre-hooks are told; seen: its fields but async_op.
        """
        async_op, hints, timeout = call
        given = *arguments, async_op, known(hints) if hints else None, timeout
        try:
            if self._pre or self._post:
                work = self.with_hooks(kind, (*seen, async_op), lambda: operation(*given))
            else:
                work = operation(*given)
        except headrace.Error as error:
            raise as_torch_error(error) from None
        return self._new_work(work) if async_op else DONE

    def with_hooks(self, kind: Any, seen: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        """Makes the call of an operation between the hooks.

        kind: the class of what pre-hooks are told; seen: its fields.
        """
        number = self._before(told.OPERATIONS[kind], kind(*seen))
        work = call()
        self._after(number, told.CollectivePostHookArgs())
        return work

    def _control(self, args: Any, post_hook_args: Any, call: Callable[[], Any]) -> Any:
        """A call that is no operation, with its hooks."""
        number = self._before(told.OPERATIONS[type(args)], args)
        result = call()
        self._after(number, post_hook_args)
        return result

    def _before(self, name: OpName, args: Any) -> int:
        number = next(self._numbers)
        for hook in tuple(self._pre):
            hook(name, number, args)
        return number

    def _after(self, number: int, args: Any) -> None:
        for hook in tuple(self._post):
            hook(number, args)

    @staticmethod
    def _checked(call: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        try:
            return call(*arguments, **more)
        except headrace.Error as error:
            raise as_torch_error(error) from None


class _AbortHook:
    """A function that is called when the communicator ends; it stays with a TorchComm through reconfigure."""

    def __init__(self, callback: Callable[[], object], comm: Any) -> None:
        self._callback = callback
        self.renew(comm)

    def renew(self, comm: Any) -> None:
        self.remove()
        self._hook = comm.add_hooks(aborted=lambda error: self._callback())

    def remove(self) -> None:
        hook, self._hook = getattr(self, "_hook", None), None
        if hook is not None:
            hook.remove()


def _leave(comm: Any) -> None:
    """Of a communicator that another one replaces. An abort would be told to ranks that still use it."""
    if comm.is_aborted():
        return
    try:
        comm.finalize()
    except headrace.Error:
        pass  # that of an operation, whose work has it


def _of_its_device(comm: Any) -> Any:
    """What has the operations."""
    if not isinstance(comm, headrace.Comm) or not comm.get_device().startswith("cuda"):
        return comm
    return OnGpu(comm, torch.device(comm.get_device()))


def mem_allocator(backend: str, device: torch.device | None = None) -> Any:
    """device: of the communicator; None: that of the backend."""
    on_gpu = device.type == "cuda" if device else backend in _ON_GPUS and torch.version.cuda
    return torch_tools.mem_allocator() if on_gpu else no_allocator(backend)


def no_allocator(backend: str) -> NoReturn:
    raise RuntimeError(
        f"{backend} needs no allocator: operations take any memory of the CPU as it is. Memory that other "
        "ranks of the host map comes from TorchCommWindow.allocate"
    )


def _bytes_of(handle: str) -> bytes:
    try:
        return bytes.fromhex(handle)
    except (TypeError, ValueError):
        raise RuntimeError(f"{handle!r} is no init handle: give what get_init_handle returned") from None
