# SPDX-License-Identifier: Apache-2.0
"""Expert parallelism of vLLM on headrace.MoE, as a plugin: docs/compat-vllm.md.

register() is the plugin. Nothing of vLLM is imported before it is called.
"""

from __future__ import annotations


def register() -> None:
    """Gives vLLM's backends `deepep_high_throughput` and `deepep_low_latency` to Headrace, in this process. A
    second call does nothing."""
    from ._plugin import take_the_place

    take_the_place()
