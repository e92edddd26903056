# SPDX-License-Identifier: Apache-2.0
"""What a process of ParallelLaunch runs where pplx_garden is Headrace: this module's import makes it so."""

from __future__ import annotations

from . import install  # noqa: F401
from .distributed.process_group import _Launch, run_rank


def run_rank_under_their_name(local_rank: int, launch: _Launch) -> None:
    run_rank(local_rank, launch)
