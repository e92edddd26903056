# SPDX-License-Identifier: Apache-2.0
"""NIXL 1.5.1's Python package on Headrace: `import headrace.compat.nixl.install`, and `import nixl` is this
package.

What differs from NIXL, and why: docs/compat-nixl.md.
"""

from __future__ import annotations

from . import _api, _bindings, _utils, logging

__all__: list[str] = []

# NIXL's package shows the names of all its modules as its own.
for _module in (_bindings, _utils, logging, _api):
    for _name in getattr(_module, "__all__", None) or [
        name for name in vars(_module) if not name.startswith("_")
    ]:
        globals().setdefault(_name, getattr(_module, _name))
        __all__.append(_name)
nixl_thread_sync_t = _api.nixl_thread_sync_t
del _module, _name
