# SPDX-License-Identifier: Apache-2.0
"""Which backend of torch.distributed serves a device."""

from __future__ import annotations

import torch
import torch.distributed as dist

import headrace_torch

OF_HOST_MEMORY = headrace_torch.NAME
OF_GPUS = "nccl"


def backend_of(device: torch.device) -> str:
    """For tensors on this device.

    Errors: ValueError (a device for which there is none).
    """
    backends = {"cpu": OF_HOST_MEMORY, "cuda": OF_GPUS}
    if device.type not in backends:
        raise ValueError(f"no backend serves {device}: give a device of type {' or '.join(backends)}")
    return backends[device.type]


def of_default_group(device: torch.device) -> str:
    """For tensors on this device and in host memory."""
    if backend_of(device) == OF_HOST_MEMORY:
        return OF_HOST_MEMORY
    return f"cpu:{OF_HOST_MEMORY},{device.type}:{backend_of(device)}"


def register() -> None:
    """Makes Headrace's backend known to torch, where torch has not found it by its entry point."""
    if not dist.is_backend_available(OF_HOST_MEMORY):
        headrace_torch.register()
