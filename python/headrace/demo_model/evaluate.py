# SPDX-License-Identifier: Apache-2.0
"""Measures the trained model: held-out bits per byte, and the share of generated words that are in its
corpus.

    python -m headrace.demo_model.evaluate --corpus corpus.txt --weights weights.safetensors --output
    evaluation.json

The text is generated as the workers do it, from prompts of the held-out text, at temperature 0.8. Like
train.py it runs as a script if only torch is installed. The exit code is 1 if fewer than 95 % of the words
are in the corpus.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING or __package__:
    from . import corpus, train
    from .generate import Cache, Pieces, Sampling, Weights, generate, pages_for
else:
    import corpus
    import train
    from generate import Cache, Pieces, Sampling, Weights, generate, pages_for

TEMPERATURE = 0.8
PROMPT_BYTES = 128
TEXT_BYTES = 1536
GOAL = 0.95


def prompts(held_out: str) -> list[bytes]:
    """Returns the first PROMPT_BYTES of each chapter that is long enough."""
    return [
        chapter[:PROMPT_BYTES].encode() for chapter in held_out.split("\n\n") if len(chapter) >= PROMPT_BYTES
    ]


def generate_words(model: Weights, held_out: str, count: int, seed: int) -> tuple[list[str], str]:
    """Returns `count` words and the text that they come from. The first and the last word of each generated
    text do not count: they may be incomplete."""
    found: list[str] = []
    texts: list[str] = []
    for i, prompt in enumerate(prompts(held_out)):
        cache = Cache(model.sizes, 64, pages_for(PROMPT_BYTES + TEXT_BYTES, 64), str(model.embedding.device))
        sampling = Sampling(TEMPERATURE, seed=seed + i)
        parts = Pieces.eager(model.sizes)
        text = bytes(generate(parts, model, cache, prompt, TEXT_BYTES, sampling)).decode("latin-1")
        texts.append(prompt.decode() + "|" + text)
        found += corpus.words(text)[1:-1]
        print(f"{min(len(found), count)} of {count} words", file=sys.stderr)
        if len(found) >= count:
            return found[:count], "\n----\n".join(texts)
    raise ValueError(f"the held-out text has prompts for only {len(found)} words: ask for fewer than {count}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.demo_model.evaluate", description="Measures the trained model."
    )
    parser.add_argument("--corpus", type=Path, required=True, help="the text that corpus.py wrote")
    parser.add_argument("--weights", type=Path, required=True, help="the file that train.py wrote")
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        help="the JSON file to write; a .txt file next to it has the text",
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--words", type=int, default=2000, help="words to generate")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    text = options.corpus.read_text(encoding="ascii")
    held_out = corpus.split(text)[1]
    bits = train.bits_per_byte(
        train.load(options.weights, options.device), train.to_tokens(held_out, options.device), 2048, 8
    )
    generated, pieces = generate_words(
        Weights.load(options.weights, options.device), held_out, options.words, options.seed
    )
    known = set(corpus.words(text))
    strange = [word for word in generated if word not in known]
    share = 1 - len(strange) / len(generated)
    report = {
        "command": corpus.command_line("evaluate"),
        "torch": torch.__version__,
        "corpus_sha256": corpus.digest(text),
        "held_out_bits_per_byte": round(bits, 4),
        "temperature": TEMPERATURE,
        "words": len(generated),
        "words_in_corpus": len(generated) - len(strange),
        "share_in_corpus": round(share, 4),
        "words_not_in_corpus": sorted(set(strange)),
    }
    options.output.write_text(json.dumps(report, indent=1) + "\n")
    options.output.with_suffix(".txt").write_text(pieces + "\n")
    print(json.dumps(report, indent=1))
    return 0 if share >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
