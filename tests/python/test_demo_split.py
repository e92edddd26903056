# SPDX-License-Identifier: Apache-2.0
# backends: none
"""The demo's model in parts: ranks that share the heads and the feed-forward width of each layer."""

import functools
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from headrace.demo_model import export, generate, pieces, split
from headrace.demo_model.generate import Cache, Pieces, Sampling, Weights, choose, pages_for, run_chunk
from headrace.demo_model.model import Store
from headrace.demo_model.shapes import SHAPES, Sizes
from headrace.errors import InvalidArgument

torch.set_num_threads(1)  # as the workers: other numbers add in another order

BUILD = Path(__file__).resolve().parents[2] / "build" / "demo_model"
WEIGHTS = Path(generate.__file__).parent / "weights.safetensors"
PROMPT = b"And it came to pass in those days, "


@pytest.fixture(scope="module")
def model():
    return Weights.load(WEIGHTS)


@pytest.fixture(scope="module")
def packages():
    """The exported packages, kept in the build folder from run to run."""
    export.export_pieces(BUILD, cache=BUILD / "cache", target=export.Target(ranks=2))
    return BUILD


class Ranks:
    """All ranks in one process, one after the other, each with its weights and its pages."""

    def __init__(self, model, ranks, attention, feed_forward, page=16, tokens=128):
        self.model, self.attention, self.feed_forward = model, attention, feed_forward
        self.sizes = model.sizes.split(ranks)
        self.caches = [Cache(self.sizes, page, pages_for(tokens, page)) for _ in range(ranks)]
        self.layers = [
            [split.layer_part(model.sizes, layer, rank, ranks) for layer in model.layers]
            for rank in range(ranks)
        ]

    def take_prompt(self, cache):
        """Takes its heads of the whole model's keys and values."""
        heads = self.sizes.kv_heads
        for rank, own in enumerate(self.caches):
            own.make_room(cache.length)
            own.length = cache.length
            slots, theirs = own.slots(0, own.length), cache.slots(0, cache.length)
            for i, pool in enumerate(cache.pools):
                mine = slice(rank * heads, (rank + 1) * heads)
                key, value = (
                    pool[theirs // cache.page, side, theirs % cache.page, mine] for side in range(2)
                )
                own.store(i, slots, key, value)

    @torch.no_grad()
    def run(self, token):
        """Runs a token. Returns x [1, D] after the last layer."""
        x = self.model.embedding[token][None]
        for cache in self.caches:
            cache.make_room(1)
        for i in range(len(self.model.layers)):
            x = add_in_order(self.attend(x, i))
            x = add_in_order(
                self.feed_forward(x, self.residual(x, rank), *layers[i][3:])
                for rank, layers in enumerate(self.layers)
            )
        for cache in self.caches:
            cache.length += 1
        return x

    def attend(self, x, layer):
        for rank, (cache, layers) in enumerate(zip(self.caches, self.layers)):
            before, here = cache.slots(0, cache.length), cache.slots(cache.length, cache.length + 1)
            part, key, value = self.attention(
                x, self.residual(x, rank), cache.pools[layer], before, *layers[layer][:3]
            )
            cache.store(layer, here, key, value)
            yield part

    @staticmethod
    def residual(x, rank):
        return x if rank == 0 else torch.zeros_like(x)


def add_in_order(parts):
    return functools.reduce(torch.add, parts)


def write_with(parts, model, ranks, count):
    """The tokens that the whole model and the ranks write after the prompt, and both's logits."""
    cache = Cache(model.sizes, 16, pages_for(len(PROMPT) + count, 16))
    x = run_chunk(parts, model, cache, list(PROMPT))
    ranks.take_prompt(cache)
    split_x, tokens, differences = x, ([], []), []
    for n in range(count):
        logits = [parts.head(each[-1:], model.norm, model.embedding)[0] for each in (x, split_x)]
        differences.append((logits[0] - logits[1]).abs().max().item())
        for own, each in zip(tokens, logits):
            own.append(choose(each.tolist(), Sampling(0), len(PROMPT) + n))
        x, split_x = run_chunk(parts, model, cache, [tokens[0][-1]]), ranks.run(tokens[1][-1])
    return tokens, max(differences)


# The parts of a layer


def test_the_parts_of_a_layer_add_up_to_the_layer(model):
    ranks = Ranks(model, 2, split.AttentionPart(model.sizes.split(2)), split.FeedForwardPart())
    (whole, parts), difference = write_with(Pieces.eager(), model, ranks, 20)
    assert parts == whole and 0 < difference < 1e-3  # equal but for the rounding


def test_each_rank_has_its_share_of_every_matrix(model):
    sizes, layer = model.sizes, model.layers[0]
    parts = [split.layer_part(sizes, layer, rank, 2) for rank in range(2)]
    shapes = list(sizes.split(2).layer_shapes().values())
    assert all([tuple(weight.shape) for weight in part] == shapes for part in parts)
    assert all(weight.is_contiguous() for part in parts for weight in part)
    assert torch.equal(torch.cat([part[2] for part in parts], dim=1), layer[2])
    assert torch.equal(torch.cat([part[5] for part in parts], dim=1), layer[5])
    keys = slice(sizes.query_width, sizes.query_width + sizes.head_width)
    assert torch.equal(parts[0][1][sizes.query_width // 2 :][: sizes.head_width], layer[1][keys])


def test_numbers_of_ranks_that_cannot_share_the_heads_are_refused(tmp_path):
    assert Sizes().splits() == [1, 2] and SHAPES["8b"].sizes.splits() == [1, 2, 4, 8]
    assert replace(Sizes(), hidden=703).splits() == [1]
    with pytest.raises(InvalidArgument, match="--tensor-parallel 3: 3 ranks cannot share .* choose 1 or 2"):
        export.export_pieces(tmp_path, target=export.Target(ranks=3))
    assert not list(tmp_path.iterdir())


def test_packages_of_ranks_are_made_only_where_asked_for():
    assert export.Target().pieces == ("embed", "layer", "head", "store")
    assert export.Target(ranks=2).pieces[4:] == ("attention_of_2", "feed_forward_of_2", "store_of_2")
    assert export.default_folder(export.Target(ranks=2)) == export.default_folder()


def test_a_rank_stores_its_heads():
    request = pieces.request("store_of_2")
    kv, slots, key, value = request.args
    assert kv.shape[3] == Sizes().kv_heads // 2
    Store()(kv, slots, key, value)
    assert torch.equal(kv[slots // kv.shape[2], 1, slots % kv.shape[2]], value)


@pytest.mark.slow
def test_packages_of_ranks_give_the_bits_of_any_process_that_adds_in_their_order(packages, model):
    def load(name):
        return torch._inductor.aoti_load_package(str(packages / f"{name}.pt2"))

    runs = [
        write_with(
            Pieces.packages(packages),
            model,
            Ranks(model, 2, load("attention_of_2"), load("feed_forward_of_2"), page),
            20,
        )
        for page in (16, 1)
    ]
    (whole, parts), difference = runs[0]
    assert parts == whole and difference < 1e-3
    assert runs[1] == runs[0]  # other pages, the same bits
