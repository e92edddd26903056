# SPDX-License-Identifier: Apache-2.0
"""Importing it makes torch.compile trace the operations. The package does so itself where it is enabled."""

from __future__ import annotations

from . import gradients, operations, traced

traced.enable()

__all__ = ["gradients", "operations", "traced"]
