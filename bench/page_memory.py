# SPDX-License-Identifier: Apache-2.0
"""The buffers of a comparison: in host memory, as NumPy arrays, or on a GPU, as torch's tensors.

Buffers begin as the same random words on both sides, made from the seed. Before each transfer the source
adds a fresh number to every word and the target is wiped, so that stale data is as wrong as misplaced data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

WORD = 8
CHECK_BYTES = 8 << 20  # compared at a time, so that the copies for it stay in the caches
GPU_CHECK_BYTES = 256 << 20
WIPED = 0xA5A5A5A5A5A5A5A5


def mixed(places: Any, seed: int) -> Any:
    """Returns numbers made of their places and the seed: two GPUs, or a GPU and a processor, may draw
    different random numbers from one seed."""
    words = (places + seed % 2**40) * -7046029254386353131
    return words ^ (words >> 29)


class HostMemory:
    """The operations on buffers in host memory."""

    def words(self, bytes_: int, seed: int) -> np.ndarray:
        return mixed(np.arange(bytes_ // WORD, dtype=np.int64), seed).view(np.uint64)

    def empty(self, bytes_: int) -> np.ndarray:
        buffer = np.empty(bytes_ // WORD, np.uint64)
        buffer.fill(0)  # its pages are there
        return buffer

    def stamp(self, buffer: np.ndarray, words: np.ndarray, delta: int) -> None:
        np.add(words, np.uint64(delta), out=buffer)

    def wipe(self, buffer: np.ndarray) -> None:
        buffer.fill(WIPED)

    def first_wrong(
        self,
        buffer: np.ndarray,
        words: np.ndarray,
        page: int,
        source: np.ndarray,
        target: np.ndarray,
        delta: int,
    ) -> int | None:
        """Returns the number of the first page of the target that differs from the source's page plus
        `delta`."""
        have, want = (
            side[: side.size * WORD // page * page // WORD].reshape(-1, page // WORD)
            for side in (buffer, words)
        )
        step = max(1, CHECK_BYTES // page)
        for at in range(0, len(source), step):
            same = want[source[at : at + step]] + np.uint64(delta) == have[target[at : at + step]]
            if not same.all():
                return at + int(np.argwhere(~same)[0][0])
        return None


class GpuMemory:
    """The same operations on buffers of a GPU. The host waits for the GPU at the end of each, so that a
    transfer finds the GPU idle."""

    def __init__(self, device: int):
        import torch

        self.torch = torch
        self.device = torch.device("cuda", device)
        torch.cuda.set_device(self.device)
        torch.zeros(1, device=self.device)  # libraries find a GPU that has been started

    def words(self, bytes_: int, seed: int) -> Any:
        return mixed(self.torch.arange(bytes_ // WORD, dtype=self.torch.int64, device=self.device), seed)

    def empty(self, bytes_: int) -> Any:
        return self.torch.zeros(bytes_ // WORD, dtype=self.torch.int64, device=self.device)

    def stamp(self, buffer: Any, words: Any, delta: int) -> None:
        self.torch.add(words, delta, out=buffer)
        self._quiet()

    def wipe(self, buffer: Any) -> None:
        buffer.fill_(WIPED - 2**64)
        self._quiet()

    def first_wrong(
        self, buffer: Any, words: Any, page: int, source: np.ndarray, target: np.ndarray, delta: int
    ) -> int | None:
        have, want = (
            side[: side.numel() * WORD // page * page // WORD].view(-1, page // WORD)
            for side in (buffer, words)
        )
        step = max(1, GPU_CHECK_BYTES // page)
        for at in range(0, len(source), step):
            sources, targets = (
                self.torch.from_numpy(side[at : at + step]).to(self.device) for side in (source, target)
            )
            same = (want[sources] + delta == have[targets]).all(dim=1)
            if not bool(same.all()):
                return at + int(self.torch.nonzero(~same)[0])
        return None

    def _quiet(self) -> None:
        self.torch.cuda.synchronize(self.device)


def memory_of(device: int | None) -> HostMemory | GpuMemory:
    return HostMemory() if device is None else GpuMemory(device)
