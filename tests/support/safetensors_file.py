# SPDX-License-Identifier: Apache-2.0
"""Writes a safetensors file of torch tensors, for tests that compare with what torch computes."""

import json
import pathlib
import struct

NAMES = {
    "float32": "F32",
    "float64": "F64",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
}


def write_safetensors(path: pathlib.Path, tensors: dict) -> None:
    header, blobs, offset = {}, [], 0
    for name, tensor in tensors.items():
        blob = bytes(tensor.detach().contiguous().flatten().view(dtype=__import__("torch").uint8).numpy())
        dtype = NAMES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {
            "dtype": dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
