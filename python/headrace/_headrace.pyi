# SPDX-License-Identifier: Apache-2.0
"""
The compiled part of the package headrace. Import headrace, which has all names of it.
"""

from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping as _Mapping,
    Sequence
)
import concurrent.futures
import datetime
import os
import types
from typing import Any, Literal, NoReturn, overload

import numpy

import headrace.errors


codes: tuple[str, ...]

class MemoryRange:
    """
    Memory, a file or an object that is not a Python object: by address, path, descriptor or key.

    dram: address, length_bytes. vram: device (ordinal), address, length_bytes. file, block:
    path, or an open file_descriptor, which the caller owns. object: path (the key). For file,
    block and object a length_bytes of 0 means all of it.
    """

    def __init__(self, kind: str = 'dram', address: int = 0, length_bytes: int = 0, device: int = -1, file_descriptor: int = -1, path: str = '') -> None:
        """
        Errors: InvalidArgument (no such kind: dram, vram, block, file, object).
        """

    @property
    def kind(self) -> str:
        """"dram", "vram", "block", "file" or "object"."""

    @property
    def address(self) -> int:
        """The address of the first byte."""

    @property
    def length_bytes(self) -> int:
        """The length in bytes; 0 for a file, block or object: all of it."""

    @property
    def device(self) -> int:
        """The GPU's ordinal, or -1."""

    @property
    def file_descriptor(self) -> int:
        """An open descriptor, or -1."""

    @property
    def path(self) -> str:
        """The path of the file or block device, or the object's key."""

class Region:
    """
    Describes registered memory of this agent or of a peer. A value: it does not keep the memory.
    """

    @property
    def id(self) -> int:
        """
        Names it within one incarnation of its agent; counts from 1 and is never used twice.
        """

    @property
    def kind(self) -> str:
        """"dram", "vram", "block", "file" or "object"."""

    @property
    def address(self) -> int:
        """The owner's address; 0 for files and objects."""

    @property
    def length_bytes(self) -> int:
        """The length in bytes."""

    @property
    def name(self) -> str:
        """The region's name, unique in its agent; empty: none."""

    @property
    def note(self) -> bytes:
        """
        Bytes that its owner registered with it: dtype and shape, a checksum, ...
        """

    @property
    def backends(self) -> list[str]:
        """The backends that it is registered with."""

    @property
    def writable(self) -> bool:
        """Whether requests may write to it."""

    def __len__(self) -> int: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

class Memory:
    """
    Memory from Agent.allocate: registered, with the buffer protocol, zero-filled, page-aligned.

    Owns: the memory stays in place while this object or any view of it lives, also after
    deregister and the agent's end. The region belongs to the agent until it is deregistered.
    """

    @property
    def region(self) -> Region:
        """Its Region."""

    def numpy(self, dtype: object = 'uint8', shape: int | tuple[int, ...] | None = None) -> numpy.ndarray:
        """
        The memory as a NumPy array, without a copy; imports NumPy.

        Shapes: one dimension with all elements, or `shape`, which may use a part of the memory.
        Owns: the array keeps the memory in place.
        Errors: ValueError (too few bytes for dtype and shape, or not a multiple of dtype).
        """

    def __len__(self) -> int: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

    def __buffer__(self, flags: int, /) -> memoryview: ...

class Mapping:
    """
    A peer's region that is mapped into this process.

    For the CPU it has the buffer protocol; for the kernels of a GPU it has DLPack
    (torch.from_dlpack(mapping)) and __cuda_array_interface__. Shape: one dimension of uint8.
    Owns: the mapping stays while this object or any view or tensor of it lives. `alive` becomes
    False when the peer has revoked the region, left or died. Memory from the peer's allocate
    then shows old bytes and never faults. GPU memory shows old bytes or new data of its owner:
    stop using it. The end of a mapping for a GPU waits for the work that is queued on that GPU.
    During a capture on that GPU it cannot wait; the memory then stays mapped.
    """

    @property
    def device(self) -> int:
        """The ordinal of the GPU whose kernels use the mapping; -1: the CPU."""

    @property
    def address(self) -> int:
        """The address of the first byte, valid on `device`."""

    @property
    def writable(self) -> bool:
        """
        False if its owner allows reading only; its views are then read-only. Kernels can still write to GPU memory.
        """

    @property
    def alive(self) -> bool:
        """False after the peer has revoked the region, left or died."""

    def numpy(self, dtype: object = 'uint8', shape: int | tuple[int, ...] | None = None) -> numpy.ndarray:
        """
        The memory as a NumPy array, without a copy; imports NumPy.

        Shapes: one dimension with all elements, or `shape`, which may use a part of the memory.
        Owns: the array keeps the memory in place.
        Errors: ValueError (too few bytes for dtype and shape, or not a multiple of dtype),
        BufferError (the mapping is for a GPU: use torch.from_dlpack).
        """

    def __dlpack__(self, **kwargs: object) -> Any:
        """
        Exports the memory by DLPack, for torch.from_dlpack and similar functions.

        torch ignores that memory is read-only: do not write to a tensor of a read-only mapping.
        Errors: BufferError (the mapping is read-only, and the importer does not know DLPack version
        1).
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's type and number of the device."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """
        Version 3 of the interface, for Numba, CuPy and torch.

        Errors: AttributeError (the mapping is for the CPU).
        """

    def __len__(self) -> int: ...

    def __reduce__(self) -> NoReturn: ...

    def __buffer__(self, flags: int, /) -> memoryview: ...

class UniformPages:
    """
    `count` pages of one length: page i begins at base_bytes + i * stride_bytes.

    The cheapest list to prepare and to keep.
    """

    def __init__(self, region: Region | Memory | int, base_bytes: int, stride_bytes: int, page_bytes: int, count: int) -> None:
        """
        Units: bytes, counted from the region's start. stride_bytes 0 means page_bytes.
        """

    @property
    def region(self) -> int:
        """The region's id."""

    @property
    def base_bytes(self) -> int:
        """The offset of page 0."""

    @property
    def stride_bytes(self) -> int:
        """
        The distance from the begin of a page to the begin of the next; 0: page_bytes.
        """

    @property
    def page_bytes(self) -> int:
        """The length of each page."""

    @property
    def count(self) -> int:
        """The number of pages."""

    def __len__(self) -> int: ...

    def __reduce__(self) -> tuple[type[UniformPages], tuple[int, int, int, int, int]]: ...

    def __repr__(self) -> str: ...

class PageView:
    """
    The shape of every page of a list whose pages are not contiguous: a strided array.

    The array has up to four dimensions. A page is its elements in the order of their indices,
    the last index fastest; it begins at element 0, 0, ... Lists with views of the same shape fit
    together, with any strides; so a request can split off or transpose heads. A list without a
    view fits every list whose pages have the same number of bytes.
    """

    def __init__(self, shape: Sequence[int], strides_bytes: Sequence[int] | None = None, item_bytes: int = 1) -> None:
        """
        shape: 1 to 4 lengths of at least 1.
        strides_bytes: for each dimension the distance from an element to the next, above 0; None: no
        gaps.
        item_bytes: the bytes of an element.
        Errors: Agent.prepare raises those of a view that is not possible.
        """

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each dimension."""

    @property
    def strides_bytes(self) -> tuple[int, ...] | None:
        """
        The distance from an element to the next in each dimension; None: no gaps.
        """

    @property
    def item_bytes(self) -> int:
        """The bytes of an element."""

    def __reduce__(self) -> tuple[type[PageView], tuple[tuple[int, ...], tuple[int, ...] | None, int]]: ...

    def __repr__(self) -> str: ...

def pages_of(region: Region | Memory, array: object) -> tuple[UniformPages, PageView]:
    """
    Describes an array as pages. Returns (pages, view) for Agent.prepare(pages, view=view).

    Each index of the first dimension is a page; the other dimensions are the view.
    region: the region of this agent that holds the array.
    array: a NumPy array, a torch tensor, or another object with the buffer protocol or DLPack,
    of shape (pages, ...) with at most four more dimensions and any strides: heads[:, :, 4:8],
    swapaxes, permute.
    Returns: both results can be pickled and sent to a peer, which prepares them with peer= this
    agent's name.
    Owns: nothing is copied or kept.
    Errors: InvalidArgument (the array is not in the region; the stride of its first dimension is
    not positive).
    """

class RegionPages:
    """
    Pages of one region by columns: a column of offsets and a column of lengths.

    Page i has lengths[i] bytes and begins at offsets[i] - origin_bytes. For tables that have
    more columns than pages need, and for offsets that do not count from the region's start: with
    a region's address as origin_bytes they are addresses, also those of a peer.
    """

    def __init__(self, region: Region | Memory | int, offsets: object, lengths: object, origin_bytes: int = 0) -> None:
        """
        offsets: a one-dimensional array of uint64 or int64, read without a copy; may be a column of
        a table. lengths: an array of the same form and length, or an int for all pages.
        Units: bytes. Owns: keeps the arrays in place; they are read when the list is prepared.
        Errors: InvalidArgument (other arrays, counts that differ).
        """

    @property
    def region(self) -> int:
        """The region's id."""

    @property
    def origin_bytes(self) -> int:
        """The offset of the region's start."""

    @property
    def count(self) -> int:
        """The number of pages."""

    def __len__(self) -> int: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

class PageList:
    """
    A prepared list of pages, from Agent.prepare.

    Immutable; any number of requests can share it. It does not keep the arrays that it was made
    from.
    """

    @property
    def count(self) -> int:
        """The number of pages."""

    @property
    def bytes(self) -> int:
        """The sum of the pages' lengths."""

    @property
    def peer(self) -> str:
        """The owner of the pages: the peer's name, or empty for this agent."""

    def __len__(self) -> int: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

class RequestTimes:
    """The times of the last post that has ended."""

    @property
    def posted_at_ns(self) -> int:
        """When it was posted: CLOCK_MONOTONIC, as time.monotonic_ns()."""

    @property
    def post_ns(self) -> int:
        """The time inside post, in nanoseconds."""

    @property
    def transfer_ns(self) -> int:
        """The time from post to the end, in nanoseconds."""

    @property
    def bytes(self) -> int:
        """The bytes of the request."""

    @property
    def pages(self) -> int:
        """The pages of the request."""

    @property
    def posts(self) -> int:
        """The number of posts of this request so far."""

    def __repr__(self) -> str: ...

class PartInfo:
    """The state of a part of a request. A request to one peer has one part."""

    @property
    def peer(self) -> str:
        """The name of the peer, or of this agent."""

    @property
    def backend(self) -> str:
        """The backend that carries the part."""

    @property
    def pages(self) -> int:
        """The number of pages."""

    @property
    def bytes(self) -> int:
        """The sum of the pages' lengths."""

    @property
    def state(self) -> str:
        """The state, with the values of Request.state."""

    @property
    def error(self) -> headrace.errors.Error | None:
        """
        Why its last post failed, with the page's number in the part; None if it did not fail.
        """

    def __repr__(self) -> str: ...

class CostEstimate:
    """An estimate of the time that a request takes."""

    @property
    def duration(self) -> float:
        """The estimated time in seconds."""

    @property
    def margin(self) -> float:
        """The possible error, as a share of the duration."""

    @property
    def method(self) -> str:
        """How it was estimated."""

    @property
    def backend(self) -> str:
        """The path that the estimate is for."""

    def __repr__(self) -> str: ...

class Request:
    """
    A move of the pages of one list to or from the pages of another, from Agent.make_request.

    States: prepared -> posted -> (canceling ->) done | failed | canceled. A request in one of
    the last three states can be posted again.
    Owns: the page lists. The memory belongs to the caller and must stay in place until the
    request has ended. Dropping the last reference cancels a post in flight.
    Capture: a post on a stream that is being captured leads to the state captured. The request
    is then part of a CUDA graph, whose replays run one after another without the host. Its
    regions cannot be deregistered, here or by their owner. The request and its agent must
    outlive the graph and all queued replays.
    Threads: any; post from one thread at a time. `await request` waits in the running asyncio
    loop. Cancelling the task cancels the request; the task ends when the memory is quiet.
    """

    def post(self, notification: bytes | None = None, timeout: float | None = None, stream: Any = None, *, local: Any = None, remote: Any = None, part: int = 0, immediate: int | None = None, scope: int = 0) -> str:
        """
        Starts the move of the pages and returns the state.

        Small requests on mapped or attached paths are "done" at the return.
        notification: bytes, up to 64 KiB, delivered to the peer after its pages are written (write)
        or read (read).
        timeout: seconds; after them the post is canceled and ends with TimedOut. None: the request's
        own.
        stream: a torch.cuda.Stream, or the number of a CUDA stream, of the GPU of the local pages.
        The pages move after the work that is queued on it, and later work on it waits for them; the
        host need not wait. If the stream is being captured, the move becomes part of the graph,
        nothing runs yet, and the request is "captured" until cancel().
        local, remote: during a capture, page numbers on a GPU, as in set_indices. Every replay of
        the graph reads them again: they can be a model's own block tables.
        part: in a request to several peers, the part that local and remote belong to; the pages of
        the other parts do not change.
        immediate, scope: integers of 32 bits; the peer counts the post after its pages are written or
        read: Agent.counter. A post with an immediate tries no other path after a failure of its path.
        In a capture every replay is counted.
        Errors: InvalidArgument (in flight; a stream of another GPU), WouldBlock (a queue is full; or
        the peer's memory is not mapped yet, which a stream needs: poll, retry; before a capture post
        once without a stream), PeerLost, NotFound (a region has been revoked), NotSupported (the
        path does not support streams; a notification in a capture). In a request to several peers
        wait() raises the error of a part. With a stream post raises it too: outside a capture the
        other parts are in flight; in a capture they are removed from the graph, which must be
        dropped.
        """

    def set_indices(self, local: Any = None, remote: Any = None, *, stream: Any, part: int = 0) -> None:
        """
        Changes the pages that a captured request moves, in the order of a stream. The graph stays.

        local, remote: page numbers in one dimension, the same count of both, at most the pages of
        the request; None: these numbers do not change. On the host: any integers, copied before the
        return. On a GPU: int32 or uint32 (a torch tensor or another object with DLPack), read in the
        stream's order; keep them until then.
        stream: a torch.cuda.Stream, or the number of a CUDA stream, that is not being captured.
        Replays that are queued on it later use the new numbers.
        part: in a request to several peers, the part that the numbers belong to.
        Errors: InvalidArgument (not captured; too many numbers; on the host: a number that the list
        does not have), NotSupported (a list is not uniform), WouldBlock (64 changes are queued: wait
        for the stream).
        """

    def check(self) -> int:
        """
        Returns how many replays of a captured request have ended: their data can be read.

        It asks neither the GPU nor the peer.
        Errors: InvalidArgument (not captured; a page number in GPU memory is not in its list: a
        replay skipped that page; raised once), NotFound (a region has been revoked), PeerLost. After
        the last two, later replays may have read or written memory that the peer uses for something
        else.
        """

    def poll(self) -> str:
        """Runs progress on this thread, then returns the state. Does not wait."""

    @property
    def state(self) -> str:
        """
        "prepared", "posted", "canceling", "done", "failed", "canceled" or "captured". Does not run progress.
        """

    @property
    def done(self) -> bool:
        """Whether the last post has ended: done, failed or canceled."""

    def wait(self, timeout: float | None = None) -> None:
        """
        Waits for the end of the post.

        timeout: seconds; None: no limit.
        Errors: the error of the post; TimedOut (the timeout expired; the request stays in flight).
        """

    def cancel(self) -> None:
        """
        Asks that the post ends, and returns at once; wait() returns when the memory is quiet.

        Does nothing if the post has ended. A captured request is released: its graph must not be
        replayed any more.
        """

    @property
    def error(self) -> headrace.errors.Error | None:
        """
        Why the last post failed, with the peer's name and the page; None if it did not fail.
        """

    @property
    def times(self) -> RequestTimes:
        """The times of the last post that has ended."""

    @property
    def parts(self) -> list[PartInfo]:
        """
        The state of each part, in the order of make_request: it tells which peers have their pages.
        """

    def explain(self) -> str:
        """The path, why it was chosen, and why each other path was not."""

    @property
    def backend(self) -> str:
        """The backend that carries the request."""

    def cost(self) -> CostEstimate:
        """
        Estimates the time that a post takes.

        Errors: PeerLost (the request has no path any more).
        """

    def on_done(self, callback: Callable[[headrace.errors.Error | None], object] | None) -> None:
        """
        Calls callback(error) once at the end of each post: error is None if it is done.

        A new callback replaces the earlier one; None removes it.
        Threads: runs on the agent's callback thread. An exception in it goes to sys.unraisablehook.
        Calls that still wait when the interpreter ends are dropped.
        """

    def fileno(self) -> int:
        """
        An eventfd that becomes readable at the end of each post.

        The request owns it. Read 8 bytes to drain it.
        """

    def __await__(self) -> Generator[object, None, None]: ...

    @property
    def op(self) -> str:
        """"read" or "write"."""

    @property
    def pages(self) -> int:
        """The number of pages."""

    @property
    def bytes(self) -> int:
        """The sum of the pages' lengths."""

    @property
    def peer(self) -> str:
        """
        The name of the peer, or of this agent; of several parts all names, separated by commas.
        """

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

class ReduceOp:
    """
    How the elements of all ranks become one: SUM, PRODUCT, MIN, MAX, AVG, BAND, BOR, BXOR or
    PREMUL_SUM(factor).

    float16, bfloat16 and float8 are added in float32 and rounded once. Floats have all but the bit
    operations. Complex numbers have SUM, PRODUCT, AVG and PREMUL_SUM. Integers have all: sums wrap
    around, AVG drops the fraction, the factor of PREMUL_SUM is whole. Of bool, SUM, MAX and BOR are
    "or", PRODUCT, MIN and BAND are "and", BXOR is "xor".
    """

    @staticmethod
    def PREMUL_SUM(factor: float) -> ReduceOp:
        """
        The sum of each rank's elements times the factor, the same on every rank.
        """

    @property
    def name(self) -> str:
        """The name as in C++: "sum"."""

    @property
    def factor(self) -> float:
        """The factor of PREMUL_SUM; else 1."""

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

    SUM: ReduceOp = ...

    PRODUCT: ReduceOp = ...

    MIN: ReduceOp = ...

    MAX: ReduceOp = ...

    BAND: ReduceOp = ...

    BOR: ReduceOp = ...

    BXOR: ReduceOp = ...

    AVG: ReduceOp = ...

class Work:
    """
    An operation of a communicator that is under way, or done.

    Owns: until the operation has ended, its tensors stay in memory, also if the work is dropped.
    Threads: any. `await work` waits in the running asyncio loop; cancelling the task does not end the
    operation.
    """

    @property
    def status(self) -> str:
        """
        "not_started", "in_progress", "completed", "timed_out", "aborted" or "failed".
        """

    def is_completed(self) -> bool:
        """
        Whether it has ended, well or not. Makes progress with sends and receives; does not wait.
        """

    def wait(self, timeout: float | datetime.timedelta | None = None) -> None:
        """
        Waits until it has ended. On a GPU, without a timeout, later work of the stream of the call waits and
        this returns at once.

        timeout: seconds or a timedelta; None: no limit but that of the operation.
        Errors: those of the operation; TimedOut (the timeout expired; the operation goes on).
        """

    def wait_blocking(self, timeout: float | datetime.timedelta | None = None) -> None:
        """
        Waits until it has ended, on a GPU too.

        Errors: as of wait.
        """

    def wait_on(self, stream: object) -> None:
        """
        Of a communicator on a GPU: makes later work of a stream wait for the operation, and returns at once.

        stream: a torch.cuda.Stream, or the number of a CUDA stream.
        Errors: those of the operation, if it has failed by now; InvalidArgument (no GPU).
        """

    def exception(self) -> headrace.errors.Error | None:
        """Why it failed; None if it did not fail, or has not ended."""

    def source(self) -> int:
        """Of a receive that is completed: the rank that sent. Else -1."""

    def get_future(self) -> concurrent.futures.Future[None]:
        """
        A future that ends with the operation, with its error if it failed. It cannot be cancelled.

        Threads: callbacks of all such futures run on one thread of the process.
        """

    def __await__(self) -> Generator[object, None, None]: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

class CompletionQueue:
    """
    One eventfd for the completions of many requests and works, for event loops.

    `await request` and `await work` use one for each asyncio loop. Requests of several agents, and works
    of several communicators and fabrics, may use one queue.
    Errors: Exhausted (no descriptors).
    Threads: any.
    """

    def __init__(self) -> None: ...

    @overload
    def add(self, request: Request, number: int) -> None:
        """
        Puts the number into the queue once, at the completion of the post that is in flight.

        If no post is in flight, or if it is refused after all: at once.
        """

    @overload
    def add(self, work: Work, number: int) -> None:
        """
        Puts the number into the queue once, when the operation of the work has ended.
        """

    @overload
    def add(self, work: FabricWork, number: int) -> None:
        """
        Puts the number into the queue once, when the post of a fabric has ended.
        """

    def take(self) -> list[int]:
        """
        Returns the numbers in the order of their completions, and removes them. Does not wait.
        """

    def fileno(self) -> int:
        """
        An eventfd that is readable while the queue has numbers.

        The queue owns it, and take() drains it.
        """

    def __reduce__(self) -> NoReturn: ...

class CommElements:
    """Elements that an operation of a communicator uses."""

    @property
    def address(self) -> int:
        """Where they lie. The memory is the caller's."""

    @property
    def count(self) -> int:
        """The number of elements."""

    @property
    def dtype(self) -> str:
        """torch's name of their type, without "torch.": "float32"."""

    def __repr__(self) -> str: ...

class CommCallId:
    """An operation of a communicator by its number."""

    @property
    def operation(self) -> str:
        """Its name: "all_reduce"."""

    @property
    def number(self) -> int:
        """
        Of the communicator's collectives, the same on all ranks, or of this rank's messages; from 1.
        """

    def __repr__(self) -> str: ...

class CommCall:
    """One call of an operation, for the functions of Comm.add_hooks."""

    @property
    def operation(self) -> str:
        """Its name: "all_reduce"."""

    @property
    def number(self) -> int:
        """As in CommCallId; 0: the call has none yet."""

    @property
    def inputs(self) -> list[CommElements]:
        """What it reads. Lists have an entry for each rank."""

    @property
    def outputs(self) -> list[CommElements]:
        """What it writes."""

    @property
    def input_splits(self) -> list[int]:
        """Of all_to_all_v_single: elements to each rank."""

    @property
    def output_splits(self) -> list[int]:
        """Of all_to_all_v_single: elements from each rank."""

    @property
    def op(self) -> ReduceOp:
        """Of reductions."""

    @property
    def peer(self) -> int:
        """The root, or the other rank of a message; -1: none, or any_source."""

    @property
    def tag(self) -> int:
        """Of messages."""

    @property
    def async_op(self) -> bool:
        """Whether the call returns at once."""

    @property
    def timeout(self) -> float | None:
        """
        Seconds; None: the communicator's, which stands here once the call has a number. math.inf: no limit.
        """

    def __repr__(self) -> str: ...

class CommHook:
    """Functions that were added to a communicator."""

    def remove(self) -> None:
        """
        No call of the functions begins after it returns; one that another thread has begun may go on.
        """

class CommOptions:
    """The options of a communicator, from Comm.get_options."""

    @property
    def timeout(self) -> float:
        """
        Seconds that an operation may take, unless it has a timeout of its own; math.inf: no limit.
        """

    @property
    def meeting_timeout(self) -> float:
        """Seconds within which all ranks had to come."""

    @property
    def backend(self) -> str:
        """The backend."""

    @property
    def meeting(self) -> str:
        """Where the ranks met; "" if it was a store, or if there is one rank."""

    @property
    def abort_process_on_timeout_or_error(self) -> bool:
        """Whether an operation that fails ends the process."""

    @property
    def hints(self) -> dict[str, str]:
        """The hints that were given, with their later values."""

    def __repr__(self) -> str: ...

class CommHint:
    """A hint of communicators, from list_comm_hints."""

    @property
    def name(self) -> str:
        """The name."""

    @property
    def default_value(self) -> str:
        """The value that holds if none is given."""

    @property
    def unit(self) -> str:
        """"bytes", "list" or "boolean"."""

    @property
    def sentence(self) -> str:
        """What it does."""

    def __repr__(self) -> str: ...

def list_comm_hints() -> list[CommHint]:
    """Lists the hints of the backend "host"."""

def list_comm_backends() -> list[str]:
    """Lists the backends of communicators, for new_comm."""

any_source: int = -1

class Comm:
    """
    One rank of a communicator, from new_comm or split.

    Every rank calls the same operations in the same order; sends and receives are apart from that order.
    An operation takes NumPy arrays, torch tensors and other objects with the buffer protocol or DLPack,
    contiguous, of any shape, on the device of the communicator.
    async_op: return at once; the work waits. timeout: seconds or a timedelta, from the call on; None: the
    communicator's. An operation that fails or is late ends the communicator on all ranks. Ctrl-C in an
    operation that is not async ends it too, before KeyboardInterrupt is raised.
    On a GPU no operation waits. stream: a torch.cuda.Stream or the number of a CUDA stream; None: the
    default stream. The operation sees what was queued on it before; without async_op later work of it sees
    the result, with async_op after Work.wait().
    Errors of every operation: InvalidArgument (rank, root, counts, dtypes, memory; another rank is in
    another operation), TimedOut, Canceled (aborted: by which rank, why), PeerLost (which rank).
    Threads: any. A forked child opens its own communicators.
    """

    def get_rank(self) -> int:
        """The rank of this participant, from 0."""

    def get_size(self) -> int:
        """The number of ranks."""

    def get_ranks(self) -> list[int]:
        """
        The ranks of this communicator as those of the one that was opened first.
        """

    def get_name(self) -> str:
        """The name, the same on all ranks."""

    def get_options(self) -> CommOptions:
        """The options, with the values that were set since."""

    def get_device(self) -> str:
        """Where the tensors lie: "cpu", "cuda:1"."""

    def get_backend(self) -> str:
        """The name of the backend: "host"."""

    def get_backend_version(self) -> str:
        """The version of the backend; of "host" that of Headrace."""

    def set_timeout(self, timeout: float | datetime.timedelta) -> None:
        """
        Sets the timeout of operations that begin later, in seconds or as a timedelta; math.inf: no limit.
        """

    def set_hints(self, hints: dict[str, Any]) -> None:
        """
        Changes hints for operations that begin later, on every rank alike.

        Errors: InvalidArgument (unknown: the nearest; a hint that is fixed when the communicator opens).
        """

    def split(self, ranks: Sequence[int], name: str, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None) -> Comm | None:
        """
        Makes a communicator of some ranks, in the given order. All ranks of this one call it.

        ranks: the group that this rank belongs to; empty: none, the answer is None.
        hints, timeout: of the new communicator, instead of those of this one.
        Errors: InvalidArgument (this rank is not in ranks; a rank twice or out of range; another rank of
        the group gave another list or name).
        """

    def add_hooks(self, *, before: Callable[[CommCall], object] | None = None, scheduled: Callable[[CommCall], object] | None = None, started: Callable[[CommCallId], object] | None = None, completed: Callable[[CommCallId, headrace.errors.Error | None], object] | None = None, after: Callable[[CommCall, headrace.errors.Error | None], object] | None = None, aborted: Callable[[headrace.errors.Error], object] | None = None) -> CommHook:
        """
        Adds functions that are called beside operations, until CommHook.remove or the communicator's end.
        A communicator that split makes has none.

        before(call): its exception refuses the operation and is raised by the call; no other rank knows of
        it. Exceptions of the others go to sys.unraisablehook.
        scheduled(call): the operation has its number. started(id): those before it have ended.
        completed(id, error): it has ended; error is None if it ended well. after(call, error): the call
        returns. aborted(error): the communicator has ended, by an abort or an operation that failed.
        Threads: before and after run on the caller's and may call the communicator. The others run on any
        thread, are quick and do not call it.
        """

    def add_nan_check(self) -> CommHook:
        """
        Refuses an operation if an element that it reads on this rank is a NaN: InvalidArgument, with the
        operation, the input and the index. HEADRACE_COMM_NAN_CHECK=1 does this for all communicators.
        """

    def tensor_register(self, tensor: object) -> None:
        """
        Tells the backend that calls will use this memory again and again. It changes speed alone: calls
        whose elements lie in registered memory may go without a copy, calls with other memory work as
        before. All ranks call it, as a collective, each with a tensor of its own; sizes may differ. It
        waits for the collectives of this rank that are under way. The tensor is kept until
        tensor_deregister or the end of the communicator.

        Errors: InvalidArgument (memory at this address is registered already), NotSupported (memory
        that other GPUs cannot map), and those of collectives.
        """

    def tensor_deregister(self, tensor: object) -> None:
        """
        Takes back what tensor_register has told: afterwards no rank uses the memory. All ranks call
        it, as a collective. Messages and replays of graphs that use the memory have ended before, and
        none of these graphs is replayed later.

        tensor: of the address, size and dtype with which it was registered.
        Errors: InvalidArgument (it is not registered), and those of tensor_register.
        """

    def suspend(self) -> None:
        """
        Gives back memory of the GPU that the backend can do without while no call runs, say while a
        model sleeps. All ranks call it, as a collective. It waits for the collectives of this rank that
        are under way. Until resume every call raises InvalidArgument, and no graph with calls is
        replayed. A rank that does not come ends the communicator.

        Errors: InvalidArgument (it is suspended; a message of this rank is under way), NotSupported (the
        backend, or this version of its library, gives nothing back), TimedOut, and those of collectives.
        """

    def resume(self) -> None:
        """
        Takes the memory again. All ranks call it, as a collective.

        Errors: InvalidArgument (it is not suspended), and those of suspend.
        """

    def is_suspended(self) -> bool:
        """Whether it is suspended."""

    def new_window(self, tensor: object | None = None) -> Window:
        """
        Makes a window. All ranks make their windows in the same order.

        tensor: registered at once, as by Window.tensor_register.
        """

    def abort(self, reason: str = 'abort was called') -> None:
        """
        Ends every operation on all ranks: they raise Canceled, with this rank and the reason.

        Threads: any.
        """

    def is_aborted(self) -> bool:
        """
        Whether the communicator has ended: by abort, or by an operation that failed on some rank.
        """

    def finalize(self) -> None:
        """
        Waits for queued operations and leaves; later operations raise InvalidArgument.

        Errors: those of the operations that were queued.
        """

    def __enter__(self) -> Comm: ...

    def __exit__(self, type: type[BaseException] | None, value: BaseException | None, traceback: types.TracebackType | None) -> None:
        """
        Finalizes. After an exception it aborts, with the exception as the reason.
        """

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

    def all_reduce(self, tensor: object, op: ReduceOp, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None, *, output: object | None = None) -> Work:
        """
        Every rank gets the reduction of all ranks' elements, bit for bit the same.

        output: the memory of the result, of the same count and dtype; None: the tensor itself.
        hints: "algorithm": "one_shot" or "two_shot", the same on every rank.
        """

    def all_gather(self, tensor_list: object, tensor: object, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """tensor_list[r] gets the tensor of rank r. All have the same count."""

    def all_gather_v(self, tensor_list: object, tensor: object, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """
        The same with counts that differ: tensor_list[r] has the count of rank r's tensor.
        """

    def all_gather_single(self, output: object, input: object, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """output gets the inputs of all ranks in a row."""

    def reduce_scatter(self, output: object, input_list: object, op: ReduceOp, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """
        Rank r gets the reduction of all ranks' input_list[r]. All have the same count.
        """

    def reduce_scatter_v(self, output: object, input_list: object, op: ReduceOp, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """
        The same with counts that differ: input_list[r] has the count of rank r's output.
        """

    def reduce_scatter_single(self, output: object, input: object, op: ReduceOp, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """The same with the inputs in a row, one for each rank."""

    def reduce_scatter_quantized(self, output: object, input: object, op: ReduceOp, seed: int, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """
        reduce_scatter_single of float32, SUM or AVG, that sends bfloat16, rounded up or down by chance, so that
        the mean of the error is 0. Sums are float32. The same seed on all ranks gives the same elements.
        """

    def all_to_all(self, output_tensor_list: object, input_tensor_list: object, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """
        output_tensor_list[r] gets input_tensor_list[this rank] of rank r. Counts may differ.
        """

    def all_to_all_single(self, output: object, input: object, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """The same with the parts in a row, all of one count."""

    def all_to_all_v_single(self, output: object, input: object, output_split_sizes: Sequence[int], input_split_sizes: Sequence[int], async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """The same with counts for each rank, in elements."""

    def device_all_to_all_v_single(self, output: object, input: object, output_split_sizes: object, input_split_sizes: object, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """
        The same with splits in tensors of int64, which are read when the operation begins: an asynchronous one
        may be called before they are known. Their sums are at most the sizes of output and input. Splits that do
        not fit end the communicator with InvalidArgument, and nothing is written.
        """

    def barrier(self, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """Returns once every rank has called it."""

    def monitored_barrier(self, timeout: float | datetime.timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """
        A barrier that finds out which ranks do not come: rank 0 names each that is late or gone, and the others
        hear it from rank 0.

        wait_all_ranks: a rank that is gone does not end the wait for the others, so that all are named.
        """

    def broadcast(self, tensor: object, root: int, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """Every rank gets the root's elements."""

    def reduce(self, tensor: object, root: int, op: ReduceOp, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """
        The root gets the reduction of all ranks' elements; those of other ranks stay as they are.
        """

    def gather(self, output_tensor_list: object | None, input_tensor: object, root: int, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """
        output_tensor_list[r] of the root gets the input of rank r. On other ranks it is empty or None.
        """

    def gather_single(self, output: object | None, input: object, root: int, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """
        The same with the inputs of all ranks in a row. On other ranks the output may be None.
        """

    def scatter(self, output_tensor: object, input_tensor_list: object | None, root: int, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """
        Rank r gets input_tensor_list[r] of the root. On other ranks the list is empty or None.
        """

    def send(self, tensor: object, dst: int, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None, *, tag: int = 0) -> Work:
        """
        Sends a message. Done when the elements may be changed; the receiver may not have them yet.
        """

    def recv(self, tensor: object, src: int, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None, *, tag: int = 0) -> Work:
        """
        Receives the next message of the tag from a rank, or from headrace.any_source: Work.source() tells
        which. The message has as many bytes as the tensor.
        """

    def _capsule(self) -> object:
        """
        The headrace::Comm, for extension modules that are built with this one. It lives as long as this
        object.
        """

    def get_init_handle(self) -> bytes:
        """
        This rank as reconfigure takes it, for the caller to bring to all ranks. Over nccl, and over
        tables, it serves one reconfigure.
        """

    def reconfigure(self, uuid: str, init_handles: Sequence[bytes], hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, meeting_timeout: float | datetime.timedelta | None = None) -> Comm:
        """
        Makes a communicator of the ranks behind these handles, in this order.

        Each of them calls it with the same uuid and handles, on the communicator that its handle is of:
        one of several ranks, or of itself alone, as newcomers have. That one stays as it is. After a
        failure all ranks call it again, with another uuid.
        hints, timeout: of the new communicator, instead of those of this one.
        meeting_timeout: until all ranks have come; None: that of this one.
        Errors: InvalidArgument (a handle that is none, or is there twice; this rank's is missing),
        TimedOut (which ranks have not come), PeerLost (which rank).
        """

    def shrink(self, ranks_to_exclude: Sequence[int], hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, meeting_timeout: float | datetime.timedelta | None = None) -> Comm:
        """
        Makes a communicator of all ranks but some, which died or are to go.

        All that stay call it with the same ranks. This communicator is aborted if it has not ended, and the
        end of its with statement raises nothing then. The others keep their order; get_ranks of the new
        one tells what they were.
        Errors: InvalidArgument (a rank that does not exist, is there twice, or is this one), TimedOut and
        PeerLost as reconfigure: call it again without that rank.
        """

    def batch_op_create(self) -> BatchSendRecv:
        """
        Makes a batch: sends and receives that are issued together, so that none waits for another.
        """

    def coalescing(self, async_op: bool = False, stream: Any = None) -> Coalescing:
        """
        Issues the calls of a block together: `with comm.coalescing() as c: ...`, then c.work.

        Each call of this thread in the block is checked and returns the work of all. split, finalize and abort
        are not kept; finalize forgets the calls. Blocks are not nested.
        async_op: the end of the block does not wait.
        stream: on a GPU, the one that c.work.wait() makes wait; each call has a stream of its own.
        Owns: the tensors stay in memory until the work has ended.
        """

    def all_gather_p_init(self, output: object) -> AllGatherHandle:
        """
        Checks the output of all_gather_single once, for any number of all_gather_p_exec. No other rank takes
        part.
        """

    def all_gather_p_exec(self, handle: AllGatherHandle, input: Any, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: Any = None) -> Work:
        """
        all_gather_single into the output of the handle.

        Errors: InvalidArgument (another communicator's handle, or freed; another count or dtype).
        """

    def all_gather_p_free(self, handle: AllGatherHandle) -> None:
        """Ends the use of a handle. Operations that are under way go on."""

class BatchSendRecv:
    """
    Sends and receives that are issued together, from Comm.batch_op_create.

    Owns: its tensors stay in memory until the work has ended. Threads: one at a time.
    """

    def send(self, tensor: object, dst: int, *, tag: int = 0) -> None:
        """Adds a message to rank dst. Nothing moves before issue."""

    def recv(self, tensor: object, src: int, *, tag: int = 0) -> None:
        """Adds a receive from rank src, or from headrace.any_source."""

    def issue(self, async_op: bool = False, hints: dict[str, Any] | None = None, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """
        Begins all messages in the order in which they were added, once. The work ends when all have ended,
        with the first error; an empty batch is done at once. There are no hints.

        Errors: those of send and recv; InvalidArgument (the batch has been issued).
        """

    def __reduce__(self) -> NoReturn: ...

class Coalescing:
    """The calls of a thread as one, from Comm.coalescing."""

    @property
    def work(self) -> Work | None:
        """
        Ends when all calls have ended, with the first error; None before the end of the block.
        """

    def __enter__(self) -> Coalescing: ...

    def __exit__(self, type: type[BaseException] | None, value: BaseException | None, traceback: types.TracebackType | None) -> None:
        """
        Issues the calls in their order. After an exception it issues none: their work ends with Canceled.
        """

    def __reduce__(self) -> NoReturn: ...

class AllGatherHandle:
    """
    The output of all_gather_p_exec, from Comm.all_gather_p_init. Keeps its tensor.
    """

    def __reduce__(self) -> NoReturn: ...

def new_comm(backend: str = 'host', device: Any = 'cpu', *, rank: int | None = None, size: int | None = None, meeting: str | None = None, store: Any = None, name: str = 'world', timeout: float | datetime.timedelta | None = None, meeting_timeout: float | datetime.timedelta | None = None, abort_process_on_timeout_or_error: bool = False, hints: dict[str, Any] | None = None, enable_reconfigure: bool = False) -> Comm:
    """
    Opens a communicator: meets the other ranks and connects to each.

    backend: the same on all ranks; list_comm_backends() has the names. "lazy" connects ranks at their first
    message, "fake" moves nothing.
    device: where the tensors lie: "cpu", "cuda:1", or "cuda": the current GPU.
    rank, size: of this participant; None: what a launcher has set in the environment (torchrun, mpirun,
    srun and others, or HEADRACE_RANK and HEADRACE_SIZE).
    meeting: where the ranks meet: "tcp://host:port", at which rank 0 listens; "file:///folder";
    "memory:NAME" for threads of one process; "etcd://host:port". None: tcp:// with MASTER_ADDR and
    MASTER_PORT, or torchrun's own store. One rank needs none.
    store: instead of meeting, an object like torch.distributed.Store, with set(key, value), get(key) and
    wait([key], timedelta). Values are bytes.
    name: the same on all ranks. Communicators at one place have different names.
    timeout: of each operation, in seconds or as a timedelta; None: 600 s; math.inf: no limit.
    meeting_timeout: until all ranks have come; None: 120 s.
    abort_process_on_timeout_or_error: ends the process when an operation fails, or is late.
    enable_reconfigure: ranks of other hosts may join it by reconfigure, though its meeting is of this host
    alone, or it has one rank.
    hints: for the backend; list_comm_hints() has the names for "host".
    Errors: InvalidArgument (rank, size, name, an unknown hint: the nearest; a rank that two callers
    have), NotFound (no such backend: which there are; no launcher has set rank and size: what was
    looked for), NotSupported (the backend does not move memory of the device), TimedOut (which ranks have
    not come), and those of the store and of the backend.
    """

class FlightRecorder:
    """
    Keeps the last calls of one rank's communicators: operation, number, sizes, times and state.

    A dump has the layout of torch's flight recorder, version 2.10.
    python -m torch.distributed.flight_recorder.fr_trace FOLDER reads a folder with the pickle of each
    rank, and names the first operation that not all ranks have called.
    entries: so many calls are kept; a later one replaces the oldest.
    Threads: any; a dump may be made while calls are under way.
    """

    def __init__(self, entries: int = 2000) -> None: ...

    @staticmethod
    def of_environment(rank: int) -> FlightRecorder | None:
        """
        That which HEADRACE_COMM_TRACE has attached to the communicators of a rank of this process.

        None: the variable is not set, or the rank has opened no communicator.
        """

    def attach(self, comm: Comm) -> CommHook:
        """
        Records the calls of a communicator from now on, until CommHook.remove. One recorder may have
        several communicators of one rank.
        """

    def dump(self) -> str:
        """The calls as JSON."""

    def dump_pickle(self) -> bytes:
        """The same dictionary as a pickle: what fr_trace reads."""

    def write(self, prefix: str) -> str:
        """
        Writes the pickle to the file prefix + rank, as fr_trace expects, and returns the file's name.

        Errors: InvalidArgument (no communicator was attached, so there is no rank), those of the file.
        """

class CommLink:
    """
    What a communicator on a Python class tells Headrace. For headrace._comm_backend.
    """

    def end(self, work: int, exception: BaseException | None, source: int) -> None:
        """Ends a work, well or with an exception. source: of a receive."""

    def ended(self, exception: BaseException) -> None:
        """The communicator has ended, and no work of this rank says why."""

    def set(self, key: str, value: bytes) -> None:
        """Sets a key of the meeting place."""

    def get(self, key: str) -> bytes | None:
        """The value of a key; None: it has none yet."""

    def __reduce__(self) -> NoReturn: ...

def is_comm_backend_left_out(name: str) -> bool:
    """
    Whether this build leaves out a backend of communicators: HEADRACE_COMM_<NAME>=OFF.
    """

def register_backend(name: str, cls: type) -> None:
    """
    Makes a class a backend of communicators: new_comm(name) makes an object of it.

    cls: has init(device, name, options) and methods named as the operations. Each takes the
    arguments of torchcomms, then async_op and options, and returns None (it is done), a Future, or
    an object with wait(). docs/collectives.md has the list.
    Errors: InvalidArgument (the name is taken, no such class), NotSupported (the name is not
    [a-z0-9_]+).
    """

class WindowAttr:
    """How a rank reaches the memory of another one in a window."""

    @property
    def access_type(self) -> str:
        """"unified": its memory is mapped here. "separate": by requests."""

    @property
    def count(self) -> int:
        """Elements of that rank."""

    def __repr__(self) -> str: ...

class Window:
    """
    Memory of every rank that the others read and change without its help, from Comm.new_window.

    A signal comes after what the same rank has put before. Asynchronous operations run one after another,
    and the others, but for wait_signal, begin after them. An operation that fails ends nothing else.
    timeout: seconds or a timedelta; None: the communicator's.
    Errors of every operation: InvalidArgument (the values), PeerLost (which rank), NotFound (a rank has
    dropped its window), TimedOut, Canceled (the communicator was aborted).
    Threads: any.
    """

    def tensor_register(self, tensor: object, owning: bool = True) -> None:
        """
        Makes a tensor the memory of this rank. All ranks call this or allocate, in the order of their
        collectives. dtypes are the same on all ranks, counts may differ.

        owning: keep the tensor until tensor_deregister; False: the caller does.
        Errors: InvalidArgument (registered already; another dtype than on another rank), and those of
        collectives.
        """

    def allocate(self, count: int, dtype: object) -> Tensor:
        """
        The same with new memory, which holds zeros. Ranks of one host map it, so that an operation is a
        copy or one instruction. Use numpy.asarray(tensor) or torch.from_dlpack(tensor).

        dtype: torch's name, as "float32", or torch's or NumPy's dtype.
        """

    def tensor_deregister(self) -> None:
        """
        Takes the memory back. All ranks call it. Returns when no rank uses the memory any more, also when
        it raises, but for TimedOut: then a rank that stands still may use it yet.
        """

    def get_tensor(self) -> Tensor:
        """The memory of this rank."""

    def map_remote_tensor(self, rank: int) -> Tensor:
        """
        The memory of a rank at an address of this process: one dimension, which keeps it mapped.

        Errors: NotSupported (its access is "separate": why).
        """

    def get_attr(self, peer_rank: int) -> WindowAttr:
        """How this rank reaches the memory of another one."""

    def get_device_window(self) -> int:
        """
        The address of the window for kernels of this GPU (headrace/device/window.cuh). NotSupported on the CPU.
        """

    def put(self, tensor: object, dst_rank: int, target_offset_nelems: int = 0, async_op: bool = False, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """
        Writes a tensor to the memory of a rank, from that element on. When it is done the rank has it.
        """

    def get(self, tensor: object, src_rank: int, source_offset_nelems: int = 0, async_op: bool = False, timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """Reads a tensor from the memory of a rank, from that element on."""

    def signal(self, peer_rank: int, async_op: bool = False, *, value: int = 1, op: str = 'add', timeout: float | datetime.timedelta | None = None, stream: object | None = None) -> Work:
        """
        Changes the 64-bit word that this rank has at another one, after what was put there before.

        op: "add" or "set".
        """

    def wait_signal(self, peer_rank: int, async_op: bool = False, *, condition: str | None = None, value: int = 1, timeout: float | datetime.timedelta | None = None) -> int:
        """
        Waits for the word that a rank has here, and returns it.

        condition: None: until it is above 0, then 1 is taken from it: one wait for each signal. "eq",
        "ne", "lt", "le", "gt" or "ge": until it compares so with value; it stays as it is.
        Errors: NotSupported (async_op), TimedOut (the value of the word).
        """

    def atomic_add(self, dst_rank: int, target_offset_nelems: int, value: int, timeout: float | datetime.timedelta | None = None) -> int:
        """
        Adds to one element of a rank, in one step for all ranks, and returns the value before. int32,
        uint32, int64 and uint64; sums wrap around.
        """

    def flush(self, timeout: float | datetime.timedelta | None = None) -> None:
        """
        Waits until all asynchronous operations of this rank have ended. Each work has its own error.
        """

    def __reduce__(self) -> NoReturn: ...

class CounterWord:
    """
    A counter as 8 bytes of memory that grow while the agent is open, for readers that poll: from
    Counter.word. torch.as_tensor(word, device=...) and numpy.asarray(word) view it as one int64.
    A kernel reads it through a volatile pointer, then calls __threadfence_system(); after that it
    sees the bytes of the posts that are counted. Do not write to it.
    Owns: the memory stays while this object or a view of it lives; let kernels that read it end
    first.
    """

    @property
    def address(self) -> int:
        """The address, in this process or in the GPU's memory."""

    @property
    def device(self) -> int:
        """The ordinal of the GPU; -1: host memory."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """For NumPy. Errors: AttributeError (the word is in GPU memory)."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """
        For torch, Numba and CuPy. Errors: AttributeError (the word is in host memory).
        """

    def __reduce__(self) -> NoReturn: ...

class Counter:
    """
    The number of posts with one immediate that have arrived, from Agent.counter.

    It counts the posts of peers, and of the agent to itself, whose bytes can be read. It
    only grows. Posts that arrived before the counter was opened are in it.
    Threads: any.
    """

    @property
    def immediate(self) -> int:
        """The immediate that is counted."""

    @property
    def scope(self) -> int:
        """The scope of the immediate."""

    @property
    def value(self) -> int:
        """The count now: the bytes of these posts can be read."""

    def wait(self, at_least: int, timeout: float | None = None) -> None:
        """
        Waits until the count is at least that.

        timeout: seconds; None: no limit.
        Errors: TimedOut, Canceled (the agent was closed).
        """

    def reached(self, at_least: int) -> Coroutine[object, None, None]:
        """
        `await counter.reached(n)` waits in the running asyncio loop until the count is at least n.

        Errors: Canceled (the agent was closed).
        """

    def event_fd(self, at_least: int) -> int:
        """
        A new descriptor that becomes readable once the count is at least that, or the agent is closed.

        Owns: the caller closes it, and does not read from it.
        """

    def word(self, device: int | None = None) -> CounterWord:
        """
        The count as a word in memory that threads or kernels poll: a CounterWord.

        device: the ordinal of a GPU; None: host memory.
        Errors: NotSupported (no GPU driver), InvalidArgument (no such GPU, the agent is closed),
        Exhausted.
        """

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

class HistogramSnapshot:
    """
    Counts of values by size. Bucket 0 counts zeros, bucket i counts values from 2^(i-1) to 2^i - 1.
    """

    @property
    def count(self) -> int:
        """The number of values."""

    @property
    def sum(self) -> int:
        """The sum of the values, modulo 2^64."""

    @property
    def smallest(self) -> int:
        """The smallest value."""

    @property
    def largest(self) -> int:
        """The largest value."""

    @property
    def buckets(self) -> list[int]:
        """The counts of the 65 buckets."""

    @property
    def mean(self) -> float:
        """The mean of the values; 0 without values."""

    def percentile(self, percent: float) -> float:
        """
        The value that `percent` % of the values do not exceed; 0 without values.

        It is wrong by a factor of two at most, and exact for 0 and 100.
        """

class EventSnapshot:
    """A single event: a peer came or left, a path failed over."""

    @property
    def time_ns(self) -> int:
        """When it happened: CLOCK_MONOTONIC, as time.monotonic_ns()."""

    @property
    def room(self) -> str:
        """The part of the library that reports it: "tcp", "engine"."""

    @property
    def text(self) -> str:
        """What happened."""

    def __repr__(self) -> str: ...

class TelemetrySnapshot:
    """
    The telemetry of an agent. Names end in their unit: "tcp.sent_bytes", "requests.duration_ns".
    """

    @property
    def counters(self) -> dict[str, int]:
        """The counters by name."""

    @property
    def histograms(self) -> dict[str, HistogramSnapshot]:
        """The histograms by name."""

    @property
    def events(self) -> list[EventSnapshot]:
        """The latest events, oldest first."""

    @property
    def events_dropped(self) -> int:
        """The number of older events that were overwritten."""

    def json(self) -> str:
        """The whole snapshot as one JSON object."""

class TopologyNic:
    """
    A network card: an RDMA device with its interfaces, or an interface alone.
    """

    @property
    def name(self) -> str:
        """Of the RDMA device ("mlx5_0"), else of the interface ("eth0")."""

    @property
    def interfaces(self) -> list[str]:
        """The network interfaces on it."""

    @property
    def rdma(self) -> bool:
        """Whether it is an RDMA device."""

    @property
    def link_layer(self) -> str:
        """"Ethernet", "InfiniBand"; empty: unknown."""

    @property
    def speed_mbit(self) -> int:
        """Mbit/s of all its ports that are up; 0: unknown."""

    @property
    def up(self) -> bool | None:
        """Whether a port has a link; None: unknown."""

    @property
    def pci(self) -> str:
        """"0000:1a:00.0"; empty: no PCI device."""

    @property
    def model(self) -> str:
        """PCI vendor and device, "15b3:1021"; empty: unknown."""

    @property
    def driver(self) -> str:
        """"mlx5_core"; empty: unknown."""

    @property
    def numa_node(self) -> int | None:
        """Its NUMA node; None: unknown."""

    @property
    def nearness(self) -> str:
        """
        The nearest thing that it has in common with its group's GPU or NUMA node: "pci_switch",
        "host_bridge", "numa_node", "machine" or "unknown".
        """

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

class TopologyGpu:
    """A GPU of a group."""

    @property
    def pci(self) -> str:
        """"0000:1b:00.0"."""

    @property
    def index(self) -> int | None:
        """
        That of CUDA and torch in this process; None: the driver was not asked.
        """

    @property
    def name(self) -> str:
        """"NVIDIA H200"; empty: the driver was not asked."""

    def __repr__(self) -> str: ...

class TopologyGroup:
    """
    A GPU and what is near it; or, without a GPU, a NUMA node and what is near that.
    """

    @property
    def gpu(self) -> TopologyGpu | None:
        """The GPU; None: the group is a NUMA node."""

    @property
    def numa_node(self) -> int | None:
        """The NUMA node; None: unknown."""

    @property
    def cpus(self) -> list[int]:
        """
        The CPUs of the node that this process may use; all that it may use if none.
        """

    @property
    def own_cpus(self) -> list[int]:
        """
        The part of `cpus` that no other GPU of the node has, for threads of this group: whole cores.
        Where there are fewer cores than GPUs it is `cpus`.
        """

    @property
    def nics(self) -> list[TopologyNic]:
        """
        By kind (RDMA devices first), nearness and PCI address. Several groups may have the same one.
        """

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

class LeftOutNic:
    """A network card that no group has."""

    @property
    def nic(self) -> TopologyNic:
        """The card."""

    @property
    def reason(self) -> str:
        """
        A sentence: its link is down, it is of another model than the others, ...
        """

    def __repr__(self) -> str: ...

class DetectedTopology:
    """The groups of a machine, and the network cards that no group has."""

    @property
    def groups(self) -> list[TopologyGroup]:
        """GPUs by index (else by PCI address), then nodes without a GPU."""

    @property
    def left_out(self) -> list[LeftOutNic]:
        """By name."""

    def __str__(self) -> str:
        """A line for each group, and one for each card that is left out."""

def detect_topology(*, root: str = "", ask_driver: bool = True) -> DetectedTopology:
    """
    Reads which network cards and CPUs are near each GPU, and near each NUMA node without one.

    The network cards of a PCI switch are dealt to its GPUs in turn. More GPUs than cards share them. A GPU
    without a card in its switch or on its root complex takes those of its NUMA node; without one there,
    those of the machine. RDMA devices and plain interfaces are dealt by themselves. Cards of another model
    than most of their kind, and those without a link, are left out.
    root: the folder of a recorded machine, in which its sys/, proc/ and dev/ lie; empty: this machine.
    ask_driver: asks the CUDA driver which GPUs this process sees, and for their indices. That starts the
    driver: a child that is forked later cannot use CUDA.
    Errors: none; what cannot be read is unknown.
    """

class ImportReport:
    """The result of an import of metadata."""

    @property
    def peer(self) -> str:
        """The name of the peer."""

    @property
    def incarnation(self) -> int:
        """The peer's incarnation: a random number, new at each start."""

    @property
    def version(self) -> int:
        """The version of the peer's metadata after the import."""

    @property
    def regions(self) -> int:
        """The number of regions of this peer that are known now."""

    @property
    def restarted(self) -> bool:
        """
        Whether the peer has restarted: requests and lists of its earlier incarnation raise PeerLost.
        """

    @property
    def left_out(self) -> int:
        """
        The number of regions that were not taken, because the peer has revoked them since.
        """

    @property
    def note(self) -> str:
        """Says in a sentence what was not taken; empty: all was taken."""

    def __repr__(self) -> str: ...

class PeerInfo:
    """What this agent knows of a peer."""

    @property
    def name(self) -> str:
        """The peer's name."""

    @property
    def incarnation(self) -> int:
        """The peer's incarnation: a random number, new at each start."""

    @property
    def version(self) -> int:
        """The version of its metadata."""

    @property
    def regions(self) -> int:
        """The number of its regions that are known."""

    @property
    def connected(self) -> bool:
        """Whether a link to it is ready."""

    @property
    def lost(self) -> bool:
        """Whether it died, left or cannot be reached."""

    @property
    def backends(self) -> list[str]:
        """The backends that both agents have, and those that have a link."""

    @property
    def detail(self) -> str:
        """Why it was lost, or the state of each backend."""

    def __repr__(self) -> str: ...

class OptionInfo:
    """An option and its current value."""

    @property
    def name(self) -> str:
        """"check"; "tcp.sockets" for an option of a backend."""

    @property
    def default_value(self) -> str:
        """The value if the option is not set."""

    @property
    def value(self) -> str:
        """The current value; "(set)" for a secret."""

    @property
    def unit(self) -> str:
        """The unit of the value."""

    @property
    def sentence(self) -> str:
        """What the option does."""

    @property
    def source(self) -> str:
        """
        Where the value comes from: "default", "file", "environment" or "caller".
        """

    def __repr__(self) -> str: ...

class BackendInfo:
    """A backend that was found: its abilities, or why it did not load."""

    @property
    def name(self) -> str:
        """"shm", "tcp", ..."""

    @property
    def version(self) -> str:
        """The backend's version."""

    @property
    def path(self) -> str:
        """The shared object, or "linked in"."""

    @property
    def loaded(self) -> bool:
        """Whether it can be used."""

    @property
    def refusal(self) -> str:
        """Why it did not load, and what to do; empty if it loaded."""

    @property
    def kinds(self) -> list[str]:
        """The kinds of memory that it takes."""

    @property
    def local(self) -> bool:
        """Whether it moves pages inside one agent."""

    @property
    def remote(self) -> bool:
        """Whether it moves pages between agents."""

    @property
    def notifications(self) -> bool:
        """Whether it carries notifications."""

    @property
    def mapping(self) -> bool:
        """Whether Agent.map can use it."""

    @property
    def query(self) -> bool:
        """Whether Agent.query can ask it."""

    @property
    def ports(self) -> list[str]:
        """
        In Agent.backends: the addresses on which this agent's instance listens, as in "[::]:40213".
        """

    @property
    def options(self) -> list[OptionInfo]:
        """The options of the backend."""

    def __repr__(self) -> str: ...

class _NotificationWatch:
    """Tells of notifications that pass a filter; for headrace._asyncio."""

    def fileno(self) -> int:
        """A descriptor that is readable when there may be one."""

    def drain(self) -> None:
        """Makes it unreadable until the next one. Take them after it."""

class Agent:
    """
    A named participant: it owns regions, knows peers, and makes the requests that move pages.

    A context manager: leaving it closes the agent. Agents that are open when the interpreter
    ends are closed then.
    Threads: any thread may call any method; methods that wait or copy release the GIL.
    Fork: in a forked child every method raises InvalidArgument.
    """

    def __init__(self, name: str, backends: Sequence[str] | None = None, listen: str = '', store: str = '', options: _Mapping[str, str | bool | int | float] | None = None) -> None:
        """
        Opens an agent.

        name: its name for peers, 1 to 255 bytes.
        backends: the backends to open; None: all that load on this machine.
        listen: "host:port" for metadata queries; port 0 picks a free one (see listen_address);
        empty: do not listen. On loopback and without a store, tcp's data port is on loopback,
        too, unless the option tcp.listen is set.
        store: "etcd://host:port[,host:port...][/namespace]", "file:///folder" or
        "memory:NAME"; empty: the one of HEADRACE_STORE, or none.
        options: values of options by name, {"tcp.sockets": 4}; they override the environment.
        Errors: InvalidArgument (name, option), BackendFailed (a backend of `backends` does not load;
        the text says why).
        """

    @property
    def name(self) -> str:
        """The agent's name for peers."""

    @property
    def incarnation(self) -> int:
        """
        A random number, new at each start. Peers recognise a restarted agent by it.
        """

    @property
    def closed(self) -> bool:
        """Whether close() was called."""

    def close(self) -> None:
        """
        Cancels the requests in flight, tells the peers, and ends all registrations.

        Later calls do nothing.
        Threads: any, at any time. Calls that wait in other threads raise Canceled, later ones
        InvalidArgument.
        """

    def __enter__(self) -> Agent: ...

    def __exit__(self, type: object, value: object, traceback: object) -> None: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

    def register(self, obj: object, name: str = '', note: bytes = b'', backends: Sequence[str] | None = None, writable: bool | None = None) -> Any:
        """
        Makes memory reachable for peers. Returns its Region; for a list a list of Regions.

        obj: an object with the buffer protocol (bytearray, mmap, NumPy array) or DLPack (torch
        tensor), a tuple (address, length), a MemoryRange, or a list of these. Of a list all are
        registered or none. An array may have any order of dimensions but no gaps. Read-only objects
        (bytes) are taken; a request that would write to them is refused, here and at peers.
        name: unique in the agent; for a list "/0", "/1", ... is appended.
        note: bytes that go with the metadata, up to 64 KiB.
        backends: only these; None: all that take the kind.
        writable: False: requests can only read the memory. None: as the object says.
        Owns: the object is kept alive and in place until its region is deregistered or the agent is
        closed. For memory given by address the caller must do this.
        Errors: InvalidArgument (empty, gaps, name in use), NotSupported (no backend takes this
        kind).
        """

    def deregister(self, regions: Region | Memory | int | Sequence[Region | Memory | int], timeout: float | None = 10.0) -> None:
        """
        Withdraws regions: no peer can reach them after the return.

        Revokes them at every peer that knows them, and waits until each has confirmed or is lost.
        timeout: seconds; None: no limit.
        Errors: NotFound, WouldBlock (requests of this agent are in flight and timeout is 0),
        TimedOut (a peer did not answer: the regions stay).
        """

    def allocate(self, length_bytes: int, kind: str = 'dram', numa_node: int = -1, huge_pages: bool = False, name: str = '', note: bytes = b'', backends: Sequence[str] | None = None, writable: bool = True, near_gpu: int = -1) -> Memory:
        """
        Allocates and registers memory that peers on this host map: the fastest kind.

        The memory is zero-filled and page-aligned.
        kind: "dram". name, note, backends: as in register.
        numa_node: -1: the node of near_gpu, or of the thread that touches a memory page first.
        huge_pages: use pages of 2 MiB.
        writable: False: requests and peers can only read it; the Memory object stays writable.
        near_gpu: CUDA ordinal of a GPU; takes memory of its NUMA node if the firmware names that
        node and the system allows the choice.
        Owns: the Memory object and its views keep the memory; the region belongs to the agent until
        it is deregistered.
        Errors: InvalidArgument (length 0; no such node, the text lists them; no such GPU), Exhausted
        (not enough memory or huge pages), NotSupported (kind; near_gpu without a driver).
        """

    def map(self, peer: str, region: Region | int, timeout: float | None = 10.0, device: object = None) -> Mapping:
        """
        Maps a peer's region into this process. Returns a Mapping.

        For the CPU the region must be from the peer's allocate; the kernels of a GPU can also use
        the peer's GPU memory.
        device: the GPU of this process that will use it: 1, "cuda:1" or a torch.device ("cuda"
        is GPU 0); None: the CPU. timeout: seconds.
        Errors: NotFound, NotSupported (another host; host memory that was registered; no way from
        this GPU; the text has the answer of each backend), InvalidArgument (no such GPU; GPU memory
        for the CPU), PeerLost, TimedOut.
        """

    def regions(self) -> list[Region]:
        """The regions that are registered now."""

    def query(self, what: MemoryRange, backend: str) -> dict[str, str] | None:
        """
        Asks a backend about a file, block device or object. Returns None if it does not exist.

        Else returns what the backend knows of it; key "bytes" is its length.
        Errors: NotFound (no such backend is open), NotSupported (the backend does not have this
        kind; the text names those that do), InvalidArgument (memory, or no name).
        """

    register_memory = register

    def export_metadata(self, regions: Sequence[Region | Memory | int] | None = None, connection_info: bool = True, since_version: int = 0) -> bytes:
        """
        Returns the metadata of this agent, for import_metadata of a peer.

        regions: only these; []: no regions; None: all regions.
        connection_info: include the addresses of this agent; later exports may leave them out.
        since_version: only what changed after this metadata_version; 0: everything.
        Errors: NotFound (a region), InvalidArgument (a version that does not exist yet).
        """

    @property
    def metadata_version(self) -> int:
        """Rises with each registration and deregistration."""

    def import_metadata(self, metadata: bytes) -> ImportReport:
        """
        Imports the result of a peer's export_metadata.

        Whole exports and parts come in any order; an update needs the version that it starts from, and
        a request needs the connection information, which any of them may have.
        Errors: Corrupt (the text says where), InvalidArgument (metadata of this agent; another
        protocol version).
        """

    @property
    def listen_address(self) -> str:
        """
        The address for metadata queries, as "127.0.0.1:40213"; empty if the agent does not listen.
        """

    def fetch_metadata(self, address: str, timeout: float | None = 10.0, label: str = '') -> ImportReport:
        """
        Asks the agent that listens at "host:port" for its metadata and imports it.

        timeout: seconds. label: empty; only stores have labels.
        Errors: PeerLost (no agent answers there), TimedOut, Corrupt, InvalidArgument (address).
        """

    def send_metadata(self, address: str, regions: Sequence[Region | Memory | int] | None = None, connection_info: bool = True, since_version: int = 0, timeout: float | None = 10.0) -> None:
        """
        Sends the metadata of this agent to the agent that listens at "host:port".

        regions, connection_info, since_version: as in export_metadata. timeout: seconds.
        Errors: PeerLost (no agent answers there), TimedOut, InvalidArgument (address).
        """

    def publish(self, regions: Sequence[Region | Memory | int] | None = None, connection_info: bool = True, label: str = '') -> None:
        """
        Publishes this agent's metadata in the store, again after each change of its regions.

        The entry has a lease that ends with the agent. regions, connection_info: as in
        export_metadata. label: names one of several entries of an agent.
        Errors: InvalidArgument (the agent has no store), BackendFailed (the store).
        """

    def unpublish(self) -> None:
        """Removes the metadata of this agent from the store."""

    def find(self, peer: str, timeout: float | None = 10.0, label: str = '') -> ImportReport:
        """
        Looks up a peer in the store by name and imports its metadata.

        timeout: seconds. label: as the peer gave it to publish.
        Errors: NotFound (no agent of that name), TimedOut, InvalidArgument (the agent has no store).
        """

    def list_namespace(self, timeout: float | None = 10.0) -> list[str]:
        """The names of the agents in the store's namespace."""

    def watch_namespace(self, callback: Callable[[str, str], object] | None) -> None:
        """
        Calls callback(event, peer) for every change in the store's namespace; None ends this.

        event: "joined", "updated" or "left". A new callback replaces the earlier one.
        Threads: runs on the agent's callback thread; an exception in it goes to sys.unraisablehook.
        Errors: InvalidArgument (the agent has no store).
        """

    def peers(self) -> list[PeerInfo]:
        """
        The peers whose metadata this agent has, and those that have connected to it.

        A peer stays until it is forgotten: `lost` says that it died or left, `detail` why.
        """

    def peer_regions(self, peer: str) -> list[Region]:
        """
        The known regions of a peer.

        Errors: NotFound (peer).
        """

    def peer_region(self, peer: str, region_name: str) -> Region:
        """
        A peer's region, by its name.

        Errors: NotFound (peer, name).
        """

    def connect(self, peer: str, timeout: float | None = 10.0, backends: Sequence[str] | None = None) -> None:
        """
        Connects to a peer before the first request, and waits until the link is ready.

        timeout: seconds. backends: only these; None: all that both have.
        Errors: NotFound, PeerLost, TimedOut, NotSupported.
        """

    def forget(self, peer: str) -> None:
        """
        Cancels the requests in flight with a peer, closes its links and drops its metadata.

        Errors: NotFound.
        """

    def prepare(self, pages: object, peer: str | None = None, view: PageView | None = None) -> PageList:
        """
        Checks and resolves a list of pages once. Requests then choose pages of it by index.

        pages: one of
        - a list of tuples (address, length), or of tuples (region, offset, length); region is a
          Region, a Memory or a region's id;
        - an N x 2 array (address, length) or N x 3 array (region's id, offset, length), uint64 or
          int64, contiguous, read without a copy;
        - UniformPages or RegionPages;
        - a Region, an array or a tensor, or a list of these: the memory of each is one page.
        peer: the owner of the pages; None: this agent. Pages of a peer are given by region. The own
        name stands for the remote list of a request inside this agent.
        view: a PageView, the shape of every page; None: pages are contiguous. With a view a page's
        length is that of the view; UniformPages may have 0.
        Units: bytes. Owns: keeps none of the arguments.
        Errors: InvalidArgument (no pages; a page of length 0, the error has its index; a view that
        is not possible, the text says why), NotFound (memory that is not registered, with the page's
        index).
        """

    @overload
    def make_request(self, op: Literal['read', 'write'], local: PageList, remote: PageList, local_index: object = None, remote_index: object = None, backends: Sequence[str] | None = None, timeout: float | None = None, cls: type[Request] | None = None) -> Request:
        """
        Makes a request that moves page local_index[i] to or from page remote_index[i].

        local, remote: PageLists; remote has pages of a peer or of this agent.
        op: "read" (local <- remote) or "write" (local -> remote).
        local_index, remote_index: one-dimensional arrays of integers (uint32, int32, and 64 bits are
        read without a copy) or lists of ints; None: all pages in order.
        backends: only these; None: the best that is available.
        timeout: seconds; each post is canceled after this time. None: no limit.
        cls: the class of the result, a subclass of Request that adds attributes; its __init__ is not
        called. None: Request.
        Errors: InvalidArgument (counts or lengths differ; an index that its list does not have; the
        error names it), NotFound (a region was revoked), NotSupported (no common path; the text has
        the answer of each backend).
        """

    @overload
    def make_request(self, op: Literal['read', 'write'], parts: Iterable[tuple[PageList, PageList] | tuple[PageList, PageList, object, object]], *, backends: Sequence[str] | None = None, timeout: float | None = None, cls: type[Request] | None = None) -> Request:
        """
        Makes a request to or from several peers: one post, one deadline, one completion.

        parts: tuples (local, remote) or (local, remote, local_index, remote_index), as above; each
        has another peer. Each part takes its own best path and moves independently of the others.
        The request ends when the last part has ended. It fails with the error of the first part that
        failed; Request.parts tells which peers have their pages. Notification and stream of a post
        go with each part.
        Errors: as above, with the part's number; InvalidArgument (no part; two parts of one peer).
        """

    def read(self, peer: str, local_pages: object, remote_pages: object, notification: bytes | None = None, timeout: float | None = None, backends: Sequence[str] | None = None, *, immediate: int | None = None, scope: int = 0) -> Request:
        """
        Reads pages of a peer into local pages.

        It makes a request, posts it and waits for its end.
        local_pages, remote_pages: PageLists, or what prepare takes; page i of one goes with page i
        of the other.
        notification: bytes for the peer, delivered after its pages are written (write) or read
        (read).
        timeout: seconds; after them the request is canceled and TimedOut is raised.
        backends: only these; None: the best that is available.
        immediate, scope: as in Request.post; the peer counts the post.
        Returns: the request, which is done; see its times and explain().
        Errors: those of prepare, make_request, Request.post and Request.wait.
        """

    def write(self, peer: str, local_pages: object, remote_pages: object, notification: bytes | None = None, timeout: float | None = None, backends: Sequence[str] | None = None, *, immediate: int | None = None, scope: int = 0) -> Request:
        """
        Writes local pages to pages of a peer.

        It makes a request, posts it and waits for its end.
        local_pages, remote_pages: PageLists, or what prepare takes; page i of one goes with page i
        of the other.
        notification: bytes for the peer, delivered after its pages are written (write) or read
        (read).
        timeout: seconds; after them the request is canceled and TimedOut is raised.
        backends: only these; None: the best that is available.
        immediate, scope: as in Request.post; the peer counts the post.
        Returns: the request, which is done; see its times and explain().
        Errors: those of prepare, make_request, Request.post and Request.wait.
        """

    def notify(self, peer: str, payload: bytes) -> None:
        """
        Sends a notification without a request.

        payload: up to 64 KiB.
        Errors: WouldBlock (the peer's program has to take some first: retry), NotFound, PeerLost.
        """

    def take_notifications(self, peer: str = '', prefix: bytes = b'') -> list[tuple[str, bytes]]:
        """
        Takes the notifications that have arrived, oldest first, as (peer, payload). Does not wait.

        peer: only notifications of this peer; prefix: only payloads that begin with it; empty: all.
        """

    def wait_notification(self, timeout: float | None = None, peer: str = '', prefix: bytes = b'') -> tuple[str, bytes]:
        """
        Waits for the next notification. Returns (peer, payload).

        timeout: seconds; None: no limit. peer, prefix: as in take_notifications.
        Errors: TimedOut, Canceled (the agent was closed).
        """

    def on_notification(self, callback: Callable[[str, bytes], object] | None) -> None:
        """
        Calls callback(peer, payload) for each notification instead of keeping it; None ends this.

        Threads: runs on the agent's callback thread; an exception in it goes to sys.unraisablehook.
        """

    def notification_fd(self) -> int:
        """
        A descriptor that is readable while notifications wait. The agent owns it.
        """

    def notifications(self, peer: str = '', prefix: bytes = b'') -> AsyncIterator[tuple[str, bytes]]:
        """
        An asynchronous iterator over notifications, as (peer, payload).

        It ends when the agent is closed.
        peer, prefix: as in take_notifications; other notifications are not taken.
        """

    def _take_notification(self, peer: str, prefix: bytes) -> tuple[str, bytes] | None:
        """
        The oldest of take_notifications alone; None: none has arrived. For headrace._asyncio.
        """

    def _watch_notifications(self, peer: str, prefix: bytes) -> _NotificationWatch:
        """Watches for notifications that pass the filter; for headrace._asyncio."""

    def _closing_fd(self) -> int:
        """
        A descriptor that becomes readable when the agent is closed; for headrace._asyncio.
        """

    def counter(self, immediate: int, scope: int = 0) -> Counter:
        """
        The counter of the posts that arrive here with this immediate.

        immediate, scope: as the peers give them to post, read and write.
        """

    def backends(self) -> list[BackendInfo]:
        """The backends that this agent has opened."""

    def create_backend(self, name: str, options: _Mapping[str, str | bool | int | float] | None = None) -> None:
        """
        Opens one more backend. Peers know of it after their next import of metadata.

        options: options of the backend, without its name: {"sockets": 4}.
        Errors: InvalidArgument (open already; option), BackendFailed (it does not load; the text
        says why).
        """

    def telemetry(self) -> TelemetrySnapshot:
        """The counters, histograms and events of the agent up to now."""

def list_backends(options: _Mapping[str, str | bool | int | float] | None = None) -> list[BackendInfo]:
    """
    All backends that are found, loaded or refused. Needs no agent.

    The backend `fake`, which is for tests, is not listed here nor by list_options unless an
    option names it.
    Errors: InvalidArgument (an option that does not exist; a value that it cannot have).
    """

def list_options(options: _Mapping[str, str | bool | int | float] | None = None) -> list[OptionInfo]:
    """
    All options of the core and of the backends, with their values and where these come from.

    Errors: InvalidArgument (an option that does not exist).
    """

def list_namespace(store: str, timeout: float | None = 10.0) -> list[PeerInfo]:
    """
    The agents in a store, with the number of their regions. Connects to none of them.

    store: as in Agent. timeout: seconds.
    Errors: InvalidArgument (store), BackendFailed, TimedOut.
    """

class FabricAddress:
    """
    Where a fabric is found: its network cards, from Fabric.address. bytes(address), str(address) and
    pickle give it to peers; it holds no secret.
    """

    def __init__(self, data: bytes | str) -> None:
        """
        data: bytes(address) or str(address) of a peer.
        Errors: Corrupt (damaged or cut), NotSupported (of another version).
        """

    def __str__(self) -> str:
        """The bytes in hexadecimal digits."""

    def __repr__(self) -> str: ...

    def __bytes__(self) -> bytes:
        """For peers, by any way."""

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __reduce__(self) -> tuple[Any, ...]: ...

class FabricDescriptor:
    """
    Names memory of a fabric to its peers, from FabricMemory.descriptor. bytes(descriptor) and pickle
    give it to them: less than 100 bytes with one network card and IPv4.

    A post needs nothing else: the link to the owner is made at the first one. A process that has it can
    use the memory until it is deregistered.
    """

    def __init__(self, data: bytes) -> None:
        """
        data: bytes(descriptor) of the owner.
        Errors: Corrupt (damaged or cut), NotSupported (of another version).
        """

    @property
    def length_bytes(self) -> int:
        """The length of the memory."""

    @property
    def access(self) -> str:
        """"readable" or "writable"."""

    def __str__(self) -> str:
        """
        For people: "4096 writable bytes at tcp:192.0.2.1:4711/0123456789abcdef".
        """

    def __repr__(self) -> str: ...

    def __bytes__(self) -> bytes:
        """For peers, by any way."""

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __reduce__(self) -> tuple[Any, ...]: ...

class FabricMemory:
    """
    Registered memory, from Fabric.register. It stays registered without this object, until
    Fabric.deregister or the close of the fabric.
    """

    @property
    def address(self) -> int:
        """The address, in this process or in the GPU's memory."""

    @property
    def length_bytes(self) -> int:
        """The length."""

    @property
    def access(self) -> str:
        """"local", "readable" or "writable"."""

    @property
    def device(self) -> int | None:
        """The ordinal of the GPU; None: host memory."""

    @property
    def group(self) -> int:
        """Its place in Fabric.groups(): the network cards that carry its posts."""

    @property
    def descriptor(self) -> FabricDescriptor | None:
        """For peers; None if the access is local."""

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

class FabricBuffer:
    """
    A host buffer of a pool, from FabricBuffers.take: memoryview(buffer) and numpy.asarray(buffer) view its
    bytes. Its end, `release` or leaving it as a context manager gives it back.
    """

    @property
    def memory(self) -> FabricMemory:
        """The memory of the pool, for posts."""

    @property
    def offset_bytes(self) -> int:
        """Where the buffer begins in `memory`."""

    def release(self) -> None:
        """
        Gives it back now; does nothing the second time.

        Errors: BufferError (views of it exist).
        """

    def __enter__(self) -> FabricBuffer: ...

    def __exit__(self, type: object, value: object, traceback: object) -> None: ...

    def __reduce__(self) -> NoReturn: ...

class FabricBuffers:
    """
    Registered host buffers of one size, from Fabric.host_buffers.

    Owns: the memory lives as long as this object or one of its buffers.
    Threads: any.
    """

    def take(self) -> FabricBuffer:
        """
        A buffer that nobody has; its content is that of its last use.

        Errors: WouldBlock (all are taken).
        """

    @property
    def free(self) -> int:
        """The number of buffers that nobody has."""

    @property
    def bytes_each(self) -> int:
        """The length of a buffer."""

    def __reduce__(self) -> NoReturn: ...

class FabricWork:
    """
    A post of a fabric. It goes on without this object.

    States: posted (-> canceling) -> done | failed | canceled, once. At the end no network card touches
    the memory of the post any more, here and, over all links that live, at the peer. done: the bytes can
    be read at the peer (write) or here (read), and its immediate is counted, or will be, unless the link
    is lost first.
    Threads: any. `await work` waits in the running asyncio loop; cancelling the task cancels the post and
    waits for its end.
    """

    @property
    def state(self) -> str:
        """"posted", "canceling", "done", "failed" or "canceled"."""

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""

    @property
    def length_bytes(self) -> int:
        """
        The bytes of the post, to all peers; of a receive that is done, of the message.
        """

    @property
    def error(self) -> headrace.errors.Error | None:
        """
        Why it failed: operation, peer, network card where one is known, page. None if it did not
        fail, or has not ended.
        """

    def wait(self, timeout: float | datetime.timedelta | None = None) -> None:
        """
        Waits until it has ended.

        timeout: seconds or a timedelta; None: no limit but that of the post.
        Errors: that of the post; TimedOut (still in flight: the post goes on).
        """

    def cancel(self) -> None:
        """Asks that it ends, and returns at once. Does nothing if it has ended."""

    def add_done_callback(self, callback: Callable[[FabricWork], object]) -> None:
        """
        Calls callback(work) once at the end; at once if it has ended. Any number of them.

        Threads: the callback thread of the fabric. An exception goes to Fabric.on_error.
        """

    def get_future(self) -> concurrent.futures.Future[None]:
        """
        A future that ends with the post, with its error if it failed. Use `cancel` to cancel the post.

        Threads: callbacks of all such futures run on one thread of the process.
        """

    def fileno(self) -> int:
        """
        A descriptor that becomes readable at the end and stays so. The work owns it.

        Errors: Exhausted.
        """

    def __await__(self) -> Generator[object, None, None]: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

class FabricWord:
    """
    The number of full rounds as 8 bytes of host memory that grow by one with each, for readers that
    poll: from FabricExpectation.word. numpy.asarray(word) views it as one int64. Do not write to it.

    Owns: the memory stays while this object or a view of it lives.
    """

    @property
    def address(self) -> int:
        """The address in this process."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """For NumPy."""

    def __reduce__(self) -> NoReturn: ...

class FabricExpectation:
    """
    Counts an immediate in rounds of n arrivals, from Fabric.expect. What exceeds n stays for the next
    round. It counts without this object, until `remove` or the close of the fabric.

    A program that sees a full round, by any of these ways, can read the bytes of its posts: from the
    host, and by GPU work that is submitted afterwards. `wait`, `poll`, `await` and futures take rounds:
    each round ends one of them. The callback, the descriptor and the word see all rounds.
    Threads: any. `await expectation` takes the next round in the running asyncio loop.
    """

    @property
    def immediate(self) -> int:
        """The immediate that is counted."""

    @property
    def scope(self) -> int:
        """The scope of the immediate."""

    @property
    def arrivals_each(self) -> int:
        """Arrivals of a round."""

    @property
    def rounds(self) -> int:
        """The number of full rounds."""

    def wait(self, timeout: float | datetime.timedelta | None = None) -> None:
        """
        Takes the next full round that was not taken, and waits for it.

        timeout: seconds or a timedelta; None: no limit.
        Errors: TimedOut, Canceled (removed, or the fabric is closed).
        """

    def poll(self) -> bool:
        """
        Takes the next full round that was not taken. False if there is none.

        Errors: Canceled (removed, or the fabric is closed).
        """

    def on_reached(self, callback: Callable[[], object] | None) -> None:
        """
        Calls callback() for each full round that it was not called for, until it returns False.

        Replaces an earlier function; None: no callback. After `remove` no call begins.
        Threads: the callback thread of the fabric. An exception goes to Fabric.on_error.
        """

    def get_future(self) -> concurrent.futures.Future[None]:
        """
        A future that takes the next round that was not taken. Futures end in the order in which they were
        made, with Canceled when the expectation is removed or the fabric closed.

        Threads: callbacks of all such futures run on one thread of the process.
        """

    def fileno(self) -> int:
        """
        An eventfd that grows by one with each round. Read 8 bytes to clear it. The expectation owns it.
        It becomes readable for good when the expectation is removed or the fabric is closed.

        Errors: Exhausted.
        """

    def word(self) -> FabricWord:
        """
        The number of full rounds as a word in memory that threads poll: a FabricWord.
        """

    def flag(self, *, device: int | None = None, memory: object = None) -> FabricFlag:
        """
        A word that grows with the rounds, for kernels and streams of GPUs: a FabricFlag.

        device: the ordinal of a GPU: pinned host memory that all GPUs of the process see; None: host
        memory for threads.
        memory: 8 bytes or more of a GPU's memory, aligned to 8 (a tensor by DLPack, a MemoryRange): the
        flag is in its first 8 bytes.
        Errors: NotSupported (no GPU driver), InvalidArgument (no such GPU, the expectation was removed),
        NotFound (no memory of the GPU there), Exhausted.
        """

    def remove(self) -> int:
        """
        Ends it. Returns the arrivals of the round that is not full. Later arrivals are unexpected ones.

        Waits end with Canceled, and the callback is not called any more.
        """

    def __await__(self) -> Generator[object, None, None]: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

class FabricGroupOptions:
    """A group of a fabric by hand."""

    def __init__(self, nics: Sequence[str], cpus: Sequence[int] = (), device: int | None = None) -> None:
        """
        nics: names of network cards or interfaces ("mlx5_0", "eth0"), or local IP addresses, each
        once. "this host": shared memory, for peers of this user on this host.
        cpus: of its worker; empty: those near the device.
        device: the ordinal of the GPU; None: host memory.
        """

    @property
    def nics(self) -> list[str]:
        """Its network cards."""

    @property
    def cpus(self) -> list[int]:
        """The CPUs of its worker."""

    @property
    def device(self) -> int | None:
        """The GPU; None: host memory."""

    def __repr__(self) -> str: ...

class FabricNic:
    """A network card of a group."""

    @property
    def name(self) -> str:
        """Its name, or its IP address."""

    @property
    def provider(self) -> str:
        """What drives it: "tcp", "shm"; empty: it is not used."""

    @property
    def address(self) -> str:
        """Where peers find it."""

    @property
    def bits_per_second(self) -> int:
        """Its speed; 0: unknown."""

    @property
    def up(self) -> bool:
        """Whether it works now."""

    @property
    def why(self) -> str:
        """Why it is not used, or not up; else empty."""

    def __repr__(self) -> str: ...

class FabricGroup:
    """
    Network cards, the GPU and CPUs near them, and the worker that drives them.
    """

    @property
    def device(self) -> int | None:
        """The ordinal of the GPU; None: host memory."""

    @property
    def cpus(self) -> list[int]:
        """The CPUs of the worker."""

    @property
    def nics(self) -> list[FabricNic]:
        """Those that are used come first; posts are pinned by this place."""

    def __repr__(self) -> str: ...

class FabricCounters:
    """Since the fabric was opened."""

    @property
    def done(self) -> int:
        """Posts that are done."""

    @property
    def failed(self) -> int:
        """Posts that ended with an error, canceled ones among them."""

    @property
    def arrivals(self) -> int:
        """Immediates that were counted."""

    @property
    def arrivals_lost(self) -> int:
        """Immediates that nobody expected while the list was full."""

    @property
    def callbacks_failed(self) -> int:
        """Callbacks that raised."""

    def __repr__(self) -> str: ...

class FabricTarget:
    """One target of Fabric.scatter."""

    def __init__(self, target: FabricDescriptor, length_bytes: int, source_offset: int = 0, target_offset: int = 0) -> None:
        """
        length_bytes bytes from byte source_offset of the source on, to byte target_offset of the target
        and on.
        """

    @property
    def target(self) -> FabricDescriptor:
        """The memory of the peer."""

    @property
    def length_bytes(self) -> int:
        """The length."""

    @property
    def source_offset(self) -> int:
        """Where it begins in the source."""

    @property
    def target_offset(self) -> int:
        """Where it begins in the target."""

    def __repr__(self) -> str: ...

class FabricPeer:
    """A peer of a fabric, from Fabric.connect."""

    @property
    def address(self) -> FabricAddress:
        """Its address."""

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

class FabricPeers:
    """
    Peers under one scope of immediates, from Fabric.peer_group. Members join and leave while posts run.

    Threads: any.
    """

    @property
    def scope(self) -> int:
        """The scope of the immediates of a barrier, and of posts that name it."""

    @property
    def members(self) -> list[FabricPeer]:
        """The members now."""

    def __len__(self) -> int: ...

    def join(self, peer: FabricPeer) -> None:
        """Adds a member. Does nothing for one that is a member."""

    def leave(self, peer: FabricPeer) -> None:
        """
        Later posts to the group do not go to it. Its link stays: Fabric.forget ends that.

        Errors: NotFound (no member).
        """

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

class FabricReceiver:
    """
    Receives messages into buffers of its own, from Fabric.receive_all. It receives without this object,
    until `stop` or the close of the fabric.

    Threads: any.
    """

    def stop(self) -> None:
        """
        Ends it, and returns at once. A message that has begun to come may still be told.
        """

    def __reduce__(self) -> NoReturn: ...

class FabricFlag:
    """
    The full rounds of an expectation as 8 bytes that kernels and streams of GPUs wait for, from
    FabricExpectation.flag: headrace/device/fabric.cuh, cuStreamWaitValue64 with GEQ.
    torch.as_tensor(flag, device=...), cupy.asarray(flag) and, of host memory, numpy.asarray(flag) view
    it as one int64. Do not write to it.
    A kernel that loads the word with acquire order at the scope of the system, and work of a stream
    behind a wait, see the bytes of the posts of these rounds. When the expectation is removed or the
    fabric closed, the word gets 2**62, so that nothing waits for good.
    Owns: the memory stays while this object or a view of it lives; let kernels and streams that use it
    end first.
    """

    @property
    def address(self) -> int:
        """The address, as the GPUs see it; without one, in this process."""

    @property
    def device(self) -> int | None:
        """The ordinal of the GPU; None: host memory for threads."""

    @property
    def rounds(self) -> int:
        """
        The full rounds that it shows; of GPU memory, those that were stored last.
        """

    @property
    def ended(self) -> bool:
        """Whether the expectation was removed or the fabric closed."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """For NumPy. Errors: AttributeError (the flag is in GPU memory)."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """
        For torch, Numba and CuPy. Errors: AttributeError (no GPU sees the flag).
        """

    def __reduce__(self) -> NoReturn: ...

class FabricWatcher:
    """
    8 bytes, 0 at first, that kernels, streams (cuStreamWriteValue64, in graphs too) or threads change,
    and that the fabric watches, from Fabric.watch. It is watched without this object, until its function
    returns False, `stop`, or the close of the fabric. numpy.asarray(watcher), and with a GPU
    torch.as_tensor(watcher, device=...), view it as one int64.
    Owns: the memory stays until then, and while this object or a view of it lives; let kernels that
    change it end first.
    """

    @property
    def address(self) -> int:
        """The address, as the GPUs see it; without one, in this process."""

    @property
    def device(self) -> int | None:
        """The ordinal of the GPU; None: host memory for threads."""

    @property
    def value(self) -> int:
        """The word now."""

    def store(self, value: int) -> None:
        """
        Changes the word from the host: what this thread has written before is seen with it.
        """

    def stop(self) -> None:
        """No call of its function begins any more."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """For NumPy."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """
        For torch, Numba and CuPy. Errors: AttributeError (no GPU sees the word).
        """

    def __reduce__(self) -> NoReturn: ...

class FabricQueueWrite:
    """
    A write of the list of a queue: units of unit_bytes bytes, one behind the other on both sides. A
    command moves all of them or a part.
    """

    def __init__(self, source: FabricMemory, target: FabricDescriptor, unit_bytes: int, units: int = 1, *, source_offset: int = 0, target_offset: int = 0, immediate: int | None = None, scope: int = 0, count_by: str = 'request', spread: str = 'free', nic: int | None = None, timeout: float | datetime.timedelta | None = None) -> None:
        """
        The arguments of posts are those of each command: count_by "page" counts once for each unit, and
        the timeout begins when the worker takes the command.
        """

    @property
    def unit_bytes(self) -> int:
        """The length of a unit."""

    @property
    def units(self) -> int:
        """How many there are."""

class FabricQueueStatus:
    """What the first kernel that was late has left."""

    @property
    def full(self) -> bool:
        """It had no place for a command; False: it waited for the end of one."""

    @property
    def command(self) -> int:
        """The number of the command."""

    @property
    def ended(self) -> int:
        """Commands that had ended."""

    def __repr__(self) -> str: ...

class FabricCommandQueue:
    """
    Writes that kernels post (headrace/device/fabric.cuh, class Commands), from Fabric.command_queue. A
    worker carries them in the order of their numbers. A command that names no write of the list, or
    units outside of it, and one that fails, are told to Fabric.on_error; the others go on.
    Owns: the memory stays while this object lives; let kernels that use it end first. Commands that were
    posted are carried also without it.
    Threads: any.
    """

    @property
    def address(self) -> int:
        """
        Of the headrace_fabric_queue_v1 that kernels get, in GPU memory; without a GPU in this process.
        """

    @property
    def device(self) -> int | None:
        """The ordinal of the GPU whose kernels post; None: threads."""

    @property
    def capacity(self) -> int:
        """Commands that have not ended, at most."""

    @property
    def ended(self) -> int:
        """
        Commands that have ended: the first ones. Nothing reads their memory any more.
        """

    @property
    def failed(self) -> int:
        """Of them, those that have failed."""

    def status(self) -> FabricQueueStatus | None:
        """
        What the first kernel that was late has left. None: no kernel was late.
        """

    def post(self, write: int, first: int = 0, count: int | None = None) -> int:
        """
        Posts a command from this thread, of a queue without a GPU. Returns its number, from 1 on.

        count: units; None: the rest of the write.
        Errors: TimedOut (no place), Canceled (closed), InvalidArgument (a queue of kernels).
        """

    def wait(self, number: int) -> None:
        """
        Waits until this command and all before it have ended, of a queue without a GPU.

        Errors: TimedOut (that of the queue), Canceled (closed), InvalidArgument (a queue of kernels).
        """

    def close(self) -> None:
        """Commands that were posted are carried; kernels that wait leave."""

    def __reduce__(self) -> NoReturn: ...

class Fabric:
    """
    Writes to peers over all network cards at once, and counts what arrives.

    Register memory, give its descriptor (a few bytes) to a peer by any way, and the peer writes. No store,
    no names, no agent. Peers over tcp prove that they know the secret (option auth_token) if there is one.
    Bytes are not encrypted.
    Posts (write, read, write_pages, read_pages, scatter, post_immediate) are checked before a byte leaves,
    and return a FabricWork. They take:
    immediate, scope: the peer counts it after the bytes of the post: Fabric.expect there.
    count_by: "request": once; "page": once for each page; "shard": once for each network card.
    spread: "free": the card that would be done first; "in_turn": one after the other; "by_peer": of a
    scatter, one for each target.
    nic: the place in FabricGroup.nics of the card that carries it alone, once it is connected and as long
    as it lives.
    timeout: seconds or a timedelta, then the post is canceled and ends with TimedOut; None: no limit.
    Errors of posts: InvalidArgument (outside of the memory: which range, page or index; lists that differ;
    memory that its owner did not make writable; memory of another fabric), NotFound (deregistered),
    WouldBlock (too many posts run: wait for some), Canceled (closed meanwhile).
    A context manager: leaving it closes the fabric. Fabrics that are open when the interpreter ends are
    closed then.
    Threads: any thread may call any method; methods that wait release the GIL. Each group has a worker, a
    thread that drives its network cards; the fabric has a callback thread.
    Fork: in a forked child every method raises InvalidArgument.
    """

    def __init__(self, devices: Sequence[int] = (), *, nics_per_group: int = 0, groups: Sequence[FabricGroupOptions] = (), spin: str = 'brief', options: _Mapping[str, str | bool | int | float] | None = None) -> None:
        """
        Opens the network cards and starts the workers.

        devices: a group for each of these GPUs, by ordinal, with the network cards near it. Empty: one
        group for host memory, that of the NUMA node of the calling thread. Each has "this host", too.
        nics_per_group: 0: all cards near it.
        groups: groups by hand, instead of devices.
        spin: of a worker that has nothing to do: "brief": polls for some microseconds, then sleeps;
        "always": polls, on a core for each group, for the shortest latency.
        options: values of options by name, of those that agents have:
        {"auth_token_file": "/run/secrets/headrace"}; they override the environment.
        Errors: InvalidArgument (a card twice, one near another GPU, no card, no such GPU, CPU or
        address; an unknown option; a required secret that is missing), NotFound (no card or interface
        of that name), Exhausted.
        """

    @property
    def closed(self) -> bool:
        """Whether close() was called."""

    def close(self) -> None:
        """
        Ends all posts (Canceled), expectations and links, and releases the memory. Immediates of posts
        that were done still leave, for up to a second.

        Later calls do nothing.
        Threads: any, at any time, also in a callback. On other threads it waits for the callback that
        runs.
        """

    def __enter__(self) -> Fabric: ...

    def __exit__(self, type: object, value: object, traceback: object) -> None: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

    @property
    def address(self) -> FabricAddress:
        """Where peers find it: a FabricAddress."""

    def groups(self) -> list[FabricGroup]:
        """Its groups, and how their network cards are now."""

    @property
    def bits_per_second(self) -> int:
        """Of all network cards together whose speed is known."""

    def counters(self) -> FabricCounters:
        """What has happened since it was opened."""

    def telemetry(self) -> TelemetrySnapshot:
        """The counters and histograms of its network cards up to now."""

    def register(self, obj: object, access: str = 'local', *, group: int | None = None) -> FabricMemory:
        """
        Registers memory with the network cards of a group. Returns a FabricMemory.

        obj: an object with the buffer protocol (bytearray, mmap, NumPy array) or DLPack (torch tensor),
        a tuple (address, length) or a MemoryRange. An array may have any order of dimensions but no
        gaps. Read-only objects (bytes) can only be read.
        access: "local": for posts of this fabric alone; "readable": peers that have its descriptor
        read it; "writable": and write it.
        group: a place in groups(); None: that of the memory's GPU, or the first.
        Owns: the object is kept alive and in place until `deregister` or the close of the fabric. For
        memory given by address the caller must do this.
        Errors: InvalidArgument (empty, not contiguous, read-only and "writable", a GPU without a
        group), NotSupported (a network card that cannot reach this kind of memory).
        """

    def deregister(self, memory: FabricMemory) -> None:
        """
        Cancels the posts that use the memory. When it returns, they have ended, and no peer reaches it.
        Waits until peers of this host have closed memory of a GPU.

        Errors: NotFound (deregistered already), InvalidArgument (of another fabric), TimedOut (it is
        deregistered, but a peer has not closed it for ten seconds: the memory should not be freed yet).
        """

    register_memory = register

    def host_buffers(self, count: int, length_bytes: int) -> FabricBuffers:
        """
        `count` buffers of `length_bytes` each, in registered host memory of the first group.

        Errors: InvalidArgument (none, or empty), Exhausted.
        """

    def connect(self, address: FabricAddress) -> FabricPeer:
        """
        Starts to connect, so that the first post finds a link. Posts do it by themselves.

        Errors: NotSupported (none of its network cards is of a kind that this fabric has). Whether it can be
        reached is not known yet: posts to it tell.
        """

    def forget(self, peer: FabricPeer) -> None:
        """
        Ends the links to a peer: posts to it end with Canceled. A later post connects again.
        """

    def peer_group(self, scope: int, addresses: Sequence[FabricAddress]) -> FabricPeers:
        """
        Connects to all, and makes a group of them.

        scope: of the immediates of `barrier`, and of posts that take it from FabricPeers.scope.
        """

    def barrier(self, peers: FabricPeers, value: int, *, timeout: float | datetime.timedelta | None = None) -> FabricWork:
        """
        Tells every member, and ends when every member has told this fabric with the same value.

        Each member calls it, with the others in its group. Nobody expects (group's scope, value).
        timeout: seconds or a timedelta, then it ends with TimedOut; None: no limit.
        """

    def write(self, source: FabricMemory, target: FabricDescriptor, length_bytes: int | None = None, *, source_offset: int = 0, target_offset: int = 0, immediate: int | None = None, scope: int = 0, count_by: str = 'request', spread: str = 'free', nic: int | None = None, timeout: float | datetime.timedelta | None = None) -> FabricWork:
        """
        Writes a range of memory here to memory of a peer. Returns once posted.

        length_bytes: None: the source from source_offset on.
        """

    def read(self, target: FabricMemory, source: FabricDescriptor, length_bytes: int | None = None, *, target_offset: int = 0, source_offset: int = 0, immediate: int | None = None, scope: int = 0, count_by: str = 'request', spread: str = 'free', nic: int | None = None, timeout: float | datetime.timedelta | None = None) -> FabricWork:
        """
        Reads a range of a peer's memory into memory here. Returns once posted.

        length_bytes: None: the target from target_offset on.
        """

    def write_pages(self, source: FabricMemory, target: FabricDescriptor, page_bytes: int, *, source_indices: object = None, target_indices: object = None, count: int | None = None, source_stride: int = 0, target_stride: int = 0, source_offset: int = 0, target_offset: int = 0, immediate: int | None = None, scope: int = 0, count_by: str = 'request', spread: str = 'free', nic: int | None = None, timeout: float | datetime.timedelta | None = None) -> FabricWork:
        """
        Writes pages of page_bytes bytes each, page i of the source to page i of the target.

        Page i begins at offset + k * stride, where k is indices[i], or i without indices.
        source_indices, target_indices: shape (count,), uint32, int32 or int64, by the buffer protocol or
        DLPack in host memory, or a list. They are read before the return.
        count: None: that of the indices. source_stride, target_stride: bytes; 0: page_bytes.
        """

    def read_pages(self, target: FabricMemory, source: FabricDescriptor, page_bytes: int, *, target_indices: object = None, source_indices: object = None, count: int | None = None, target_stride: int = 0, source_stride: int = 0, target_offset: int = 0, source_offset: int = 0, immediate: int | None = None, scope: int = 0, count_by: str = 'request', spread: str = 'free', nic: int | None = None, timeout: float | datetime.timedelta | None = None) -> FabricWork:
        """
        Reads pages of page_bytes bytes each, page i of the source to page i of the target.

        The arguments are those of `write_pages`.
        """

    def scatter(self, source: FabricMemory, targets: Sequence[FabricTarget], *, immediate: int | None = None, scope: int = 0, count_by: str = 'request', spread: str = 'free', nic: int | None = None, timeout: float | datetime.timedelta | None = None) -> FabricWork:
        """
        Writes from one memory to many. Each target's peer counts the immediate after its own bytes.

        targets: one FabricTarget or more.
        """

    def post_immediate(self, peer: FabricPeer, immediate: int, *, scope: int = 0, count_by: str = 'request', spread: str = 'free', nic: int | None = None, timeout: float | datetime.timedelta | None = None) -> FabricWork:
        """An immediate alone, without bytes."""

    def send(self, peer: FabricPeer, source: FabricMemory, length_bytes: int | None = None, *, source_offset: int = 0, timeout: float | datetime.timedelta | None = None) -> FabricWork:
        """
        Sends a message into the next receive of the peer. It waits until there is one, and is done when
        it lies there. Messages to one peer arrive in the order of their sends. One of memory of a
        GPU is copied into host memory first: those to a peer that have not ended have at most 64 MiB of
        that, or one alone. What kernels write into it has to be there before the call.

        length_bytes: None: the source from source_offset on. timeout: seconds or a timedelta; None: no limit.
        Errors of its end: InvalidArgument (longer than the receive, which stays posted), TimedOut,
        NotFound (memory of a GPU that was freed since), Exhausted (no host memory for it).
        """

    def receive(self, target: FabricMemory, length_bytes: int | None = None, *, target_offset: int = 0, timeout: float | datetime.timedelta | None = None) -> FabricWork:
        """
        Gives room for one message of any peer; FabricWork.length_bytes is then its length. Receives are
        used in the order of their posts. A message for memory of a GPU comes into host memory first, of
        which the receive takes as much; then it is copied.

        length_bytes: None: the target from target_offset on. timeout: seconds or a timedelta; None: no limit.
        """

    def receive_all(self, count: int, length_bytes: int, callback: Callable[[bytes], object]) -> FabricReceiver:
        """
        Calls callback(message) for each message, from `count` buffers of `length_bytes` each.

        Threads: the callback thread. An exception goes to `on_error`.
        Errors: InvalidArgument (no buffer, empty ones, no function), Exhausted.
        """

    def expect(self, immediate: int, arrivals: int, *, scope: int = 0) -> FabricExpectation:
        """
        Counts arrivals of an immediate in rounds of `arrivals`. What came before counts.

        Errors: InvalidArgument (0 arrivals; it is expected already; above 32 bits).
        """

    def watch(self, callback: Callable[[int, int], object], *, device: int | None = None) -> FabricWatcher:
        """
        Watches 8 bytes that kernels, streams or threads change: a FabricWatcher.

        Calls callback(before, now) until it returns False. Values between two calls are not told. What was
        written before a value can be read by the callback, and by work that it begins. A worker that
        works looks at once; after an idle time t it looks within t/16, at most two milliseconds.
        device: the ordinal of the GPU that changes it; None: threads.
        Threads: the callback thread. An exception goes to `on_error`.
        Errors: Exhausted (4096 words of a group are watched), NotSupported (no GPU driver),
        InvalidArgument (no function, no such GPU).
        """

    def command_queue(self, writes: Sequence[FabricQueueWrite], *, device: int | None = None, capacity: int = 1024, timeout: float | datetime.timedelta | None = 10.0) -> FabricCommandQueue:
        """
        A queue through which kernels post writes of this list, all from memory of one group.

        device: the ordinal of the GPU whose kernels post; None: threads.
        capacity: commands that have not ended, 1 to 4096: then kernels wait.
        timeout: seconds, of a kernel that waits for a place or an end; None: no limit.
        Errors: as posts; NotSupported (no GPU driver), InvalidArgument (no write, no such GPU), Exhausted.
        """

    def on_unexpected(self, callback: Callable[[int, int, int], object] | None) -> None:
        """
        Calls callback(immediate, scope, arrivals) for arrivals that nobody expects; for those that have
        come before, too. None: they are kept for a later `expect`, up to 16384 different ones.

        Threads: the callback thread. An exception goes to `on_error`.
        """

    def on_error(self, callback: Callable[[BaseException], object] | None) -> None:
        """
        Calls callback(exception) with what another callback has raised; the fabric goes on. None: it goes
        to sys.unraisablehook.

        Threads: the callback thread.
        """

def set_log_level(spec: str) -> None:
    """
    Sets the log level, with the syntax of HEADRACE_LOG: "warn,tcp=debug,engine=off".

    spec: one level for all, and pairs room=level; a room is a part of the library. Levels of an
    earlier call are dropped. Levels: off, error, warn, info, debug, trace.
    Errors: InvalidArgument (no such level, empty room): nothing is changed.
    """

def set_log_sink(sink: Callable[[str, str, str], object] | None) -> None:
    """
    Sends log lines to sink(level, room, text) instead of stderr; None restores stderr.

    Threads: the sink is called on a thread of its own, one line at a time and in order, so a
    slow sink delays no other thread. If 8192 lines wait, new ones are dropped, and a line tells
    how many. The call returns when the earlier sink has had its lines. An exception in it goes
    to sys.unraisablehook.
    Owns: the sink is kept until it is replaced.
    """

class Tensor:
    """
    An output of a model, memory of a window, or what an operation gives to a backend in Python: row-major,
    with the buffer protocol and DLPack.

    Use numpy.asarray(tensor) or torch.from_dlpack(tensor).
    Owns: the memory of an output stays while this object or any array of it lives, also after the
    model is closed. The memory of an operation is its caller's.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each dimension."""

    @property
    def dtype(self) -> str:
        """torch's name without "torch.": "float32"."""

    @property
    def device(self) -> str:
        """"cpu" or "cuda:0"."""

    def numpy(self) -> numpy.ndarray:
        """The tensor as a NumPy array, without a copy; imports NumPy."""

    def __dlpack__(self, **kwargs: object) -> Any:
        """
        Exports the memory by DLPack, for torch.from_dlpack and similar functions.
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's type and number of the device."""

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

    def __buffer__(self, flags: int, /) -> memoryview: ...

class Model:
    """
    An open model that AOTInductor compiled.

    It runs without Python; torch's libraries are loaded, but torch is not imported.
    Owns: close(), the end of a with block, or the last reference frees the model; outputs stay.
    Threads: any.
    """

    def __init__(self, path: str | os.PathLike[str], *, model_name: str = 'model', device: str | None = None, runners: int = 1, threads: int = 0, options: dict[str, object] | None = None) -> None:
        """
        Checks a package for this machine, unpacks it into the cache and loads it.

        path: the .pt2 file, or the folder that it was unpacked to.
        model_name: the model of the package.
        device: "cpu", "cuda", "cuda:1"; None: the device that the package was made for.
        runners: how many runs can proceed at once.
        threads: threads of torch inside one operation; 0: torch's own number.
        Threads: the GIL is released.
        Errors: NotFound, Corrupt (not a package, or damaged), InvalidArgument (no model of that
        name), NotSupported (no torch, or made for another torch, CPU or GPU), BackendFailed (an
        error of torch, with its text).
        """

    def run(self, *inputs: object, stream: object = None, **named: object) -> list[Tensor]:
        """
        Runs the model once. Returns the list of its outputs.

        inputs, named: the inputs by position or by name: torch tensors, NumPy arrays, or other
        objects with the buffer protocol or DLPack; None leaves an optional input out. Every input is
        checked before the run. For a model on a GPU they must be on that GPU.
        stream: None: runs on torch's current stream, and returns when the outputs are ready. A
        torch.cuda.Stream, or the number of a CUDA stream: runs in the order of that stream and
        returns at once. Inputs must then stay in place until the stream has passed the run; outputs
        are ready in the stream's order, and torch.from_dlpack on another stream waits. If the model
        has an input of the name "stream", the argument is that input.
        Owns: inputs are read in place, and written in place if the model mutates them; outputs are
        new memory.
        Threads: any; the GIL is released. As many runs proceed at once as there are runners.
        Errors: InvalidArgument (an input does not fit, the text has both; a stream for a model on
        the CPU), BackendFailed (an error of torch, with its text).
        """

    def __call__(self, *inputs: object, stream: object = None, **named: object) -> list[Tensor]:
        """Does the same as run()."""

    @property
    def info(self) -> dict[str, Any]:
        """
        The description of the package, as `headrace inspect --json` prints it.
        """

    @staticmethod
    def inspect(path: str | os.PathLike[str], model_name: str = 'model') -> dict[str, Any]:
        """
        The description of a package, without opening it; needs no torch.

        Errors: NotFound, Corrupt, InvalidArgument.
        """

    def constants(self) -> list[dict[str, Any]]:
        """
        Weights and buffers: name, dtype, shape. Constants that the compiler folded are not listed.
        """

    def replace_constants(self, values: dict[str, object]) -> None:
        """
        Replaces the values of constants. Waits for runs in progress.

        values: tensors by the name of the constant.
        Errors: InvalidArgument (no such constant, another dtype or shape; nothing is changed).
        """

    def timing(self) -> dict[str, Any]:
        """The times of loading and running, in nanoseconds."""

    def memory(self) -> dict[str, int]:
        """
        The memory of package, constants, process and GPU, in bytes.

        Of the GPU: the memory that torch holds in this process, its maximum, and the memory that all
        processes use.
        """

    @property
    def closed(self) -> bool:
        """Whether close() was called."""

    def close(self) -> None:
        """
        Frees the model; later calls raise InvalidArgument. May be called again.

        Threads: runs in other threads end first; the last of them frees the model.
        """

    def __enter__(self) -> Model: ...

    def __exit__(self, type: object, value: object, traceback: object) -> None: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

class MoEConfig:
    """
    Who takes part in a MoE, and what travels: the same on all ranks but for rank, nics,
    row_budget, device, blocks and wait_limit; but either all have a GPU or none.

    rank, ranks: this one, of 1 to 64.
    experts: 1 to 4096, in the order of the ranks that have them.
    top_k: entries of a token, 1 to 32, at most experts.
    hidden: elements of a row; its bytes are a multiple of 16.
    max_tokens: of one dispatch of one rank.
    group_size: so many ranks in a row hold the same tokens, which are sent once; all get the sum.
    experts_of_ranks: how many each rank has, 0 included; None: evenly.
    dtype: of dispatched rows, which are moved and not read.
    scale_bytes: of a token's scales, a multiple of 4; 0: it has none.
    payload_bytes: of a token's further columns, up to 8, which are moved and not read.
    combine_dtype: float32, float16 or bfloat16. Sums are made in float32, in a fixed order.
    float8_combine: sums of a rank travel as float8_e4m3fn in blocks of 128 with float32 scales.
    layout: "by_expert", "batched" or "by_rank": docs/moe.md.
    row_alignment, zero_padding: by_expert: where the rows of an expert begin; rows between them are
    zeroed.
    row_budget: rows of the output; batched: of each expert. 0: the most that can come if no token
    names an expert twice.
    wait_limit: seconds of each wait for another rank; None: 10.
    name: of the window among the regions of its agent.
    ranks_per_node: so many ranks in a row are on one host, and a fabric reaches the others. 0: all are.
    nics: network cards of this rank, by name or local address, if there are several nodes; none: those
    near it.
    device: where windows and tensors are: "cpu", "cuda:1" or a torch.device. Ranks may share a GPU.
    blocks: on a GPU, of a launch, each on a multiprocessor of its own; 0: 32, or as many as can be.
    Errors: InvalidArgument (the first field that is wrong).
    """

    def __init__(self, *, rank: int, ranks: int, experts: int, top_k: int, hidden: int, max_tokens: int, group_size: int = 1, experts_of_ranks: Sequence[int] | None = None, dtype: object = 'bfloat16', scale_bytes: int = 0, combine_dtype: object = 'bfloat16', layout: str = 'by_expert', row_alignment: int = 1, zero_padding: bool = False, row_budget: int = 0, deterministic: bool = True, wait_limit: float | datetime.timedelta | None = None, name: str = 'moe', payload_bytes: Sequence[int] = (), float8_combine: bool = False, ranks_per_node: int = 0, nics: Sequence[str] = (), device: object = 'cpu', blocks: int = 0) -> None: ...

    @property
    def window_bytes(self) -> int:
        """Bytes of a rank's window. Takes nothing."""

    @property
    def output_rows(self) -> int:
        """Rows of the output of this rank; batched: of all its experts."""

    @property
    def rows_of_expert(self) -> int:
        """batched: rows of each expert."""

    def first_expert(self, rank: int) -> int:
        """The first expert of a rank; of `ranks`: the number of experts."""

    @property
    def local_experts(self) -> int:
        """Experts of this rank."""

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def ranks(self) -> int:
        """How many ranks take part."""

    @property
    def device(self) -> str:
        """Where windows and tensors are: "cpu", "cuda:1"."""

class MoEFailure:
    """Why a rank was left out: MoE.failure."""

    @property
    def code(self) -> str:
        """
        "timed_out", "peer_lost", "canceled" (this rank was left out, or interrupted) or "corrupt".
        """

    @property
    def voted(self) -> bool:
        """Another rank has found that the peer is lost."""

    @property
    def reason(self) -> str:
        """Why the peer could not join, as it says; empty: it has joined."""

    @property
    def undecided(self) -> bool:
        """
        Several nodes: no rank of the node of the lowest rank has answered the vote against the peer. This rank goes
        no further, until ranks regroup.
        """

    @property
    def waiter(self) -> int:
        """The rank that waited: this one."""

    @property
    def peer(self) -> int:
        """The rank for which it waited."""

    @property
    def operation(self) -> str:
        """"dispatch" or "combine"."""

    @property
    def number(self) -> int:
        """Of the operation, from 1."""

    @property
    def awaited(self) -> str:
        """"counts", "rows", "sums" or "room"."""

    @property
    def expected(self) -> int:
        """The number of an operation that the awaited word was to hold."""

    @property
    def seen(self) -> int:
        """The one that it held."""

    def __str__(self) -> str: ...

class MoERouting:
    """
    What a dispatch has learnt, from MoE.new_routing. A combine needs it; a later dispatch
    without experts goes the same way.
    Threads: one at a time.
    """

    @property
    def tokens(self) -> int:
        """
        Tokens of the last dispatch. On a GPU, which alone knows what it read: as given.
        """

    @property
    def given(self) -> int:
        """
        Rows that were given to it: more, if it read the number of tokens from memory.
        """

    def __reduce__(self) -> NoReturn: ...

class MoERows:
    """
    Memory for what a dispatch gives to this rank, from MoE.new_rows. Each dispatch with it
    writes the same tensors again. Use numpy.asarray(tensor) or torch.from_dlpack(tensor).
    """

    @property
    def rows(self) -> Tensor:
        """[output_rows, hidden] of dtype."""

    @property
    def scales(self) -> Tensor | None:
        """
        [output_rows, scale_bytes] of uint8; None: there are none. With column_scales:
        [scale_bytes / 4, output_rows] of int32; batched: [experts, scale_bytes / 4, rows].
        """

    @property
    def payloads(self) -> tuple[Tensor, ...]:
        """[output_rows, payload_bytes of it] of uint8 each."""

    @property
    def counts(self) -> Tensor:
        """
        [local_experts] of int32: entries that came for each, beyond the budget too.
        """

    @property
    def first_rows(self) -> Tensor:
        """
        [local_experts + 1] of int64: the first row of each expert, and the end of the last. by_rank:
        [ranks + 1], of each source rank.
        """

    @property
    def experts(self) -> Tensor | None:
        """
        by_rank: [output_rows, top_k] of int32: experts of a row, among those of this rank; -1: no more.
        """

    @property
    def weights(self) -> Tensor | None:
        """by_rank: [output_rows, top_k] of float32."""

    @property
    def host_counts(self) -> Tensor | None:
        """
        On a GPU: [local_experts] of int32 in pinned host memory, to which a dispatch copies counts in
        the order of its stream. None: counts are there already.
        """

class MoEReplicas:
    """
    Which experts of the configuration, called places, hold each expert that tokens name: a table for one
    dispatch; another one may have another table. Ranks of one group give the same.

    places: of each expert, one at least.
    choice: "in_turn", or "least_loaded": of the rank with the fewest entries, `loads` and those of the
    tokens before. Places of ranks that do not take part are passed over.
    loads: least_loaded: of each rank; empty: zeros.
    """

    def __init__(self, places: Sequence[Sequence[int]], choice: str = 'in_turn', loads: Sequence[int] = ()) -> None: ...

class MoEPlan:
    """
    Replicas for one step, made from its routing: moe_plan. The caller brings the weights of `experts` to
    the places that had none, or others.
    """

    @property
    def experts(self) -> list[int]:
        """Of each place; -1: none."""

    @property
    def loads(self) -> list[int]:
        """Of each rank: the entries that it gets."""

    def replicas(self, config: MoEConfig) -> MoEReplicas:
        """The table for the tokens of this rank."""

def moe_plan(config: MoEConfig, experts: Sequence[int], counts: Sequence[int]) -> MoEPlan:
    """
    Moves entries for hot experts from busy ranks to free places of idle ones, until no rank has more than
    its share, or there is no free place for more. All ranks get the same from the same input.

    config: its experts are the places.
    experts: that each place holds; -1: it is free. Each expert keeps its first place.
    counts: how many entries of the tokens of each group of ranks name each expert, groups one after
    another.
    Errors: InvalidArgument.
    """

class MoE:
    """
    One rank of a mixture of experts: dispatch sends each token's row to the ranks of its experts, combine
    takes their weighted sum back.

    All ranks call the same operations in the same order. Two dispatches and two combines may be under way:
    sent, and not received. Tensors are NumPy arrays, torch tensors on the CPU or others with the buffer
    protocol or DLPack; integers of the same size stand for bfloat16 and float8, which NumPy lacks.

    Failure: a rank that is dead, or late by wait_limit, is left out from then on, by all. The operation does all
    of the rest, then raises PeerLost or TimedOut; later operations go on without that rank, and its rows are
    missing in the sums. A rank that others have left out gets Canceled, from then on in every operation.
    Ctrl-C ends a wait and this rank's part. regroup takes ranks back.
    On a GPU operations are queued on a stream and return; they may be captured in a CUDA graph. What launches
    find is raised once: by the next operation, which is queued all the same, or by check. Ranks of one
    process that share a GPU make routings and rows before the first operation.
    Owns: it keeps its agent; close the MoE before the agent.
    Threads: one call at a time; others wait.
    """

    def __init__(self, agent: Agent, config: MoEConfig) -> None:
        """
        Allocates the window of this rank from the agent, which for a GPU has the backends shm and cuda_ipc.
        Then join the others.

        Errors: InvalidArgument (the name is in use), Exhausted, NotSupported (no GPU, no backend for it).
        """

    def join(self, agents: Sequence[str], timeout: float | datetime.timedelta | None = None) -> None:
        """
        Maps the windows of all ranks, and compares the configurations. On GPUs it waits for all ranks to come.

        agents: the names of the agents of all ranks in their order, the same list on all ranks. The
        agent has their metadata, exported after they opened their MoE; or all have a store and publish.
        timeout: seconds or a timedelta; None: 10 s.
        Errors: InvalidArgument (another configuration: the field, both values; another list or order
        of agents), NotFound, NotSupported (a rank is on another host), TimedOut, PeerLost.
        """

    def regroup(self, agents: Sequence[str], ranks: int, timeout: float | datetime.timedelta | None = None) -> None:
        """
        Goes on with other ranks: without some, with new ones, with those that come back. All ranks of
        `ranks` call it at the same place in the order of operations, none of which is under way; one that
        is new calls it instead of join. Routings need a new dispatch. Ranks that are not in `ranks` get
        Canceled. A rank that comes back as another process needs the end of the first one, and its new
        metadata here.

        agents: as join; of ranks that are not in `ranks` any text.
        ranks: a bit for each rank that takes part, this one's too.
        timeout: seconds or a timedelta; None: 10 s.
        Errors: InvalidArgument, TimedOut (which ranks have not come), PeerLost, and those of join. After
        an error operations raise Canceled: call it again. NotSupported (on a GPU).
        """

    @property
    def config(self) -> MoEConfig:
        """The configuration."""

    def new_routing(self) -> MoERouting:
        """Memory for what dispatches learn, once it has joined."""

    def new_rows(self, *, column_scales: bool = False) -> MoERows:
        """
        Memory for what dispatches give to this rank. Another MoE that gives the same may use it too.

        column_scales: words of 4 bytes of a column lie side by side.
        """

    def dispatch(self, rows: object, experts: object | None, weights: object | None = None, *, routing: MoERouting, out: MoERows, scales: object | None = None, payloads: tuple[object, ...] = (), cast: object | None = None, count: object | None = None, replicas: object | None = None, stream: object | None = None) -> None:
        """
        Sends the rows of the tokens to the ranks of their experts, and takes those for the experts of this rank
        into `out`.

        rows: [tokens, hidden] of dtype; rows may have gaps between them.
        experts: [tokens, top_k] of int64, int32 or uint32, copied if not contiguous; -1: none. None: go
        where the tokens of the routing's last dispatch went.
        weights: [tokens, top_k] of float32, copied if not contiguous; None: 1 each; without experts: as before.
        scales: two dimensions, scale_bytes in each row, any strides.
        payloads: one for each of payload_bytes, with so many bytes in each row.
        cast: "float32" or "ue8m0": rows are bfloat16 and become float8_e4m3fn, which dtype is, in blocks of
        128 elements with scales of that form: 4 bytes a block, or a byte in words of 4.
        count: one int32: the tokens are the first ones, so many as it says when the dispatch begins.
        replicas: MoEReplicas: tokens name its experts; None: those of the configuration.
        stream: on a GPU: a torch.cuda.Stream or the number of a CUDA stream; None: the default stream.
        Errors: Exhausted (more rows than row_budget: both numbers; the others are there), TimedOut, PeerLost,
        Canceled, Corrupt (see failure), InvalidArgument (which tensor; nothing was sent).
        """

    def dispatch_send(self, rows: object, experts: object | None, weights: object | None = None, *, routing: MoERouting, scales: object | None = None, payloads: tuple[object, ...] = (), cast: object | None = None, count: object | None = None, replicas: object | None = None, stream: object | None = None) -> None:
        """The first half of dispatch: returns when the rows have left."""

    def dispatch_receive(self, routing: MoERouting, out: MoERows, *, stream: object | None = None) -> None:
        """The second half of dispatch."""

    def combine(self, results: object | None, *, routing: MoERouting, out: object, biases: tuple[object, ...] = (), weighted: bool = True, accumulate: bool = False, stream: object | None = None) -> None:
        """
        Sends the weighted sums of results back, and makes the sums of this rank's tokens.

        results: [output_rows, hidden] of combine_dtype: what the experts made of the rows, in their order. None:
        they were written to combine_memory.
        out: [tokens, hidden] of combine_dtype, as many as were given to the dispatch.
        biases: up to two of [tokens, hidden], added after the sum, in this order.
        weighted: False: the results are weighted already. by_rank: they always are.
        accumulate: what `out` holds is added last.
        Errors: as dispatch.
        """

    def combine_memory(self, routing: MoERouting) -> list[Tensor | None]:
        """
        by_rank: where the next combine wants the results of the rows that came from each rank, in their
        order: memory of that rank, so that a combine with results=None need not move them. None for a
        rank that is left out.

        Errors: NotSupported (another layout, float8_combine), and as combine: then call it again.
        """

    def combine_send(self, results: object | None, *, routing: MoERouting, weighted: bool = True, stream: object | None = None) -> None:
        """The first half of combine."""

    def combine_receive(self, routing: MoERouting, out: object, *, biases: tuple[object, ...] = (), accumulate: bool = False, stream: object | None = None) -> None:
        """The second half of combine."""

    @property
    def active(self) -> int:
        """
        The ranks that take part, a bit for each, the same on all of them. Set it to leave ranks out, for all.

        Errors: InvalidArgument (this rank's bit, bits of no rank), NotSupported (a rank that was left out).
        """

    @active.setter
    def active(self, arg: int, /) -> None: ...

    def set_active(self, ranks: int, stream: object | None = None) -> None:
        """
        Sets active. On a GPU operations and replays behind it on the stream have the mask; the attribute uses
        the default stream. Not while the stream is captured.
        """

    @property
    def failure(self) -> MoEFailure | None:
        """Why a rank was left out last; None: none was."""

    def check(self) -> None:
        """
        On a GPU: raises what launches that have ended report, once; for programs that replay graphs. Waits for
        nothing.

        Errors: those of dispatch and combine.
        """

    def abort(self) -> None:
        """
        Ends this rank's part: waits of its calls, and of its launches on a GPU. Its operations raise
        Canceled, the others go on without it. In host memory regroup takes it back.
        Threads: any, also beside a call.
        """

    def close(self) -> None:
        """
        Withdraws the window. Other ranks that still use it are not disturbed. On a GPU it ends the waits of
        operations that are queued: wait for the stream before.
        """

    def __enter__(self) -> MoE: ...

    def __exit__(self, *args: object) -> None: ...

    def __reduce__(self) -> NoReturn: ...

class MoEWeights:
    """
    Gives hot experts replicas on other ranks, step by step: a call of balance gathers the counts of this
    step from all ranks, makes the same plan on each (moe_plan), and reads the weights of new replicas from
    the ranks that keep them. Replicas that a place holds already are not moved.

    Failure: if a rank is late or gone, balance raises, and `replicas` names only places that keep their
    experts: go on with the dispatch, and with the next call of balance, which goes on with the ranks that
    take part then. If the rank that kept an expert is out, a replica that another one holds is kept from
    then on. After MoE.regroup all ranks open a new one.
    Ranks send notifications, whose first bytes are "headrace.moe.weights ": take your own with a filter.
    Owns: it keeps the MoE, its agent and the tensors; close it before them.
    Threads: one call at a time; others wait.
    """

    def __init__(self, moe: MoE, experts: Sequence[int], tensors: Sequence[object], *, name: str = 'weights', timeout: float | datetime.timedelta | None = None) -> None:
        """
        Meets the other ranks: all that take part make one, after they have joined, in the same order.

        experts: of each place (experts of the configuration) that which it keeps; -1: it is free. Each
        expert has a place. The same on all ranks.
        tensors: [local_experts, ...] each, without gaps, in host memory that the agent has registered or
        allocated. Places that keep an expert have its weights now, and nobody changes them while others may
        read.
        name: the same on all ranks; another one for each layer of a MoE.
        timeout: seconds or a timedelta; None: 10 s.
        Errors: InvalidArgument (what differs, and on which rank), NotFound (the memory of a peer is not
        known: import metadata that it made after it had registered it, or give the agents a store),
        NotSupported (a GPU), TimedOut and PeerLost (which rank). After an error all ranks make another one.
        """

    def balance(self, counts: Sequence[int], timeout: float | datetime.timedelta | None = None) -> MoEReplicas:
        """
        Returns the table for the next dispatch. All ranks that take part call it at the same place in the
        order of operations, when the experts have run that use the free places: it writes these.

        counts: how many entries of the tokens of this rank's group name each expert.
        timeout: seconds or a timedelta; None: 10 s.
        Errors: TimedOut, PeerLost (which rank), Canceled (others have left this rank out), InvalidArgument
        (counts; a rank that has come since), and the error of another rank, with its number.
        """

    @property
    def replicas(self) -> MoEReplicas:
        """
        The table for the next dispatch. Before the first call of balance, and after one that has
        raised, it has the places that keep their experts.
        """

    @property
    def plan(self) -> MoEPlan:
        """
        What each place holds by that table, and the entries that each rank gets.
        """

    @property
    def moved_bytes(self) -> int:
        """Bytes of weights that the last call of balance has read."""

    def close(self) -> None:
        """Lets the MoE and the tensors go."""

    def __enter__(self) -> MoEWeights: ...

    def __exit__(self, *args: object) -> None: ...

    def __reduce__(self) -> NoReturn: ...

__version__: str
