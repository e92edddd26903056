# SPDX-License-Identifier: Apache-2.0
"""The process groups of torch.distributed on headrace.Comm. The other modules import torch, so `import
headrace` does not import them."""

from __future__ import annotations

import os

# Of the names of compiled process groups: _c10d_torch2_13.cpython-311-x86_64-linux-gnu.so.
PREFIX = "_c10d_torch"


def compiled_torch_binding() -> str | None:
    """The version of torch that the compiled process group was built for, "2.13".

    None: none was built for this Python; then a group written in Python serves.
    """
    from importlib.machinery import EXTENSION_SUFFIXES

    suffix = EXTENSION_SUFFIXES[0]  # of this version of Python
    for name in os.listdir(os.path.dirname(__file__)):
        if name.startswith(PREFIX) and name.endswith(suffix):
            return name[len(PREFIX) : -len(suffix)].replace("_", ".")
    return None
