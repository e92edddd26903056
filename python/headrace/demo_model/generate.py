# SPDX-License-Identifier: Apache-2.0
"""Generates text. This is the reference: the C++ workers give the same tokens.

    python -m headrace.demo_model.generate --packages DIR --prompt "In the beginning"

**Tokens** are the bytes of the prompt and of the text, 0 to 255.

**Cache.** Each layer has a pool of pages, float32 [P, 2, page, kv_heads, head_width]: keys, then values. A
sequence has one list of pages for all layers. Token i is in page pages[i // page] at place i % page; its slot
is pages[i // page] * page + i % page.

**Prefill** runs the prompt in chunks of `chunk` tokens; the last chunk may be shorter. Each chunk runs
embed(tokens), then each layer with the slots of all tokens before the chunk. The keys and values that a layer
returns are stored before the next chunk. After the last chunk, head runs on the last row of x alone.
**Decode** does the same with a chunk of one token, the last chosen one. Another chunk size adds in another
order and may give other tokens; the page size and the order of pages have no effect.

**Choosing a token** from float32 logits l[0..255], with temperature t, top_p p, seed s and the position n of
the token to choose (the number of tokens before it: the first token after a prompt of n bytes has position
n):

1. t == 0: take the token of the largest logit; of equal ones the lowest token. Otherwise do the next steps in
   float64, without fused operations:
2. weight[i] = exp((l[i] - max l) / t), with the C library's exp.
3. p < 1: sort the tokens by falling weight, equal weights by rising token. Keep the shortest prefix whose
   weights, added in that order, reach p * total, where total is the sum over all tokens in rising order. Set
   the other weights to 0.
4. total = the sum of the weights in rising order of tokens.
5. u = (mix(s, n) >> 11) * 2**-53, where mix is splitmix64's output function of s + (n + 1) *
   0x9E3779B97F4A7C15, modulo 2**64.
6. Take the first token, in rising order, at which the running sum of weights exceeds u * total; if rounding
   leaves none, take the last token whose weight is not 0.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING or __package__:
    from . import weights
    from .model import Embed, Head, Layer, LayerOfExperts
    from .shapes import Sizes
else:
    import weights
    from model import Embed, Head, Layer, LayerOfExperts
    from shapes import Sizes

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def mix(seed: int, position: int) -> int:
    """Returns 64 random bits that depend on seed and position alone: splitmix64's output function."""
    z = (seed + (position + 1) * GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@dataclass(frozen=True)
class Sampling:
    """The parameters of choosing a token; temperature 0 takes the most likely token."""

    temperature: float = 0.8
    top_p: float = 1.0
    seed: int = 0


def choose(logits: list[float], sampling: Sampling, position: int) -> int:
    """Returns the next token, by the steps in the module's docstring."""
    largest = max(logits)
    if sampling.temperature == 0:
        return logits.index(largest)
    weight = [math.exp((logit - largest) / sampling.temperature) for logit in logits]
    if sampling.top_p < 1:
        weight = keep_likeliest(weight, sampling.top_p)
    threshold = (mix(sampling.seed, position) >> 11) * 2.0**-53 * add_up(weight)
    running = 0.0
    for token, share in enumerate(weight):
        running += share
        if running > threshold:
            return token
    return max(token for token, share in enumerate(weight) if share > 0)


def keep_likeliest(weight: list[float], top_p: float) -> list[float]:
    """Keeps the most likely tokens that together have top_p of the total weight, and sets the other weights
    to 0."""
    enough = top_p * add_up(weight)
    kept = [0.0] * len(weight)
    running = 0.0
    for token in sorted(range(len(weight)), key=lambda token: (-weight[token], token)):
        kept[token] = weight[token]
        running += weight[token]
        if running >= enough:
            break
    return kept


def add_up(values: list[float]) -> float:
    """Adds one value after another. `sum` of newer Pythons compensates the rounding errors; C++ does not."""
    total = 0.0
    for value in values:
        total += value
    return total


@dataclass(frozen=True)
class Pieces:
    """The three parts of the model as callables: packages, or the PyTorch modules."""

    embed: Callable[..., Tensor]
    layer: Callable[..., tuple[Tensor, Tensor, Tensor]]
    head: Callable[..., Tensor]

    @staticmethod
    def eager(sizes: Sizes | None = None) -> Pieces:
        sizes = sizes or Sizes()
        return Pieces(Embed(), LayerOfExperts(sizes) if sizes.experts else Layer(sizes), Head())

    @staticmethod
    def packages(folder: Path) -> Pieces:
        """Loads the packages that headrace.demo_model.export wrote into the folder."""
        loaded = (
            torch._inductor.aoti_load_package(str(folder / f"{name}.pt2"))
            for name in ("embed", "layer", "head")
        )
        return Pieces(*loaded)


class Weights:
    """The weights in f32, in the order in which the pieces take them."""

    def __init__(self, tensors: dict[str, Tensor], sizes: Sizes, device: str = "cpu") -> None:
        self.sizes = sizes
        wide = {name: tensor.to(device, torch.float32) for name, tensor in tensors.items()}
        self.embedding, self.norm = wide["embedding"], wide["norm"]
        names = self.sizes.layer_shapes()
        self.layers = [[wide[f"layers.{i}.{name}"] for name in names] for i in range(self.sizes.layers)]

    @staticmethod
    def load(path: Path, device: str = "cpu") -> Weights:
        tensors, metadata = weights.read(path)
        return Weights(tensors, Sizes(**json.loads(metadata["sizes"])), device)


class Cache:
    """Pools of pages, one per layer, and the pages of one sequence, taken in the order of `free`."""

    def __init__(self, sizes: Sizes, page: int, free: list[int], device: str = "cpu") -> None:
        self.page, self.free, self.pages, self.length = page, list(free), list[int](), 0
        shape = (max(free) + 1, 2, page, sizes.kv_heads, sizes.head_width)
        self.pools = [torch.full(shape, math.nan, device=device) for _ in range(sizes.layers)]

    def slots(self, begin: int, end: int) -> Tensor:
        """Returns the slots of the tokens from `begin` up to, not including, `end`."""
        numbers = [self.pages[i // self.page] * self.page + i % self.page for i in range(begin, end)]
        return torch.tensor(numbers, dtype=torch.int64, device=self.pools[0].device)

    def make_room(self, tokens: int) -> None:
        """Takes pages until `tokens` more tokens have a slot."""
        while len(self.pages) * self.page < self.length + tokens:
            self.pages.append(self.free.pop(0))

    def store(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        pages, places = slots // self.page, slots % self.page
        self.pools[layer][pages, 0, places] = key
        self.pools[layer][pages, 1, places] = value


@torch.no_grad()
def run_chunk(pieces: Pieces, model: Weights, cache: Cache, tokens: list[int]) -> Tensor:
    """Runs a chunk of tokens and stores their keys and values in the cache. Returns x [T, D] after the last
    layer."""
    device = model.embedding.device
    cache.make_room(len(tokens))
    before, here = cache.slots(0, cache.length), cache.slots(cache.length, cache.length + len(tokens))
    x = pieces.embed(torch.tensor(tokens, dtype=torch.int64, device=device), model.embedding)
    for i, layer in enumerate(model.layers):
        x, key, value = pieces.layer(x, cache.pools[i], before, *layer)
        cache.store(i, here, key, value)
    cache.length += len(tokens)
    return x


@torch.no_grad()
def generate(
    pieces: Pieces,
    model: Weights,
    cache: Cache,
    prompt: bytes,
    count: int,
    sampling: Sampling,
    chunk: int = 256,
) -> Iterator[int]:
    """Yields `count` tokens that follow the prompt. The prompt has at least one byte."""
    tokens = list(prompt)
    for begin in range(0, len(tokens), chunk):
        x = run_chunk(pieces, model, cache, tokens[begin : begin + chunk])
    for _ in range(count):
        logits = pieces.head(x[-1:], model.norm, model.embedding)
        token = choose(logits[0].tolist(), sampling, cache.length)
        yield token
        x = run_chunk(pieces, model, cache, [token])


def pages_for(tokens: int, page: int) -> list[int]:
    return list(range(-(-tokens // page)))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.demo_model.generate", description="Continues a text."
    )
    parser.add_argument("--weights", type=Path, default=Path(__file__).parent / "weights.safetensors")
    parser.add_argument(
        "--packages",
        type=Path,
        help="folder of the exported packages; without it the model runs in PyTorch",
    )
    parser.add_argument("--prompt", default="In the beginning", help="text to continue")
    parser.add_argument("--tokens", type=int, default=400, help="bytes to generate")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=int, default=16, help="tokens per page")
    parser.add_argument("--chunk", type=int, default=256, help="tokens of the prompt per chunk")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    prompt = options.prompt.encode()
    model = Weights.load(options.weights)
    pieces = Pieces.packages(options.packages) if options.packages else Pieces.eager(model.sizes)
    cache = Cache(model.sizes, options.page, pages_for(len(prompt) + options.tokens, options.page))
    sampling = Sampling(options.temperature, options.top_p, options.seed)
    out = sys.stdout.buffer
    out.write(prompt)
    for token in generate(pieces, model, cache, prompt, options.tokens, sampling, options.chunk):
        out.write(bytes([token]))
        out.flush()
    out.write(b"\n")


if __name__ == "__main__":
    main()
