# SPDX-License-Identifier: Apache-2.0
"""The entry point of a vLLM plugin: vLLM calls register() in each of its processes."""

from headrace.compat.vllm import register

__all__ = ["register"]
