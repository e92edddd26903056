# SPDX-License-Identifier: Apache-2.0
"""DeepEP's Python package on headrace.MoE. After `import headrace.compat.deep_ep.install`, `import deep_ep`
gives this package.

docs/compat-deep-ep.md lists the calls and the differences from DeepEP.
"""

import torch

from ._config import Config
from .buffers.elastic import ElasticBuffer, EPHandle
from .buffers.legacy import Buffer
from .utils.envs import get_logical_domain_size, get_physical_domain_size
from .utils.event import EventHandle, EventOverlap

__all__ = [
    "Buffer",
    "Config",
    "EPHandle",
    "ElasticBuffer",
    "EventHandle",
    "EventOverlap",
    "get_logical_domain_size",
    "get_physical_domain_size",
    "topk_idx_t",
]

__version__ = "2.1.0"  # of DeepEP, whose calls these are
topk_idx_t = torch.int64
