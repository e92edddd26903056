# SPDX-License-Identifier: Apache-2.0
"""Headrace under this name: the import ends with headrace.compat.nixl in this module's place."""

from headrace.compat.nixl._names import provide

provide(__name__)
