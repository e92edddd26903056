# SPDX-License-Identifier: Apache-2.0
"""A rank that is a process: RankProcess."""

import multiprocessing
from typing import ClassVar

SAYS_WITHIN = 100  # seconds: before the time limit of a test, which says less


class RankProcess:
    """Runs a function in a new process and gives it an end of a pipe as its last argument. Each has a pipe of
    its own: a lock that ranks share stays locked when its holder is killed."""

    context = multiprocessing.get_context("spawn")
    not_ended: ClassVar[set["RankProcess"]] = set()

    def __init__(self, run, *arguments, **more):
        self.pipe, theirs = self.context.Pipe()
        self.process = self.context.Process(target=run, args=(*arguments, theirs), kwargs=more)
        self.process.start()
        self.not_ended.add(self)
        theirs.close()  # so that what it says ends with it

    def hear(self):
        """Returns the next thing that it says. One that ends without it raises EOFError."""
        assert self.pipe.poll(SAYS_WITHIN), "the rank says nothing"
        return self.pipe.recv()

    def kill(self):
        self.process.kill()
        return self.end()

    def end(self):
        """Waits for the end of the process. Returns its exit code."""
        self.process.join(SAYS_WITHIN)
        self.pipe.close()
        self.not_ended.discard(self)
        return self.process.exitcode

    @classmethod
    def kill_all(cls):
        """Those that a test which failed has left. Python's exit would wait for them, also for one that is
        stopped."""
        for rank in list(cls.not_ended):
            rank.kill()
