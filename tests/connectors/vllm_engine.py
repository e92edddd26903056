# SPDX-License-Identifier: Apache-2.0
"""An engine of vLLM without its model: the scheduler's and the worker's NixlConnector over a KV cache in host
memory. engines.py starts it as a process.

Usage: vllm_engine.py ENGINE_ID SEED FOLDER    FOLDER: of all engines, for the configuration of a small model

What is vLLM's: the connector classes, their configuration, requests, block lists, the process groups. What is
ours: this loop, which calls the connectors in the order of vLLM's engine core and model runner.
"""

import base64
import json
import os
import sys
from pathlib import Path

os.environ["VLLM_TARGET_DEVICE"] = "cpu"  # the wheel from the index is built for CUDA, and finds no GPU

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnector
from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

import engines

LAYERS = [f"model.layers.{number}.self_attn.attn" for number in range(3)]
BLOCKS, BLOCK_TOKENS, HEADS, HEAD_SIZE = 64, 32, 4, 16
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HEADS * HEAD_SIZE,
    "intermediate_size": 128,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "num_hidden_layers": len(LAYERS),
    "vocab_size": 128,
    "max_position_embeddings": BLOCKS * BLOCK_TOKENS,
    "torch_dtype": "float32",
}


def configuration(engine_id, folder):
    (Path(folder) / "config.json").write_text(json.dumps(MODEL))
    config = VllmConfig(
        model_config=ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", seed=0),
        cache_config=CacheConfig(block_size=BLOCK_TOKENS),
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=KVTransferConfig(
            kv_connector="NixlConnector", kv_role="kv_both", engine_id=engine_id, kv_buffer_device="cpu"
        ),
    )
    config.cache_config.kv_cache_layout = "LBHNC"  # NixlConnector.get_required_kvcache_layout
    return config


def start_process_groups(folder):
    init_distributed_environment(1, 0, f"file://{folder}/rendezvous-{os.getpid()}", 0, "gloo")
    initialize_model_parallel()


class Engine:
    def __init__(self, engine_id, seed, folder):
        config = configuration(engine_id, folder)
        with set_current_vllm_config(config):
            start_process_groups(folder)
            spec = FullAttentionSpec(
                block_size=BLOCK_TOKENS, num_kv_heads=HEADS, head_size=HEAD_SIZE, dtype=torch.float32
            )
            groups = [KVCacheGroupSpec(LAYERS, spec)]
            caches = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups)
            self.scheduler = NixlConnector(config, KVConnectorRole.SCHEDULER, caches)
            self.worker = NixlConnector(config, KVConnectorRole.WORKER, caches)
            shape = (BLOCKS, HEADS, BLOCK_TOKENS, 2 * HEAD_SIZE)
            torch.manual_seed(seed)
            self.caches = {layer: torch.randn(shape) for layer in LAYERS}
            self.worker.register_kv_caches(self.caches)
        self.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): self.worker.get_handshake_metadata()})

    def request(self, name, blocks, parameters):
        sampling = SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": parameters})
        tokens = list(range(len(blocks) * BLOCK_TOKENS))
        request = Request(name, tokens, sampling, None)
        self.scheduler.on_new_request(request)
        matched, _ = self.scheduler.get_num_new_matched_tokens(request, 0)
        allocated = KVCacheBlocks(([KVCacheBlock(number) for number in blocks],))
        self.scheduler.update_state_after_alloc(request, allocated, matched or 0)
        return request

    def step(self):
        """One step of the engine core. Returns the results of the worker's transfers."""
        metadata = self.scheduler.build_connector_meta(SchedulerOutput.make_empty())
        self.worker.bind_connector_metadata(metadata)
        self.worker.start_load_kv(None)
        results = self.worker.get_transfer_results(set())
        self.worker.clear_connector_metadata()
        self.scheduler.update_connector_output(KVConnectorOutput(finished_recving=results.finished_recving))
        return results

    def prefill(self, name, blocks):
        """Returns the parameters by which another engine reads these blocks."""
        request = self.request(name, blocks, {"do_remote_decode": True, "do_remote_prefill": False})
        self.step()
        request.num_computed_tokens = len(blocks) * BLOCK_TOKENS
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        sends, parameters = self.scheduler.request_finished(request, blocks)
        assert sends, "vLLM did not offer the blocks"
        self.step()
        return parameters

    def decode(self, name, blocks, parameters):
        """Reads the blocks that the parameters name. Returns whether they have arrived."""
        self.request(name, blocks, parameters)
        done = engines.until(lambda: (results := self.step()).finished_recving and results)
        assert done.finished_recving == {name}, done
        return not done.failed_recving

    def sent(self, name):
        """Returns when the reader's notification about the request has arrived."""
        return sorted(engines.until(lambda: self.step().finished_sending)) == [name]

    def pages(self, blocks):
        return [
            base64.b64encode(self.caches[layer][block].numpy().tobytes()).decode()
            for layer in LAYERS
            for block in blocks
        ]

    def known(self):
        """Returns the names of the agents that each engine is known by."""
        agents = self.worker.connector_worker._remote_agents
        return {engine: sorted(map(str, names.values())) for engine, names in agents.items()}


if __name__ == "__main__":
    engine_id, seed, folder = sys.argv[1:]
    engines.serve(Engine(engine_id, int(seed), folder))
