# SPDX-License-Identifier: Apache-2.0
"""Opens the fabric of an engine: checks what a program chose against what is near its GPUs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import headrace

from ._fabric_types import TopologyGroup

T = TypeVar("T")


@dataclass(frozen=True)
class GpuDomains:
    """Network cards and CPUs for a GPU, by hand; None: for host memory."""

    cuda_device: int | None
    domains: list[str]
    cpus: list[int]


class Opened(NamedTuple):
    fabric: headrace.Fabric
    cards: list[int]  # that were asked for, of each group


def open_near(devices: Sequence[int], cards_each: int, near: Sequence[TopologyGroup]) -> Opened:
    """A group for each GPU with so many cards near it; without a GPU one for host memory.

    Errors: RuntimeError (no such GPU, too few cards), headrace.Error.
    """
    if cards_each < 1:
        raise RuntimeError(f"{cards_each} network cards for each GPU are asked for: give at least 1")
    for device in devices:
        _check_cards(_group_of(device, near), cards_each)
    if not devices and (of_host := [group for group in near if group.cuda_device is None]):
        _check_cards(max(of_host, key=lambda group: len(group.domains)), cards_each)
    return Opened(headrace.Fabric(devices, nics_per_group=cards_each), [cards_each] * (len(devices) or 1))


def open_by_hand(chosen: Sequence[GpuDomains], near: Sequence[TopologyGroup]) -> Opened:
    """Cards may also be local addresses. If GPUs share cards, each gets as many near ones as it was given.

    Errors: RuntimeError (what does not fit), headrace.Error.
    """
    if not chosen:
        raise RuntimeError("the builder has no GPU: call add_gpu_domains")
    gpus = [each.cuda_device for each in chosen if each.cuda_device is not None]
    if twice := _twice(gpus):
        raise RuntimeError(
            f"{_list(map(_name, twice))} is added twice: add it once, with all its network cards"
        )
    for each in chosen:
        _check_choice(each, near)
    if len(gpus) == len(chosen) and _twice(card for each in chosen for card in each.domains):
        return open_near(gpus, min(len(each.domains) for each in chosen), near)
    by_hand = [headrace.FabricGroupOptions(each.domains, each.cpus, each.cuda_device) for each in chosen]
    return Opened(headrace.Fabric(groups=by_hand), [len(each.domains) for each in chosen])


def _check_choice(chosen: GpuDomains, near: Sequence[TopologyGroup]) -> None:
    if twice := _twice(chosen.domains):
        raise RuntimeError(f"network card {_list(twice)} is given twice for {_name(chosen.cuda_device)}")
    name, usable = _name(chosen.cuda_device), sorted(os.sched_getaffinity(0))
    near_it = usable if chosen.cuda_device is None else _group_of(chosen.cuda_device, near).cpus
    for cpu in chosen.cpus:
        if cpu not in near_it:
            raise RuntimeError(f"CPU {cpu} is not near {name}: give some of {_list(near_it)}")


def _group_of(device: int, near: Sequence[TopologyGroup]) -> TopologyGroup:
    for group in near:
        if group.cuda_device == device:
            return group
    raise RuntimeError(
        f"there is no {_name(device)} here, but {_list(_name(each.cuda_device) for each in near)}"
    )


def _check_cards(group: TopologyGroup, wanted: int) -> None:
    if len(group.domains) < wanted:
        raise RuntimeError(
            f"{_name(group.cuda_device)} has {len(group.domains)} network cards near it, and {wanted} are "
            f"asked for: {_list(card.name for card in group.domains)}"
        )


def _twice(values: Iterable[T]) -> list[T]:
    """The values that come more than once."""
    return [value for value, count in Counter(values).items() if count > 1]


def _name(device: object) -> str:
    return "group for host memory" if device is None else f"cuda:{device}"


def _list(values: Iterable[object]) -> str:
    return ", ".join(map(str, values)) or "none"
