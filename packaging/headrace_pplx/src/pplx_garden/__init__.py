# SPDX-License-Identifier: Apache-2.0
"""Headrace under this name: the import replaces this module by headrace.compat.pplx."""

from headrace.compat.pplx._names import provide

provide()
