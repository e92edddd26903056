# SPDX-License-Identifier: Apache-2.0
"""A rank that is a process: RankProcess."""

import multiprocessing

SAYS_WITHIN = 100  # seconds: before the time limit of a test, which says less


class RankProcess:
    """Runs a function in a new process and gives it an end of a pipe as its last argument. Each has a pipe of
    its own: a lock that ranks share stays locked when its holder is killed."""

    def __init__(self, run, *arguments, **more):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=run, args=(*arguments, theirs), kwargs=more)
        self.process.start()
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
        return self.process.exitcode
