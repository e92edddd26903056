# SPDX-License-Identifier: Apache-2.0
"""Puts this package into sys.modules under pplx-garden's name."""

from __future__ import annotations

import importlib.util
import sys

from .. import _names

NAME = "pplx_garden"
PACKAGE = "headrace.compat.pplx"
MODULES = ("fabric_lib", "native", "native.cumem", "utils", "utils.logging_utils", "utils.math")
OF_TORCH = (
    "distributed",
    "distributed.distributed_ops",
    "distributed.nccl_all_reduce",
    "distributed.parallel_group",
    "distributed.process_group",
    "distributed.torch_group",
    "kernels",
    "kernels.all_to_all",
    "kernels.p2p_all_to_all",
    "native.p2p_all_to_all",
    "utils.torch",
)


def provide() -> None:
    """Makes `import pplx_garden` give this package, and `import pplx_garden.m` its modules. Without torch the
    modules that need it are left out."""
    of_torch = OF_TORCH if importlib.util.find_spec("torch") else ()
    _names.provide(NAME, PACKAGE, (*MODULES, *of_torch))


def is_provided() -> bool:
    return getattr(sys.modules.get(NAME), "__name__", None) == PACKAGE
