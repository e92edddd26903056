# SPDX-License-Identifier: Apache-2.0
"""Python objects between the ranks of a communicator, as in torchcomms.

An object travels as torch.save writes it, and torch.load reads it with weights_only: tensors, numbers, text,
lists and dicts. TORCHCOMMS_SERIALIZATION=pickle pickles instead, which runs code that the sender chooses.
"""

from __future__ import annotations

import io
import pickle
from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

import headrace
from headrace import objects
from headrace._torch.errors import as_torch_error

from . import _environment as environment
from ._comm import TorchComm


def all_gather_object(
    comm: TorchComm,
    object_list: list[Any],
    obj: object,
    timeout: timedelta | None = None,
    weights_only: bool = True,
) -> None:
    """object_list[r] becomes the object of rank r."""
    texts: list[Any] = [None] * len(object_list)
    _run(objects.all_gather_object, comm, texts, _text(obj), timeout)
    object_list[:] = [_object(text, weights_only) for text in texts]


def gather_object(
    comm: TorchComm,
    obj: object,
    root: int,
    object_gather_list: list[Any] | None = None,
    timeout: timedelta | None = None,
    weights_only: bool = True,
) -> None:
    """object_gather_list[r] of the root becomes the object of rank r."""
    is_root = comm.get_rank() == root
    texts: list[Any] | None = [None] * len(object_gather_list or ()) if is_root else None
    _run(objects.gather_object, comm, _text(obj), root, texts, timeout)
    if object_gather_list is not None and texts is not None:
        object_gather_list[:] = [_object(text, weights_only) for text in texts]


def send_object_list(
    comm: TorchComm, object_list: Sequence[Any], dst: int, timeout: timedelta | None = None
) -> None:
    """Sends the objects to a rank, whose list has as many entries."""
    _run(objects.send_object_list, comm, [_text(obj) for obj in object_list], dst, timeout)


def recv_object_list(
    comm: TorchComm,
    object_list: list[Any],
    src: int,
    timeout: timedelta | None = None,
    weights_only: bool = True,
) -> None:
    """Replaces the objects of the list by those that a rank sends."""
    texts = list[Any](object_list)
    _run(objects.recv_object_list, comm, texts, src, timeout)
    object_list[:] = [_object(text, weights_only) for text in texts]


def broadcast_object_list(
    comm: TorchComm,
    object_list: list[Any],
    root: int,
    timeout: timedelta | None = None,
    weights_only: bool = True,
) -> None:
    """Replaces the objects of the list by those of the root's, which has as many."""
    is_root = comm.get_rank() == root
    texts: list[Any] = [_text(obj) for obj in object_list] if is_root else [None] * len(object_list)
    _run(objects.broadcast_object_list, comm, texts, root, timeout)
    if not is_root:
        object_list[:] = [_object(text, weights_only) for text in texts]


def scatter_object_list(
    comm: TorchComm,
    root: int,
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    timeout: timedelta | None = None,
    weights_only: bool = True,
) -> None:
    """Rank r gets scatter_object_input_list[r] of the root as the first entry of its output list."""
    is_root = comm.get_rank() == root
    texts = [_text(obj) for obj in scatter_object_input_list or ()] if is_root else None
    mine: list[Any] = [None] * len(scatter_object_output_list)
    _run(objects.scatter_object_list, comm, root, mine, texts, timeout)
    scatter_object_output_list[0] = _object(mine[0], weights_only)


def _run(function: Any, comm: TorchComm, *arguments: Any) -> None:
    try:
        function(comm.get_backend_impl(), *arguments)
    except headrace.Error as error:
        raise as_torch_error(error) from None


def _text(obj: object) -> str:
    """An object as headrace.objects takes it."""
    file = io.BytesIO()
    if environment.pickles_objects():
        pickle.dump(obj, file)
    else:
        torch.save(obj, file)
    return b64encode(file.getbuffer()).decode()


def _object(text: str, weights_only: bool) -> Any:
    file = io.BytesIO(b64decode(text))
    if environment.pickles_objects():
        return pickle.load(file)
    return torch.load(file, weights_only=weights_only)
