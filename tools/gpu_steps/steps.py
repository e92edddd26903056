# SPDX-License-Identifier: Apache-2.0
"""The steps of a run, and how they share its time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gpu_steps import tree
from gpu_steps.bare import attach, ceilings, dram, tcp_host
from gpu_steps.compiling import extension
from gpu_steps.endings import NOT_IN_BUILD, Failed, NothingRun, NotInBuild
from gpu_steps.kernels import collectives, collectives_long, copy_engines, moe, moe_command, moe_racecheck
from gpu_steps.machine import assumptions, machine, paths, probe
from gpu_steps.native import native
from gpu_steps.nixl import nixl, nixl_others
from gpu_steps.pages import host, pages, single, tcp, views
from gpu_steps.pytests import (
    comm,
    courier,
    device_windows,
    exchange,
    fabric,
    fused,
    moe_ranks,
    soak,
    torch_further,
    torch_operators,
    torch_order,
)
from gpu_steps.runner import runner
from gpu_steps.sanitizer import initcheck, memcheck, racecheck
from gpu_steps.side_by_side import tests
from gpu_steps.sitting import Sitting

BUDGET = 470  # seconds for all, of the eight minutes that a run may take


@dataclass
class Step:
    """A function, the most seconds that it may take, and its usual seconds on H200 with 16 to 32 cores, which
    earlier steps leave to it."""

    do: Callable[[Sitting], bool]
    limit: float
    usual: float
    gpus: int = 1  # that it needs


# In the order of what would be missed most.
STEPS: dict[str, Step] = {
    "extension": Step(extension, 120, 10, gpus=0),
    "machine": Step(machine, 90, 8),
    "pages": Step(pages, 60, 12),
    "single": Step(single, 30, 4),
    "host": Step(host, 140, 36),
    "tcp": Step(tcp, 90, 20),
    "views": Step(views, 60, 6),
    "tests": Step(tests, 330, 165),
    "memcheck": Step(memcheck, 60, 8),
    "initcheck": Step(initcheck, 60, 8),
    "racecheck": Step(racecheck, 60, 11),
    "soak": Step(soak, 120, 16, gpus=2),
    "nixl": Step(nixl, 150, 53),
    "collectives": Step(collectives, 180, 67),
    "paths": Step(paths, 60, 5),
    "native": Step(native, 60, 0, gpus=0),
    # A sitting of their own, or what a driver is asked once.
    "attach": Step(attach, 120, 70, gpus=0),
    "dram": Step(dram, 110, 52, gpus=0),
    "ceilings": Step(ceilings, 400, 185),
    "tcp_host": Step(tcp_host, 420, 215, gpus=0),
    "exchange": Step(exchange, 240, 26),
    "copy_engines": Step(copy_engines, 300, 120),
    "collectives_long": Step(collectives_long, 420, 200),
    "comm": Step(comm, 400, 190),
    "device_windows": Step(device_windows, 120, 60),
    "fused": Step(fused, 120, 60),
    "torch_operators": Step(torch_operators, 120, 60),
    "torch_further": Step(torch_further, 120, 60),
    "torch_order": Step(torch_order, 460, 240),
    "moe": Step(moe, 440, 290),
    "moe_ranks": Step(moe_ranks, 540, 200),
    "moe_racecheck": Step(moe_racecheck, 120, 60),
    "moe_command": Step(moe_command, 280, 120),
    "courier": Step(courier, 150, 90),
    "fabric": Step(fabric, 420, 150),
    "runner": Step(runner, 340, 210),
    "assumptions": Step(assumptions, 90, 30),
    "nixl_others": Step(nixl_others, 500, 465),
    "probe": Step(probe, 200, 100),
}


EVERY_TIME = list(STEPS)[: list(STEPS).index("attach")]


# Neighbours of these run at once: they measure nothing, and no one minds what the others take of the GPUs.
SIDE_BY_SIDE = [{"extension", "machine"}, {"memcheck", "initcheck", "racecheck", "soak"}]


def stages(names: list[str]) -> list[list[str]]:
    """Returns the steps in their order; steps that may run side by side share a list."""
    found: list[list[str]] = []
    for name in names:
        if found and any({name, *found[-1]} <= group for group in SIDE_BY_SIDE) and name not in found[-1]:
            found[-1].append(name)
        else:
            found.append([name])
    return found


def usual_seconds(some_stages: list[list[str]]) -> float:
    return sum(max(STEPS[name].usual for name in stage) for stage in some_stages)


def run_step(sitting: Sitting, name: str, later: float) -> tuple[str, float, str]:
    """Runs one step. Returns its name, its seconds and its result. `later`: the usual seconds of the steps
    after it."""
    step, begun, left = STEPS[name], time.monotonic(), sitting.seconds_left()
    if left < 5:
        return name, 0.0, "nothing run: out of time"
    if sitting.gpus < step.gpus:
        needed = "a GPU" if step.gpus == 1 else f"{step.gpus} GPUs"
        return name, 0.0, f"nothing run: the step needs {needed}, and this machine has {sitting.gpus}"
    # One that hangs does not take the time of those after it.
    own = sitting.of_step(name, begun + min(step.limit, left, max(step.usual, left - later)))
    own.note(f"== {name}: {step.do.__doc__ or ''}".splitlines()[0])
    try:
        result = "ok" if step.do(own) else f"failed: {'; '.join(own.troubles) or 'the reason is in the log'}"
    except NotInBuild as why:
        result = f"nothing run: {why}" if sitting.options.steps else str(why)
    except NothingRun as why:
        result = f"nothing run: {why}"
    except Failed as why:
        result = f"failed: {why}"
    except Exception as error:  # a step that cannot even begin is a failure of that step
        own.note(f"    {type(error).__name__}: {error}")
        result = f"failed: {type(error).__name__}: {error}"
    seconds = time.monotonic() - begun
    own.note(f"== {name}: {result}, {seconds:.1f} s")
    return name, seconds, result


def run_steps(sitting: Sitting, names: list[str]) -> int:
    lines: list[tuple[str, float, str]] = []
    todo = stages(names)
    for number, stage in enumerate(todo):
        later = usual_seconds(todo[number + 1 :])
        if len(stage) == 1:  # in this thread, which a Ctrl-C reaches
            lines.append(run_step(sitting, stage[0], later))
            continue
        with ThreadPoolExecutor(len(stage)) as pool:
            lines += pool.map(lambda name, later=later: run_step(sitting, name, later), stage)
    sitting.note(f"\n{sitting.machine}, commit {sitting.commit}")
    for name, seconds, result in lines:
        sitting.note(f"{name:<12}{seconds:>7.1f} s  {result}")
    sitting.note(
        f"{time.monotonic() - sitting.started:.0f} s in all; log and rows: "
        f"{os.path.relpath(sitting.out, tree.ROOT)}"
    )
    ran = [result for _, _, result in lines if not result.startswith(NOT_IN_BUILD)]
    return 0 if ran and all(result == "ok" for result in ran) else 1
