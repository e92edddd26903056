# SPDX-License-Identifier: Apache-2.0
"""Headrace under this name: the import replaces this module by headrace.compat.nixl."""

from headrace.compat.nixl._names import provide

provide(__name__)
