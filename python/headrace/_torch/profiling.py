# SPDX-License-Identifier: Apache-2.0
"""Ranges of operations for torch's profilers, from the call until the operation has ended.

They have no shapes of tensors: torch lets Python end a range on another thread only where it has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch._C._autograd import _profiler_enabled as is_enabled
from torch.autograd.profiler import record_function

import headrace

from .tensors import Staged
from .to_itself import SelfWork
from .work import NO_TIMEOUT, GroupWork

__all__ = ["ProfiledWork", "is_enabled"]


class ProfiledWork(GroupWork):
    """A work with a range. Its wait returns after the range has ended, so that no profiler misses it."""

    __slots__ = ("_range",)

    def __init__(
        self,
        name: str,
        works: Sequence[headrace.Work | SelfWork],
        result: list[Any],
        staged: Sequence[Staged],
        number: int,
    ) -> None:
        super().__init__(works, result, staged, number)
        record = record_function(name)
        record.__enter__()
        self._range = record._call_end_callbacks_on_future(self.get_future())

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        super().wait(timeout)
        self._range.wait()
        return True
