#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How torch's memory can be shared: what the driver says of a tensor's allocation, with and without
expandable segments.

Usage: torch_segments.py   one JSON line a case
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

ATTRIBUTES = {
    "buffer_id": (7, ctypes.c_ulonglong),
    "legacy_ipc": (10, ctypes.c_uint),
    "range_start": (11, ctypes.c_uint64),
    "range_bytes": (12, ctypes.c_size_t),
    "handle_types": (14, ctypes.c_uint64),
}


def describe(case: str) -> None:
    """Prints the driver's facts about a few tensors."""
    import torch

    driver = ctypes.CDLL("libcuda.so.1")
    kept = []
    for mib in (1, 30, 300):
        tensor = torch.empty(mib << 20, dtype=torch.uint8, device="cuda:0")
        kept.append(tensor)
        line: dict[str, object] = {
            "what": "torch_segment",
            "case": case,
            "mib": mib,
            "torch": torch.__version__,
        }
        for name, (number, kind) in ATTRIBUTES.items():
            value = kind()
            code = driver.cuPointerGetAttribute(
                ctypes.byref(value), number, ctypes.c_uint64(tensor.data_ptr())
            )
            line[name] = value.value if code == 0 else f"error {code}"
        base, length = ctypes.c_uint64(), ctypes.c_size_t()
        code = driver.cuMemGetAddressRange_v2(
            ctypes.byref(base), ctypes.byref(length), ctypes.c_uint64(tensor.data_ptr())
        )
        line["address_range"] = (
            [tensor.data_ptr() - base.value, length.value] if code == 0 else f"error {code}"
        )
        handle = ctypes.c_uint64()
        code = driver.cuMemRetainAllocationHandle(ctypes.byref(handle), ctypes.c_void_p(tensor.data_ptr()))
        line["retain"] = code
        if code == 0:
            descriptor = ctypes.c_int(-1)
            line["export"] = driver.cuMemExportToShareableHandle(
                ctypes.byref(descriptor), handle, 1, ctypes.c_ulonglong(0)
            )
            driver.cuMemRelease(handle)
        ipc = (ctypes.c_char * 64)()
        line["ipc_handle"] = driver.cuIpcGetMemHandle(ctypes.byref(ipc), ctypes.c_uint64(tensor.data_ptr()))
        print(json.dumps(line), flush=True)


def main() -> int:
    if len(sys.argv) > 1:
        describe(sys.argv[1])
        return 0
    for setting in ("", "expandable_segments:True"):
        environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting}
        subprocess.run(
            [sys.executable, __file__, setting or "default"], env=environment, check=False, timeout=90
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
