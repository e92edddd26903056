# SPDX-License-Identifier: Apache-2.0
"""Python objects between the ranks of a communicator.

Objects travel as JSON: None, bool, int, float, str, and lists and dicts of these. Tuples arrive as lists,
and keys of dicts as str. With `pickle=True` on all ranks any object that pickle takes may travel. To unpickle
runs code that the sender chooses: use it only among ranks that you trust.

The functions wait until their objects have arrived. All ranks call the same function in the same order, as
with other collectives. An object that JSON does not take is refused before another rank knows of the call.
"""

from __future__ import annotations

import datetime
import json
import pickle as pickles
from array import array
from collections.abc import Sequence
from typing import Any

from ._headrace import Comm
from .errors import Corrupt, InvalidArgument

TimeLimit = float | datetime.timedelta | None

# The first byte of an encoded object.
JSON, PICKLE = 0, 1
# Messages of objects have a tag of their own, so that they meet no others.
TAG = 0x6F626A73


def all_gather_object(
    comm: Comm, object_list: list[Any], obj: object, timeout: TimeLimit = None, *, pickle: bool = False
) -> None:
    """Gathers the object of each rank: object_list[r] becomes that of rank r.

    object_list: a list with an entry for each rank.
    """
    size = comm.get_size()
    _check_length("object_list", object_list, size)
    mine = _encode(obj, pickle)
    lengths = array("q", bytes(8 * size))
    comm.all_gather_single(lengths, array("q", [len(mine)]), timeout=timeout)
    parts = [_room(length, rank) for rank, length in enumerate(lengths)]
    comm.all_gather_v(parts, mine, timeout=timeout)
    object_list[:] = [_decode(part, pickle, rank) for rank, part in enumerate(parts)]


def gather_object(
    comm: Comm,
    obj: object,
    root: int,
    object_gather_list: list[Any] | None = None,
    timeout: TimeLimit = None,
    *,
    pickle: bool = False,
) -> None:
    """Gathers the object of each rank at the root.

    object_gather_list: on the root a list with an entry for each rank; on other ranks None.
    """
    size, is_root = comm.get_size(), comm.get_rank() == root
    if is_root:
        _check_length("object_gather_list", object_gather_list, size)
    mine = _encode(obj, pickle)
    lengths = array("q", bytes(8 * size)) if is_root else None
    comm.gather_single(lengths, array("q", [len(mine)]), root, timeout=timeout)
    to_root = [len(mine) if rank == root else 0 for rank in range(size)]
    from_ranks = list(lengths) if lengths is not None else [0] * size
    whole = bytearray().join(_room(length, rank) for rank, length in enumerate(from_ranks))
    comm.all_to_all_v_single(whole, mine, from_ranks, to_root, timeout=timeout)
    if object_gather_list is not None and is_root:
        parts = _cut(whole, from_ranks)
        object_gather_list[:] = [_decode(part, pickle, rank) for rank, part in enumerate(parts)]


def broadcast_object_list(
    comm: Comm, object_list: list[Any], root: int, timeout: TimeLimit = None, *, pickle: bool = False
) -> None:
    """Replaces the objects of the list by those of the root's, which has as many."""
    is_root = comm.get_rank() == root
    whole = _encode(list(object_list), pickle) if is_root else bytearray()
    length = array("q", [len(whole)])
    comm.broadcast(length, root, timeout=timeout)
    if not is_root:
        whole = _room(length[0], root)
    comm.broadcast(whole, root, timeout=timeout)
    if not is_root:
        _replace(object_list, whole, pickle, root)


def scatter_object_list(
    comm: Comm,
    root: int,
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Sequence[Any] | None = None,
    timeout: TimeLimit = None,
    *,
    pickle: bool = False,
) -> None:
    """Rank r gets scatter_object_input_list[r] of the root as the first entry of its output list.

    scatter_object_input_list: on the root an entry for each rank; on other ranks it is not used.
    """
    size, is_root = comm.get_size(), comm.get_rank() == root
    if not scatter_object_output_list:
        raise InvalidArgument("scatter_object_output_list has no entry, and its first one is replaced")
    parts: list[bytearray] = []
    if is_root:
        _check_length("scatter_object_input_list", scatter_object_input_list, size)
        parts = [_encode(obj, pickle) for obj in scatter_object_input_list or ()]
    length = array("q", [0])
    comm.scatter(length, [array("q", [len(part)]) for part in parts], root, timeout=timeout)
    mine = _room(length[0], root)
    from_root = [length[0] if rank == root else 0 for rank in range(size)]
    to_ranks = [len(part) for part in parts] if is_root else [0] * size
    comm.all_to_all_v_single(mine, bytearray().join(parts), from_root, to_ranks, timeout=timeout)
    scatter_object_output_list[0] = _decode(mine, pickle, root)


def send_object_list(
    comm: Comm, object_list: Sequence[Any], dst: int, timeout: TimeLimit = None, *, pickle: bool = False
) -> None:
    """Sends the objects to a rank, whose list has as many entries."""
    whole = _encode(list(object_list), pickle)
    comm.send(array("q", [len(whole)]), dst, timeout=timeout, tag=TAG)
    comm.send(whole, dst, timeout=timeout, tag=TAG)


def recv_object_list(
    comm: Comm, object_list: list[Any], src: int, timeout: TimeLimit = None, *, pickle: bool = False
) -> int:
    """Replaces the objects of the list by those that a rank sends. Returns the rank.

    src: the rank, or headrace.any_source.
    """
    length = array("q", [0])
    source = comm.recv(length, src, timeout=timeout, tag=TAG).source()
    whole = _room(length[0], source)
    comm.recv(whole, source, timeout=timeout, tag=TAG)
    _replace(object_list, whole, pickle, source)
    return source


def _encode(obj: object, pickle: bool) -> bytearray:
    if pickle:
        return bytearray([PICKLE]) + pickles.dumps(obj)
    try:
        return bytearray([JSON]) + json.dumps(obj).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"{error}: give what JSON has, or pickle=True on all ranks") from error


def _room(length: int, source: int) -> bytearray:
    if length < 0:
        raise Corrupt(f"rank {source} announces an object of {length} bytes")
    return bytearray(length)


def _decode(encoded: bytearray, pickle: bool, source: int) -> Any:
    if encoded and encoded[0] == PICKLE:
        if not pickle:
            raise InvalidArgument(
                f"rank {source} sends a pickle, which runs its code: give pickle=True if you trust all ranks"
            )
        return pickles.loads(memoryview(encoded)[1:])
    try:
        return json.loads(encoded[1:])
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"the object of rank {source} is not JSON: {error}") from error


def _replace(object_list: list[Any], encoded: bytearray, pickle: bool, source: int) -> None:
    objects = _decode(encoded, pickle, source)
    if not isinstance(objects, list):
        raise Corrupt(f"rank {source} sends no list of objects")
    if len(objects) != len(object_list):
        raise InvalidArgument(
            f"rank {source} sends {len(objects)} objects, and the list has {len(object_list)} entries: "
            "both need as many"
        )
    object_list[:] = objects


def _check_length(name: str, entries: Sequence[Any] | None, size: int) -> None:
    length = None if entries is None else len(entries)
    if length != size:
        has = "is None" if length is None else f"has {length} entries"
        raise InvalidArgument(f"{name} {has}: give one for each of {size} ranks")


def _cut(whole: bytearray, lengths: Sequence[int]) -> list[bytearray]:
    parts, begin = [], 0
    for length in lengths:
        parts.append(whole[begin : begin + length])
        begin += length
    return parts
