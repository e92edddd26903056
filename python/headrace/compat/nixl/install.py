# SPDX-License-Identifier: Apache-2.0
"""After `import headrace.compat.nixl.install`, a program that imports NIXL imports Headrace.

The name `nixl` always becomes this package. The names `nixl_cu12` and `nixl_cu13` become this package unless
they are already imported: programs that use NIXL's own library next to Headrace import it under these names,
and it stays.
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
        "nixl was imported before Headrace took its name: modules that imported it earlier still use it"
    )
for _name in kept:
    get_logger("install").info("%s was imported before Headrace took its name, and keeps its name", _name)
