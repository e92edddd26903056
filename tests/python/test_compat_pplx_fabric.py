# SPDX-License-Identifier: Apache-2.0
# backends: none
"""headrace.compat.pplx.fabric_lib: writes over all network cards, by pplx-garden's names, in host memory."""

import copy
import pickle
from types import SimpleNamespace

import pytest

import headrace
from headrace.compat.pplx import _fabric_types, _opening
from headrace.compat.pplx.fabric_lib import DomainAddress, DomainInfo, PageIndices

ADDRESS = "fe80000000000000aabb"


# --- plain values


def test_an_address_is_text_bytes_and_a_key():
    one, other = DomainAddress.from_str(ADDRESS), DomainAddress(bytes.fromhex(ADDRESS))
    assert one == other and hash(one) == hash(other) and len({one, other}) == 1
    assert one != DomainAddress.from_bytes(b"\x00") and one != ADDRESS
    assert (one.as_bytes(), str(one)) == (bytes.fromhex(ADDRESS), ADDRESS)
    assert repr(one) == f"DomainAddress.from_str('{ADDRESS}')" and eval(repr(one)) == one
    assert DomainAddress(list(one.as_bytes())) == one
    assert pickle.loads(pickle.dumps(one)) == one == copy.copy(one)


@pytest.mark.parametrize("text", ["", "abc", "xy", "ab cd", "0xab"])
def test_a_text_that_is_no_address_is_refused(text):
    with pytest.raises(ValueError, match="is no address: give an even number of hexadecimal digits"):
        DomainAddress.from_str(text)


@pytest.mark.parametrize("given", [3, "ab", None])
def test_an_address_is_made_of_bytes_alone(given):
    with pytest.raises(TypeError):
        DomainAddress(given)


def test_page_numbers():
    assert repr(PageIndices([3, 0, 2**32 - 1])) == "PageIndices([3, 0, 4294967295])"
    assert len(PageIndices(range(5))) == 5 and len(PageIndices([])) == 0
    for wrong in (-1, 2**32):
        with pytest.raises(OverflowError):
            PageIndices([wrong])
    with pytest.raises(TypeError):
        PageIndices([1.5])


# --- topology


def nic(name, *interfaces, speed_mbit=0):
    return SimpleNamespace(name=name, interfaces=list(interfaces), speed_mbit=speed_mbit)


def group(gpu, node, cpus, *nics):
    index = None if gpu is None else SimpleNamespace(index=gpu)
    return SimpleNamespace(gpu=index, numa_node=node, own_cpus=cpus, cpus=[0, 1, 2, 3, 4], nics=nics)


def test_groups_are_those_of_gpus():
    found = _fabric_types.groups_of(
        [
            group(0, 0, [0, 1], nic("mlx5_0", "eth0", speed_mbit=400_000), nic("mlx5_1", "eth1")),
            group(1, None, [2, 3], nic("mlx5_2")),
            group(None, 1, [4], nic("eth2", "eth2")),
        ]
    )
    assert [(each.cuda_device, each.numa, each.cpus) for each in found] == [(0, 0, [0, 1]), (1, -1, [2, 3])]
    assert found[0].domains == [DomainInfo("mlx5_0", 400 * 10**9), DomainInfo("mlx5_1", 0)]
    assert found[1].domains == [DomainInfo("lo", 0)], "a card without an interface is none for sockets"
    assert hash(found[0]) != hash(found[1])


def test_a_card_that_is_listed_twice_is_one():
    (found,) = _fabric_types.groups_of([group(0, 0, [0], nic("mlx5_0", "eth0"), nic("eth0", "eth0"))])
    assert [domain.name for domain in found.domains] == ["mlx5_0"]


def test_a_machine_without_gpus_has_groups_for_host_memory():
    found = _fabric_types.groups_of([group(None, 0, [0], nic("eth0", "eth0")), group(None, 1, [1])])
    assert [(each.cuda_device, each.domains[0].name) for each in found] == [(None, "eth0"), (None, "lo")]
    assert found[1].cpus == [0, 1, 2, 3, 4], "a group with one CPU of its own has all that are near"


# --- what a builder makes of it, on machines that are not here


@pytest.fixture
def opened(monkeypatch):
    """How a fabric would have been opened."""

    def fabric(devices=(), nics_per_group=0, groups=()):
        return list(devices), nics_per_group, [(each.nics, each.cpus, each.device) for each in groups]

    monkeypatch.setattr(headrace, "Fabric", fabric)


NEAR = _fabric_types.groups_of(
    [
        group(0, 0, [0, 1], nic("mlx5_0", "eth0"), nic("mlx5_1", "eth1")),
        group(1, 0, [2, 3], nic("mlx5_1", "eth1"), nic("mlx5_2", "eth2")),
    ]
)


def of_gpu(device, *cards, cpus=()):
    return _opening.GpuDomains(device, list(cards), list(cpus))


def test_cards_and_cpus_are_taken_as_they_were_given(opened):
    got = _opening.open_by_hand([of_gpu(1, "mlx5_2", cpus=[3]), of_gpu(0, "mlx5_1", "mlx5_0")], NEAR)
    assert got.fabric == ([], 0, [(["mlx5_2"], [3], 1), (["mlx5_1", "mlx5_0"], [], 0)])
    assert got.cards == [1, 2]


def test_gpus_that_share_cards_get_those_that_are_near(opened):
    got = _opening.open_by_hand([of_gpu(0, "mlx5_0", "mlx5_1"), of_gpu(1, "mlx5_1")], NEAR)
    assert got == (([0, 1], 1, []), [1, 1])


def test_a_number_of_cards_for_each_gpu(opened):
    assert _opening.open_near([1, 0], 2, NEAR) == (([1, 0], 2, []), [2, 2])
    assert _opening.open_near([], 3, NEAR) == (([], 3, []), [3]), "no group is listed for host memory"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: _opening.open_near([0], 3, NEAR), "cuda:0 has 2 .*, and 3 are asked for: mlx5_0, mlx5_1"),
        (lambda: _opening.open_near([0, 2], 1, NEAR), "there is no cuda:2 here, but cuda:0, cuda:1"),
        (
            lambda: _opening.open_by_hand([of_gpu(0, "mlx5_0", cpus=[2])], NEAR),
            "CPU 2 is not near cuda:0: .* 0, 1",
        ),
        (
            lambda: _opening.open_by_hand([of_gpu(0, "a", "a")], NEAR),
            "network card a is given twice for cuda:0",
        ),
        (lambda: _opening.open_by_hand([of_gpu(1, "a"), of_gpu(1, "b")], NEAR), "cuda:1 is added twice"),
    ],
)
def test_what_does_not_fit_is_refused(opened, call, sentence):
    with pytest.raises(RuntimeError, match=sentence):
        call()
