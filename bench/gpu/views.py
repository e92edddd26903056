#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast blocks of a KV cache change their layout on the way from one GPU to another, or inside one: one
row a figure.

Usage: views.py [--blocks N] [--iterations N]
Blocks at random places on both sides, heads of 128 elements of two bytes, 16 tokens a block; K and V in one
tensor. One agent moves them to itself; post to the end of wait, median. Every element of the target is
compared with what torch makes of the same blocks, whose own time, index and copy, stands beside as the peer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

import headrace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from comparison import PYTHON, Rows

HEADS, TOKENS, DIM = 8, 16, 128

# Name: how a (2, blocks, tokens, heads, dim) cache of the source and the target's are seen as (blocks, ...)
# of one shape.
LAYOUTS = {
    "nhd->nhd": (lambda t: t.transpose(0, 1), "nhd", HEADS),
    "nhd->hnd": (lambda t: t.transpose(0, 1), "hnd", HEADS),
    "tp1->tp2/nhd->hnd": (lambda t: t[:, :, :, HEADS // 2 :].transpose(0, 1), "hnd", HEADS // 2),
    "tp1->tp2/nhd->nhd": (lambda t: t[:, :, :, HEADS // 2 :].transpose(0, 1), "nhd", HEADS // 2),
}


def cache(layout: str, blocks: int, heads: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor of fresh random bits, and the same seen as (blocks, 2, tokens, heads, dim)."""
    inner = (TOKENS, heads) if layout == "nhd" else (heads, TOKENS)
    tensor = torch.randint(-(2**15), 2**15, (2, blocks, *inner, DIM), dtype=torch.int16, device=device)
    seen = tensor if layout == "nhd" else tensor.transpose(2, 3)
    return tensor, seen.transpose(0, 1)


def seconds(action, iterations: int) -> float:
    times = []
    for i in range(iterations + 3):
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(torch.cuda.device_count() - 1)
        begun = time.perf_counter()
        action()
        if i >= 3:
            times.append(time.perf_counter() - begun)
    return statistics.median(times)


def measure(rows: Rows, name: str, op: str, blocks: int, iterations: int) -> None:
    see, layout, heads = LAYOUTS[name]
    near, far = "cuda:0", f"cuda:{torch.cuda.device_count() - 1}"
    source, _ = cache("nhd", blocks, HEADS, far if op == "read" else near)
    target, seen = cache(layout, blocks, heads, near if op == "read" else far)
    wanted, at_source, at_target = see(source), torch.randperm(blocks), torch.randperm(blocks)
    with headrace.Agent("views") as agent:
        lists = {}
        for tensor, view, is_near in ((source, wanted, op == "write"), (target, seen, op == "read")):
            pages, shape = headrace.pages_of(agent.register(tensor), view)
            lists[tensor.data_ptr()] = (
                agent.prepare(pages, view=shape)
                if is_near
                else agent.prepare(pages, peer="views", view=shape)
            )
        local, remote = (
            (lists[target.data_ptr()], lists[source.data_ptr()])
            if op == "read"
            else (lists[source.data_ptr()], lists[target.data_ptr()])
        )
        here, there = (at_target, at_source) if op == "read" else (at_source, at_target)
        request = agent.make_request(
            op, local, remote, here.to(torch.int32).numpy(), there.to(torch.int32).numpy()
        )

        def move() -> None:
            request.post()
            request.wait(timeout=30)

        ours = seconds(move, iterations)
        same = bool(
            (seen[at_target.to(seen.device)] == wanted[at_source.to(wanted.device)].to(seen.device)).all()
        )
        by_source, by_target = at_source.to(wanted.device), at_target.to(seen.device)

        def by_torch() -> None:
            seen[by_target] = wanted[by_source].to(seen.device)
            torch.cuda.synchronize(seen.device)

        theirs = seconds(by_torch, iterations)
    gigabytes = wanted.numel() * 2 / 1e9
    rows.add(
        f"{PYTHON}views/{name}/{op}",
        "GB/s",
        "GB/s",
        gigabytes / ours,
        peer=f"torch {torch.__version__}",
        peer_value=gigabytes / theirs,
        checked=same,
    )
    print(json.dumps(rows.lines[-1]), flush=True)
    if not same:
        raise SystemExit(f"{name} {op}: the target differs from the source")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--blocks",
        type=int,
        default=4096,
        help="number of blocks of 64 KiB, K and V together (default: 4096, 256 MiB)",
    )
    parser.add_argument("--iterations", type=int, default=30)
    options = parser.parse_args()
    rows = Rows("pages-gpu", "gpu")
    for name in LAYOUTS:
        for op in ("read", "write"):
            measure(rows, name, op, options.blocks, options.iterations)


if __name__ == "__main__":
    main()
