# SPDX-License-Identifier: Apache-2.0
"""pplx_garden.distributed.process_group: the default group of torch, and ranks as processes of this host."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.multiprocessing

from .. import _names
from ..utils import logging_utils
from . import _backends
from .parallel_group import ParallelGroup

logger = logging_utils.get_logger(__name__)

R = TypeVar("R")


class ProcessGroup:
    """The default group of torch: made here, and destroyed by `destroy`, unless the program has one."""

    def __init__(
        self,
        *,
        init_method: str,
        node_rank: int,
        local_rank: int,
        global_rank: int,
        world_size: int,
        device: torch.device,
    ) -> None:
        """init_method: as of torch.distributed.init_process_group."""
        if not 0 <= global_rank < world_size:
            raise ValueError(f"there is no rank {global_rank} among {world_size}")
        self._node_rank = node_rank
        self._local_rank = local_rank
        self._global_rank = global_rank
        self._world_size = world_size
        self._device = device
        self._is_ours = not dist.is_initialized()
        _backends.register()
        if self._is_ours:
            self._begin(init_method)
        elif dist.get_world_size() != world_size:
            raise ValueError(f"torch's default group has {dist.get_world_size()} ranks, and not {world_size}")

    def _begin(self, init_method: str) -> None:
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(self._device)
        dist.init_process_group(
            _backends.of_default_group(self._device),
            init_method=init_method,
            world_size=self._world_size,
            rank=self._global_rank,
            device_id=self._device if on_gpu else None,
        )
        self._meet()
        logger.info("[rank=%d] default group begun: %d ranks", self._global_rank, self._world_size)

    def _meet(self) -> None:
        dist.barrier()
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def destroy(self) -> None:
        """Waits for all ranks, then ends the default group if it was made here. May be called again."""
        if not self._is_ours:
            return
        self._meet()
        dist.destroy_process_group()
        self._is_ours = False
        logger.info("[rank=%d] default group ended", self._global_rank)

    def create_group(self) -> ParallelGroup:
        """A group of all ranks; all call it."""
        from .torch_group import TorchParallelGroup

        return TorchParallelGroup(
            self._device,
            self._node_rank,
            self._local_rank,
            self._global_rank,
            list(range(self._world_size)),
        )


@dataclass
class ParallelLaunch:
    """Runs a function on ranks, each a process of its own with a device.

    devices: of the ranks of this node, as numbers of GPUs, or as torch takes them ("cpu"). Default: the GPUs;
        where there are none, the CPU for all ranks.
    init_method, node_rank: for several nodes, each of which runs as many ranks as it has devices.
    dp_size: the ranks of each dp_group; dp_lens: the ranks of each of them by itself. Default: all ranks.
    tmpdir_base: the folder in which a temporary folder is made.
    """

    world_size: int = 1
    init_method: str | None = None
    devices: Sequence[int | str | torch.device] | None = None
    dp_size: int | None = None
    dp_lens: list[int] | None = None
    node_rank: int = 0
    tmpdir_base: Path | None = None

    def run(self, worker: Callable[..., R], *args: Any, **kwargs: Any) -> list[R]:
        """Calls worker(device, dp_group, global_group, *args, **kwargs) on each rank of this node. Returns
        what they returned, in order of rank.

        worker: a function that pickle finds by its name. One rank alone runs in this process, and its groups
            are None.
        Errors: ValueError (numbers that do not fit), torch.multiprocessing.ProcessRaisedException (the first
        rank that failed, with its traceback), ProcessExitedException. The other ranks are ended.
        """
        devices = _devices(self)
        _check(self, len(devices))
        if self.world_size == 1:
            return [worker(devices[0], None, None, *args, **kwargs)]
        with TemporaryDirectory(dir=self.tmpdir_base) as folder:
            launch = _Launch(self, devices, Path(folder), _level(), worker, args, kwargs)
            _run_processes(_entry(), launch, len(devices))
            return [launch.result(local_rank) for local_rank in range(len(devices))]


@dataclass
class _Launch:
    """What a rank's process is told."""

    config: ParallelLaunch
    devices: list[torch.device]
    folder: Path
    log_level: int | None
    worker: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def init_method(self) -> str:
        return self.config.init_method or f"file://{self.folder}/store"

    def keep(self, local_rank: int, value: Any) -> None:
        self._file(local_rank).write_bytes(pickle.dumps(value))

    def result(self, local_rank: int) -> Any:
        return pickle.loads(self._file(local_rank).read_bytes())

    def _file(self, local_rank: int) -> Path:
        return self.folder / f"result_{local_rank}"


def _entry() -> Callable[[int, _Launch], None]:
    """What a rank's process runs. If pplx_garden is Headrace here, it becomes so there before the worker is
    read, whose module may import pplx_garden."""
    if not _names.is_provided():
        return run_rank
    from .._rank_process import run_rank_under_their_name

    return run_rank_under_their_name


def _run_processes(entry: Callable[[int, _Launch], None], launch: _Launch, count: int) -> None:
    """Returns when all have ended; raises the first error, and ends the others."""
    torch.multiprocessing.spawn(entry, (launch,), nprocs=count)  # type: ignore[attr-defined,no-untyped-call]


def run_rank(local_rank: int, launch: _Launch) -> None:
    """The process of one rank."""
    if launch.log_level is not None:
        logging_utils.setup(level=launch.log_level)
    config, device = launch.config, launch.devices[local_rank]
    everyone = ProcessGroup(
        init_method=launch.init_method,
        node_rank=config.node_rank,
        local_rank=local_rank,
        global_rank=config.node_rank * len(launch.devices) + local_rank,
        world_size=config.world_size,
        device=device,
    )
    group = everyone.create_group()
    part = _dp_group(config, group)
    try:
        launch.keep(local_rank, launch.worker(device, part, group, *launch.args, **launch.kwargs))
    except Exception:
        logger.exception("[rank=%d] the worker failed", group.global_rank)
        raise  # without an orderly end of the groups, to which the others may never come
    if part is not group:
        part.destroy()
    group.destroy()
    everyone.destroy()


def _dp_group(config: ParallelLaunch, group: ParallelGroup) -> ParallelGroup:
    if config.dp_lens is not None:
        return group.slice_by_lens(config.dp_lens)
    if config.dp_size in (None, config.world_size):
        return group
    return group.slice_by_count(config.world_size // config.dp_size)


def _devices(config: ParallelLaunch) -> list[torch.device]:
    if config.devices is not None:
        return [torch.device(device) for device in config.devices]
    gpus = min(torch.cuda.device_count(), config.world_size)
    if gpus:
        return [torch.device("cuda", index) for index in range(gpus)]
    return [torch.device("cpu")] * config.world_size


def _check(config: ParallelLaunch, ranks_here: int) -> None:
    size, part, parts = config.world_size, config.dp_size, config.dp_lens
    if part is not None and parts is not None:
        raise ValueError("dp_size and dp_lens are given: give one of them")
    if ranks_here < 1 or size % ranks_here:
        raise ValueError(f"{size} ranks cannot be divided among nodes with {ranks_here} devices each")
    if not 0 <= config.node_rank < size // ranks_here:
        raise ValueError(
            f"there is no node {config.node_rank}: {size} ranks on {ranks_here} devices of each node need "
            f"{size // ranks_here}"
        )
    if part is not None and (part < 1 or ranks_here % part):
        raise ValueError(f"the {ranks_here} ranks of a node cannot be divided into groups of {part}")
    if parts is not None and sum(parts) != size:
        raise ValueError(f"the groups {parts} have {sum(parts)} ranks, and there are {size}")


def _level() -> int | None:
    """Of the log of the ranks; None: no log is set up here."""
    return logger.getEffectiveLevel() if logger.hasHandlers() else None
