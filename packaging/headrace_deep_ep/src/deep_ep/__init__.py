# SPDX-License-Identifier: Apache-2.0
"""Headrace under this name: the import replaces this module by headrace.compat.deep_ep."""

from headrace.compat.deep_ep._names import provide

provide()
