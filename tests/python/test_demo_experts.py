# SPDX-License-Identifier: Apache-2.0
# backends: none
"""The demo's language model with experts: weights and card, routing, the parts of a layer, packages."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from headrace.demo_model import experts, export, generate, model, pieces, split, train, weights
from headrace.demo_model.generate import Cache, Pieces, Weights, pages_for, run_chunk
from headrace.demo_model.shapes import SHAPES, Sizes
from headrace.errors import InvalidArgument

torch.set_num_threads(1)  # as the workers: other numbers add in another order

BUILD = Path(__file__).resolve().parents[2] / "build" / "demo_model"
FOLDER = Path(generate.__file__).parent
WEIGHTS = FOLDER / "experts.safetensors"
SIZES = SHAPES["experts"].sizes
DENSE_BITS = 1.2042  # of the held-out text, by the card of the model without experts
PROMPT = b"And it came to pass in those days, "


@pytest.fixture(scope="module")
def trained():
    return Weights.load(WEIGHTS)


# The file and its card


def test_the_file_is_small_and_the_card_tells_of_it():
    tensors, metadata = weights.read(WEIGHTS)
    assert WEIGHTS.stat().st_size < 16_000_000
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert Sizes(**json.loads(metadata["sizes"])) == SIZES
    card = (FOLDER / "experts_card.md").read_text()
    assert f"{sum(tensor.numel() for tensor in tensors.values()):,} parameters" in card
    assert f"{WEIGHTS.stat().st_size:,} bytes" in card
    assert metadata["corpus_sha256"] in card


def test_the_card_says_what_was_asked_of_the_training():
    rows = [line.split("|") for line in (FOLDER / "experts_card.md").read_text().splitlines()]
    cells = {row[1].strip(): row[2].strip() for row in rows if len(row) > 3}
    assert (
        float(cells["bits a byte of the held-out text, with the weights of the file, in f32"])
        <= 1.02 * DENSE_BITS
    )
    assert float(cells["smallest share of the choices that an expert of a layer has"].rstrip(" %")) >= 5.0


def test_tokens_of_a_text_use_every_expert(trained):
    whole = train.load(WEIGHTS, "cpu")
    tokens = train.to_tokens((PROMPT * 8).decode(), "cpu")
    shares = torch.tensor(train.expert_shares(whole, tokens, 256, 1))
    assert shares.shape == (SIZES.layers, SIZES.experts)
    assert torch.allclose(shares.sum(1), torch.ones(SIZES.layers), atol=1e-3)
    assert (shares.sum(0) > 0).all()


# Routing


def test_a_token_goes_to_its_likeliest_experts_with_weights_whose_sum_is_one():
    x, router = torch.randn(50, 16), torch.randn(8, 16)
    chosen, shares, logits = model.route(x, router, 2)
    assert torch.equal(logits, x @ router.T)
    assert torch.equal(chosen[:, 0], logits.argmax(1))
    assert (chosen[:, 0] != chosen[:, 1]).all()
    rest = logits.scatter(1, chosen, -torch.inf).amax(1)
    assert (logits.gather(1, chosen) >= rest[:, None]).all()
    assert torch.allclose(shares.sum(1), torch.ones(50))
    assert torch.allclose(
        (shares[:, 0] / shares[:, 1]).log(), logits.gather(1, chosen).diff(dim=1)[:, 0].neg(), atol=1e-4
    )


def test_all_experts_with_weight_zero_for_most_are_the_chosen_ones_alone():
    sizes = replace(SIZES, width=24, hidden=10)
    gate_up, down = (torch.randn(8, *shape) for shape in sizes.expert_shapes().values())
    x = torch.randn(20, 24)
    chosen, shares, _ = model.route(x, torch.randn(8, 24), 2)
    found = model.mixed_feed_forward(x, chosen, shares, gate_up, down)
    for row, token in zip(found, range(20)):
        one_by_one = [
            shares[token, k] * model.feed_forward(x[token], gate_up[expert], down[expert])
            for k, expert in enumerate(chosen[token].tolist())
        ]
        assert torch.allclose(row, sum(one_by_one), rtol=1e-4, atol=1e-4)


def test_the_loss_of_balance_is_zero_for_equal_use_and_grows_with_the_largest_share():
    even = torch.full((6, 2, 8), 1 / 8)
    assert train.imbalance(even).item() == pytest.approx(0, abs=1e-6)
    losses = []
    for share in (0.3, 0.5, 0.9):
        one = torch.full((8,), (1 - share) / 7)
        one[3] = share
        losses.append(train.imbalance(torch.stack((one, one)).expand(6, 2, 8)).item())
    assert 0 < losses[0] < losses[1] < losses[2]
    assert train.imbalance(torch.zeros(0)).item() == 0  # a model without experts


def test_uses_are_those_of_the_tokens_and_the_balance_has_a_gradient():
    small = model.LanguageModel(
        replace(SIZES, layers=2, width=32, heads=2, kv_heads=1, head_width=16, hidden=8)
    )
    small.initialize(1)
    logits, uses = small.run(torch.randint(256, (2, 30)))
    assert logits.shape == (2, 30, 256) and uses.shape == (2, 2, 8)
    assert torch.allclose(uses.sum(-1), torch.ones(2, 2))
    train.imbalance(uses).backward()
    assert all(layer.router.grad.abs().sum() > 0 for layer in small.layers)


# A layer cut at its experts


class Ranks:
    """Runs tokens of one text by the parts of each layer, and adds the results of the experts as ranks do."""

    def __init__(self, whole, ranks, parts):
        self.model, self.ranks, self.parts = whole, ranks, parts

    @torch.no_grad()
    def run(self, token, cache):
        cache.make_room(1)
        before, here = cache.slots(0, cache.length), cache.slots(cache.length, cache.length + 1)
        x = self.model.embedding[token][None]
        for i, layer in enumerate(self.model.layers):
            x, key, value = self.parts["attention"](x, x, cache.pools[i], before, *layer[:3])
            cache.store(i, here, key, value)
            x = self.add(x, *self.parts["route"](x, layer[3], layer[4]), *layer[5:])
        cache.length += 1
        return x

    def add(self, x, row, chosen, shares, gate_up, down):
        """The next x."""
        sums = {}
        for expert, share in zip(chosen[0].tolist(), shares[0]):
            result = share * self.parts["expert"](row, gate_up[expert].clone(), down[expert].clone())
            rank = expert * self.ranks // len(gate_up)
            sums[rank] = sums[rank] + result if rank in sums else result
        of_ranks = [sums[rank] for rank in sorted(sums)]
        return sum(of_ranks[1:], of_ranks[0]) + x


def eager():
    return {
        "attention": split.AttentionPart(SIZES),
        "route": experts.Route(SIZES),
        "expert": experts.Expert(),
    }


def both(whole, parts, ranks, count=12, page=16):
    """x after the last layer of the tokens of a text, by the whole layers and by their parts."""
    caches = [Cache(whole.sizes, page, pages_for(64, page)) for _ in range(2)]
    run = Ranks(whole, ranks, parts).run
    tokens = list(PROMPT[:count])
    return (
        torch.cat([run_chunk(Pieces.eager(whole.sizes), whole, caches[0], [token]) for token in tokens]),
        torch.cat([run(token, caches[1]) for token in tokens]),
    )


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_the_parts_of_a_layer_add_up_to_the_layer(trained, ranks):
    whole, parts = both(trained, eager(), ranks)
    assert (whole - parts).abs().max() < 1e-3 * whole.abs().max()


def test_a_shape_with_experts_has_the_packages_of_its_parts_and_no_heads_to_share():
    assert export.Target("experts").pieces == (
        "embed",
        "layer",
        "head",
        "store",
        "attention",
        "route",
        "expert",
    )
    assert list(SIZES.layer_shapes())[3:] == ["mlp_norm", "router", "gate_up", "down"]
    assert SIZES.layer_shapes()["gate_up"] == (8, 2 * SIZES.hidden, 256)
    assert SIZES.splits() == [1]
    with pytest.raises(InvalidArgument, match="--tensor-parallel 2: ranks share the experts of this model"):
        export.export_pieces(Path("nowhere"), target=export.Target("experts", ranks=2))


def test_each_part_can_be_exported_for_any_number_of_tokens():
    for piece, outputs in (("route", ["row", "experts", "weights"]), ("expert", ["result"])):
        request = pieces.request(piece, SHAPES["experts"])
        assert request.output_names == outputs
        made = request.module(*(each[:1] if i == 0 else each for i, each in enumerate(request.args)))
        for whole, one in zip(_as_list(request.module(*request.args)), _as_list(made), strict=True):
            assert torch.allclose(whole[:1].float(), one.float(), atol=1e-5)


def _as_list(outputs):
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


@pytest.mark.slow
def test_training_with_experts_learns_and_reports_their_shares(tmp_path):
    chapters = ["In the beginning was the word, and the word was good.\n" * 8] * 40
    (tmp_path / "corpus.txt").write_text("\n\n".join(chapters))
    words = (
        "--corpus corpus.txt --output out --device cpu --moe --steps 12 --batch 2 --length 64 --look-every 6"
    )
    command = [sys.executable, str(FOLDER / "train.py"), *words.split(), "--held-out-bytes", "400"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=100)
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    assert report["held_out_bits_per_byte"] < 7.0
    assert [round(sum(layer), 2) for layer in report["expert_shares"]] == [1.0] * SIZES.layers
    written = Weights.load(tmp_path / "out" / "weights.safetensors")
    assert written.sizes == SIZES


# The packages


@pytest.fixture(scope="module")
def packages():
    """The exported packages, kept in the build folder from run to run."""
    folder = BUILD / "experts"
    export.export_pieces(folder, cache=BUILD / "cache", target=export.Target("experts"))
    return folder


@pytest.mark.slow
def test_packages_give_what_pytorch_gives_for_every_page_size(packages, trained):
    parts = {
        name: torch._inductor.aoti_load_package(str(packages / f"{name}.pt2"))
        for name in ("attention", "route", "expert")
    }
    whole, first = both(trained, parts, 2)
    assert (whole - first).abs().max() < 1e-3 * whole.abs().max()
    assert torch.equal(both(trained, parts, 2, page=1)[1], first)
