# SPDX-License-Identifier: Apache-2.0
"""The other process of test_compat_torchcomms_transport.py: does with its tensor what the test asks for."""

import torch

from headrace.compat.torchcomms._transport import RdmaMemory, RdmaTransport

BYTES = 1 << 16


def pattern(seed):
    return torch.randint(0, 256, (BYTES,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def answers(pipe, transport, tensor):
    """Sends its remote buffer. Each later request is answered by its result."""
    memory = RdmaMemory(tensor)
    yield memory.to_remote_buffer()
    while (asked := pipe.recv()) is not None:
        match asked:
            case "write", remote, notify:
                answer = transport.write(memory.to_view(), remote, notify)
            case "wait", timeout:
                answer = transport.wait_for_write(timeout)
            case "bytes":
                answer = bytes(tensor.numpy())
            case "drop":
                memory = None
                answer = 0
        yield answer


def serve(pipe, seed):
    transport, tensor = RdmaTransport(torch.device("cpu")), pattern(seed)
    pipe.send(transport.bind())
    transport.connect(pipe.recv())
    for answer in answers(pipe, transport, tensor):
        pipe.send(answer)
