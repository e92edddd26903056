# SPDX-License-Identifier: Apache-2.0
# backends: none
"""Descriptor lists beyond the behaviour of NIXL's own: an index outside a list is an error, and a pickle
gives only descriptors."""

import pickle
import pickletools
import random
import re
import subprocess
import sys

import pytest

from headrace.compat.nixl import _bindings as bind
from headrace.compat.nixl._unpickle import descriptors_of

ROWS = [(1000, 105, 0), (2000, 30, 7), (2**64 - 1, 0, 2**64 - 1)]

# Written by NIXL 1.5.1: nixlXferDList(DRAM_SEG, [(1, 2, 3), (4, 5, 6)]) and nixlRegDList(FILE_SEG, [(1, 2, 3,
# "meta")]).
NIXL_XFER = (
    b"\x80\x04\x95\xb0\x00\x00\x00\x00\x00\x00\x00\x8c\x13nixl_cu12._bindings\x94\x8c\rnixlXferDList\x94\x93\x94)\x81\x94C\x80"
    b"nixlSerDes|nixlDList\n\x00\x00\x00\x00\x00\x00\x00nixlBDList|t\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00|"
    b"n\x08\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00|0\x00\x00\x00\x00\x00\x00\x00"
    b"\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00"
    b"\x04\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00\x00|\x94b."
)
NIXL_REG = (
    b"\x80\x04\x95\x9b\x00\x00\x00\x00\x00\x00\x00\x8c\x13nixl_cu12._bindings\x94\x8c\x0cnixlRegDList\x94\x93\x94)\x81\x94Cl"
    b"nixlSerDes|nixlDList\n\x00\x00\x00\x00\x00\x00\x00nixlSDList|t\x04\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00|"
    b"n\x08\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00|\x1c\x00\x00\x00\x00\x00\x00\x00"
    b"\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00meta|\x94b."
)


def test_a_list_can_be_iterated():
    assert list(bind.nixlXferDList(bind.DRAM_SEG, ROWS)) == ROWS
    assert list(bind.nixlRegDList(bind.DRAM_SEG, [(1, 2, 3, "x")])) == [(1, 2, 3, b"x")]


@pytest.mark.parametrize("index", [3, 2**31, 2**64])
def test_an_index_beyond_the_list_is_an_error(index):
    made = bind.nixlXferDList(bind.DRAM_SEG, ROWS)
    for act in (lambda: made[index], lambda: made.__setitem__(index, (1, 2, 3)), lambda: made.remDesc(index)):
        with pytest.raises(IndexError, match=f"index {index} is outside a list of 3 descriptors"):
            act()
    assert list(made) == ROWS


@pytest.mark.parametrize(
    ("row", "error", "words"),
    [
        ((-1, 2, 3), OverflowError, "can't convert negative int to unsigned"),
        ((2**64, 2, 3), OverflowError, "int too big to convert"),
        ((1.5, 2, 3), TypeError, "'float' object cannot be interpreted as an integer"),
        (("1", 2, 3), TypeError, "'str' object cannot be interpreted as an integer"),
        ((None, 2, 3), TypeError, "'NoneType' object cannot be interpreted as an integer"),
    ],
)
def test_wrong_numbers_are_refused_and_change_nothing(row, error, words):
    made = bind.nixlXferDList(bind.DRAM_SEG, ROWS)
    for act in (
        lambda: made.addDesc(row),
        lambda: made.__setitem__(0, row),
        lambda: bind.nixlXferDList(bind.DRAM_SEG, [row]),
    ):
        with pytest.raises(error, match=words):
            act()
    assert list(made) == ROWS


def test_tuples_of_the_wrong_length_are_refused_and_change_nothing():
    made = bind.nixlRegDList(bind.DRAM_SEG, [(1, 2, 3, "x")])
    for row in ((1, 2), (1, 2, 3)):
        with pytest.raises(IndexError, match=re.escape(f"must have 4 elements, and this one is {row}")):
            made.addDesc(row)
    with pytest.raises(
        TypeError, match="the last element of a descriptor must be bytes or str, not NoneType"
    ):
        made.addDesc((1, 2, 3, None))
    assert list(made) == [(1, 2, 3, b"x")]


def test_a_list_is_printed_in_lines(capsys):
    bind.nixlXferDList(bind.VRAM_SEG, [(16, 2, 3)]).print()
    assert capsys.readouterr().out.splitlines() == [
        "1 descriptors of VRAM_SEG",
        "  address 0x10 length 2 device 3",
    ]


@pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_read_by_both_readers(protocol):
    for made in (
        bind.nixlXferDList(bind.OBJ_SEG, ROWS),
        bind.nixlXferDList(bind.DRAM_SEG),
        bind.nixlRegDList(bind.BLK_SEG, [(*row, b"\xff|\0") for row in ROWS]),
        bind.nixlRegDList(bind.FILE_SEG),
    ):
        pickled = pickle.dumps([made, {"a": made}, (1, "s", b"b", None, 2.5, True)], protocol)
        for read in (pickle.loads, descriptors_of):
            back = read(pickled)
            assert back[0] == made
            assert back[0].getType() == made.getType()
            assert back[2] == (1, "s", b"b", None, 2.5, True)


def test_pickles_of_nixls_own_lists_are_read():
    assert descriptors_of(NIXL_XFER) == bind.nixlXferDList(bind.DRAM_SEG, [(1, 2, 3), (4, 5, 6)])
    assert descriptors_of(NIXL_REG) == bind.nixlRegDList(bind.FILE_SEG, [(1, 2, 3, "meta")])
    assert pickle.loads(pickle.dumps(descriptors_of(NIXL_REG))) == descriptors_of(NIXL_REG)
    for written in (NIXL_XFER, NIXL_REG):
        state = next(value for op, value, _ in pickletools.genops(written) if op.name == "SHORT_BINBYTES")
        assert descriptors_of(written).__getstate__() == state


class Harmful:
    def __reduce__(self):
        return subprocess.getoutput, ("echo harm",)


class Overwrites:
    """Its pickle would change the value of a member of an enumeration."""

    def __reduce__(self):
        return bind.nixl_mem_t, (0,), {"_value_": 4}


@pytest.mark.parametrize(
    "value", [Harmful(), Overwrites(), print, pickle.loads, [1, Harmful()], bind.DRAM_SEG, 1j, range(3)]
)
def test_a_pickle_of_anything_else_is_refused(value):
    with pytest.raises(pickle.UnpicklingError, match="only these are accepted from a peer"):
        descriptors_of(pickle.dumps(value))
    assert int(bind.DRAM_SEG) == 0


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (b"", "the magic word is missing"),
        (b"garbage", "the magic word is missing"),
        (b"nixlSerDes|", "record b'nixlDList' is missing at byte 11"),
        (
            b"nixlSerDes|nixlDList\xff\xff\xff\xff\xff\xff\xff\xffnixl",
            f"record b'nixlDList' at byte 11 does not end after {2**64 - 1} bytes",
        ),
        (5, "its state is int, not bytes"),
        (None, "its state is NoneType, not bytes"),
        ({"_words": 1}, "its state is dict, not bytes"),
        ([1], "its state is list, not bytes"),
    ],
)
def test_an_invalid_state_is_refused(state, words):
    for kind in (bind.nixlXferDList, bind.nixlRegDList):
        with pytest.raises(bind.nixlMismatchError, match=words):
            kind.__new__(kind).__setstate__(state)


@pytest.mark.parametrize("announced", [0, 1, 3, 2**61, 2**63])
def test_a_state_that_announces_another_count_is_refused(announced):
    two = (2).to_bytes(8, "little")
    for made in (
        bind.nixlXferDList(bind.DRAM_SEG, ROWS[:2]),
        bind.nixlRegDList(bind.DRAM_SEG, [(1, 2, 3, "x"), (4, 5, 6, "y")]),
    ):
        state = made.__getstate__().replace(
            b"n\x08\0\0\0\0\0\0\0" + two, b"n\x08\0\0\0\0\0\0\0" + announced.to_bytes(8, "little")
        )
        assert state != made.__getstate__()
        with pytest.raises(
            bind.nixlMismatchError, match="not a pickled descriptor list: .*(follow|fit|missing)"
        ):
            made.__setstate__(state)
        assert made.descCount() == 2


def test_a_damaged_pickle_gives_an_error_or_a_list():
    random.seed(6)
    whole = [NIXL_XFER, NIXL_REG, pickle.dumps([bind.nixlXferDList(bind.DRAM_SEG, ROWS), {"x": (1, 2)}])]
    refused = 0
    for _ in range(4000):
        damaged = bytearray(random.choice(whole))
        for _ in range(random.randrange(1, 4)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        try:
            descriptors_of(bytes(damaged[: random.randrange(1, len(damaged) + 1)]))
        except (pickle.UnpicklingError, EOFError, bind.nixlMismatchError):
            refused += 1
    assert refused > 2000
    assert int(bind.DRAM_SEG) == 0


FORKS_WHILE_ANOTHER_THREAD_READS = """
import os, threading
from headrace.compat.nixl import _bindings as bind, _descriptors

made = bind.nixlXferDList(bind.DRAM_SEG, [(1000, 105, 0), (2000, 30, 7)])
held, forked = threading.Event(), threading.Event()

def hold():
    with _descriptors._spelling:
        held.set()
        forked.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    os._exit(0 if made[1] == (2000, 30, 7) else 1)
forked.set()
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_forked_child_reads_lists_while_another_thread_of_its_parent_held_the_lock():
    subprocess.run([sys.executable, "-c", FORKS_WHILE_ANOTHER_THREAD_READS], check=True, timeout=60)
