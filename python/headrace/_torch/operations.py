# SPDX-License-Identifier: Apache-2.0
"""The operations of torch.distributed on a communicator, which groups and backends in Python share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work
from torch._C._distributed_c10d import (
    _allow_inflight_collective_as_graph_input as in_flight_may_enter_graphs,
)

import headrace

from .errors import as_torch_error
from .monitored_barrier import monitored_barrier
from .on_gpu import OnGpu, waits_on_host
from .opening import as_torch_errors
from .profiling import ProfiledWork
from .profiling import is_enabled as is_profiled
from .reductions import reduction_of
from .sparse import all_reduce_sparse
from .tensors import Staged, as_input, as_output, as_outputs, only, split_elements
from .to_itself import SelfWork, ToItself
from .work import GroupWork

# An operation of the communicator, and what it takes before async_op.
Call = tuple[Callable[..., headrace.Work], tuple[Any, ...]]

ZERO = timedelta(0)


class _Defaults:
    """The options of every operation where none are given: those of c10d's option structs."""

    reduceOp = torch.distributed.ReduceOp.SUM
    rootRank = 0
    timeout = timedelta(milliseconds=-1)
    asyncOp = True


DEFAULTS = _Defaults()


class Operations:
    """What a group, or a backend of a group, does with its communicator.

    A class with these operations is a c10d class as well, whose rank() and size() it has, and has `options`.
    Tensors lie on the CPU, or on one GPU if the group can open a communicator there. A tensor with gaps is
    copied before the operation, and an output with gaps after it. torch's names of methods and options are
    those of c10d::ProcessGroup and c10d::Backend.
    Errors: each is a RuntimeError, and the headrace.Error of the communicator: errors.py.
    Threads: any, as for headrace.Comm.
    """

    options: Any

    if TYPE_CHECKING:

        def rank(self) -> int: ...
        def size(self) -> int: ...

    def _begin_on(
        self, comm: headrace.Comm, open_on_gpu: Callable[[torch.device], headrace.Comm] | None = None
    ) -> None:
        """open_on_gpu: opens the communicator on a GPU, when its first tensor comes; None: there is none."""
        self._comm = comm
        self._open_on_gpu = open_on_gpu
        self._on_gpu: OnGpu | None = None
        self._opening = threading.Lock()
        self._waits_on_host = open_on_gpu is not None and waits_on_host()
        self._block: headrace.Coalescing | None = None  # of operations on the GPU
        self._number = 0  # of operations
        self._barriers = 0  # monitored ones
        self._coalesced: list[GroupWork] | None = None
        self._to_itself = ToItself(comm.get_rank())
        self._done = GroupWork((), [])

    @property
    def comm(self) -> headrace.Comm:
        """The communicator, for what torch has no name for."""
        return self._comm

    def comm_on(self, device: torch.device) -> headrace.Comm:
        """The communicator whose tensors are on a device. The first call for a GPU opens it: a collective."""
        return self._comm if device.type == "cpu" else self._serving(device).comm

    def _on(self, tensor: Tensor) -> Any:
        """What has the operations for a tensor."""
        return self._comm if tensor.is_cpu else self._serving(tensor.device)

    def _serving(self, device: torch.device) -> OnGpu:
        if device.type != "cuda" or self._open_on_gpu is None:
            raise RuntimeError(
                f'the tensor is on {device}, and "headrace" takes tensors on the CPU: use another backend '
                'for others, as "nccl"'
            )
        if self._on_gpu is None:
            with self._opening:  # the thread that runs backward may come first, beside another one
                if self._on_gpu is None:
                    comm = self._open_on_gpu(device)
                    self._on_gpu = OnGpu(comm, device, waits_on_host=self._waits_on_host)
        return self._on_gpu

    def _comms(self) -> list[headrace.Comm]:
        return [self._comm, *([self._on_gpu.comm] if self._on_gpu else [])]

    def getBackendName(self) -> str:
        return "headrace"

    def _set_sequence_number_for_group(self) -> None:
        self._number = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._number

    def set_timeout(self, timeout: timedelta) -> None:
        for comm in self._comms():
            comm.set_timeout(timeout)
        self.options._timeout = timeout

    _set_default_timeout = set_timeout

    # --- its end

    def abort(self) -> None:
        """Ends every operation on all ranks, with an error."""
        for comm in self._comms():
            comm.abort()

    def shutdown(self) -> None:
        """Waits for operations that are queued, and leaves. After a failed operation: leaves."""
        for comm in self._comms():
            if comm.is_aborted():
                continue
            try:
                comm.finalize()
            except headrace.Error:
                pass  # that of an operation, whose work has it

    # --- several operations as one

    def _start_coalescing(self, device: torch.device | None = None) -> None:
        self._drop_coalesced()  # torch leaves out the end after an exception
        self._coalesced = []
        if device is not None and device.type == "cuda":  # NCCL needs them as one, where some are receives
            on_gpu = self._serving(device)
            block = on_gpu.comm.coalescing(True, on_gpu.current_stream())
            self._block = self._call(block.__enter__)

    def _end_coalescing(self, device: torch.device | None = None) -> Work:
        works, self._coalesced = self._coalesced or [], None
        block, self._block = self._block, None
        if block is not None:
            self._call(lambda: block.__exit__(None, None, None))
        return GroupWork.of_all(works)

    def _drop_coalesced(self) -> None:
        """Issues nothing of a block that has not ended."""
        self._coalesced, block, self._block = None, self._block, None
        if block is not None:
            left = RuntimeError("an exception left the block of coalesced operations")
            with suppress(headrace.Error):  # it was another thread's
                block.__exit__(RuntimeError, left, None)

    @contextmanager
    def as_one(self, device: torch.device) -> Iterator[list[Work]]:
        """Operations of the block begin together at its end; then the list has their work."""
        works: list[Work] = []
        self._start_coalescing(device)
        try:
            yield works
        except BaseException:
            self._drop_coalesced()
            raise
        works.append(self._end_coalescing(device))

    # what c10d calls by these names in classes written in Python
    start_coalescing = _start_coalescing
    end_coalescing = _end_coalescing

    # --- all ranks give, all receive

    def allreduce(self, tensors: list[Tensor], opts: Any = DEFAULTS) -> Work:
        tensor = only(tensors)
        op = reduction_of(opts.reduceOp, tensor)
        if tensor.is_sparse:
            return self._all_reduce_sparse(tensor, opts)
        staged: list[Staged] = []
        memory = as_output(tensor, staged)
        return self._start("all_reduce", (self._on(tensor).all_reduce, (memory, op)), opts, tensors, staged)

    def _all_reduce_sparse(self, tensor: Tensor, opts: Any) -> Work:
        if reduction_of(opts.reduceOp) != headrace.ReduceOp.SUM:
            raise RuntimeError("a sparse tensor takes ReduceOp.SUM: give tensor.to_dense() for others")
        if not tensor.is_cpu:
            raise RuntimeError("a sparse tensor is reduced on the CPU alone: give tensor.to_dense()")
        self._number += 1
        self._call(lambda: all_reduce_sparse(self._comm, tensor, _timeout_of(opts)))
        return GroupWork((), [tensor])

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = DEFAULTS) -> Work:
        op = reduction_of(opts.reduceOp, *tensors)
        staged: list[Staged] = []
        calls = [(self._on(tensor).all_reduce, (as_output(tensor, staged), op)) for tensor in tensors]
        return self._start_each("all_reduce", calls, opts, tensors, staged)

    def allgather(
        self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any = DEFAULTS
    ) -> Work:
        (outputs,) = output_tensors
        staged: list[Staged] = []
        call = self._gather_call(outputs, only(input_tensors), staged)
        return self._start("all_gather", call, opts, outputs, staged)

    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], input_list: list[Tensor], opts: Any = DEFAULTS
    ) -> Work:
        """output_lists[r][i] gets input_list[i] of rank r."""
        staged: list[Staged] = []
        calls = [
            self._gather_call(outputs, tensor, staged)
            for outputs, tensor in zip(zip(*output_lists), input_list)
        ]
        return self._start_each("all_gather", calls, opts, _flat(output_lists), staged)

    def _gather_call(self, outputs: Sequence[Tensor], tensor: Tensor, staged: list[Staged]) -> Call:
        comm = self._on(tensor)
        gather = comm.all_gather if _of_one_length(outputs) else comm.all_gather_v
        return gather, (as_outputs(outputs, staged), as_input(tensor))

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = DEFAULTS) -> Work:
        staged: list[Staged] = []
        call = self._on(input).all_gather_single, (as_output(output, staged), as_input(input))
        return self._start("all_gather", call, opts, [output], staged)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = DEFAULTS
    ) -> Work:
        staged: list[Staged] = []
        calls = [
            (self._on(tensor).all_gather_single, (as_output(output, staged), as_input(tensor)))
            for output, tensor in zip(outputs, inputs)
        ]
        return self._start_each("all_gather", calls, opts, outputs, staged)

    def reduce_scatter(
        self, output_tensors: list[Tensor], input_tensors: list[list[Tensor]], opts: Any = DEFAULTS
    ) -> Work:
        (inputs,) = input_tensors
        staged: list[Staged] = []
        output = as_output(only(output_tensors), staged)
        comm = self._on(output)
        scatter = comm.reduce_scatter if _of_one_length(inputs) else comm.reduce_scatter_v
        op = reduction_of(opts.reduceOp, *output_tensors)
        call = scatter, (output, [as_input(tensor) for tensor in inputs], op)
        return self._start("reduce_scatter", call, opts, output_tensors, staged)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = DEFAULTS) -> Work:
        staged: list[Staged] = []
        arguments = as_output(output, staged), as_input(input), reduction_of(opts.reduceOp, input)
        call = self._on(input).reduce_scatter_single, arguments
        return self._start("reduce_scatter", call, opts, [output], staged)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = DEFAULTS
    ) -> Work:
        op = reduction_of(opts.reduceOp, *inputs)
        staged: list[Staged] = []
        calls = [
            (self._on(tensor).reduce_scatter_single, (as_output(output, staged), as_input(tensor), op))
            for output, tensor in zip(outputs, inputs)
        ]
        return self._start_each("reduce_scatter", calls, opts, outputs, staged)

    def alltoall(
        self, output_tensors: list[Tensor], input_tensors: list[Tensor], opts: Any = DEFAULTS
    ) -> Work:
        staged: list[Staged] = []
        arguments = [as_output(t, staged) for t in output_tensors], [as_input(t) for t in input_tensors]
        call = self._on(input_tensors[0]).all_to_all, arguments
        return self._start("all_to_all", call, opts, output_tensors, staged)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = DEFAULTS,
    ) -> Work:
        """Splits count rows; none: one part of all rows for each rank."""
        staged: list[Staged] = []
        memory = as_output(output, staged), as_input(input)
        size = self.size()
        splits = (
            split_elements(output, output_split_sizes, size),
            split_elements(input, input_split_sizes, size),
        )
        call = self._on(input).all_to_all_v_single, (*memory, *splits)
        return self._start("all_to_all", call, opts, [output], staged)

    def barrier(self, opts: Any = DEFAULTS) -> Work:
        """The ranks meet on the host, once the current stream of the group's GPU has come so far."""
        if self._on_gpu is not None:
            torch.cuda.current_stream(self._on_gpu.device).synchronize()
        return self._start("barrier", (self._comm.barrier, ()), opts, [])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Waits for all ranks. Rank 0 names the first that has not come, or all of them.

        timeout: a timedelta, seconds, or the BarrierOptions that c10d gives to a backend.
        """
        limit = _timeout_of(timeout) if hasattr(timeout, "timeout") else timeout
        limit = self.options._timeout if limit is None else limit
        seconds = limit.total_seconds() if isinstance(limit, timedelta) else float(limit)
        self._barriers += 1
        monitored_barrier(self.comm, self._barriers, seconds, wait_all_ranks)

    # --- one rank gives, or one receives

    def broadcast(self, tensors: list[Tensor], opts: Any = DEFAULTS) -> Work:
        tensor, root = only(tensors), opts.rootRank
        staged: list[Staged] = []
        memory = as_input(tensor) if root == self.rank() else as_output(tensor, staged)
        return self._start("broadcast", (self._on(tensor).broadcast, (memory, root)), opts, tensors, staged)

    def reduce(self, tensors: list[Tensor], opts: Any = DEFAULTS) -> Work:
        staged: list[Staged] = []
        op = reduction_of(opts.reduceOp, *tensors)
        arguments = as_output(only(tensors), staged), opts.rootRank, op
        return self._start("reduce", (self._on(tensors[0]).reduce, arguments), opts, tensors, staged)

    def gather(
        self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any = DEFAULTS
    ) -> Work:
        staged: list[Staged] = []
        outputs = _flat(output_tensors)
        memory = [as_output(tensor, staged) for tensor in outputs]
        arguments = memory, as_input(only(input_tensors)), opts.rootRank
        return self._start("gather", (self._on(input_tensors[0]).gather, arguments), opts, outputs, staged)

    def gather_single(self, output: Tensor, input: Tensor, opts: Any = DEFAULTS) -> Work:
        """The output of the root gets the inputs of all ranks in a row. That of another rank is not used."""
        staged: list[Staged] = []
        memory = as_output(output, staged) if opts.rootRank == self.rank() else None
        call = self._on(input).gather_single, (memory, as_input(input), opts.rootRank)
        return self._start("gather", call, opts, [output], staged)

    def scatter(
        self, output_tensors: list[Tensor], input_tensors: list[list[Tensor]], opts: Any = DEFAULTS
    ) -> Work:
        staged: list[Staged] = []
        inputs = [as_input(tensor) for tensor in _flat(input_tensors)]
        arguments = as_output(only(output_tensors), staged), inputs, opts.rootRank
        return self._start(
            "scatter", (self._on(output_tensors[0]).scatter, arguments), opts, output_tensors, staged
        )

    # --- from rank to rank

    def send(self, tensors: list[Tensor], dst: int, tag: int = 0) -> Work:
        memory = as_input(only(tensors))
        if memory.is_cuda and dst == self._comm.get_rank():
            return self._work_of("send", [self._to_itself.send(memory)], tensors)
        work = self._call(lambda: self._on(memory).send(memory, dst, True, tag=tag))
        return self._work_of("send", [work], tensors)

    def recv(self, tensors: list[Tensor], src: int, tag: int = 0) -> Work:
        return self._receive("recv", tensors, src, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        """source_rank() of the work tells which rank sent."""
        return self._receive("recvAnySource", tensors, headrace.any_source, tag)

    recvAnysource = recv_anysource  # as C++ calls it

    def _receive(self, name: str, tensors: list[Tensor], src: int, tag: int) -> Work:
        staged: list[Staged] = []
        memory = as_output(only(tensors), staged)
        if memory.is_cuda and src == self._comm.get_rank():
            return self._work_of(name, [self._to_itself.recv(memory)], tensors, staged)
        work = self._call(lambda: self._on(memory).recv(memory, src, True, tag=tag))
        return self._work_of(name, [work], tensors, staged)

    # --- how operations begin

    def _start(
        self,
        name: str,
        call: Call,
        opts: Any,
        result: list[Any],
        staged: Sequence[Staged] = (),
    ) -> Work:
        """Starts a collective.

        name: what profilers show.
        result: what the work's future gets.
        """
        self._number += 1
        timeout = opts.timeout if opts.timeout > ZERO else None  # torch writes -1 ms for none
        operation, arguments = call
        try:
            if not (opts.asyncOp or self._waits_on_host or self._coalesced is not None or is_profiled()):
                operation(*arguments, False, None, timeout)
                return GroupWork.done(result, staged) if staged else self._done
            works = (operation(*arguments, True, None, timeout),)
        except headrace.Error as error:
            raise as_torch_error(error) from None
        if self._coalesced is None and not is_profiled():
            return _known(GroupWork(works, result, staged, self._number))
        return self._work_of(name, works, result, staged)

    def _start_each(
        self, name: str, calls: Sequence[Call], opts: Any, result: list[Any], staged: Sequence[Staged]
    ) -> Work:
        """Starts several collectives of one kind, as one work."""
        self._number += 1
        timeout = _timeout_of(opts)
        try:
            works = [operation(*arguments, True, None, timeout) for operation, arguments in calls]
        except headrace.Error as error:
            raise as_torch_error(error) from None
        return self._work_of(name, works, result, staged)

    def _work_of(
        self,
        name: str,
        works: Sequence[headrace.Work | SelfWork],
        result: list[Any],
        staged: Sequence[Staged] = (),
    ) -> Work:
        if self._coalesced is not None:
            self._coalesced.append(GroupWork(works, result, staged, self._number))
            return self._coalesced[-1]
        if is_profiled():
            range_name = f"{self.getBackendName()}:{name}"
            return _known(ProfiledWork(range_name, works, result, staged, self._number))
        return _known(GroupWork(works, result, staged, self._number))

    @staticmethod
    def _call(call: Callable[[], Any]) -> Any:
        with as_torch_errors():
            return call()

    gather_into_tensor = gather_single

    # torch's names before 2.13, which it still calls
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _timeout_of(opts: Any) -> timedelta | None:
    """That of the options; None: the group's. torch writes -1 ms for none."""
    timeout: timedelta = opts.timeout
    return timeout if timeout > ZERO else None


def _known(work: GroupWork) -> GroupWork:
    """Lets graphs of torch.compile wait for it, where torch asks for that."""
    if in_flight_may_enter_graphs():
        work.register()
    return work


def _of_one_length(tensors: Sequence[Tensor]) -> bool:
    return len({tensor.numel() for tensor in tensors}) <= 1


def _flat(lists: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [tensor for tensors in lists for tensor in tensors]
