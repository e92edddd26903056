# SPDX-License-Identifier: Apache-2.0
"""torchcomms' Python package on headrace.Comm.

    import headrace.compat.torchcomms as torchcomms

After `import headrace.compat.torchcomms.install`, `import torchcomms` gives this package. docs/torchcomms.md
lists the differences from torchcomms and their reasons.
"""

from __future__ import annotations

from datetime import timedelta

from . import _comms, hooks, objcol
from ._comms import *  # noqa: F403
from ._new_comm import _load_backend, built_backends, is_backend_built
from .functional import is_torch_compile_supported_and_enabled

if is_torch_compile_supported_and_enabled():
    from .functional import collectives  # noqa: F401

__all__ = _comms.__all__ + [  # noqa: RUF005
    "Timeout",
    "_load_backend",
    "built_backends",
    "hooks",
    "is_backend_built",
    "objcol",
]


class Timeout(timedelta):
    """A timedelta, by torchcomms' name."""
