# SPDX-License-Identifier: Apache-2.0
"""deep_ep.Config, and how bytes of a buffer and tokens of a dispatch go together."""

from __future__ import annotations

from dataclasses import dataclass

import headrace

HINT_TOKENS = 4096  # of a dispatch, for which the hints of a Config have room
MOST_TOKENS = 65536
MOST_RANKS_OF_A_TOKEN = 32
_PAYLOAD_BYTES = 1024  # of scales, experts and weights beside a row


@dataclass
class Config:
    """What DeepEP tunes its kernels by. A MoE uses none of it."""

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes for dispatches of up to 4096 tokens of a rank."""
        return _window_bytes(hidden_bytes, num_ranks, HINT_TOKENS)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """0: all ranks are on this host."""
        return 0


def _window_bytes(hidden_bytes: int, ranks: int, tokens: int) -> int:
    return rank_config(hidden_bytes, ranks, tokens).window_bytes


def rank_config(hidden_bytes: int, ranks: int, tokens: int) -> headrace.MoEConfig:
    """Of rows that go to ranks, with room for what travels beside them."""
    return headrace.MoEConfig(
        rank=0,
        ranks=ranks,
        experts=ranks,
        top_k=min(ranks, MOST_RANKS_OF_A_TOKEN),
        hidden=max(16, -(-hidden_bytes // 16) * 16),
        dtype="uint8",
        combine_dtype="bfloat16",
        max_tokens=tokens,
        scale_bytes=_PAYLOAD_BYTES,
        layout="by_rank",
    )


def tokens_that_fit(buffer_bytes: int, hidden_bytes: int, ranks: int) -> int:
    """The most tokens of a dispatch for which a buffer has room.

    Errors: InvalidArgument (for none: the bytes that one needs).
    """
    least, most = 0, MOST_TOKENS
    while least < most:
        middle = (least + most + 1) // 2
        fits = _window_bytes(hidden_bytes, ranks, middle) <= buffer_bytes
        least, most = (middle, most) if fits else (least, middle - 1)
    if least == 0:
        raise headrace.InvalidArgument(
            f"the buffer has {buffer_bytes} bytes, and one token of {hidden_bytes} bytes needs "
            f"{_window_bytes(hidden_bytes, ranks, 1)}: give num_nvl_bytes of "
            f"Config.get_nvl_buffer_size_hint({hidden_bytes}, {ranks}), "
            f"{_window_bytes(hidden_bytes, ranks, HINT_TOKENS)}"
        )
    return least
