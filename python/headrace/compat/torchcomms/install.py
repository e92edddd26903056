# SPDX-License-Identifier: Apache-2.0
"""After `import headrace.compat.torchcomms.install`, a program that imports torchcomms imports Headrace.

A torchcomms that was imported before stays with the modules that imported it.
"""

from __future__ import annotations

from .._names import provide

MODULES = (
    "_comms",
    "device_mesh",
    "distwrap",
    "functional",
    "hooks",
    "hooks.clog",
    "hooks.fr",
    "hooks.nan_check",
    "objcol",
)

provide("torchcomms", "headrace.compat.torchcomms", MODULES)
