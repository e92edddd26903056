# SPDX-License-Identifier: Apache-2.0
"""Ready-made hooks of torchcomms."""

from __future__ import annotations

from . import debug_server
from .clog import clog
from .fr import FlightRecorderHook
from .nan_check import NanCheckHook

__all__ = ["FlightRecorderHook", "NanCheckHook", "clog"]

debug_server.register()
