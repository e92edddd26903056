# SPDX-License-Identifier: Apache-2.0
"""Ranks with the weights of their experts: two experts on each, and two free places."""

import os
import signal

import numpy as np

import headrace

HIDDEN, TOKENS, OWN, PLACES = 32, 40, 2, 4


def config_of(rank, ranks):
    return headrace.MoEConfig(
        rank=rank, ranks=ranks, experts=ranks * PLACES, top_k=2, hidden=HIDDEN, max_tokens=TOKENS,
        dtype="float32", combine_dtype="float32", wait_limit=60,
    )  # fmt: skip


def kept_experts(ranks):
    """The experts that places keep."""
    return [rank * OWN + place if place < OWN else -1 for rank in range(ranks) for place in range(PLACES)]


def weights_of(expert):
    return np.random.default_rng(1000 + expert).random(HIDDEN, np.float32)


def fill_places(rank, weights):
    for place in range(OWN):
        weights[place] = weights_of(rank * OWN + place)


def tokens_of(rank, hot, experts):
    """Rows, and for each token the hot expert and another one."""
    rows = np.random.default_rng(rank).random((TOKENS, HIDDEN), np.float32)
    others = [(hot + 1 + token % (experts - 1)) % experts for token in range(TOKENS)]
    return rows, np.array([[hot, other] for other in others])


def expected_sums(rows, named, lost=()):
    """Two products and a sum of float32 each: the same bits on whichever ranks the experts run."""
    parts = [
        rows * np.stack([weights_of(expert) * (expert not in lost) for expert in named[:, k]])
        for k in range(2)
    ]
    return parts[0] + parts[1]


def step(moe, replicas, weights, rows, named):
    """A dispatch, the experts of this rank's places, and a combine. Returns the sums, and how many entries
    came."""
    routing, got = moe.new_routing(), moe.new_rows()
    moe.dispatch(rows, named, routing=routing, out=got, replicas=replicas)
    came, first = np.asarray(got.rows), np.asarray(got.first_rows)
    for place in range(PLACES):
        came[first[place] : first[place + 1]] *= weights[place]
    sums = np.empty_like(rows)
    moe.combine(came, routing=routing, out=sums)
    return sums, int(np.asarray(got.counts).sum())


def run_rank(rank, ranks, folder, parent):
    """Three steps in which expert 2, which rank 1 keeps, is hot. Then rank 1 is killed; the others go on."""
    names = [f"weights{number}" for number in range(ranks)]
    with headrace.Agent(names[rank], backends=["shm"], store=f"file://{folder}") as agent:
        weights = np.zeros((PLACES, HIDDEN), np.float32)
        fill_places(rank, weights)
        agent.register(weights)
        with headrace.MoE(agent, config_of(rank, ranks)) as moe:
            agent.publish()
            moe.join(names, timeout=60)
            with headrace.MoEWeights(moe, kept_experts(ranks), [weights], timeout=60) as balancer:
                parent.send(run_steps(rank, ranks, moe, balancer, weights, parent))


def run_steps(rank, ranks, moe, balancer, weights, parent):
    rows, named = tokens_of(rank, 2, ranks * OWN)
    counts = np.bincount(named.ravel(), minlength=ranks * OWN)
    told = []
    for number in range(6):
        if number == 3 and rank == 1:
            parent.send("ends")
            os.kill(os.getpid(), signal.SIGKILL)
        raised = ""
        try:
            balancer.balance(counts, timeout=60)
        except headrace.PeerLost as error:
            raised = str(error)
        lost = () if number < 3 else (2, 3) if raised else (3,)
        try:
            sums, _ = step(moe, balancer.replicas, weights, rows, named)
        except headrace.PeerLost:  # the dispatch leaves the rank out; this step is made again
            sums, _ = step(moe, balancer.replicas, weights, rows, named)
        told.append((raised, bool((sums == expected_sums(rows, named, lost)).all())))
    return told, moe.active
