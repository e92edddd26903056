# SPDX-License-Identifier: Apache-2.0
"""Whether torch.compile traces the operations, which programs of torchcomms ask."""

from __future__ import annotations

import os

import torch
from torch.torch_version import TorchVersion

__all__ = ["is_torch_compile_supported", "is_torch_compile_supported_and_enabled"]

# The first torch that orders operations with side effects in what autograd computes, too.
MIN_PYTORCH_VERSION_FOR_COMPILE = "2.12.0.dev0"


def is_torch_compile_supported(
    min_version: str = MIN_PYTORCH_VERSION_FOR_COMPILE, _current_version: str | None = None
) -> bool:
    """Whether this torch is new enough, or TORCHCOMMS_COMPILE_IGNORE_PYTORCH_VERSION_REQUIREMENT is 1."""
    if os.environ.get("TORCHCOMMS_COMPILE_IGNORE_PYTORCH_VERSION_REQUIREMENT") == "1":
        return True
    return TorchVersion(_current_version or torch.__version__) >= TorchVersion(min_version)


def is_torch_compile_supported_and_enabled(
    min_version: str = MIN_PYTORCH_VERSION_FOR_COMPILE, _current_version: str | None = None
) -> bool:
    """The same, and TORCHCOMMS_PATCH_FOR_COMPILE is 1. The package reads it when it is imported."""
    if os.environ.get("TORCHCOMMS_PATCH_FOR_COMPILE") != "1":
        return False
    return is_torch_compile_supported(min_version, _current_version)
