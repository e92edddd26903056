# SPDX-License-Identifier: Apache-2.0
"""What dispatch and combine of experts give, by plain loops over all tokens of all ranks in one process, with
torch on the CPU. Every product and every sum of a combine is rounded, in the order of docs/moe.md."""

from dataclasses import dataclass

import torch

import headrace

UNTOUCHED = 0x5A  # bytes of rows that nothing came for


@dataclass
class Tokens:
    """Of one rank: rows and scales as bytes, experts and weights [tokens, top_k]."""

    rows: torch.Tensor
    scales: torch.Tensor
    experts: torch.Tensor
    weights: torch.Tensor


class Shape:
    """A configuration without its rank, as arguments of headrace.MoEConfig."""

    def __init__(self, ranks, **fields):
        self.ranks = ranks
        usual = {
            "experts": 2 * ranks + 1,
            "top_k": 2,
            "hidden": 64,
            "max_tokens": 33,
            "dtype": "bfloat16",
            "combine_dtype": "bfloat16",
        }
        self.fields = {**usual, **fields}

    def __getattr__(self, name):
        return self.fields[name]

    def config(self, rank, **more):
        return headrace.MoEConfig(rank=rank, ranks=self.ranks, **self.fields, **more)

    @property
    def dtypes(self):
        return getattr(torch, self.dtype), getattr(torch, self.combine_dtype)

    @property
    def row_bytes(self):
        return self.hidden * self.dtypes[0].itemsize

    @property
    def scale_bytes(self):
        return self.fields.get("scale_bytes", 0)

    @property
    def layout(self):
        return self.fields.get("layout", "by_expert")

    def tokens(self, rank, seed):
        """Random ones. Some experts are -1; now and then there are few tokens, or none."""
        random = torch.Generator().manual_seed(1000 * seed + rank)
        count = int(torch.randint(0, self.max_tokens + 1, (1,), generator=random))
        order = torch.rand(count, self.experts, generator=random).argsort(1)[:, : self.top_k]
        none = torch.rand(count, self.top_k, generator=random) < 0.1
        return Tokens(
            torch.randint(0, 256, (count, self.row_bytes), generator=random).to(torch.uint8),
            torch.randint(0, 256, (count, self.scale_bytes), generator=random).to(torch.uint8),
            torch.where(none, -1, order),
            torch.rand(count, self.top_k, generator=random),
        )

    def results(self, rank, seed):
        """What the experts of a rank make of its rows."""
        random = torch.Generator().manual_seed(1000 * seed + 500 + rank)
        rows = self.config(rank).output_rows
        return torch.randn(rows, self.hidden, generator=random).to(self.dtypes[1])


@dataclass
class Expected:
    """Of one rank. rows: bytes; those of `used` alone are written."""

    rows: torch.Tensor
    scales: torch.Tensor
    used: torch.Tensor
    counts: list
    first_rows: list
    experts: torch.Tensor  # by_rank
    weights: torch.Tensor
    sums: torch.Tensor


def step(shape, seed, active=None, cached=None):
    """What every rank gets of a dispatch and a combine; None: of a rank that takes no part.

    active: the ranks that take part; None: all.
    cached: the seed of the dispatch whose experts and weights the tokens have; None: their own.
    """
    active = set(range(shape.ranks)) if active is None else active
    configs = [shape.config(rank) for rank in range(shape.ranks)]
    tokens = [shape.tokens(rank, seed) for rank in range(shape.ranks)]
    if cached is not None:
        tokens = [again(shape, tokens[rank], rank, seed, cached) for rank in range(shape.ranks)]
    first = [configs[0].first_expert(rank) for rank in range(shape.ranks + 1)]
    # Of each rank: (source, token, entries (k, expert there, weight)).
    records = {rank: [] for rank in active}
    for source in sorted(active):
        for token, experts in enumerate(tokens[source].experts.tolist()):
            weights = tokens[source].weights[token].tolist()
            for rank in sorted(active):
                its = [
                    (k, expert - first[rank], weights[k])
                    for k, expert in enumerate(experts)
                    if first[rank] <= expert < first[rank + 1]
                ]
                if its:
                    records[rank].append((source, token, its))
    dispatched = {rank: _place(shape, configs[rank], tokens, records[rank]) for rank in active}
    results = {rank: shape.results(rank, seed) for rank in active}
    for source in active:
        dispatched[source][0].sums = _sums(shape, tokens[source], source, records, dispatched, results)
    return [dispatched[rank][0] if rank in active else None for rank in range(shape.ranks)]


def again(shape, tokens, rank, seed, cached):
    """Tokens that go where those of another seed went: as many, with rows of their own."""
    like = shape.tokens(rank, cached)
    random = torch.Generator().manual_seed(1000 * seed + 700 + rank)
    rows = torch.randint(0, 256, like.rows.shape, generator=random).to(torch.uint8)
    scales = torch.randint(0, 256, like.scales.shape, generator=random).to(torch.uint8)
    return Tokens(rows, scales, like.experts, like.weights)


def _place(shape, config, tokens, records):
    """The output of a rank, and the rows of each entry of its records."""
    rows, alignment = config.output_rows, shape.fields.get("row_alignment", 1)
    out = Expected(
        torch.full((rows, shape.row_bytes), UNTOUCHED, dtype=torch.uint8),
        torch.full((rows, shape.scale_bytes), UNTOUCHED, dtype=torch.uint8),
        torch.zeros(rows, dtype=torch.bool),
        [0] * config.local_experts,
        [0],
        torch.full((rows, shape.top_k), -1, dtype=torch.int32),
        torch.zeros(rows, shape.top_k),
        torch.empty(0),
    )
    for _, _, entries in records:
        for _, expert, _ in entries:
            out.counts[expert] += 1
    if shape.layout == "by_rank":
        for source in range(shape.ranks):
            out.first_rows.append(out.first_rows[-1] + sum(one[0] == source for one in records))
    elif shape.layout == "batched":
        out.first_rows = [expert * config.rows_of_expert for expert in range(config.local_experts + 1)]
    else:
        for count in out.counts:
            out.first_rows.append(out.first_rows[-1] + -(-count // alignment) * alignment)
    placed, taken = [], [0] * config.local_experts
    for number, (source, token, entries) in enumerate(records):
        at = []
        for number_of_entry, (_, expert, weight) in enumerate(entries):
            if shape.layout == "by_rank":
                row = number
                out.experts[row, number_of_entry], out.weights[row, number_of_entry] = expert, weight
            else:
                row = out.first_rows[expert] + taken[expert]
                taken[expert] += 1
            out.rows[row], out.scales[row] = tokens[source].rows[token], tokens[source].scales[token]
            out.used[row] = True
            at.append((row, weight))
        placed.append(at)
    if shape.fields.get("zero_padding"):
        padded = torch.arange(rows) < out.first_rows[-1]
        out.rows[padded & ~out.used] = 0
        out.scales[padded & ~out.used] = 0
    return out, placed


def _sums(shape, tokens, source, records, dispatched, results):
    """The sums of a rank's tokens."""
    dtype = shape.dtypes[1]
    sums = torch.zeros(tokens.experts.shape[0], shape.hidden)
    begun = [False] * tokens.experts.shape[0]
    for rank in sorted(records):
        for (its_source, token, _), placed in zip(records[rank], dispatched[rank][1]):
            if its_source != source:
                continue
            if shape.layout == "by_rank":
                partial = results[rank][placed[0][0]].float()
            else:
                partial = None
                for row, weight in placed:
                    term = results[rank][row].float() * torch.tensor(weight)
                    partial = term if partial is None else partial + term
            partial = partial.to(dtype).float()
            sums[token] = sums[token] + partial if begun[token] else partial
            begun[token] = True
    return sums.to(dtype)
