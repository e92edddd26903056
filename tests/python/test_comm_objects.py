# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""Python objects between ranks: as JSON, and pickled where all ranks ask for it."""

from array import array
from dataclasses import dataclass

import pytest

import headrace
from headrace import objects
from ranks import on_ranks, two_ranks


@dataclass
class Pickled:
    """JSON does not take it."""

    value: int


THINGS = ["a", {"b": [1, 2.5, None, True]}, "ü" * 1000]


@pytest.mark.parametrize("pickle", [False, True])
def test_all_gather_and_gather_and_scatter(pickle):
    def body(comm):
        rank = comm.get_rank()
        everyones, at_root, mine = [None] * 3, [None] * 3 if rank == 1 else None, [None, "stays"]
        objects.all_gather_object(comm, everyones, THINGS[rank], pickle=pickle)
        objects.gather_object(comm, THINGS[rank], 1, at_root, timeout=30, pickle=pickle)
        objects.scatter_object_list(comm, 2, mine, THINGS if rank == 2 else None, pickle=pickle)
        return everyones, at_root, mine

    for rank, answer in enumerate(on_ranks(3, body)):
        assert answer == (THINGS, THINGS if rank == 1 else None, [THINGS[rank], "stays"])


def test_broadcast_send_and_receive():
    def body(comm):
        rank = comm.get_rank()
        shared = THINGS[:] if rank == 1 else [None] * 3
        objects.broadcast_object_list(comm, shared, 1)
        assert shared == THINGS
        got = [None] * 2
        if rank == 0:
            assert objects.recv_object_list(comm, got, headrace.any_source) == 1
            assert got == [{"x": 1}, "y"]
        else:
            objects.send_object_list(comm, [{"x": 1}, "y"], 0)

    on_ranks(2, body)


def test_any_object_travels_pickled():
    def body(comm):
        got = [None] * 2
        objects.all_gather_object(comm, got, Pickled(comm.get_rank()), pickle=True)
        return got

    assert on_ranks(2, body) == [[Pickled(0), Pickled(1)]] * 2


def test_a_pickle_is_refused_by_a_rank_that_did_not_ask_for_it():
    left, right = two_ranks()
    objects.send_object_list(left, [1], 1, pickle=True)
    with pytest.raises(headrace.InvalidArgument, match="rank 0 sends a pickle, which runs its code"):
        objects.recv_object_list(right, [None], 0)


def test_what_json_does_not_take_is_refused_before_another_rank_hears_of_it():
    left, right = two_ranks()
    with pytest.raises(
        headrace.InvalidArgument, match="not JSON serializable: give what JSON has, or pickle=True"
    ):
        objects.broadcast_object_list(left, [Pickled(1)], 0)
    objects.send_object_list(left, [1], 1)
    got = [None]
    objects.recv_object_list(right, got, 0)
    assert got == [1]


def test_lists_of_another_length_are_refused():
    left, right = two_ranks()
    with pytest.raises(
        headrace.InvalidArgument, match="object_list has 1 entries: give one for each of 2 ranks"
    ):
        objects.all_gather_object(left, [None], 1)
    with pytest.raises(
        headrace.InvalidArgument, match="object_gather_list is None: give one for each of 2 ranks"
    ):
        objects.gather_object(left, 1, 0)
    with pytest.raises(headrace.InvalidArgument, match="scatter_object_output_list has no entry"):
        objects.scatter_object_list(left, 1, [])
    objects.send_object_list(left, [1, 2], 1)
    with pytest.raises(headrace.InvalidArgument, match="rank 0 sends 2 objects, and the list has 1 entries"):
        objects.recv_object_list(right, [None], 0)


@pytest.mark.parametrize(
    ("length", "sent", "match"),
    [
        (-1, b"", "rank 0 announces an object of -1 bytes"),
        (2, b"\0{", "the object of rank 0 is not JSON: Expecting"),
        (100_001, b"\0" + b"[" * 100_000, "the object of rank 0 is not JSON: maximum recursion depth"),
        (2, b"\0" + b"3", "rank 0 sends no list of objects"),
        (3, b"\0\xff\xff", "the object of rank 0 is not JSON: "),
    ],
)
def test_what_a_rank_sends_in_place_of_objects_is_described(length, sent, match):
    left, right = two_ranks()
    left.send(array("q", [length]), 1, tag=objects.TAG)
    left.send(bytearray(sent), 1, tag=objects.TAG)
    with pytest.raises(headrace.Corrupt, match=match):
        objects.recv_object_list(right, [None], 0)
