# SPDX-License-Identifier: Apache-2.0
"""After `import headrace.compat.deep_ep.install`, a program that imports deep_ep imports Headrace.

A deep_ep that was imported before stays with the modules that imported it.
"""

from __future__ import annotations

from ._names import provide

provide()
