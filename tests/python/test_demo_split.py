# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""`headrace demo --tensor-parallel 2`: a decode worker of two ranks that share the heads and the feed-forward
width."""

import functools
import json
import os
import signal
import subprocess
import sys
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
COMMAND = Path(sys.executable).parent / "headrace"
PATIENCE = 600  # seconds: of slow tests, as the command has its own limits
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


# The command


@pytest.fixture
def demo(packages, tmp_path):
    """Starts the command; what is left of it at the test's end is killed."""
    started = []

    def start(*arguments, ranks=2):
        words = ["--packages", packages, "--python", sys.executable, "--backend", "shm"]
        process = subprocess.Popen(
            [COMMAND, "demo", "--tensor-parallel", str(ranks), *words, *map(str, arguments)],
            bufsize=0,
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def finished(process):
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err.decode()
    return out, err.decode()


@pytest.mark.slow
@pytest.mark.parametrize("page", [1, 16, 64])
def test_logits_are_those_of_one_process_and_the_text_is_the_whole_models(demo, page):
    out, _ = finished(demo("--json", "--check", "--tokens", 60, "--temperature", 0, "--page", page))
    said = json.loads(out)
    assert (said["tensor_parallel"], said["decode_workers"], said["worker"]) == (2, 2, "decode-0")
    assert said["checked"] is True and said["tokens"] == 60
    layers, token_bytes = 6, 2 * 2 * 32 * 4
    pages = layers * -(-said["prompt_tokens"] // page)
    assert said["bytes"] == pages * page * token_bytes, "each rank gets its heads, all ranks get all heads"
    assert said["pages"] == 2 * pages


@pytest.mark.slow
def test_the_demos_own_text_is_the_whole_models(demo):
    _, err = finished(demo("--check"))
    assert "checked: a single process generates the same 400 tokens, and the same bits of logits" in err


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_is_named(demo, rank):
    process = demo("--tokens", 1700)
    assert process.stdout.read(300)  # it writes
    os.kill(worker(process, f"decode-{rank}"), signal.SIGKILL)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert f"worker decode-{rank} (rank {rank} of 2) ended by signal 9" in err.decode()


@pytest.mark.slow
def test_a_rank_that_says_nothing_is_named(demo):
    process = demo("--tokens", 1700, "--patience", 4)  # less than the link to a stopped process waits
    assert process.stdout.read(300)
    os.kill(worker(process, "decode-1"), signal.SIGSTOP)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "worker decode-1 (rank 1 of 2) has sent nothing for 4 s" in err.decode()
    assert "it is stopped by signal 19" in err.decode()


def worker(process, name):
    """The pid of the demo's worker of that name."""
    for children in Path(f"/proc/{process.pid}/task").glob("*/children"):
        for pid in children.read_text().split():
            if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return int(pid)
    raise AssertionError(f"{name} is not among the demo's processes")


@pytest.mark.slow
@pytest.mark.parametrize(
    "ranks, arguments, expected",
    [
        (2, ["--shape", "small"], "only the model of shape book is split"),
        (2, ["--workers", "2"], "leave --workers out"),
        (2, ["--retry"], "leave --retry out"),
        (
            3,
            [],
            "the model has 2 heads of keys and values, and each rank takes as many",
        ),
    ],
)
def test_what_ranks_cannot_do_is_said(demo, ranks, arguments, expected):
    process = demo(*arguments, ranks=ranks)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert expected in " ".join(err.decode().split())
