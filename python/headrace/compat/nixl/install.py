# SPDX-License-Identifier: Apache-2.0
"""`import headrace.compat.nixl.install` before a program imports NIXL, and Headrace is what it imports.

`nixl` becomes this package in any case. `nixl_cu12` and `nixl_cu13` do unless they are imported already:
NIXL's own library is used beside Headrace under these names, and stays as it is.
"""

from __future__ import annotations

import sys

from ._names import provide
from .logging import get_logger

kept = [name for name in ("nixl_cu12", "nixl_cu13") if name in sys.modules]
replaced = "nixl" in sys.modules

for _name in ("nixl", "nixl_cu12", "nixl_cu13"):
    if _name not in kept:
        provide(_name)

if replaced:
    get_logger("install").warning(
        "nixl was imported before Headrace took its name: who has imported it already goes on using it"
    )
for _name in kept:
    get_logger("install").info("%s was imported before Headrace took its name, and stays as it is", _name)
