# SPDX-License-Identifier: Apache-2.0
"""An engine of SGLang without its model: NIXL's key-value manager over a KV cache in host memory, with its
senders, receivers and bootstrap server. engines.py starts it as a process.

Usage: sglang_engine.py prefill|decode SEED BOOTSTRAP_PORT

What is SGLang's: these classes and its process-wide configuration. What is ours: this loop, which calls them
in the order of SGLang's scheduler. The top level of SGLang imports packages that the classes do not call.
Stand-ins take their places: Triton and torchvision, which are built for CUDA's torch, and IPython.
"""

import base64
import sys

import numpy as np

# These ask for Triton or torchvision, and are to find neither.
import torch._inductor.compile_fx  # noqa: F401
import transformers.image_utils  # noqa: F401

import engines
import stand_ins

stand_ins.use("triton", "torchvision", "IPython")

from sglang.srt.disaggregation.base.conn import KVArgs, KVPoll  # noqa: E402
from sglang.srt.disaggregation.nixl.conn import (  # noqa: E402
    NixlKVBootstrapServer,
    NixlKVManager,
    NixlKVReceiver,
    NixlKVSender,
)
from sglang.srt.disaggregation.utils import DisaggregationMode  # noqa: E402
from sglang.srt.runtime_context import get_context  # noqa: E402

BUFFERS, SLOTS, SLOT_BYTES = 4, 64, 8192  # keys and values of two layers
AUX_SLOTS, AUX_BYTES = 8, 256


def configured(mode, port):
    """Publishes SGLang's configuration of a process with one rank and no GPU."""
    arguments = get_context().override_server_args(
        device="cpu", host="127.0.0.1", disaggregation_mode=mode, disaggregation_bootstrap_port=port
    )
    published = arguments.install()
    get_context().parallel.override_permanently(
        attn_tp_rank=0, attn_cp_rank=0, attn_dcp_rank=0, attn_dp_rank=0, pp_group=None
    )
    return published


def kv_args(caches, aux):
    args = KVArgs()
    args.engine_rank = args.gpu_id = args.pp_rank = args.system_dp_rank = args.prefill_start_layer = 0
    args.kv_data_ptrs = [cache.ctypes.data for cache in caches]
    args.kv_data_lens = [cache.nbytes for cache in caches]
    args.kv_item_lens = [SLOT_BYTES] * len(caches)
    args.kv_data_mem_kinds = ["DRAM"] * len(caches)
    args.kv_layer_ids = []
    args.kv_cache_dtype_str = "bfloat16"
    args.aux_data_ptrs, args.aux_data_lens = [aux.ctypes.data], [aux.nbytes]
    args.aux_item_lens = [AUX_BYTES]
    args.state_types, args.state_data_ptrs, args.state_data_lens = [], [], []
    args.state_item_lens, args.state_layer_ids, args.state_dim_per_tensor = [], [], []
    args.ib_device, args.rust_http_port = None, None
    args.page_size = args.kv_head_num = args.total_kv_head_num = 1
    return args


class Engine:
    def __init__(self, mode, seed, port):
        server_args = configured(mode, port)
        self.address = f"127.0.0.1:{port}"
        random = np.random.default_rng(seed)
        self.caches = [random.integers(0, 256, (SLOTS, SLOT_BYTES), np.uint8) for _ in range(BUFFERS)]
        self.aux = random.integers(0, 256, (AUX_SLOTS, AUX_BYTES), np.uint8)
        if mode == "prefill":
            self.bootstrap = NixlKVBootstrapServer("127.0.0.1", port)
        self.manager = NixlKVManager(kv_args(self.caches, self.aux), DisaggregationMode(mode), server_args)
        self.rooms = {}

    def receive(self, room, slots, aux):
        """As decode: tells the prefill engine where the pages of a request are to go."""
        engines.until(lambda: self.manager.try_ensure_parallel_info(self.address))
        receiver = self.rooms[room] = NixlKVReceiver(self.manager, self.address, room)
        receiver.init(0)
        receiver.send_metadata(np.array(slots, np.int32), aux)

    def expect(self, room, pages, aux):
        """As prefill: waits until the decode engine has told where the pages go."""
        sender = self.rooms[room] = NixlKVSender(self.manager, self.address, room)
        sender.init(pages, aux)
        engines.until(lambda: sender.poll() == KVPoll.WaitingForInput)

    def send(self, room, slots):
        self.rooms[room].send(np.array(slots, np.int32))

    def ended(self, room):
        """Returns whether the request has succeeded; else the reason."""
        request = self.rooms[room]
        state = engines.until(
            lambda: (state := request.poll()) in (KVPoll.Success, KVPoll.Failed) and [state]
        )
        if state == [KVPoll.Success]:
            request.clear()
            return True
        try:
            request.failure_exception()
        except Exception as error:
            return str(error)

    def pages(self, slots, aux):
        parts = [cache[slot] for cache in self.caches for slot in slots]
        return [base64.b64encode(part.tobytes()).decode() for part in (*parts, self.aux[aux])]

    def is_known(self, agent):
        return self.manager.agent.check_remote_metadata(agent)

    def name(self):
        return self.manager.agent.name


if __name__ == "__main__":
    mode, seed, port = sys.argv[1:]
    engines.serve(Engine(mode, int(seed), int(port)))
