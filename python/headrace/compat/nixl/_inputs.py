# SPDX-License-Identifier: Apache-2.0
"""Makes descriptor lists of the forms in which programs describe memory: tuples, tensors, arrays, lists of
tensors.

If no list can be made, the reason is logged and the result is None: NIXL's programs test for None.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from ._descriptors import DescriptorList, is_array, nixlRegDList, nixlRemoteDList, nixlXferDList
from ._enums import nixl_mem_t
from .logging import get_logger

logger = get_logger("api")

List = TypeVar("List", bound=DescriptorList)

MEMORIES: Mapping[str, nixl_mem_t] = {
    "DRAM": nixl_mem_t.DRAM_SEG,
    "VRAM": nixl_mem_t.VRAM_SEG,
    "FILE": nixl_mem_t.FILE_SEG,
    "BLOCK": nixl_mem_t.BLK_SEG,
    "OBJ": nixl_mem_t.OBJ_SEG,
    "cpu": nixl_mem_t.DRAM_SEG,
    "cuda": nixl_mem_t.VRAM_SEG,
}
"""The names that programs use for kinds of memory; the last two are old names."""


def is_tensor(value: object) -> bool:
    """Returns whether `value` is a torch tensor. If torch is not imported, it cannot be one."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def tensor_memory(tensor: Any) -> str:
    """Returns the tensor's kind of memory."""
    return "DRAM" if tensor.get_device() < 0 else "VRAM"


def _refused(why: str, *values: object) -> None:
    logger.error(why, *values)


def _of_tensors(kind: type[List], tensors: list[Any]) -> List | None:
    if any(tensor.device != tensors[0].device for tensor in tensors):
        _refused("the tensors are on several devices: make one list per device")
        return None
    if not all(tensor.is_contiguous() for tensor in tensors):
        _refused("a tensor is not contiguous: call contiguous() and keep its result")
        return None
    extra = ("",) if kind._has_extra else ()
    rows = [
        (tensor.data_ptr(), tensor.numel() * tensor.element_size(), max(0, tensor.get_device()), *extra)
        for tensor in tensors
    ]
    return kind(MEMORIES[tensor_memory(tensors[0])], rows)


def _of_plain(kind: type[List], descs: Any, mem_type: str | None, width: int) -> List | None:
    """Makes a list of tuples, or of an array of three columns."""
    if mem_type is None:
        _refused("descriptors that are not tensors need a kind of memory: %s", ", ".join(MEMORIES))
        return None
    if is_array(descs):
        if descs.ndim != 2 or descs.shape[1] != 3:
            _refused("an array of descriptors must have three columns, not the shape %s", descs.shape)
            return None
    elif len(descs[0]) != width:
        _refused("descriptors of a %s must be tuples of %d elements, not %r", kind.__name__, width, descs[0])
        return None
    return kind(MEMORIES[mem_type], descs)


def _list_of(kind: type[List], descs: Any, mem_type: str | None) -> List | None:
    if isinstance(descs, kind):
        return descs
    if isinstance(descs, DescriptorList):
        _refused("the list must be a %s, not a %s", kind.__name__, type(descs).__name__)
        return None
    if is_tensor(descs):
        return _of_tensors(kind, [descs])
    if isinstance(descs[0], tuple) or is_array(descs):
        return _of_plain(kind, descs, mem_type, 3 + kind._has_extra)
    return _of_tensors(kind, descs) if is_tensor(descs[0]) else None


def xfer_list(descs: Any, mem_type: str | None) -> nixlXferDList | None:
    """Makes a list for transfers."""
    return _list_of(nixlXferDList, descs, mem_type)


def reg_list(descs: Any, mem_type: str | None) -> nixlRegDList | None:
    """Makes a list for registration."""
    return _list_of(nixlRegDList, descs, mem_type)


def remote_list(descs: Any, mem_type: str | None) -> nixlRemoteDList | None:
    """Makes a list of several agents' memory."""
    if isinstance(descs, nixlRemoteDList):
        return descs
    return _of_plain(nixlRemoteDList, descs, mem_type, 4) if isinstance(descs[0], tuple) else None
