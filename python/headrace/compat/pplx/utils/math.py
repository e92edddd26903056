# SPDX-License-Identifier: Apache-2.0
"""pplx_garden.utils.math: rounding, and the statistics of a benchmark's samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

PERCENTILES = (1, 25, 50, 75, 95, 99)


def round_up(n: int, m: int) -> int:
    """The smallest multiple of m that is not below n."""
    return ceil_div(n, m) * m


def ceil_div(n: int, m: int) -> int:
    """n / m, rounded up."""
    return -(-n // m)


def floor_div(n: int, m: int) -> int:
    """n / m, rounded down."""
    return n // m


def mean(xs: Sequence[float]) -> float:
    """0 of no samples."""
    return math.fsum(xs) / len(xs) if xs else 0.0


def stddev(xs: Sequence[float]) -> float:
    """Of a sample (n - 1); 0 of fewer than two."""
    return statistics.stdev(xs) if len(xs) > 1 else 0.0


def mean_and_stddev(xs: Sequence[float]) -> tuple[float, float]:
    return mean(xs), stddev(xs)


@dataclass
class Statistics:
    """Of samples in microseconds."""

    mean: float
    stddev: float
    min: float
    p01: float
    p25: float
    p50: float
    p75: float
    p95: float
    p99: float
    max: float

    @classmethod
    def create(cls, xs: Sequence[float]) -> Statistics:
        """All 0 of no samples."""
        ordered = sorted(xs) or [0.0]
        return cls(
            mean=mean(xs),
            stddev=stddev(xs),
            min=ordered[0],
            max=ordered[-1],
            **{f"p{percent:02}": _percentile(ordered, percent) for percent in PERCENTILES},
        )

    def __str__(self) -> str:
        shown = ("min", *(f"p{percent:02}" for percent in PERCENTILES), "max")
        parts = [f"{name}={getattr(self, name):.1f} μs" for name in shown]
        return ", ".join([f"mean={self.mean:.1f}±{self.stddev:.1f} μs", *parts])


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """The sample at this part of the list; between two places the mean of both."""
    place = len(ordered) * (percent / 100)
    below, above = math.floor(place), min(math.ceil(place), len(ordered) - 1)
    return (ordered[below] + ordered[above]) / 2
