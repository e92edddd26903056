# SPDX-License-Identifier: Apache-2.0
"""What of vLLM is replaced: two managers, the maker of their prepare/finalize objects, the rounding of hidden
sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import vllm.distributed.device_communicators.all2all as managers
import vllm.model_executor.layers.fused_moe.all2all_utils as utils

from .manager import HeadraceAll2AllManager, HeadraceBatchedManager, HeadraceStandardManager
from .prepare_finalize import HeadraceBatchedPrepareAndFinalize, HeadracePrepareAndFinalize

Call = Callable[..., Any]


def take_the_place() -> None:
    if managers.DeepEPHTAll2AllManager is HeadraceStandardManager:
        return
    managers.DeepEPHTAll2AllManager = HeadraceStandardManager
    managers.DeepEPLLAll2AllManager = HeadraceBatchedManager
    utils.maybe_make_prepare_finalize = _making(utils.maybe_make_prepare_finalize)
    utils.maybe_roundup_layer_hidden_size = _rounding(utils.maybe_roundup_layer_hidden_size)


def _making(of_vllm: Call) -> Call:
    def maybe_make_prepare_finalize(moe: Any, quant_config: Any, *args: Any, **named: Any) -> Any:
        manager = named.get("all2all_manager")
        if manager is None and moe.moe_parallel_config.use_all2all_kernels:
            manager = utils.get_ep_all2all_manager()
        if not isinstance(manager, HeadraceAll2AllManager):
            return of_vllm(moe, quant_config, *args, **named)
        tables = args[0] if args else named.get("routing_tables")
        return _prepare_finalize(manager, moe, quant_config, tables)

    return maybe_make_prepare_finalize


def _prepare_finalize(manager: HeadraceAll2AllManager, moe: Any, quant_config: Any, tables: Any) -> Any:
    given = {
        "handle": manager.get_handle({}),
        "max_tokens_per_rank": moe.max_num_tokens,
        "num_dispatchers": manager.world_size,
        "moe_config": moe,
        "quant_config": quant_config,
    }
    if not manager.is_batched:
        return HeadracePrepareAndFinalize(**given)
    return HeadraceBatchedPrepareAndFinalize(
        **given, global_to_physical=None if tables is None else tables[0]
    )


def _rounding(of_vllm: Call) -> Call:
    def maybe_roundup_layer_hidden_size(
        hidden_size: int, act_dtype: Any, moe_parallel_config: Any, *args: Any, **named: Any
    ) -> Any:
        """To a row of a multiple of 16 bytes."""
        if moe_parallel_config.use_deepep_ht_kernels or moe_parallel_config.use_deepep_ll_kernels:
            step = 16 // act_dtype.itemsize
            return -(-hidden_size // step) * step
        return of_vllm(hidden_size, act_dtype, moe_parallel_config, *args, **named)

    return maybe_roundup_layer_hidden_size
