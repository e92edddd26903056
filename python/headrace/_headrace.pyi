# SPDX-License-Identifier: Apache-2.0
"""The compiled part of the package headrace, which shows all of it."""

from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Mapping as _Mapping,
    Sequence
)
import os
from typing import Any, Literal, NoReturn, overload

import numpy

import headrace.errors


codes: tuple[str, ...]

class MemoryRange:
    """
    Memory that is not behind a Python object: by address, path, descriptor or key.

    dram: address, length_bytes. vram: device (ordinal), address, length_bytes. file, block: path, or an
    open file_descriptor, which stays the caller's. object: path (the key). For these three a
    length_bytes of 0 means all of it.
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
        """Of the first byte."""

    @property
    def length_bytes(self) -> int:
        """0 for files, blocks and objects: all of it."""

    @property
    def device(self) -> int:
        """The GPU's ordinal, or -1."""

    @property
    def file_descriptor(self) -> int:
        """Open, or -1."""

    @property
    def path(self) -> str:
        """Of the file or block device; the object's key."""

class Region:
    """
    Registered memory, of this agent or of a peer. A value: it says what was, and holds nothing.
    """

    @property
    def id(self) -> int:
        """
        Names it within one life of its agent; counts from 1, never used twice.
        """

    @property
    def kind(self) -> str:
        """"dram", "vram", "block", "file" or "object"."""

    @property
    def address(self) -> int:
        """The owner's address; 0 for files and objects."""

    @property
    def length_bytes(self) -> int:
        """How many bytes it has."""

    @property
    def name(self) -> str:
        """Unique in its agent; empty: unnamed."""

    @property
    def note(self) -> bytes:
        """What its owner said about it: dtype and shape, a checksum, ..."""

    @property
    def backends(self) -> list[str]:
        """Those it is registered with."""

    @property
    def writable(self) -> bool:
        """
        Whether requests may write it: not if the object behind it cannot be written, or `register` was told so.
        """

    def __len__(self) -> int: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

class Memory:
    """
    What Agent.allocate gave: registered memory with the buffer protocol, zero-filled and page-aligned.

    Owns: the memory stays in place while this object or any view of it lives, after deregister and the
    agent's end too; the region itself is the agent's, until deregister.
    """

    @property
    def region(self) -> Region:
        """Its Region."""

    def numpy(self, dtype: object = 'uint8', shape: int | tuple[int, ...] | None = None) -> numpy.ndarray:
        """
        The memory as a NumPy array, without a copy; imports NumPy.

        Shapes: one dimension over all of it, or `shape`, which may take less.
        Owns: the array keeps the memory in place.
        Errors: ValueError (the bytes do not suffice for, or do not divide by, dtype and shape).
        """

    def __len__(self) -> int: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

    def __buffer__(self, flags: int, /) -> memoryview: ...

class Mapping:
    """
    A peer's region as memory of this process: for the CPU with the buffer protocol, for the kernels of a GPU by
    DLPack, torch.from_dlpack(mapping), and __cuda_array_interface__: one dimension of uint8 over all of it.

    Owns: the mapping stays while this object or any view or tensor of it lives. Once the peer has revoked it, left or
    died `alive` is false: what it had allocated by its agent then shows old bytes, never a fault; GPU memory shows them,
    or what its owner has put there since, so let go of it. The end of a mapping for a GPU waits until that GPU has done
    what was queued on it, which cannot be while a stream of it is being captured: it then stays mapped.
    """

    @property
    def device(self) -> int:
        """The GPU whose kernels use it, by its ordinal; -1: the CPU."""

    @property
    def address(self) -> int:
        """
        Of the first byte, for whom `device` names: the CPU, or the kernels of that GPU.
        """

    @property
    def writable(self) -> bool:
        """
        False if its owner lets it be read only: then so do its views. Nothing keeps a kernel from writing GPU memory.
        """

    @property
    def alive(self) -> bool:
        """False once the peer has revoked the region, left or died."""

    def numpy(self, dtype: object = 'uint8', shape: int | tuple[int, ...] | None = None) -> numpy.ndarray:
        """
        The memory as a NumPy array, without a copy; imports NumPy.

        Shapes: one dimension over all of it, or `shape`, which may take less.
        Owns: the array keeps the memory in place.
        Errors: ValueError (the bytes do not suffice for, or do not divide by, dtype and shape), BufferError (it is
        mapped for a GPU: use torch.from_dlpack).
        """

    def __dlpack__(self, **kwargs: object) -> Any:
        """
        For torch.from_dlpack and its like. torch does not heed that memory can be read only: do not write it.

        Errors: BufferError (it can be read only, and the reader knows no version 1 of DLPack).
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's type and number of the device."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """
        Version 3, for Numba, CuPy and torch. AttributeError if it is mapped for the CPU.
        """

    def __len__(self) -> int: ...

    def __reduce__(self) -> NoReturn: ...

    def __buffer__(self, flags: int, /) -> memoryview: ...

class UniformPages:
    """
    `count` pages of one length: page i begins at base_bytes + i * stride_bytes of one region. The cheapest
    list to make and to keep.
    """

    def __init__(self, region: Region | Memory | int, base_bytes: int, stride_bytes: int, page_bytes: int, count: int) -> None:
        """
        Units: bytes from the region's start; a stride_bytes of 0 means page_bytes.
        """

    @property
    def region(self) -> int:
        """The region's id."""

    @property
    def base_bytes(self) -> int:
        """Where page 0 begins."""

    @property
    def stride_bytes(self) -> int:
        """From one page's begin to the next one's; 0: page_bytes."""

    @property
    def page_bytes(self) -> int:
        """The length of each."""

    @property
    def count(self) -> int:
        """How many."""

    def __len__(self) -> int: ...

    def __reduce__(self) -> tuple[type[UniformPages], tuple[int, int, int, int, int]]: ...

    def __repr__(self) -> str: ...

class PageView:
    """
    What every page of a list consists of where that is not one stretch: an array of up to four dimensions, by its
    strides. A page is its elements in the order of their indices, the last one fastest, and begins where element
    0, 0, ... lies. Lists whose views have one shape go together whatever their strides are: so heads are split off or
    transposed on the way. A list without a view goes with any of as many bytes a page.
    """

    def __init__(self, shape: Sequence[int], strides_bytes: Sequence[int] | None = None, item_bytes: int = 1) -> None:
        """
        shape: 1 to 4 extents, at least 1 each. strides_bytes: one for each, above 0, from an element to the next; None: there
        are no gaps. item_bytes: of an element.
        Errors: those of a view that cannot be come from Agent.prepare.
        """

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""

    @property
    def strides_bytes(self) -> tuple[int, ...] | None:
        """From an element to the next; None: no gaps."""

    @property
    def item_bytes(self) -> int:
        """Of an element."""

    def __reduce__(self) -> tuple[type[PageView], tuple[tuple[int, ...], tuple[int, ...] | None, int]]: ...

    def __repr__(self) -> str: ...

def pages_of(region: Region | Memory, array: object) -> tuple[UniformPages, PageView]:
    """
    An array as pages: those of its first dimension, and the view that the other dimensions are.

    region: of ours, in which the array lies. array: a NumPy array, a torch tensor or what else offers its memory, of shape
    (pages, ...) with at most four dimensions more, and any strides: heads[:, :, 4:8], swapaxes, permute. Nothing is copied or
    kept. For Agent.prepare(pages, view=view), here or, as both can be pickled, by a peer, with peer=our name.
    Errors: InvalidArgument (the array lies elsewhere, or its pages go backward).
    """

class RegionPages:
    """
    Pages of one region by columns: page i has lengths[i] bytes and begins at offsets[i] - origin_bytes. For tables whose
    rows hold more than pages need, and for offsets that count from elsewhere: with a region's address as origin_bytes they
    are addresses, a peer's too.
    """

    def __init__(self, region: Region | Memory | int, offsets: object, lengths: object, origin_bytes: int = 0) -> None:
        """
        offsets: a one-dimensional array of uint64 or int64, read without a copy; a column of a table will do. lengths: the
        same of as many, or an int for all.
        Units: bytes. Owns: keeps the arrays in place; they are read when the list is prepared.
        Errors: InvalidArgument (other arrays, counts that differ).
        """

    @property
    def region(self) -> int:
        """The region's id."""

    @property
    def origin_bytes(self) -> int:
        """The offset that stands for the region's start."""

    @property
    def count(self) -> int:
        """How many."""

    def __len__(self) -> int: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

class PageList:
    """
    A prepared list, as Agent.prepare gives it. Immutable, shared by any number of requests; it keeps nothing of
    the arrays that it was made from.
    """

    @property
    def count(self) -> int:
        """How many pages."""

    @property
    def bytes(self) -> int:
        """The sum of their lengths."""

    @property
    def peer(self) -> str:
        """Whose memory: the peer's name, or empty for our own."""

    def __len__(self) -> int: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

class RequestTimes:
    """Of the last post that ended."""

    @property
    def posted_at_ns(self) -> int:
        """CLOCK_MONOTONIC, as time.monotonic_ns()."""

    @property
    def post_ns(self) -> int:
        """Spent inside post."""

    @property
    def transfer_ns(self) -> int:
        """From post to the end."""

    @property
    def bytes(self) -> int:
        """That were to move."""

    @property
    def pages(self) -> int:
        """That were to move."""

    @property
    def posts(self) -> int:
        """Of this request so far."""

    def __repr__(self) -> str: ...

class PartInfo:
    """How a part of a request stands. A request to one peer has one."""

    @property
    def peer(self) -> str:
        """The far side: the peer's name, or this agent's own."""

    @property
    def backend(self) -> str:
        """The backend that carries it."""

    @property
    def pages(self) -> int:
        """How many."""

    @property
    def bytes(self) -> int:
        """The sum of their lengths."""

    @property
    def state(self) -> str:
        """As Request.state."""

    @property
    def error(self) -> headrace.errors.Error | None:
        """
        Why its last post failed, with the page's number in the part; None if it did not.
        """

    def __repr__(self) -> str: ...

class CostEstimate:
    """A guess at how long a request takes."""

    @property
    def duration(self) -> float:
        """Seconds."""

    @property
    def margin(self) -> float:
        """The guess may be off by this share of itself."""

    @property
    def method(self) -> str:
        """How it was guessed."""

    @property
    def backend(self) -> str:
        """The path that it is about."""

    def __repr__(self) -> str: ...

class Request:
    """
    Moves the pages of one list to or from the pages of another; Agent.make_request makes it.

    prepared -> posted -> (canceling ->) done | failed | canceled, and from any of these three it may be posted again.

    Owns: the page lists; the memory itself is the caller's and must stay in place until the request has ended.
    Dropping the last reference cancels what is in flight.
    A post on a stream that is being captured leads to captured: the request lies in a CUDA graph, whose replays run without
    the host, one after another. It holds all that they touch: its regions cannot be deregistered, here or by their owner.
    It and its agent must outlive the graph and replays that are queued.
    Threads: any; post from one thread at a time. `await request` waits in the running asyncio loop; a task that is
    canceled there cancels the request and ends when its memory is quiet.
    """

    def post(self, notification: bytes | None = None, timeout: float | None = None, stream: Any = None, *, local: Any = None, remote: Any = None, part: int = 0) -> str:
        """
        Starts the transfer and returns its state. Small requests on mapped or attached paths are done when this
        returns: "done", and there is nothing to wait for.

        notification: bytes, up to 64 KiB, delivered at the far side once the data is there (write) or has been taken
        (read). timeout: seconds, then it is canceled and ends timed_out; None: the request's own.
        stream: a torch.cuda.Stream, or the number of a CUDA stream, of the GPU whose memory the local pages are: they move
        after what was queued on it before, and before what is queued on it later, and nobody need wait for either. If it
        is being captured, the move becomes part of the graph, nothing runs yet, and the request is "captured" until cancel().
        local, remote: in a capture, page numbers on a GPU, as set_indices takes them, which the graph reads anew at every replay:
        a model's own block tables. part: whose lists they number, in a request to several peers; the other parts' pages stay.
        Of a request to several peers a part's error is told by wait(), and raised here too where there is a stream: the others
        are under way, and in a capture taken out of the graph again, which is to be thrown away.
        Errors: InvalidArgument (posted already; a stream of another GPU), WouldBlock (a queue is full, or, with a stream,
        the way to the peer's memory is not made yet: poll, retry; before a capture post once without), PeerLost, NotFound
        (a region has been revoked), NotSupported (its path knows no streams; a notification in a capture).
        """

    def set_indices(self, local: Any = None, remote: Any = None, *, stream: Any, part: int = 0) -> None:
        """
        Changes which pages of its lists a captured request moves, without making its graph anew: queued on a stream.

        local, remote: page numbers of one dimension, of both sides as many and at most as many as the request has pages;
        None: this side's first numbers stay as they are. Any integers on the host, copied before the call returns; or int32 or
        uint32 on a GPU (a torch tensor, or whatever speaks DLPack), read in the stream's order: keep it until then.
        stream: a torch.cuda.Stream, or the number of a CUDA stream, not being captured; replays that are queued on it later see them.
        part: whose lists they number, in a request to several peers.
        Errors: InvalidArgument (not captured; too many, or, on the host, a number that the list does not have), NotSupported (a
        list is not uniform), WouldBlock (64 changes are queued: let the stream catch up).
        """

    def check(self) -> int:
        """
        How many replays of a captured request have ended: their data can be read. Asks neither GPU nor peer.

        Errors: InvalidArgument (not captured; or a number that a GPU has written is not in its list: a replay passed over
        that page, told once), NotFound (a region has been revoked), PeerLost: replays since may have read or written what is
        no longer the peer's memory.
        """

    def poll(self) -> str:
        """The state, after giving the path a slice of this thread's time."""

    @property
    def state(self) -> str:
        """
        "prepared", "posted", "canceling", "done", "failed", "canceled" or "captured", without doing anything.
        """

    @property
    def done(self) -> bool:
        """Whether the last post has ended: done, failed or canceled."""

    def wait(self, timeout: float | None = None) -> None:
        """
        Waits for the end, seconds at most.

        Errors: the request's own; TimedOut if it is still running, which it then goes on doing.
        """

    def cancel(self) -> None:
        """
        Asks for an early end and returns at once; wait() tells when the memory is quiet. Nothing happens if it has ended.
        A captured request is let go of: its graph is not to be replayed any more.
        """

    @property
    def error(self) -> headrace.errors.Error | None:
        """
        Why the last post failed, with the peer's name and the page; None if it did not.
        """

    @property
    def times(self) -> RequestTimes:
        """Of the last post that ended."""

    @property
    def parts(self) -> list[PartInfo]:
        """
        How each part stands, in the order in which they were given: which peers have their pages after a failure.
        """

    def explain(self) -> str:
        """The path, why it was chosen, and why the others were not."""

    @property
    def backend(self) -> str:
        """The backend that carries it."""

    def cost(self) -> CostEstimate:
        """
        How long it may take.

        Errors: PeerLost (no path any more).
        """

    def on_done(self, callback: Callable[[headrace.errors.Error | None], object] | None) -> None:
        """
        Calls callback(error) once for the end of each post: None if it is done, else the error. Replaces an earlier
        one; None takes it away.

        Threads: runs on the agent's callback thread. An exception in it goes to sys.unraisablehook. What is still
        waiting when the interpreter ends is dropped.
        """

    def fileno(self) -> int:
        """
        A descriptor that turns readable at each end; the request's. Read 8 bytes to clear it.
        """

    def __await__(self) -> Generator[object, None, None]: ...

    @property
    def op(self) -> str:
        """"read" or "write"."""

    @property
    def pages(self) -> int:
        """How many."""

    @property
    def bytes(self) -> int:
        """The sum of their lengths."""

    @property
    def peer(self) -> str:
        """
        The far side: the peer's name, or this agent's own; of several parts all, with commas.
        """

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

class HistogramSnapshot:
    """
    How often which size of value was seen. Bucket 0 counts zeros, bucket i counts 2^(i-1) to 2^i - 1.
    """

    @property
    def count(self) -> int:
        """How many values."""

    @property
    def sum(self) -> int:
        """Of the values, modulo 2^64."""

    @property
    def smallest(self) -> int:
        """The smallest value."""

    @property
    def largest(self) -> int:
        """The largest value."""

    @property
    def buckets(self) -> list[int]:
        """65 counts."""

    @property
    def mean(self) -> float:
        """0 where nothing was seen."""

    def percentile(self, percent: float) -> float:
        """
        The value that `percent` of a hundred values do not exceed: never more than a factor of two off, exact for 0
        and 100. 0 where nothing was seen.
        """

class EventSnapshot:
    """Something that happened once: a peer came or went, a path failed over."""

    @property
    def time_ns(self) -> int:
        """CLOCK_MONOTONIC, as time.monotonic_ns()."""

    @property
    def room(self) -> str:
        """Who says it: "tcp", "engine"."""

    @property
    def text(self) -> str:
        """What happened."""

    def __repr__(self) -> str: ...

class TelemetrySnapshot:
    """
    What an agent has counted so far. Names carry their unit: "tcp.sent_bytes", "requests.duration_ns".
    """

    @property
    def counters(self) -> dict[str, int]:
        """By name."""

    @property
    def histograms(self) -> dict[str, HistogramSnapshot]:
        """By name."""

    @property
    def events(self) -> list[EventSnapshot]:
        """The latest ones, oldest first."""

    @property
    def events_dropped(self) -> int:
        """Older ones that were overwritten."""

    def json(self) -> str:
        """All of it as one JSON object."""

class ImportReport:
    """What an import of metadata did."""

    @property
    def peer(self) -> str:
        """Whose metadata it was."""

    @property
    def incarnation(self) -> int:
        """Of the peer: another one at each start."""

    @property
    def version(self) -> int:
        """Of the metadata that we now hold."""

    @property
    def regions(self) -> int:
        """Known of this peer now."""

    @property
    def restarted(self) -> bool:
        """
        It replaces an earlier life of the same name: old handles now end in peer_lost.
        """

    def __repr__(self) -> str: ...

class PeerInfo:
    """What is known of a peer."""

    @property
    def name(self) -> str:
        """What it calls itself."""

    @property
    def incarnation(self) -> int:
        """Another one at each start."""

    @property
    def version(self) -> int:
        """Of its metadata."""

    @property
    def regions(self) -> int:
        """How many of its regions are known."""

    @property
    def connected(self) -> bool:
        """Whether there is a link."""

    @property
    def lost(self) -> bool:
        """Whether it died, left or cannot be reached."""

    @property
    def backends(self) -> list[str]:
        """That both have."""

    @property
    def detail(self) -> str:
        """Why it was lost, or what each backend says."""

    def __repr__(self) -> str: ...

class OptionInfo:
    """A row of the option table, with the value in force."""

    @property
    def name(self) -> str:
        """"check", or "tcp.sockets" for a backend's."""

    @property
    def default_value(self) -> str:
        """If nobody sets it."""

    @property
    def value(self) -> str:
        """In force; "(set)" for a secret."""

    @property
    def unit(self) -> str:
        """Of the value."""

    @property
    def sentence(self) -> str:
        """What it does."""

    @property
    def source(self) -> str:
        """"default", "file", "environment" or "caller"."""

    def __repr__(self) -> str: ...

class BackendInfo:
    """A plugin: loaded, or why not."""

    @property
    def name(self) -> str:
        """"shm", "tcp", ..."""

    @property
    def version(self) -> str:
        """Its own."""

    @property
    def path(self) -> str:
        """The shared object, or "linked in"."""

    @property
    def loaded(self) -> bool:
        """Whether it can be used."""

    @property
    def refusal(self) -> str:
        """Why it did not load, and what to do; else empty."""

    @property
    def kinds(self) -> list[str]:
        """The memory kinds that it takes."""

    @property
    def local(self) -> bool:
        """Whether it serves transfers inside one agent."""

    @property
    def remote(self) -> bool:
        """Whether it serves transfers between agents."""

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
    def options(self) -> list[OptionInfo]:
        """Its table."""

    def __repr__(self) -> str: ...

class Agent:
    """
    One participant: it owns regions, knows peers, and makes the requests that move pages between them.

    A context manager: leaving it closes the agent. Agents that are open at the end of the interpreter are closed then.
    Threads: every method may be called from any thread; those that wait or copy give the GIL away.
    Fork: in a forked child every method raises InvalidArgument.
    """

    def __init__(self, name: str, backends: Sequence[str] | None = None, listen: str = '', store: str = '', options: _Mapping[str, str | bool | int | float] | None = None) -> None:
        """
        Opens an agent.

        name: what peers call it, 1 to 255 bytes. backends: to open; None: every one that loads on this machine.
        listen: "host:port" to answer metadata queries on; port 0 picks one (listen_address tells); empty: do not listen.
        store: "etcd://host:port[,host:port...][/namespace]", "file:///folder", "memory:NAME"; empty: HEADRACE_STORE, else none.
        options: rows of the option table by name, {"tcp.sockets": 4}; they win over the environment.
        Errors: InvalidArgument (name, option), BackendFailed (a backend that was asked for does not load: why).
        """

    @property
    def name(self) -> str:
        """What peers call it."""

    @property
    def incarnation(self) -> int:
        """Another one at each start, by which peers recognise a restarted agent."""

    @property
    def closed(self) -> bool:
        """Whether close() was called."""

    def close(self) -> None:
        """
        Cancels what is in flight, tells peers, ends all registrations. Nothing happens the second time.

        Threads: calls of this agent that other threads are in finish first, and the agent ends with the last of them.
        """

    def __enter__(self) -> Agent: ...

    def __exit__(self, type: object, value: object, traceback: object) -> None: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

    def register(self, obj: object, name: str = '', note: bytes = b'', backends: Sequence[str] | None = None, writable: bool | None = None) -> Any:
        """
        Makes memory reachable for peers. Returns its Region, or a list of them if `obj` is a list.

        obj: anything with the buffer protocol (bytearray, mmap, NumPy array), with DLPack (torch tensor), a tuple
        (address, length), a MemoryRange, or a list of these: then all are registered or none, in one call. Arrays may
        lie in memory in any order, but without gaps. Objects that cannot be written (bytes, a read-only array) are
        taken too: a request that would write them is refused, here and at peers.
        name: unique in the agent; of a list it is followed by "/0", "/1", ... note: travels with the metadata, up to
        64 KiB. backends: only these; None: every one that takes the kind. writable: False lets requests read the memory
        only; None: as the object says.
        Owns: the object is kept alive, and in place, until its region is deregistered or the agent is closed; memory
        given by address is the caller's to keep.
        Errors: InvalidArgument (empty, gaps, name in use), NotSupported (no backend takes this kind).
        """

    def deregister(self, regions: Region | Memory | int | Sequence[Region | Memory | int], timeout: float | None = 10.0) -> None:
        """
        Tells every peer that knows the regions, waits until each has let go or is gone, then forgets them.

        Errors: NotFound, WouldBlock (requests of ours are in flight and timeout is 0), TimedOut (a peer did not
        answer: the regions stay).
        """

    def allocate(self, length_bytes: int, kind: str = 'dram', numa_node: int = -1, huge_pages: bool = False, name: str = '', note: bytes = b'', backends: Sequence[str] | None = None, writable: bool = True, near_gpu: int = -1) -> Memory:
        """
        Memory that peers on this host map and copy without the kernel's help: the fastest kind. Zero-filled,
        page-aligned, registered.

        numa_node: -1 means that of near_gpu, or of the thread that touches a page first. huge_pages: of 2 MiB. writable:
        False lets requests and peers read it only; the Memory object itself can always be written. near_gpu: a CUDA ordinal:
        memory of the node next to this GPU, where the firmware names it and the system lets us choose.
        Owns: the Memory object and its views keep the memory; the region is the agent's until deregistered.
        Errors: InvalidArgument (length 0, no such node: says which there are, no such GPU), Exhausted (not enough memory or
        huge pages), NotSupported (kind; near_gpu without a driver).
        """

    def map(self, peer: str, region: Region | int, timeout: float | None = 10.0, device: object = None) -> Mapping:
        """
        A peer's region as memory of this process: for the CPU what the peer got from allocate, for the kernels of a
        GPU its GPU memory, too.

        device: the GPU of this process that will use it: 1, "cuda:1", a torch.device ("cuda" is GPU 0); None: the CPU.
        Errors: NotFound, NotSupported (on another host, host memory that was merely registered, no way from this GPU:
        what each backend said), InvalidArgument (no such GPU; GPU memory for the CPU), PeerLost, TimedOut.
        """

    def regions(self) -> list[Region]:
        """What is registered now."""

    def query(self, what: MemoryRange, backend: str) -> dict[str, str] | None:
        """
        Does this file, block device or object exist? None: no. Else what the backend knows, "bytes" among it.

        Errors: NotFound (no such backend is open here), NotSupported (it keeps nothing of the kind: who can be asked),
        InvalidArgument (asked about memory, or without a name).
        """

    register_memory = register

    def export_metadata(self, regions: Sequence[Region | Memory | int] | None = None, connection_info: bool = True, since_version: int = 0) -> bytes:
        """
        What a peer needs to reach this agent and its regions, for its import_metadata.

        regions: only these; []: connection information alone; None: all. connection_info: how to reach us; may be left
        out of later parts. since_version: only what changed after this metadata_version; 0: everything.
        Errors: NotFound (a region), InvalidArgument (a version still to come).
        """

    @property
    def metadata_version(self) -> int:
        """Rises with each registration and deregistration."""

    def import_metadata(self, metadata: bytes) -> ImportReport:
        """
        Takes in what a peer's export_metadata gave: whole, part or update, in any order after the connection information.

        Errors: Corrupt (says where), InvalidArgument (our own; another protocol version).
        """

    @property
    def listen_address(self) -> str:
        """
        Where `listen` listens, for example "127.0.0.1:40213"; empty if it does not.
        """

    def fetch_metadata(self, address: str, timeout: float | None = 10.0, label: str = '') -> ImportReport:
        """
        Asks the agent that listens at "host:port" for its metadata and imports it.

        Errors: PeerLost (nobody answers there), TimedOut, Corrupt, InvalidArgument (address).
        """

    def send_metadata(self, address: str, regions: Sequence[Region | Memory | int] | None = None, connection_info: bool = True, since_version: int = 0, timeout: float | None = 10.0) -> None:
        """
        Gives our metadata to the agent that listens at "host:port". What is given: as export_metadata.

        Errors: PeerLost (nobody answers there), TimedOut, InvalidArgument (address).
        """

    def publish(self, regions: Sequence[Region | Memory | int] | None = None, connection_info: bool = True, label: str = '') -> None:
        """
        Publishes our metadata in the store, under a lease that ends with us, and again after each registration change.

        Errors: InvalidArgument (the agent has no store), BackendFailed (the store).
        """

    def unpublish(self) -> None:
        """Takes our metadata out of the store."""

    def find(self, peer: str, timeout: float | None = 10.0, label: str = '') -> ImportReport:
        """
        Looks a peer up in the store by name and imports it: how to reach one never told of.

        Errors: NotFound (nobody of that name), TimedOut, InvalidArgument (the agent has no store).
        """

    def list_namespace(self, timeout: float | None = 10.0) -> list[str]:
        """The names in the store's namespace."""

    def watch_namespace(self, callback: Callable[[str, str], object] | None) -> None:
        """
        Calls callback(event, peer) for every peer that comes ("joined"), changes ("updated") or goes ("left").
        Replaces an earlier watch; None ends it.

        Threads: runs on the agent's callback thread; an exception in it goes to sys.unraisablehook.
        Errors: InvalidArgument (the agent has no store).
        """

    def peers(self) -> list[PeerInfo]:
        """Everyone whose metadata we hold."""

    def peer_regions(self, peer: str) -> list[Region]:
        """
        All that is known of that peer.

        Errors: NotFound (peer).
        """

    def peer_region(self, peer: str, region_name: str) -> Region:
        """
        A peer's region by name.

        Errors: NotFound (peer, name).
        """

    def connect(self, peer: str, timeout: float | None = 10.0, backends: Sequence[str] | None = None) -> None:
        """
        Connects ahead of use and waits until it is done.

        Errors: NotFound, PeerLost, TimedOut, NotSupported.
        """

    def forget(self, peer: str) -> None:
        """
        Ends what is in flight with it (canceled), closes the links, drops its metadata.

        Errors: NotFound.
        """

    def prepare(self, pages: object, peer: str | None = None, view: PageView | None = None) -> PageList:
        """
        Checks and resolves a list of pages once; requests then pick from it by index.

        pages: a list of tuples (address, length); a list of tuples (region, offset, length), or of Regions; an N x 2 array
        (address, length) or N x 3 array (region's id, offset, length), uint64 or int64, contiguous, read without a copy;
        UniformPages; RegionPages; an array or tensor, or a list of them: the memory of each is a page. In a tuple the region is
        a Region, a Memory or an id.
        peer: whose pages. None: our own; a peer's, or by our own name the far side of a transfer to ourselves, are given
        by region.
        view: what each page consists of, a PageView; None: of one stretch. A page's length is then what the view has, or, of
        UniformPages, 0.
        Units: bytes. Owns: nothing of what was given.
        Errors: InvalidArgument (no pages, a zero-length page: its index; a view that cannot be: why), NotFound (not registered:
        its index).
        """

    @overload
    def make_request(self, op: Literal['read', 'write'], local: PageList, remote: PageList, local_index: object = None, remote_index: object = None, backends: Sequence[str] | None = None, timeout: float | None = None, cls: type[Request] | None = None) -> Request:
        """
        A request that moves page local_index[i] of local to or from page remote_index[i] of remote.

        op: "read" (local <- remote) or "write" (local -> remote). Indices: one-dimensional arrays of integers (uint32
        and 64 bits are read without a copy) or lists of ints; None: the whole list in order.
        backends: only these paths; None: the best of all. timeout: seconds, each post is canceled after this long.
        cls: a subclass of Request of which it is to be an instance, whose __init__ is not called: for who keeps something
        of his own with each request.
        Errors: InvalidArgument (counts or lengths differ, an index beyond its list: which), NotFound (revoked),
        NotSupported (no common path: what each said).
        """

    @overload
    def make_request(self, op: Literal['read', 'write'], parts: Iterable[tuple[PageList, PageList] | tuple[PageList, PageList, object, object]], *, backends: Sequence[str] | None = None, timeout: float | None = None, cls: type[Request] | None = None) -> Request:
        """
        A request to or from several peers: one post, one deadline, one end.

        parts: (local, remote) or (local, remote, local_index, remote_index), as above, the remote list of another peer
        in each. Each takes the path that is best for it, and moves whatever becomes of the others: the request ends when
        the last has ended, and fails as the first that failed; Request.parts tells which peers have their pages. What goes
        with a post (notification, stream) goes with each part.
        Errors: as above, with the part's number; InvalidArgument (no part; two of one peer).
        """

    def read(self, peer: str, local_pages: object, remote_pages: object, notification: bytes | None = None, timeout: float | None = None, backends: Sequence[str] | None = None) -> Request:
        """
        Reads remote pages of `peer` into local ones.

        Makes a request, posts it and waits for its end. Pages: PageLists, or what prepare takes; page i of one goes with
        page i of the other. notification: bytes for the far side, delivered once the data is there (write) or has been
        taken (read). timeout: seconds, then it is canceled and TimedOut raised.
        Returns the request, done: its times and explain() tell how it went.
        Errors: those of prepare, make_request, Request.post and Request.wait.
        """

    def write(self, peer: str, local_pages: object, remote_pages: object, notification: bytes | None = None, timeout: float | None = None, backends: Sequence[str] | None = None) -> Request:
        """
        Writes local pages to remote ones of `peer`.

        Makes a request, posts it and waits for its end. Pages: PageLists, or what prepare takes; page i of one goes with
        page i of the other. notification: bytes for the far side, delivered once the data is there (write) or has been
        taken (read). timeout: seconds, then it is canceled and TimedOut raised.
        Returns the request, done: its times and explain() tell how it went.
        Errors: those of prepare, make_request, Request.post and Request.wait.
        """

    def notify(self, peer: str, payload: bytes) -> None:
        """
        Sends a message on its own, up to 64 KiB.

        Errors: WouldBlock (too many wait: retry), NotFound, PeerLost.
        """

    def take_notifications(self, peer: str = '', prefix: bytes = b'') -> list[tuple[str, bytes]]:
        """
        What has come in, oldest first, as (peer, payload); empty if nothing has.

        peer, prefix: only those of this peer, and whose payload begins so; empty: any.
        """

    def wait_notification(self, timeout: float | None = None, peer: str = '', prefix: bytes = b'') -> tuple[str, bytes]:
        """
        The next one that fits, as (peer, payload); seconds at most.

        Errors: TimedOut, InvalidArgument (the agent was closed meanwhile).
        """

    def on_notification(self, callback: Callable[[str, bytes], object] | None) -> None:
        """
        Hands each one to callback(peer, payload) instead of keeping it. None ends that.

        Threads: runs on the agent's callback thread; an exception in it goes to sys.unraisablehook.
        """

    def notification_fd(self) -> int:
        """A descriptor that is readable while notifications wait; the agent's."""

    def notifications(self, peer: str = '', prefix: bytes = b'') -> AsyncIterator[tuple[str, bytes]]:
        """
        An asynchronous iterator over those that come in, as (peer, payload); ends when the agent is closed.

        peer, prefix: as in take_notifications; the others stay where they are.
        """

    def _closing_fd(self) -> int:
        """Turns readable when the agent is closed; for headrace._asyncio."""

    def backends(self) -> list[BackendInfo]:
        """Those that this agent has open."""

    def create_backend(self, name: str, options: _Mapping[str, str | bool | int | float] | None = None) -> None:
        """
        Opens one more, with options of its own table ({"sockets": 4}). Peers learn of it with the next metadata.

        Errors: InvalidArgument (open already, option), BackendFailed (it does not load: why).
        """

    def telemetry(self) -> TelemetrySnapshot:
        """What it has counted so far."""

def list_backends(options: _Mapping[str, str | bool | int | float] | None = None) -> list[BackendInfo]:
    """
    Every plugin that the search path holds, loaded or refused, without an agent.

    Of `fake`, which is for tests, nothing is told here, nor by list_options, unless an option names it.
    Errors: InvalidArgument (an option that does not exist, or has a value that it cannot have).
    """

def list_options(options: _Mapping[str, str | bool | int | float] | None = None) -> list[OptionInfo]:
    """
    Every option of the core and of all backends, with the value in force and where it comes from.

    Errors: InvalidArgument (an option that does not exist).
    """

def list_namespace(store: str, timeout: float | None = 10.0) -> list[PeerInfo]:
    """
    Every agent that a store knows: regions counted, nothing connected.

    Errors: InvalidArgument (store), BackendFailed, TimedOut.
    """

def set_log_level(spec: str) -> None:
    """
    Sets what is said, in the syntax of HEADRACE_LOG: one level for all and room=level pairs,
    "warn,tcp=debug,engine=off". What an earlier call set for a room is forgotten.

    Levels: off, error, warn, info, debug, trace.
    Errors: InvalidArgument (no such level, empty room): nothing is changed.
    """

def set_log_sink(sink: Callable[[str, str, str], object] | None) -> None:
    """
    Sends log lines to sink(level, room, text) instead of stderr; None goes back to stderr.

    Threads: the sink runs on a thread of its own, a line at a time and in order, so a slow one delays nobody;
    beyond 8192 waiting lines the newest are dropped, and a line says how many. Returns once the sink before it
    has had its lines. An exception in it goes to sys.unraisablehook.
    Owns: the sink is held until it is replaced.
    """

class Tensor:
    """
    An output of a model, row-major, with the buffer protocol and DLPack: numpy.asarray(t), torch.from_dlpack(t).

    Owns: the memory stays while this object or any array made of it lives, after the model too.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Its lengths."""

    @property
    def dtype(self) -> str:
        """torch's name without "torch.": "float32"."""

    @property
    def device(self) -> str:
        """"cpu" or "cuda:0"."""

    def numpy(self) -> numpy.ndarray:
        """As a NumPy array, without a copy; imports NumPy."""

    def __dlpack__(self, **kwargs: object) -> Any:
        """For torch.from_dlpack and its like."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's type and number of the device."""

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

    def __buffer__(self, flags: int, /) -> memoryview: ...

class Model:
    """
    A model that AOTInductor compiled, open. Its code runs without Python; torch is loaded, not imported.

    Owns: what is loaded goes with close(), the end of a with block, or the last reference; outputs stay.
    Threads: any.
    """

    def __init__(self, path: str | os.PathLike[str], *, model_name: str = 'model', device: str | None = None, runners: int = 1, threads: int = 0, options: dict[str, object] | None = None) -> None:
        """
        Checks the package (.pt2 or unpacked) against this machine, unpacks it into the cache, loads it.

        device: "cpu", "cuda", "cuda:1"; None: what the package was made for. runners: runs at once.
        threads: of torch inside one operation; 0: as it is. The GIL is given away.
        Errors: NotFound, Corrupt (not a package, or damaged), InvalidArgument (no model of that name),
        NotSupported (no torch or another one, another machine, CPU or GPU), BackendFailed (torch: its words).
        """

    def run(self, *inputs: object, stream: object = None, **named: object) -> list[Tensor]:
        """
        Runs once, on inputs by place or by name; every one is checked first.

        Inputs: torch tensors, NumPy arrays, whatever speaks the buffer protocol or DLPack; None: left out.
        On a GPU inputs lie there already, and the call returns when the outputs are ready. With stream=, a
        torch.cuda.Stream or the number of a CUDA stream, it runs in the order of that stream and returns at once:
        inputs stay in place until the stream has passed, and outputs are ready in its order (torch.from_dlpack on
        another stream waits). Without, it runs on torch's current stream, and so does a model that has an input of
        that name, which stream= then gives.
        Owns: inputs are read, and those that the model mutates written, in place; outputs are new memory.
        Threads: any; the GIL is given away. So many runs go on at once as there are runners.
        Errors: InvalidArgument (which input, what it is, what was expected; a stream for a model on the CPU),
        BackendFailed (torch: its words).
        """

    def __call__(self, *inputs: object, stream: object = None, **named: object) -> list[Tensor]:
        """The same as run."""

    @property
    def info(self) -> dict[str, Any]:
        """What the package says, as `headrace inspect --json` prints it."""

    @staticmethod
    def inspect(path: str | os.PathLike[str], model_name: str = 'model') -> dict[str, Any]:
        """
        The same of a package that is not opened: needs no torch.

        Errors: NotFound, Corrupt, InvalidArgument.
        """

    def constants(self) -> list[dict[str, Any]]:
        """
        Weights and buffers: name, dtype, shape. Without what the compiler worked out of them beforehand.
        """

    def replace_constants(self, values: dict[str, object]) -> None:
        """
        Puts other values in the place of some constants; waits for the runs that go on.

        Errors: InvalidArgument (no such constant, another dtype or shape: nothing was changed).
        """

    def timing(self) -> dict[str, Any]:
        """Nanoseconds of loading and running."""

    def memory(self) -> dict[str, int]:
        """
        Bytes of package, constants, process; of the GPU what torch holds here, its most, and what all use.
        """

    @property
    def closed(self) -> bool:
        """Whether close() was called."""

    def close(self) -> None:
        """
        Frees what was loaded; every later call raises InvalidArgument. Nothing happens the second time.

        Threads: runs that other threads are in finish first, and the model goes with the last of them.
        """

    def __enter__(self) -> Model: ...

    def __exit__(self, type: object, value: object, traceback: object) -> None: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> NoReturn: ...

__version__: str
