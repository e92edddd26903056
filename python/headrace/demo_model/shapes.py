# SPDX-License-Identifier: Apache-2.0
"""The shapes of the demo's model. Does not import torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class Sizes:
    """The sizes from which all tensor shapes follow. The defaults are the model of the demo, 4.3 million
    parameters.

    experts, top_k   each layer has so many feed-forward parts of width `hidden`, and each token uses top_k of
                     them; 0 experts: one part, which all tokens use
    """

    width: int = 256
    layers: int = 6
    heads: int = 8
    kv_heads: int = 2
    head_width: int = 32
    hidden: int = 704
    vocabulary: int = 256
    context: int = 2048
    experts: int = 0
    top_k: int = 0

    @property
    def query_width(self) -> int:
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_width

    def split(self, ranks: int) -> Sizes:
        """Returns the sizes of one rank's part of each layer: its heads and its part of the feed-forward
        width.

        errors   ValueError (the text has the numbers of ranks that fit)
        """
        if self.experts and ranks != 1:
            raise ValueError("ranks share the experts of this model, and not its heads: choose 1")
        if ranks not in self.splits():
            numbers = " or ".join(map(str, self.splits()))
            raise ValueError(
                f"{ranks} ranks cannot share {self.kv_heads} heads of keys and values and a feed-forward "
                f"width of {self.hidden}: choose {numbers}"
            )
        return replace(
            self,
            heads=self.heads // ranks,
            kv_heads=self.kv_heads // ranks,
            hidden=self.hidden // ranks,
        )

    def splits(self) -> list[int]:
        """Returns the numbers of ranks that can share each layer evenly."""
        if self.experts:
            return [1]  # such ranks share experts, not each layer
        return [
            ranks
            for ranks in range(1, self.kv_heads + 1)
            if not any(length % ranks for length in (self.heads, self.kv_heads, self.hidden))
        ]

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of one layer's weights, in the order in which `Layer.forward` takes them.
        Matrices are [out, in]; those of experts lie one after another."""
        attention = {
            "attention_norm": (self.width,),
            "qkv": (self.query_width + 2 * self.kv_width, self.width),
            "attention_out": (self.width, self.query_width),
            "mlp_norm": (self.width,),
        }
        if not self.experts:
            return {**attention, **self.expert_shapes()}
        each = {name: (self.experts, *shape) for name, shape in self.expert_shapes().items()}
        return {**attention, "router": (self.experts, self.width), **each}

    def expert_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the weights of one feed-forward part."""
        return {"gate_up": (2 * self.hidden, self.width), "down": (self.width, self.hidden)}


# A layer cut at its experts: up to the row that they get, which ones they are, and one of them.
EXPERT_PARTS = ("attention", "route", "expert")

# A layer of one rank, cut where the sums of all ranks meet, and the store for its heads.
SPLIT_PARTS = ("attention", "feed_forward", "store")


@dataclass(frozen=True)
class Shape:
    """Sizes, the dtype of weights and cache, and the source of the weights."""

    sizes: Sizes
    dtype: str
    random: bool  # every process makes the weights itself, by two more packages; otherwise a file has them

    @property
    def pieces(self) -> tuple[str, ...]:
        """Returns the names of its packages."""
        random = ("random_layer", "random_ends") if self.random else ()
        return ("embed", "layer", "head", "store", *random, *(EXPERT_PARTS if self.sizes.experts else ()))

    def split_pieces(self, ranks: int) -> tuple[str, ...]:
        """Returns the names of the packages of one rank of several: one set serves every rank."""
        return () if ranks == 1 else tuple(f"{part}_of_{ranks}" for part in SPLIT_PARTS)

    def description(self) -> dict[str, int | str]:
        """Returns the sizes and the dtype, which the command reads for a model without a weights file."""
        return {**asdict(self.sizes), "dtype": self.dtype}


SHAPES = {
    "book": Shape(Sizes(), "float32", random=False),
    # The second trained model. Its feed-forward parts are 1.5 times as wide as that of `book`; a token uses a
    # quarter of it.
    "experts": Shape(Sizes(hidden=128, experts=8, top_k=2), "float32", random=False),
    # Like 8b but small enough for a processor.
    "small": Shape(
        Sizes(width=128, layers=4, heads=4, kv_heads=2, head_width=32, hidden=352, vocabulary=512),
        "bfloat16",
        random=True,
    ),
    # The sizes of a usual model with eight billion parameters.
    "8b": Shape(
        Sizes(
            width=4096,
            layers=32,
            heads=32,
            kv_heads=8,
            head_width=128,
            hidden=14336,
            vocabulary=128256,
            context=8192,
        ),
        "bfloat16",
        random=True,
    ),
}
