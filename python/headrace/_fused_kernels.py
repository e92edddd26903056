# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""The kernel of headrace.fused, in Triton. headrace.fused.reference is what it computes."""

import triton
import triton.language as tl

import headrace.triton as windows


@triton.jit(do_not_specialize=["window", "rows"])
def reduce_rms_norm(
    window,
    input,
    residual,
    weight,
    scale,
    output,
    late,
    rows,
    epsilon,
    COLUMNS: tl.constexpr,
    RANKS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    DATA: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_SCALE: tl.constexpr,
):
    """Each program takes rows in turn. It stores a row in a slot at all ranks, meets the same program of the
    other ranks, and adds what lies in its own slots in the order of the ranks.

    Two slots take turns: a rank that has left the barrier of a turn knows that the others have read the turn
    before. A word of the barrier counts the turns, so replays of a graph go on where they were.
    """
    dtype: tl.constexpr = input.dtype.element_ty
    program = tl.program_id(0)
    rank = windows.rank(window)
    barrier = program * RANKS * 8
    turns = windows.peer_address(window, rank, tl.int64) + program * RANKS + rank
    at = tl.arange(0, BLOCK)
    here = at < COLUMNS
    for row in range(program, rows, tl.num_programs(0)):
        turn = tl.load(turns, volatile=True)
        slots = DATA + ((turn % 2) * PROGRAMS + program) * RANKS * BLOCK
        place = row.to(tl.int64) * COLUMNS + at
        mine = tl.load(input + place, mask=here)
        for peer in tl.static_range(RANKS):
            theirs = windows.peer_address(window, peer, dtype) + slots + rank * BLOCK
            tl.store(tl.multiple_of(theirs, 16) + at, mine, mask=here)
        if not windows.barrier_at(window, barrier):
            tl.store(late, 1)
        own = tl.multiple_of(windows.peer_address(window, rank, dtype) + slots, 16)
        sum = tl.zeros((BLOCK,), tl.float32)
        for peer in tl.static_range(RANKS):
            sum += tl.load(own + peer * BLOCK + at, mask=here, other=0).to(tl.float32)
        sum = sum.to(dtype).to(tl.float32)  # as all_reduce rounds it
        if HAS_RESIDUAL:
            sum += tl.load(residual + place, mask=here, other=0).to(tl.float32)
            tl.store(residual + place, sum.to(dtype), mask=here)
        variance = tl.sum(sum * sum, axis=0) / COLUMNS
        factors = tl.load(weight + at, mask=here, other=0).to(tl.float32)
        normed = sum * tl.rsqrt(variance + epsilon) * factors
        if HAS_SCALE:
            normed = tl.minimum(tl.maximum(normed / tl.load(scale), -448.0), 448.0)
        tl.store(output + place, normed.to(output.dtype.element_ty), mask=here)
