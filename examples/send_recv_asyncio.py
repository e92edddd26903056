#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank serves squares to two others, with asyncio: sends and receives are awaited.

python examples/send_recv_asyncio.py
"""

import asyncio
import multiprocessing
import tempfile
from array import array

import headrace

SERVER, SIZE, QUESTIONS = 0, 3, 4
QUESTION, ANSWER = 1, 2  # tags


async def serve(comm):
    for _ in range(QUESTIONS * (SIZE - 1)):
        number = array("q", [0])
        question = comm.recv(number, headrace.any_source, async_op=True, tag=QUESTION)
        await question
        await comm.send(array("q", [number[0] ** 2]), question.source(), async_op=True, tag=ANSWER)


async def ask(comm):
    squares = [array("q", [0]) for _ in range(QUESTIONS)]
    answers = [comm.recv(square, SERVER, async_op=True, tag=ANSWER) for square in squares]
    for number in range(QUESTIONS):
        await comm.send(array("q", [10 * comm.get_rank() + number]), SERVER, async_op=True, tag=QUESTION)
    await asyncio.gather(*answers)
    print(f"rank {comm.get_rank()}: {[square[0] for square in squares]}", flush=True)


def run_rank(rank, folder):
    with headrace.new_comm(rank=rank, size=SIZE, meeting=f"file://{folder}", timeout=60) as comm:
        asyncio.run(serve(comm) if rank == SERVER else ask(comm))
        comm.barrier()  # nobody leaves while another one waits for an answer


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=run_rank, args=(rank, folder)) for rank in range(SIZE)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    raise SystemExit(max(rank.exitcode for rank in ranks))
