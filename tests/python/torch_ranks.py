# SPDX-License-Identifier: Apache-2.0
"""Ranks of a torch.distributed group as processes that stay, and run one case after the other."""

import faulthandler
import importlib
import multiprocessing
import os
import traceback
from datetime import timedelta

SECONDS = 90
START, START_SECONDS = (
    "start",
    600,
)  # a busy machine imports torch in minutes, and one rank long before another


class Ended(int):
    """The exit code of a rank whose process has ended in a case."""


def serve(rank, size, binding, folder, cases, pipe):
    """Runs functions of the module `cases` by name until the pipe ends. Each answer is (name, True, value) or
    (name, False, text of the error)."""
    faulthandler.enable()
    os.environ["HEADRACE_RUNTIME_DIR"] = str(folder)
    import torch
    import torch.distributed as dist

    import headrace.distributed

    functions = importlib.import_module(cases)
    torch.set_num_threads(1)
    headrace.distributed.register(binding)
    started = dist.FileStore(f"{folder}/started", size)
    started.set(str(rank), "")
    started.wait([str(other) for other in range(size)], timedelta(seconds=START_SECONDS))
    dist.init_process_group(
        "headrace",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=20),
    )
    pipe.send((START, True, None))
    while (name := pipe.recv()) is not None:
        try:
            pipe.send((name, True, getattr(functions, name)(rank, size)))
        except BaseException:
            pipe.send((name, False, f"rank {rank} of {size}: {traceback.format_exc()}"))
    dist.destroy_process_group()


class Ranks:
    def __init__(self, size, binding, folder, cases="torch_cases"):
        # A server that has imported torch forks them: each import would take seconds. It has imported nothing
        # of Headrace, whose random numbers would be the same in all ranks.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed"])
        pairs = [context.Pipe() for _ in range(size)]
        self.pipes = [ours for ours, _ in pairs]
        self.processes = [
            context.Process(target=serve, args=(rank, size, binding, folder, cases, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pairs)
        ]
        for process in self.processes:
            process.start()
        for _, theirs in pairs:
            theirs.close()
        # No time limit of a test runs yet where a fixture of a module makes them.
        started = [self._answer(rank, START, START_SECONDS) for rank in range(size)]
        assert started == [(True, None)] * size, started

    def run(self, name):
        """Runs a case on all ranks. Returns what each returned, or the exit code of its process."""
        for pipe in self.pipes:
            pipe.send(name)
        answers = [self._answer(rank, name) for rank in range(len(self.pipes))]
        failed = [value for passed, value in answers if not passed]
        assert not failed, "\n".join(failed)
        return [value for _, value in answers]

    def _answer(self, rank, name, seconds=SECONDS):
        answered = None
        while answered != name:  # an answer that was too late for its case may come first
            assert self.pipes[rank].poll(seconds), f"no answer of rank {rank} within {seconds} s"
            try:
                answered, passed, value = self.pipes[rank].recv()
            except EOFError:
                self.processes[rank].join(SECONDS)
                return True, Ended(self.processes[rank].exitcode)
        return passed, value

    def end(self):
        for pipe in self.pipes:
            try:
                pipe.send(None)
            except OSError:
                pass  # its process has ended
        for process in self.processes:
            process.join(20)
            process.kill()
