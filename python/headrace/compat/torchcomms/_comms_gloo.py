# SPDX-License-Identifier: Apache-2.0
"""The class of torchcomms' gloo, that get_backend_impl() returns: here that of all backends."""

from __future__ import annotations

from headrace import Comm as TorchCommGloo

__all__ = ["TorchCommGloo"]
