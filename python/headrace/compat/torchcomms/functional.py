# SPDX-License-Identifier: Apache-2.0
"""Whether torch.compile traces the operations, which programs of torchcomms ask."""

from __future__ import annotations


def is_torch_compile_supported(_current_version: str | None = None) -> bool:
    return False


def is_torch_compile_supported_and_enabled(_current_version: str | None = None) -> bool:
    return False
