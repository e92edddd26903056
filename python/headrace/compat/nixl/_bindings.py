# SPDX-License-Identifier: Apache-2.0
"""All names of NIXL's compiled module."""

from ._agent import nixlAgent
from ._arguments import NIXL_INIT_AGENT
from ._config import nixlAgentConfig
from ._descriptors import nixlRegDList, nixlRemoteDList, nixlXferDList
from ._enums import ENUMERATIONS as _ENUMERATIONS
from ._enums import nixl_cost_t, nixl_mem_t, nixl_status_t, nixl_thread_sync_t, nixl_xfer_op_t
from ._errors import EXCEPTIONS as _EXCEPTIONS
from ._errors import (
    nixlBackendError,
    nixlCancelledError,
    nixlInvalidParamError,
    nixlMismatchError,
    nixlNotAllowedError,
    nixlNoTelemetryError,
    nixlNotFoundError,
    nixlNotPostedError,
    nixlNotSupportedError,
    nixlRemoteDisconnectError,
    nixlRepostActiveError,
    nixlUnknownError,
)
from ._exchange import DEFAULT_COMM_PORT
from ._telemetry import nixlXferTelemetry

HAVE_UCX_GPU_DEVICE_API = False
"""Headrace has no views of memory for GPU kernels."""

__all__ = [
    "DEFAULT_COMM_PORT",
    "HAVE_UCX_GPU_DEVICE_API",
    "NIXL_INIT_AGENT",
    "nixlAgent",
    "nixlAgentConfig",
    "nixlBackendError",
    "nixlCancelledError",
    "nixlInvalidParamError",
    "nixlMismatchError",
    "nixlNoTelemetryError",
    "nixlNotAllowedError",
    "nixlNotFoundError",
    "nixlNotPostedError",
    "nixlNotSupportedError",
    "nixlRegDList",
    "nixlRemoteDList",
    "nixlRemoteDisconnectError",
    "nixlRepostActiveError",
    "nixlUnknownError",
    "nixlXferDList",
    "nixlXferTelemetry",
    "nixl_cost_t",
    "nixl_mem_t",
    "nixl_status_t",
    "nixl_thread_sync_t",
    "nixl_xfer_op_t",
]

# NIXL's module also has every member of every enumeration as a name: DRAM_SEG, NIXL_WRITE, ...
for _enumeration in _ENUMERATIONS:
    for _name, _member in _enumeration.__members__.items():
        globals()[_name] = _member
        __all__.append(_name)

# Pickles and tracebacks name the module from which programs import the classes.
for _class in (
    nixlAgent,
    nixlAgentConfig,
    nixlRegDList,
    nixlRemoteDList,
    nixlXferDList,
    nixlXferTelemetry,
    *_ENUMERATIONS,
    *_EXCEPTIONS,
):
    _class.__module__ = __name__
del _class, _enumeration, _name, _member
