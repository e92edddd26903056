# SPDX-License-Identifier: Apache-2.0
"""The shapes that the demo's model comes in. Imports no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Sizes:
    """What shapes follow from. The defaults are the model of the demo, 4.3 million parameters."""

    width: int = 256
    layers: int = 6
    heads: int = 8
    kv_heads: int = 2
    head_width: int = 32
    hidden: int = 704
    vocabulary: int = 256
    context: int = 2048

    @property
    def query_width(self) -> int:
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_width

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """The weights of one layer, in the order in which `Layer.forward` takes them. Matrices are [out,
        in]."""
        return {
            "attention_norm": (self.width,),
            "qkv": (self.query_width + 2 * self.kv_width, self.width),
            "attention_out": (self.width, self.query_width),
            "mlp_norm": (self.width,),
            "gate_up": (2 * self.hidden, self.width),
            "down": (self.width, self.hidden),
        }


@dataclass(frozen=True)
class Shape:
    """Sizes, the type of weights and cache, and where the weights come from."""

    sizes: Sizes
    dtype: str
    random: bool  # made by every process for itself, by packages of their own; else read from a file

    @property
    def pieces(self) -> tuple[str, ...]:
        """The packages that it is compiled into."""
        return ("embed", "layer", "head", "store", *(("random_layer", "random_ends") if self.random else ()))

    def description(self) -> dict[str, int | str]:
        """What the command has to know of a model without a weights file."""
        return {**asdict(self.sizes), "dtype": self.dtype}


SHAPES = {
    "book": Shape(Sizes(), "float32", random=False),
    # As 8b in all but size, for a processor.
    "small": Shape(
        Sizes(width=128, layers=4, heads=4, kv_heads=2, head_width=32, hidden=352, vocabulary=512),
        "bfloat16",
        random=True,
    ),
    # What models of eight billion parameters look like.
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
