# SPDX-License-Identifier: Apache-2.0
"""Ranks of a MoE as processes, which find one another in a folder: run_rank, for multiprocessing."""

import os
import signal
from contextlib import contextmanager

import numpy as np

import headrace
from rank_process import RankProcess

HIDDEN, EXPERTS, TOKENS = 32, 6, 20


def config_of(rank, ranks, **changes):
    options = {
        "rank": rank, "ranks": ranks, "experts": EXPERTS, "top_k": 2, "hidden": HIDDEN, "max_tokens": TOKENS,
        "dtype": "float32", "combine_dtype": "float32", "wait_limit": 60,
    }  # fmt: skip
    return headrace.MoEConfig(**{**options, **changes})


def tokens_of(rank):
    """Rows, experts and weights of a rank: small numbers, so that every order of a sum is exact."""
    random = np.random.default_rng(rank)
    rows = random.integers(-8, 8, (TOKENS, HIDDEN)).astype(np.float32)
    experts = np.argsort(random.random((TOKENS, EXPERTS)))[:, :2].copy()
    return rows, experts, random.integers(1, 4, (TOKENS, 2)).astype(np.float32)


def expert_factor(expert):
    return expert + 1


def run_experts(config, got):
    """What the experts of a rank make of its rows: each multiplies them by a number of its own."""
    first = np.asarray(got.first_rows)
    results = np.zeros_like(np.asarray(got.rows))
    for local in range(config.local_experts):
        rows = slice(first[local], first[local + 1])
        results[rows] = np.asarray(got.rows)[rows] * expert_factor(config.first_expert(config.rank) + local)
    return results


def expected_sums(rank, lost_experts=()):
    rows, experts, weights = tokens_of(rank)
    there = ~np.isin(experts, lost_experts)
    factors = (expert_factor(experts) * weights * there).sum(axis=1)
    return rows * factors[:, None].astype(np.float32)


def step(moe, routing, got):
    """A dispatch and a combine of this rank's tokens. Returns the sums, and what the two raised."""
    config, raised = moe.config, []
    rows, experts, weights = tokens_of(config.rank)
    sums = np.zeros((TOKENS, HIDDEN), np.float32)
    for call in (
        lambda: moe.dispatch(rows, experts, weights, routing=routing, out=got),
        lambda: moe.combine(run_experts(config, got), routing=routing, out=sums),
    ):
        try:
            call()
        except headrace.Error as error:
            raised.append(error)
    return sums, raised


def run_rank(rank, ranks, folder, fate, parent, **changes):
    """Steps until a rank ends. Rank 1 ends by its fate after 3 steps: a signal to itself, or 0."""
    names = [f"moe{number}" for number in range(ranks)]
    limit = 3 if fate == signal.SIGSTOP else 60
    with (
        headrace.Agent(names[rank], backends=["shm"], store=f"file://{folder}") as agent,
        headrace.MoE(agent, config_of(rank, ranks, wait_limit=limit, **changes)) as moe,
    ):
        agent.publish()
        moe.join(names, timeout=60)
        routing, got = moe.new_routing(), moe.new_rows()
        told = []
        for number in range(5):
            if number == 3 and rank == 1 and fate:
                parent.send("ends")
                os.kill(os.getpid(), fate)
            sums, raised = step(moe, routing, got)
            told.append(
                (bool((sums == expected_sums(rank)).all()), [f"{type(e).__name__}: {e}" for e in raised])
            )
        parent.send((told, moe.active))


@contextmanager
def stopped_rank(rank, ranks, folder, **changes):
    """A process whose MoE the others can find, and which stands still before it joins."""
    stopped = RankProcess(_open_and_stop, rank, ranks, folder, **changes)
    try:
        assert stopped.hear() == "stops"
        os.waitid(os.P_PID, stopped.process.pid, os.WSTOPPED)
        yield
    finally:
        stopped.kill()


def _open_and_stop(rank, ranks, folder, parent, **changes):
    with (
        headrace.Agent(f"moe{rank}", backends=["shm"], store=f"file://{folder}") as agent,
        headrace.MoE(agent, config_of(rank, ranks, **changes)),
    ):
        agent.publish()
        parent.send("stops")
        os.kill(os.getpid(), signal.SIGSTOP)
