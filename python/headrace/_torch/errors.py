# SPDX-License-Identifier: Apache-2.0
"""Errors of Headrace as torch's users catch them: each is a RuntimeError, torch's DistBackendError, and still
the exception of Headrace that it was."""

from __future__ import annotations

from typing import NoReturn

import torch.distributed as dist

import headrace

_of_code = {kind.code: kind for kind in headrace.Error.__subclasses__()}
_classes: dict[str, type[headrace.Error]] = {}


def as_torch_error(error: headrace.Error) -> headrace.Error:
    """The same error with its text and code, which is a DistBackendError too."""
    if isinstance(error, dist.DistBackendError):
        return error
    kind = type(error)
    if kind.code not in _classes:
        content = {"__module__": kind.__module__, "__reduce__": _raised}
        _classes[kind.code] = type(kind.__name__, (kind, dist.DistBackendError), content)
    text = str(error)
    if isinstance(error, headrace.TimedOut):
        text += " (the timeout of the call, or of the group)"  # torch's users look for the word
    return _classes[kind.code](text)


def _raised(error: headrace.Error) -> NoReturn:
    """DDP takes the error of a future in Python for its result: it pickles the error to find tensors, and
    takes the first one, though there is none. What is raised here ends the step of DDP instead."""
    raise error


def torch_error_of(code: str, text: str) -> headrace.Error:
    """The same for an error of the compiled group, by the name of its code."""
    return as_torch_error(_of_code.get(code, headrace.Error)(text))
