# SPDX-License-Identifier: Apache-2.0
"""Writes and reads safetensors files.

A file has eight bytes with the header's length, a JSON header, and the bytes of the tensors in order. The
header is padded so that the data begins at a multiple of 64 bytes.
"""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path

import torch
from torch import Tensor

_NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.uint8: "U8",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}
_ALIGNMENT = 64


def write(path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Writes the tensors in their order. The file appears only when it is complete."""
    header: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    for name, tensor in tensors.items():
        length = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + length],
        }
        offset += length
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    beside = Path(f"{path}.partial")
    with beside.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            tensor = tensor.detach().cpu().contiguous()
            file.write(ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()))
    os.replace(beside, path)


def read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns the tensors of a file, and its metadata.

    errors   ValueError (the file is not a safetensors file)
    """
    raw = bytearray(Path(path).read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or start > len(raw):
        raise ValueError(
            f"{path} is not a safetensors file: its header would end at byte {start}, the file has {len(raw)}"
        )
    header = json.loads(raw[8:start])
    metadata = header.pop("__metadata__", {})
    everything = torch.frombuffer(raw, dtype=torch.uint8)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        flat = everything[start + begin : start + end].clone()
        tensors[name] = flat.view(_TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors, metadata
