# SPDX-License-Identifier: Apache-2.0
"""The ranks of an expert-parallel group, which may grow: what a manager's handle is."""

from __future__ import annotations

from .._moe_ranks import MoERanks
from ..deep_ep._low_latency import LowLatency
from ..deep_ep._rank_rows import RankRows


class ExpertHandle:
    """Dispatches and combines of one rank. Layers keep it while its ranks change.

    goes_on: a rank that is late or gone is left out of batched operations, without an error.
    """

    def __init__(self, ranks: MoERanks, goes_on: bool) -> None:
        self._goes_on = goes_on
        self._staged: MoERanks | None = None
        self._take(ranks)

    def _take(self, ranks: MoERanks) -> None:
        self.ranks = ranks
        self.rows = RankRows(ranks)
        self.batches = LowLatency(ranks, self._goes_on)

    def stage(self, ranks: MoERanks) -> None:
        """Keeps other ranks at hand, until commit. A second call takes the place of the first."""
        if self._staged is not None:
            self._staged.close()
        self._staged = ranks

    def commit(self) -> None:
        """The ranks that were staged take part from now on, those before no more. Nothing is under way."""
        if self._staged is None:
            return
        before, staged, self._staged = self.ranks, self._staged, None
        self._take(staged)
        before.close()

    def close(self) -> None:
        if self._staged is not None:
            self._staged.close()
        self.ranks.close()
