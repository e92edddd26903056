# SPDX-License-Identifier: Apache-2.0
"""What headrace.compat.vllm uses of vLLM, where that is not installed: base classes with vLLM's abstract
methods, and functions that do the least."""

import importlib.util
import sys
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from types import ModuleType, SimpleNamespace

import torch

from headrace.compat.deep_ep.utils.math import per_token_cast_to_fp8

FUSED_MOE = "vllm.model_executor.layers.fused_moe"
_of_thread = threading.local()


def set_ubatch(number):
    """Which of two alternating batches this thread is at."""
    _of_thread.number = number


def dbo_current_ubatch_id():
    return getattr(_of_thread, "number", 0)


class FusedMoEActivationFormat(Enum):
    Standard = ("standard",)
    BatchedExperts = ("batched_experts",)


@dataclass
class ExpertTokensMetadata:
    expert_num_tokens: torch.Tensor | None
    expert_num_tokens_cpu: torch.Tensor | None
    psum_recv_per_rank: torch.Tensor | None = None

    @staticmethod
    def make_from_list(expert_num_tokens_list, device):
        counts = torch.tensor(expert_num_tokens_list, dtype=torch.int32)
        return ExpertTokensMetadata(counts.to(device), counts)


class FusedMoEPrepareAndFinalizeModular(ABC):
    def __init__(self, moe_config, quant_config):
        self.moe_config, self.quant_config = moe_config, quant_config

    @property
    @abstractmethod
    def activation_format(self): ...

    @abstractmethod
    def topk_indices_dtype(self): ...

    @abstractmethod
    def max_num_tokens_per_rank(self): ...

    @abstractmethod
    def num_dispatchers(self): ...

    @abstractmethod
    def output_is_reduced(self): ...

    @abstractmethod
    def prepare(self, *args, **named): ...

    @abstractmethod
    def finalize(self, *args, **named): ...


class TopKWeightAndReduceDelegate:
    pass


class TopKWeightAndReduceNoOP:
    def apply(self, output, fused_expert_output, **others):
        return fused_expert_output


def moe_kernel_quantize_input(rows, scale, quant_dtype, per_act_token_quant, block_shape):
    if block_shape is not None:
        return per_token_cast_to_fp8(rows)
    given = torch.tensor(1.0) if scale is None else scale
    return (rows.float() / given).to(quant_dtype), given.view(1, 1)


def normalize_batched_scales_shape(scales, num_experts):
    return scales.expand(num_experts, *scales.shape[-2:])


class All2AllManagerBase:
    def __init__(self, cpu_group, tcp_store_group=None):
        self.cpu_group, self.tcp_store_group = cpu_group, tcp_store_group
        self.internode = getattr(cpu_group, "internode", False)


def _maybe_make_prepare_finalize(moe, quant_config, routing_tables=None, **others):
    return "vllm's"


def _maybe_roundup_layer_hidden_size(hidden_size, act_dtype, moe_parallel_config):
    return -hidden_size


_MODULES = {
    f"{FUSED_MOE}.modular_kernel": {
        "ExpertTokensMetadata": ExpertTokensMetadata,
        "FusedMoEActivationFormat": FusedMoEActivationFormat,
        "FusedMoEPrepareAndFinalizeModular": FusedMoEPrepareAndFinalizeModular,
    },
    f"{FUSED_MOE}.topk_weight_and_reduce": {
        "TopKWeightAndReduceDelegate": TopKWeightAndReduceDelegate,
        "TopKWeightAndReduceNoOP": TopKWeightAndReduceNoOP,
    },
    f"{FUSED_MOE}.utils": {
        "moe_kernel_quantize_input": moe_kernel_quantize_input,
        "normalize_batched_scales_shape": normalize_batched_scales_shape,
    },
    f"{FUSED_MOE}.all2all_utils": {
        "get_ep_all2all_manager": lambda: None,
        "maybe_make_prepare_finalize": _maybe_make_prepare_finalize,
        "maybe_roundup_layer_hidden_size": _maybe_roundup_layer_hidden_size,
    },
    "vllm.v1.worker.ubatching": {"dbo_current_ubatch_id": dbo_current_ubatch_id},
    "vllm.distributed.device_communicators.base_device_communicator": {
        "All2AllManagerBase": All2AllManagerBase
    },
    "vllm.distributed.device_communicators.all2all": {
        "DeepEPHTAll2AllManager": object,
        "DeepEPLLAll2AllManager": object,
    },
}


def provide():
    """Puts the stand-ins into sys.modules. Returns whether they are used: vLLM itself goes first."""
    if importlib.util.find_spec("vllm") is not None:
        return False
    for name, content in _MODULES.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            module = sys.modules.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
            if end > 1:
                setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], module)
        vars(module).update(content)
    return True


def quant_config(**changes):
    """Of no quantization, unless changes say otherwise."""
    return SimpleNamespace(**{
        "is_block_quantized": False,
        "quant_dtype": None,
        "per_act_token_quant": False,
        "block_shape": None,
        "a1_scale": None,
        **changes,
    })  # fmt: skip
