# SPDX-License-Identifier: Apache-2.0
"""deep_ep.utils."""

from .event import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
