# SPDX-License-Identifier: Apache-2.0
"""torch's symmetric tensors on GPUs, whose ranks meet in a group in Python.

torch reads the store of a group from its C++ half. That of a group in Python has none, because torch makes
such halves from rank and size alone, and torch would read through a null pointer. So while torch brings a
symmetric tensor together, a group of torch's own stands at the name of ours: with its ranks and store, and
without operations.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import PrefixStore, ProcessGroup

_groups: weakref.WeakKeyDictionary[ProcessGroup, ProcessGroup] = weakref.WeakKeyDictionary()
_groups_lock = threading.Lock()
# One rendezvous at a time, for all groups: torch numbers the exchanges of a process by one counter
# (StoreExchange) and passes descriptors over a socket with the name of the process (IpcChannel), so two at
# once would miss those of the other ranks. Without Headrace, too, all ranks come to groups in one order.
_rendezvous_lock = threading.Lock()


def add(group: ProcessGroup) -> None:
    """Lets torch's symmetric tensors meet in a group in Python.

    group: with get_group_store.
    """
    memory: Any = getattr(c10d, "_SymmetricMemory", None)
    if memory is None:
        return  # a torch without them
    store = PrefixStore("symmetric", group.get_group_store())
    with _groups_lock:
        _groups[group] = ProcessGroup(store, group.rank(), group.size())
    if not hasattr(memory, "_of_headrace"):
        memory.rendezvous = staticmethod(_rendezvous_by(memory.rendezvous))
        memory._of_headrace = True


def _rendezvous_by(torchs: Any) -> Any:
    def rendezvous(tensor: Tensor, *arguments: Any, **more: Any) -> Any:
        if not tensor.is_cuda:
            return torchs(tensor, *arguments, **more)
        with _rendezvous_lock, _stand_ins():
            return torchs(tensor, *arguments, **more)

    return rendezvous


@contextmanager
def _stand_ins() -> Iterator[None]:
    """For all groups: a tensor may have been allocated for one, whose name is not known here."""
    replaced: list[tuple[Any, ProcessGroup]] = []
    with _groups_lock:
        groups = list(_groups.items())
    try:
        for group, stand_in in groups:
            name: Any = group.group_name
            if _registered(name) is group:
                _register(name, stand_in)
                replaced.append((name, group))
        yield
    finally:
        for name_of_group, group in replaced:
            _register(name_of_group, group)


def _registered(name: Any) -> ProcessGroup | None:
    try:
        return c10d._resolve_process_group(name)
    except RuntimeError:
        return None  # it has been destroyed


def _register(name: Any, group: ProcessGroup) -> None:
    c10d._unregister_process_group(name)
    c10d._register_process_group(name, group)
