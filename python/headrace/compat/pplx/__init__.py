# SPDX-License-Identifier: Apache-2.0
"""pplx-garden's Python package on Headrace. After `import headrace.compat.pplx.install`, `import pplx_garden`
gives this package.

docs/compat-pplx.md lists the calls and the differences from pplx-garden.
"""
