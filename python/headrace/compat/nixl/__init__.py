# SPDX-License-Identifier: Apache-2.0
"""NIXL 1.5.1's Python package on Headrace. After `import headrace.compat.nixl.install`, `import nixl` gives
this package.

docs/compat-nixl.md lists the differences from NIXL and their reasons.
"""

from __future__ import annotations

from . import _api, _bindings, _utils, logging

__all__: list[str] = []

# NIXL's package exports the names of all its modules.
for _module in (_bindings, _utils, logging, _api):
    for _name in getattr(_module, "__all__", None) or [
        name for name in vars(_module) if not name.startswith("_")
    ]:
        globals().setdefault(_name, getattr(_module, _name))
        __all__.append(_name)
nixl_thread_sync_t = _api.nixl_thread_sync_t
del _module, _name
