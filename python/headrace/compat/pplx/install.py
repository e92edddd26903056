# SPDX-License-Identifier: Apache-2.0
"""After `import headrace.compat.pplx.install`, a program that imports pplx_garden imports Headrace.

A pplx_garden that was imported before stays with the modules that imported it.
"""

from __future__ import annotations

from ._names import provide

provide()
