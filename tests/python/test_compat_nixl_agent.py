# SPDX-License-Identifier: Apache-2.0
"""NIXL's names on Headrace, beyond the recorded sequences: wrong handles, long lists, many transfers, many
threads."""

import gc
import inspect
import os
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from conftest import unique, until
from headrace.compat.nixl import _bindings as bind
from headrace.compat.nixl import nixl_agent, nixl_agent_config

THREADS = 8


@pytest.fixture(autouse=True)
def over_one_backend(backend, monkeypatch):
    monkeypatch.setenv("HEADRACE_BACKENDS", backend)


def address(memory):
    return memory.ctypes.data


def rows(memory, size, count, step=None):
    at = address(memory) + np.arange(count, dtype=np.uint64) * np.uint64(step or size)
    return np.stack([at, np.full(count, size, np.uint64), np.zeros(count, np.uint64)], axis=1)


def unknown(memory):
    """The words by which memory is refused that no known registration covers."""
    return f"descriptor 0 .address {address(memory):#x}, .* is not inside any known registered memory"


def registered(agent, memory):
    agent.register_memory([(address(memory), memory.nbytes, 0, "")], "DRAM")
    return memory


@pytest.fixture
def pair():
    left, right = nixl_agent(unique("left")), nixl_agent(unique("right"))
    here = registered(left, np.zeros(1 << 20, np.uint8))
    there = registered(right, np.random.default_rng(1).integers(0, 256, 1 << 20, dtype=np.uint8))
    left.add_remote_agent(right.get_agent_metadata())
    return left, right, here, there


def test_a_peer_that_died_has_to_shake_hands_again_and_is_read_under_its_name(start_peer):
    # As vLLM (_cleanup_remote_engines) and SGLang (_reload_invalidated_peers) do.
    left, name = nixl_agent(unique("left")), unique("producer")
    here = registered(left, np.zeros(4096, np.uint8))

    def read():
        region = left._native.peer_region(name, "registered")
        local = left.prep_xfer_dlist("", [(address(here), 4096, 0)], "DRAM")
        remote = left.prep_xfer_dlist(name, [(region.address, 4096, 0)], "DRAM")
        transfer = left.make_prepped_xfer("READ", local, [0], remote, [0])
        left.transfer(transfer)
        finish(left, transfer)
        return bytes(here)

    def shake_hands():
        producer = start_peer(name)
        host, port = producer.address.split(":")
        left.fetch_remote_metadata(name, host, int(port))
        until(lambda: left.check_remote_metadata(name))
        return producer

    producer = shake_hands()
    read()
    assert left.check_remote_metadata(name), "it lives"
    producer.kill()
    until(lambda: not left.check_remote_metadata(name), seconds=20)
    producer = shake_hands()
    producer.ask("fill", region="registered", value=9)
    assert read() == bytes([9]) * 4096


def finish(agent, handle):
    until(lambda: agent.check_xfer_state(handle) == "DONE")


def make(left, right, here, there, count=4, size=1024, op="READ", notification=b""):
    local = left.prep_xfer_dlist("", rows(here, size, count), "DRAM")
    remote = left.prep_xfer_dlist(right.name, rows(there, size, count), "DRAM")
    return left.make_prepped_xfer(op, local, np.arange(count), remote, np.arange(count), notification)


def test_a_released_handle_is_an_invalid_parameter(pair):
    left, right, here, there = pair
    local = left.prep_xfer_dlist("", rows(here, 64, 4), "DRAM")
    remote = left.prep_xfer_dlist(right.name, rows(there, 64, 4), "DRAM")
    transfer = left.make_prepped_xfer("READ", local, [0], remote, [0])
    left.release_dlist_handle(remote)
    left.transfer(transfer)
    finish(left, transfer)
    left.release_xfer_handle(transfer)
    assert "released=True" in repr(transfer)
    for act, words in (
        (lambda: left.make_prepped_xfer("READ", local, [0], remote, [0]), "the handle was released"),
        (lambda: left.make_prepped_xfer("READ", remote, [0], local, [0]), "the handle was released"),
        (lambda: left.transfer(transfer), "the handle was released"),
        (lambda: left.check_xfer_state(transfer), "the handle was released"),
        (lambda: left.query_xfer_backend(transfer), "0 is not a transfer of this agent, or was released"),
        (lambda: left.estimate_xfer_cost(transfer), "0 is not a transfer of this agent, or was released"),
    ):
        with pytest.raises(bind.nixlInvalidParamError, match=words):
            act()
    left.release_xfer_handle(transfer)
    left.release_dlist_handle(remote)


def test_a_released_transfer_is_not_posted_even_with_a_notification(pair):
    transfer = make(*pair)
    pair[0].release_xfer_handle(transfer)
    with pytest.raises(bind.nixlInvalidParamError, match="released"):
        pair[0].transfer(transfer, b"said")
    with pytest.raises(bind.nixlInvalidParamError, match="released"):
        pair[0].transfer(transfer)


@pytest.mark.parametrize(
    "said, heard",
    [(b"", []), (b"said", [b"said"]), ("words", [b"words"]), (bytearray(b"raw"), [b"raw"]), ("", [])],
)
@pytest.mark.parametrize("backends", [[], ["UCX"]])
def test_the_notification_of_a_transfer_reaches_the_owner(pair, said, heard, backends):
    left, right, here, there = pair
    local = left.prep_xfer_dlist("", rows(here, 1024, 4), "DRAM")
    remote = left.prep_xfer_dlist(right.name, rows(there, 1024, 4), "DRAM")
    transfer = left.make_prepped_xfer("READ", local, [0, 2], remote, [1, 3], said, backends)
    left.transfer(transfer)
    finish(left, transfer)
    assert np.array_equal(
        here[: 4 * 1024].reshape(4, 1024)[[0, 2]], there[: 4 * 1024].reshape(4, 1024)[[1, 3]]
    )
    if heard:
        until(lambda: right.update_notifs().get(left.name) == heard)
    else:
        assert left.name not in right.update_notifs()


def test_a_transfer_that_could_not_be_made_raises_and_leaves_nothing(pair, nixl_log):
    left, right, here, there = pair
    local = left.prep_xfer_dlist("", rows(here, 1024, 4), "DRAM")
    remote = left.prep_xfer_dlist(right.name, rows(there, 1024, 4), "DRAM")
    with pytest.raises(TypeError, match="a notification must be bytes or str, not int"):
        left.make_prepped_xfer("READ", local, [0], remote, [0], 5)
    with pytest.raises(KeyError, match="^'read'$"):
        left.make_prepped_xfer("read", local, [0], remote, [0])
    with pytest.raises(bind.nixlInvalidParamError, match="remote index 0 is 4, and the list has 4 pages"):
        left.make_prepped_xfer("READ", local, [0], remote, [4])
    with pytest.raises(TypeError, match="indices must be a list or an array of ints, not '0'"):
        left.make_prepped_xfer("READ", local, "0", remote, [0])
    gc.collect()
    assert "was not freed" not in nixl_log.text
    assert left.agent._transfers == {}


def frames_entered(act):
    """The names of the drop-in's Python functions that `act` enters, and the result of `act`."""
    entered = []

    def note(frame, event, _):
        if event == "call" and frame.f_globals.get("__name__", "").startswith("headrace.compat"):
            entered.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        made = act()
    finally:
        sys.setprofile(None)
    return entered, made


def test_a_usual_transfer_is_made_without_python_code_and_every_other_one_with_it(pair):
    left, right, here, there = pair
    local = left.prep_xfer_dlist("", rows(here, 1024, 4), "DRAM")
    remote = left.prep_xfer_dlist(right.name, rows(there, 1024, 4), "DRAM")
    some, others = np.array([0, 2]), np.array([1, 3], np.int32)
    usual = {
        "short": lambda: left.make_prepped_xfer("READ", local, some, remote, others),
        "whole": lambda: left.make_prepped_xfer("READ", local, [0, 2], remote, [1, 3], b"said", [], True),
        "named": lambda: left.make_prepped_xfer(
            "READ", local, some, remote, others, notif_msg=b"", skip_desc_merge=True
        ),
        "all named": lambda: left.make_prepped_xfer(
            remote_indices=others,
            remote_xfer_side=remote,
            local_indices=some,
            local_xfer_side=local,
            operation="READ",
            backends=[],
        ),
        "bound": lambda: (lambda make: make("READ", local, some, remote, others))(left.make_prepped_xfer),
        "of the class": lambda: type(left).make_prepped_xfer(left, "READ", local, some, remote, others),
        "a word not seen before": lambda: left.make_prepped_xfer(
            "re".upper() + "ad".upper(), local, some, remote, others
        ),
    }
    unusual = {
        "backend": lambda: left.make_prepped_xfer("READ", local, some, remote, others, b"", ["UCX"]),
        "text": lambda: left.make_prepped_xfer("READ", local, some, remote, others, "said"),
        "gaps": lambda: left.make_prepped_xfer("READ", local, np.array([0, 9, 2])[::2], remote, others),
    }
    for what, act in (*usual.items(), *unusual.items()):
        entered, transfer = frames_entered(act)
        assert ("make_prepped_xfer" in entered) == (what in unusual), what
        assert what in unusual or entered == [], what
        here[:] = 0
        left.transfer(transfer)
        finish(left, transfer)
        assert np.array_equal(
            here[: 4 * 1024].reshape(4, 1024)[[0, 2]], there[: 4 * 1024].reshape(4, 1024)[[1, 3]]
        )
        assert not transfer._released and transfer._handle > 0
    write = left.make_prepped_xfer("WRITE", local, some, remote, others)
    there[:] = 0
    left.transfer(write)
    finish(left, write)
    assert np.array_equal(
        there[: 4 * 1024].reshape(4, 1024)[[1, 3]], here[: 4 * 1024].reshape(4, 1024)[[0, 2]]
    )


def test_a_wrong_call_to_make_a_transfer_raises_pythons_own_error(pair):
    left, right, here, there = pair
    local = left.prep_xfer_dlist("", rows(here, 1024, 4), "DRAM")
    remote = left.prep_xfer_dlist(right.name, rows(there, 1024, 4), "DRAM")
    whole = ("READ", local, [0], remote, [0], b"", [], False)
    for arguments, named, words in (
        ((), {}, "missing 5 required positional arguments: 'operation'"),
        (whole[:4], {}, "missing 1 required positional argument: 'remote_indices'"),
        (whole[:4], {"notif_msg": b""}, "missing 1 required positional argument: 'remote_indices'"),
        ((*whole, 1), {}, "takes from 6 to 9 positional arguments but 10 were given"),
        (whole[:5], {"local_indices": [0]}, "got multiple values for argument 'local_indices'"),
        (whole[:5], {"notification": b""}, "got an unexpected keyword argument 'notification'"),
    ):
        with pytest.raises(TypeError, match=words) as caught:
            left.make_prepped_xfer(*arguments, **named)
        assert "make_prepped_xfer()" in str(caught.value)
    with pytest.raises(AttributeError, match="'int' object has no attribute"):
        left.make_prepped_xfer("READ", 5, [0], remote, [0])
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute"):
        left.make_prepped_xfer("READ", local, [0], None, [0])
    with pytest.raises(KeyError, match="^5$"):
        left.make_prepped_xfer(5, local, [0], remote, [0])
    with pytest.raises(
        KeyError, match="'RD'"
    ):  # the operation is checked before the lists, as in NIXL's wheel
        left.make_prepped_xfer("RD", 0, [], 0, [])
    with pytest.raises(KeyError, match="'GDS'"):
        left.make_prepped_xfer("READ", local, [0], remote, [0], b"", ["GDS"])


def test_making_a_transfer_keeps_no_reference_whether_it_succeeds_or_fails(pair):
    left, right, here, there = pair
    local = left.prep_xfer_dlist("", rows(here, 1024, 4), "DRAM")
    remote = left.prep_xfer_dlist(right.name, rows(there, 1024, 4), "DRAM")
    index, beyond, said = np.array([0, 2]), np.array([0, 9]), b"said" * 9
    things = (
        left,
        left._native,
        local,
        remote,
        local._pages,
        remote._pages,
        remote._thing,
        index,
        beyond,
        said,
        type(local),
        np.ndarray,
        Exception,
    )

    def all_ways():
        left.make_prepped_xfer("READ", local, index, remote, index, said)
        left.make_prepped_xfer("WRITE", local, index, remote, index, notif_msg=said, backends=["UCX"])
        for wrong, error, words in (
            (("READ", local, beyond, remote, index), bind.nixlInvalidParamError, "local index 1 is 9"),
            (("READ", 5, index, remote, index), AttributeError, "'int' object has no attribute"),
            (("", local, index, remote, index), KeyError, "''"),
            ((), TypeError, "missing 5 required positional arguments"),
        ):
            with pytest.raises(error, match=words):
                left.make_prepped_xfer(*wrong)

    all_ways()
    gc.collect()
    before = [sys.getrefcount(thing) for thing in things]
    for _ in range(50):
        all_ways()
    gc.collect()
    assert [sys.getrefcount(thing) for thing in things] == before


def test_the_method_that_makes_transfers_looks_like_any_other(pair):
    method = nixl_agent.make_prepped_xfer
    assert method.__name__ == "make_prepped_xfer" and method.__qualname__ == "nixl_agent.make_prepped_xfer"
    assert method.__doc__.startswith("Makes a transfer between descriptors of two prepared lists")
    parameters = inspect.signature(method).parameters
    assert list(parameters) == [
        "self",
        "operation",
        "local_xfer_side",
        "local_indices",
        "remote_xfer_side",
        "remote_indices",
        "notif_msg",
        "backends",
        "skip_desc_merge",
    ]
    assert (
        parameters["notif_msg"].default,
        parameters["backends"].default,
        parameters["skip_desc_merge"].default,
    ) == (b"", [], False)
    bound = pair[0].make_prepped_xfer
    assert bound.__self__ is pair[0] and bound.__name__ == "make_prepped_xfer"
    assert list(inspect.signature(bound).parameters) == list(parameters)[1:]

    class Counting(nixl_agent):
        made = 0

        def make_prepped_xfer(self, *arguments, **named):
            self.made += 1
            return super().make_prepped_xfer(*arguments, **named)

    _left, right, here, there = pair
    counting = Counting(unique("counting"))
    registered(counting, here)
    counting.add_remote_agent(right.get_agent_metadata())
    transfer = make(counting, right, here, there)
    counting.transfer(transfer)
    finish(counting, transfer)
    assert counting.made == 1 and np.array_equal(here[:4096], there[:4096])


def test_a_transfer_works_after_the_program_has_dropped_its_agent_and_lists():
    left, right = nixl_agent(unique("left")), nixl_agent(unique("right"))
    here = registered(left, np.zeros(4096, np.uint8))
    there = registered(right, np.full(4096, 7, np.uint8))
    left.add_remote_agent(right.get_agent_metadata())
    transfer = make(left, right, here, there)
    raw = weakref.ref(left.agent)
    del left
    gc.collect()
    assert raw() is None
    transfer.post()
    until(lambda: transfer.poll() == "done")
    assert np.array_equal(here, there)
    transfer.release()


@pytest.mark.parametrize("outside", ["before", "behind", "another device"])
def test_the_first_row_of_a_long_list_outside_memory_is_named_and_the_next_list_works(pair, outside):
    left, right, here, there = pair
    order = np.random.default_rng(3).permutation(1024)
    good = rows(there, 1024, 1024)[order]
    bad = good.copy()
    for row in (700, 900):
        if outside == "another device":
            bad[row, 2] = 1
        else:
            bad[row, 0] = address(there) - 8 if outside == "before" else address(there) + there.nbytes - 1016
    for source in (bad, left.get_xfer_descs(bad, "DRAM")):
        with pytest.raises(bind.nixlNotFoundError, match="descriptor 700 "):
            left.prep_xfer_dlist(right.name, source, "DRAM")
    bad = good.copy()
    bad[700, 1] = 0
    with pytest.raises(bind.nixlInvalidParamError, match="page 700 has length 0"):
        left.prep_xfer_dlist(right.name, bad, "DRAM")
    remote = left.prep_xfer_dlist(right.name, left.get_xfer_descs(good, "DRAM"))
    local = left.prep_xfer_dlist("", rows(here, 1024, 1024), "DRAM")
    transfer = left.make_prepped_xfer("READ", local, np.arange(1024), remote, np.arange(1024))
    left.transfer(transfer)
    finish(left, transfer)
    assert np.array_equal(here.reshape(1024, 1024), there.reshape(1024, 1024)[order])


@pytest.mark.parametrize("number", [0, -1, 12345678, 2**64])
def test_a_number_that_is_no_handle_is_an_invalid_parameter(pair, number):
    raw = pair[0].agent
    nothing = bind.nixlRegDList(bind.DRAM_SEG)
    for act, thing in (
        (lambda: raw.postXferReq(number), "transfer"),
        (lambda: raw.getXferStatus(number), "transfer"),
        (lambda: raw.getXferTelemetry(number), "transfer"),
        (lambda: raw.queryXferBackend(number), "transfer"),
        (lambda: raw.estimateXferCost(number), "transfer"),
        (lambda: raw.releaseXferReq(number), "transfer"),
        (lambda: raw.releasedDlistH(number), "prepared list"),
        (lambda: raw.releaseMemView(number), "view"),
        (lambda: raw.getBackendParams(number), "backend"),
        (lambda: raw.queryMem(nothing, number), "backend"),
        (lambda: raw.registerMem(nothing, [number]), "backend"),
        (lambda: raw.makeXferReq(bind.NIXL_READ, number, [0], number, [0]), "prepared list"),
    ):
        with pytest.raises(bind.nixlInvalidParamError, match=f"{number} is not a {thing} of this agent"):
            act()


def test_a_handle_of_one_kind_is_not_valid_as_another(pair):
    left, right, here, there = pair
    transfer = make(left, right, here, there)
    backend = left.backends["UCX"]
    number = transfer._handle
    for act, words in (
        (lambda: left.agent.releasedDlistH(number), f"{number} is not a prepared list of this agent"),
        (lambda: left.agent.postXferReq(backend), f"{backend} is not a transfer of this agent"),
        (lambda: left.agent.getBackendParams(number), f"{number} is not a backend of this agent"),
    ):
        with pytest.raises(bind.nixlInvalidParamError, match=words):
            act()
    left.agent.releaseXferReq(number)
    with pytest.raises(bind.nixlInvalidParamError, match=f"{number} is not a transfer .*, or was released"):
        left.agent.releaseXferReq(number)


def test_the_number_of_a_transfer_is_valid_as_long_as_its_handle(pair):
    left, right, here, there = pair
    transfer, other = make(left, right, here, there, notification=b"one"), make(left, right, here, there)
    number = transfer._handle
    assert transfer._handle == number != other._handle
    assert f"{number:#x}" in repr(transfer)
    left.agent.postXferReq(number, b"two")
    until(lambda: left.agent.getXferStatus(number) == bind.NIXL_SUCCESS)
    assert left.check_xfer_state(transfer) == "DONE"
    left.transfer(transfer)
    finish(left, transfer)
    came = []
    until(lambda: came.extend(right.get_new_notifs().get(left.name, [])) or len(came) == 2)
    assert came == [b"two", b"two"]
    for end in (lambda: left.release_xfer_handle(transfer), lambda: left.agent.releaseXferReq(other._handle)):
        end()
    for gone in (number, other._handle):
        with pytest.raises(bind.nixlInvalidParamError, match=f"{gone} is not a transfer .*, or was released"):
            left.agent.postXferReq(gone)
    assert repr(transfer) == f"nixl_xfer_handle({number:#x}, released=True)"


@pytest.mark.parametrize("operation", [bind.nixl_xfer_op_t(99), bind.nixl_xfer_op_t(-1)])
def test_an_unknown_operation_is_an_invalid_parameter(pair, operation):
    raw, lists = pair[0].agent, bind.nixlXferDList(bind.DRAM_SEG, [(1, 2, 3)])
    with pytest.raises(bind.nixlInvalidParamError, match=f"there is no operation {int(operation)}"):
        raw.createXferReq(operation, lists, lists, pair[1].name)


def test_memory_of_an_unknown_kind_is_not_found(pair):
    left = pair[0]
    kind = bind.nixl_mem_t(77)
    with pytest.raises(bind.nixlNotFoundError, match="no created backend carries"):
        left.register_memory(bind.nixlRegDList(kind, [(1, 2, 3, "")]))
    with pytest.raises(bind.nixlNotFoundError, match="no created backend carries"):
        left.prep_xfer_dlist("", bind.nixlXferDList(kind, [(1, 2, 3)]))


def test_lists_and_transfers_are_invalid_after_their_peer_is_removed(pair):
    left, right, here, there = pair
    local = left.prep_xfer_dlist("", rows(here, 64, 4), "DRAM")
    remote = left.prep_xfer_dlist(right.name, rows(there, 64, 4), "DRAM")
    transfer = left.make_prepped_xfer("READ", local, [0], remote, [0])
    left.remove_remote_agent(right.name)
    left.add_remote_agent(right.get_agent_metadata())
    for act, words in (
        (lambda: left.transfer(transfer), f"peer {right.name} was forgotten here"),
        (
            lambda: left.make_prepped_xfer("READ", local, [0], remote, [0]),
            f"peer {right.name} is gone or has restarted: import its metadata",
        ),
    ):
        with pytest.raises(bind.nixlNotFoundError, match=words):
            act()
    again = make(left, right, here, there)
    left.transfer(again)
    finish(left, again)


def test_memory_that_its_owner_deregistered_is_not_found(pair):
    left, right, here, there = pair
    transfer = make(left, right, here, there)
    left.transfer(transfer)
    finish(left, transfer)
    right.deregister_memory(right.get_reg_descs([(address(there), there.nbytes, 0, "")], "DRAM"))
    with pytest.raises(bind.nixlNotFoundError, match="a region of its page lists is registered no longer"):
        left.transfer(transfer)
    until(lambda: not left.check_remote_metadata(right.name, left.get_xfer_descs(rows(there, 64, 1), "DRAM")))
    with pytest.raises(bind.nixlNotFoundError, match=unknown(there)):
        make(left, right, here, there)


def test_new_memory_of_a_peer_is_found_after_a_second_import_of_its_metadata(pair):
    left, right, here, _ = pair
    more = registered(right, np.full(4096, 9, np.uint8))
    with pytest.raises(bind.nixlNotFoundError, match=unknown(more)):
        make(left, right, here, more)
    left.add_remote_agent(right.get_agent_metadata())
    transfer = make(left, right, here, more)
    left.transfer(transfer)
    finish(left, transfer)
    assert (here[:4096] == 9).all()


def test_a_restarted_peer_need_not_be_removed_first(pair):
    left, right, here, there = pair
    transfer = make(left, right, here, there)
    left.transfer(transfer)
    finish(left, transfer)
    right.agent._agent.close()
    again = nixl_agent(right.name)
    registered(again, there)
    assert left.add_remote_agent(again.get_agent_metadata()) == right.name.encode()
    with pytest.raises(bind.nixlNotFoundError, match=f"peer {right.name} has restarted since"):
        left.transfer(transfer)
    other = make(left, again, here, there)
    left.transfer(other)
    finish(left, other)


def test_descriptors_of_another_device_number_are_other_memory(pair):
    left, right, here, _there = pair
    third = np.full(4096, 3, np.uint8)
    right.register_memory([(address(third), 4096, 3, "")], "DRAM")
    left.add_remote_agent(right.get_agent_metadata())

    def read(device):
        remote = left.get_xfer_descs([(address(third), 4096, device)], "DRAM")
        return left.initialize_xfer(
            "READ", left.get_xfer_descs(rows(here, 4096, 1), "DRAM"), remote, right.name
        )

    transfer = read(3)
    left.transfer(transfer)
    finish(left, transfer)
    assert (here[:4096] == 3).all()
    with pytest.raises(bind.nixlNotFoundError, match=unknown(third)):
        read(0)


def test_fifty_thousand_descriptors_are_moved(pair):
    left, right, here, there = pair
    count = 50_000
    here, there = (
        registered(left, np.zeros(count * 16, np.uint8)),
        registered(right, np.random.default_rng(2).integers(0, 256, count * 16, dtype=np.uint8)),
    )
    left.add_remote_agent(right.get_agent_metadata())
    order = np.random.default_rng(3).permutation(count)
    local = left.prep_xfer_dlist("", left.get_xfer_descs(rows(here, 16, count), "DRAM"))
    remote = left.prep_xfer_dlist(right.name, rows(there, 16, count)[order].copy(), "DRAM")
    transfer = left.make_prepped_xfer(
        "READ", local, np.arange(count, dtype=np.uint32), remote, list(range(count)), b"all"
    )
    left.transfer(transfer)
    finish(left, transfer)
    assert (here.reshape(-1, 16) == there.reshape(-1, 16)[order]).all()
    until(lambda: right.check_remote_xfer_done(left.name, b"all"))
    tuples = [tuple(row) for row in rows(here, 16, count).tolist()]
    assert left.get_xfer_descs(tuples, "DRAM") == left.get_xfer_descs(rows(here, 16, count), "DRAM")


def test_fifty_thousand_descriptors_are_registered_and_deregistered(pair):
    left, right, here, _ = pair
    count = 50_000
    memory = np.full(count * 16, 5, np.uint8)
    descs = right.register_memory(rows(memory, 16, count), "DRAM")
    left.add_remote_agent(right.get_agent_metadata())
    assert left.check_remote_metadata(right.name, descs.trim())
    transfer = make(left, right, here, memory, count=1000, size=16)
    left.transfer(transfer)
    finish(left, transfer)
    assert (here[:16000] == 5).all()
    right.deregister_memory(descs)
    until(lambda: not left.check_remote_metadata(right.name, descs.trim()))


def test_a_thousand_transfers_are_posted_before_the_first_is_finished(pair):
    left, right, here, there = pair
    local = left.prep_xfer_dlist("", rows(here, 1024, 1000), "DRAM")
    remote = left.prep_xfer_dlist(right.name, rows(there, 1024, 1000), "DRAM")
    transfers = [left.make_prepped_xfer("READ", local, [i], remote, [i], b"%d" % i) for i in range(1000)]
    states = [left.transfer(transfer) for transfer in transfers]
    assert set(states) <= {"DONE", "PROC"}
    for transfer in transfers:
        finish(left, transfer)
    assert (here[:1_024_000] == there[:1_024_000]).all()
    came = set()
    until(lambda: came.update(right.get_new_notifs().get(left.name, [])) or len(came) == 1000)
    assert came == {b"%d" % i for i in range(1000)}


def test_eight_threads_use_one_agent_at_once(pair):
    left, right, here, there = pair
    size = here.nbytes // THREADS
    begin = threading.Barrier(THREADS)

    def work(number):
        begin.wait()
        mine, theirs = here[number * size : (number + 1) * size], there[number * size : (number + 1) * size]
        for i in range(15):
            order = np.random.default_rng(i).permutation(size // 1024)
            scratch = np.zeros(64, np.uint8)
            descs = left.register_memory([(address(scratch), 64, number, "")], "DRAM")
            local = left.prep_xfer_dlist("", rows(mine, 1024, len(order)), "DRAM")
            remote = left.prep_xfer_dlist(
                right.name, left.get_xfer_descs(rows(theirs, 1024, len(order)), "DRAM")
            )
            mine.fill(0)
            transfer = left.make_prepped_xfer("READ", local, order, remote, order, b"%d/%d" % (number, i))
            left.transfer(transfer)
            finish(left, transfer)
            assert (mine == theirs).all()
            left.send_notif(right.name, b"beat")
            assert left.check_remote_metadata(right.name)
            left.release_xfer_handle(transfer)
            left.deregister_memory(descs)

    def take(came):
        until(
            lambda: (
                ([came.extend(m) for m in right.get_new_notifs().values()] and False)
                or len(came) == 2 * 15 * THREADS
            ),
            60,
        )

    came = []
    with ThreadPoolExecutor(THREADS + 1) as pool:
        jobs = [pool.submit(work, number) for number in range(THREADS)] + [pool.submit(take, came)]
        for job in jobs:
            job.result()
    assert sorted(m for m in came if m != b"beat") == sorted(
        b"%d/%d" % (n, i) for n in range(THREADS) for i in range(15)
    )


def test_a_transfer_released_in_flight_writes_no_memory_afterwards(pair):
    left, right, _, _ = pair
    size = 64 << 20
    here, there = registered(left, np.zeros(size, np.uint8)), registered(right, np.full(size, 1, np.uint8))
    left.add_remote_agent(right.get_agent_metadata())
    transfer = make(left, right, here, there, count=1, size=size)
    assert left.transfer(transfer) == "PROC"
    left.release_xfer_handle(transfer)
    here.fill(0)
    left.send_notif(right.name, b"after")
    until(lambda: right.check_remote_xfer_done(left.name, b"after"))
    assert not here.any()


def test_posting_a_transfer_in_flight_is_refused(pair):
    left, right, _, _ = pair
    size = 32 << 20
    here, there = registered(left, np.zeros(size, np.uint8)), registered(right, np.full(size, 1, np.uint8))
    left.add_remote_agent(right.get_agent_metadata())
    transfer = make(left, right, here, there, count=1, size=size)
    refused = 0
    for _ in range(5):
        left.transfer(transfer)
        try:
            left.transfer(transfer)
        except bind.nixlRepostActiveError:
            refused += 1
        finish(left, transfer)
    assert refused, "a transfer of 32 MiB was never in flight at its second post"


def test_a_dropped_transfer_is_released(pair):
    left, right, here, there = pair
    transfer = make(left, right, here, there)
    left.transfer(transfer)
    number, gone = transfer._handle, weakref.ref(transfer)
    del transfer
    gc.collect()
    assert gone() is None
    with pytest.raises(bind.nixlInvalidParamError, match=f"{number} is not a transfer of this agent"):
        left.agent.getXferStatus(number)
    assert left.agent._transfers == {}
    assert left.agent._lists == {}


def test_agents_without_references_leave_nothing_behind():
    def descriptors_and_threads():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def come_and_go():
        left, right = nixl_agent(unique("left")), nixl_agent(unique("right"))
        here, there = registered(left, np.zeros(4096, np.uint8)), registered(right, np.zeros(4096, np.uint8))
        left.add_remote_agent(right.get_agent_metadata())
        transfer = make(left, right, here, there)
        left.transfer(transfer)
        finish(left, transfer)
        left.fetch_remote_metadata("nobody", "127.0.0.1", 1)
        until(lambda: left.agent._exchange._jobs.empty())
        return weakref.ref(left.agent), weakref.ref(right.agent)

    come_and_go()
    before = descriptors_and_threads()
    gone = [ref for _ in range(5) for ref in come_and_go()]

    def as_before():
        return all(now <= then for now, then in zip(descriptors_and_threads(), before))

    until(lambda: as_before() and not any(ref() for ref in gone))


def test_a_notification_longer_than_headraces_limit_is_refused_with_the_limit(pair):
    left, right, _, _ = pair
    with pytest.raises(bind.nixlInvalidParamError, match="at most 65536"):
        left.send_notif(right.name, b"x" * 65537)
    left.send_notif(right.name, b"x" * 65536)
    until(lambda: right.check_remote_xfer_done(left.name, b"xx"))


def test_empty_descriptors_can_be_registered_and_not_moved(pair):
    left, right, here, there = pair
    descs = left.register_memory([(address(here), 0, 0, "")], "DRAM")
    left.deregister_memory(descs)
    with pytest.raises(bind.nixlInvalidParamError, match="a page has at least one byte"):
        make(left, right, here, there, size=0, count=1)


def test_either_all_of_several_descriptors_are_registered_or_none(pair):
    left, _, here, _ = pair
    before = len(left.agent._agent.regions())
    with pytest.raises(bind.nixlBackendError, match="not all memory of this process"):
        left.register_memory(
            [(address(here), 64, 0, ""), (address(here), 64, 1, ""), (4096, 64, 2, "")], "DRAM"
        )
    assert len(left.agent._agent.regions()) == before


def test_telemetry_describes_the_last_post(pair, monkeypatch):
    _, right, _, there = pair
    monkeypatch.setenv("NIXL_TELEMETRY_ENABLE", "y")
    left = nixl_agent(unique("telemetry"))
    here = registered(left, np.zeros(4096, np.uint8))
    left.add_remote_agent(right.get_agent_metadata())
    transfer = make(left, right, here, there)
    with pytest.raises(bind.nixlNotPostedError, match="no post of it has completed yet"):
        left.get_xfer_telemetry(transfer)
    left.transfer(transfer)
    finish(left, transfer)
    told = left.get_xfer_telemetry(transfer)
    assert (told.totalBytes, told.descCount) == (4096, 4)
    assert 0 < told.postDuration <= told.xferDuration
    assert told.startTime > 0
    with pytest.raises(AttributeError, match="totalBytes"):
        told.totalBytes = 1


def test_the_environment_overrides_the_configuration_of_telemetry(pair, monkeypatch):
    _left, right, here, there = pair
    monkeypatch.setenv("NIXL_TELEMETRY_ENABLE", "no")
    off = nixl_agent(unique("off"), nixl_agent_config(capture_telemetry=True))
    registered(off, here)
    off.add_remote_agent(right.get_agent_metadata())
    with pytest.raises(bind.nixlNoTelemetryError, match="set capture_telemetry or NIXL_TELEMETRY_ENABLE=y"):
        off.get_xfer_telemetry(make(off, right, here, there))


def test_every_network_backend_of_nixl_becomes_headraces_paths(backend):
    agent = nixl_agent(unique("names"), nixl_agent_config(backends=[]))
    assert {"UCX", "LIBFABRIC", "MOONCAKE", "UCCL"} <= set(agent.get_plugin_list())
    for name in ("UCX", "LIBFABRIC", "MOONCAKE"):
        agent.create_backend(name, {"anything": "1"})
        assert agent.get_backend_mem_types(name) == ["DRAM_SEG"]
        assert agent.get_backend_params(name) == {"anything": "1"}
        assert agent.agent._backends.get(agent.backends[name]).carried.backends() == [backend, "local"]
    memory = registered(agent, np.zeros(64, np.uint8))
    local, own = (
        agent.prep_xfer_dlist(who, rows(memory, 8, 8), "DRAM", ["MOONCAKE"]) for who in ("", agent.name)
    )
    transfer = agent.make_prepped_xfer("WRITE", local, [0], own, [1], b"", ["MOONCAKE", "LIBFABRIC"])
    assert agent.query_xfer_backend(transfer) in ("UCX", "LIBFABRIC", "MOONCAKE")


def test_a_backend_without_a_path_here_is_absent_like_a_missing_plugin(pair):
    left = pair[0]
    absent = set(bind_names()) - set(left.get_plugin_list())
    assert "GPUNETIO" in absent  # GPUNETIO moves memory of GPUs only
    for name in absent:
        with pytest.raises(
            bind.nixlNotFoundError, match=f"plugin '{name}': Headrace has no path for its kinds of memory"
        ):
            left.create_backend(name)
    with pytest.raises(bind.nixlNotFoundError, match="no created backend carries VRAM_SEG"):
        left.register_memory([(4096, 64, 0, "")], "VRAM")


def bind_names():
    from headrace.compat.nixl._plugins import PLUGINS

    return PLUGINS


def test_creating_a_backend_logs_the_chosen_path_in_one_line(backend, capfd):
    import logging

    agent = nixl_agent(unique("said"), nixl_agent_config(backends=[]))
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("nixl").addHandler(handler)
    try:
        agent.create_backend("UCX")
    finally:
        logging.getLogger("nixl").removeHandler(handler)
    assert said == [f"backend UCX: Headrace carries dram by {backend}, local"]


def test_tensors_are_accepted_without_numpy_arrays(pair):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    left, right, _, _ = pair
    here, there = torch.zeros(256), [torch.full((64,), float(i)) for i in range(4)]
    left.register_memory(here)
    right.register_memory(there)
    left.add_remote_agent(right.get_agent_metadata())
    local = left.get_xfer_descs([here[64 * i : 64 * (i + 1)] for i in range(4)])
    transfer = left.initialize_xfer("READ", local, left.get_xfer_descs(there), right.name)
    left.transfer(transfer)
    finish(left, transfer)
    assert here.tolist() == [float(i) for i in range(4) for _ in range(64)]
    assert left.get_xfer_descs(torch.zeros(4, 4).T[1:]) is None
