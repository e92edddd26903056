# SPDX-License-Identifier: Apache-2.0
"""The variables of torchcomms: which are read, and why the others are not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Variable:
    name: str
    is_read: bool
    sentence: str
    """What it does; of one that is not read: why it does nothing."""


_UNIQUE_ID = "no unique id is exchanged: ranks meet at the store"

VARIABLES = [
    Variable("TORCHCOMM_RANK", True, "the rank of this process; before those of launchers"),
    Variable("TORCHCOMM_SIZE", True, "the number of ranks"),
    Variable(
        "TORCHCOMM_BOOTSTRAP_RANKSIZE_QUERY_METHOD",
        True,
        "which launcher's rank and size count: auto (the default: all), mpi, pals or torchrun",
    ),
    Variable(
        "TORCHCOMM_ABORT_ON_ERROR",
        True,
        "1: an operation that fails or is late ends the process. Off by default, where torchcomms has it on",
    ),
    Variable("TORCHCOMM_TIMEOUT_SECONDS", True, "the timeout of operations; 600 by default"),
    Variable(
        "TORCHCOMM_FR_BUFFER_SIZE", True, "how many calls a FlightRecorderHook without max_entries keeps"
    ),
    Variable(
        "TORCHCOMM_FR_DUMP_TEMP_FILE", True, "FlightRecorderHook.dump_file writes to it, the rank appended"
    ),
    Variable("TORCHCOMM_FR_DUMP_DYNAMIC_FILE_NAME", True, "1: no rank is appended"),
    Variable("TORCHCOMMS_SERIALIZATION", True, "pickle: objcol pickles objects instead of torch.save"),
    Variable("TORCHCOMM_FR_CPP_STACK", False, "the recorder keeps no stacks"),
    Variable("TORCHCOMM_HEALTH_CHECK_WAIT_MS", False, "the health check waits for nothing"),
    Variable("TORCHCOMM_GLOO_HOSTNAME", False, "ranks of a host share memory; tcp chooses its own addresses"),
    Variable(
        "TORCHCOMM_GLOO_INTERFACE", False, "ranks of a host share memory; tcp chooses its own addresses"
    ),
    Variable(
        "TORCHCOMM_NCCLX_GRAPH_TIMEOUT_MONITORING", False, "operations on the host are in no CUDA graph"
    ),
    Variable("TORCHCOMM_NCCL_BOOTSTRAP_UNIQUEID_EXCHANGE_METHOD", False, _UNIQUE_ID),
    Variable("TORCHCOMM_NCCLX_BOOTSTRAP_UNIQUEID_EXCHANGE_METHOD", False, _UNIQUE_ID),
    Variable("TORCHCOMM_RCCL_BOOTSTRAP_UNIQUEID_EXCHANGE_METHOD", False, _UNIQUE_ID),
    Variable("TORCHCOMM_RCCLX_BOOTSTRAP_UNIQUEID_EXCHANGE_METHOD", False, _UNIQUE_ID),
    Variable("TORCHCOMM_XCCL_BOOTSTRAP_UNIQUEID_EXCHANGE_METHOD", False, _UNIQUE_ID),
    Variable(
        "TORCHCOMMS_BACKEND_LIB_PATH_<BACKEND>",
        False,
        "such a library is a C++ class of torchcomms: HEADRACE_COMM_LIB_<NAME> names one of Headrace",
    ),
    Variable(
        "TORCHCOMMS_PATCH_FOR_COMPILE",
        True,
        "1 when the package is imported: torch.compile traces operations",
    ),
    Variable(
        "TORCHCOMMS_COMPILE_IGNORE_PYTORCH_VERSION_REQUIREMENT", True, "1: also with a torch before 2.12"
    ),
    Variable(
        "TORCHCOMMS_RDMA_ENABLE_REG_VERBOSE_LOG", False, "there is no RdmaTransport: use headrace.Agent"
    ),
]

_METHOD = "TORCHCOMM_BOOTSTRAP_RANKSIZE_QUERY_METHOD"
_OWN = ("TORCHCOMM_RANK", ("TORCHCOMM_SIZE",))
# Rank, and the variables of which the first that is set has the size; in torchcomms' order.
_OF_LAUNCHERS: dict[str, list[tuple[str, Sequence[str]]]] = {
    "mpi": [
        ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
        ("PMI_RANK", ("PMI_SIZE",)),
    ],
    "pals": [("PALS_RANKID", ("PALS_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE"))],
    "torchrun": [("RANK", ("WORLD_SIZE",))],
}


def rank_and_size() -> tuple[int, int]:
    """What the launcher has set.

    Errors: RuntimeError (no launcher has set both: what was looked for).
    """
    method = os.environ.get(_METHOD, "auto").lower()
    if method != "auto" and method not in _OF_LAUNCHERS:
        raise RuntimeError(f"{_METHOD} is {method!r}: give auto, {', '.join(_OF_LAUNCHERS)}")
    launchers = _OF_LAUNCHERS.values() if method == "auto" else [_OF_LAUNCHERS[method]]
    pairs: list[tuple[str, Sequence[str]]] = [_OWN, *(pair for launcher in launchers for pair in launcher)]
    for rank_name, size_names in pairs:
        rank = _whole(rank_name)
        size = next((size for name in size_names if (size := _whole(name)) is not None), None)
        if rank is not None and size is not None:
            return rank, size
    looked = ", ".join(f"{rank} with {' or '.join(sizes)}" for rank, sizes in pairs)
    raise RuntimeError(
        f"no launcher has set rank and size: looked for {looked}. Set TORCHCOMM_RANK and TORCHCOMM_SIZE"
    )


def timeout() -> timedelta | None:
    """That of operations; None: the default."""
    seconds = _text("TORCHCOMM_TIMEOUT_SECONDS")
    if not seconds:
        return None
    try:
        return timedelta(seconds=float(seconds))
    except ValueError:
        raise RuntimeError(f"TORCHCOMM_TIMEOUT_SECONDS is {seconds!r}: give a number of seconds") from None


def abort_on_error() -> bool:
    return is_on("TORCHCOMM_ABORT_ON_ERROR")


def is_on(name: str) -> bool:
    return _text(name).lower() in ("1", "true", "yes", "y")


def recorder_entries() -> int:
    return _whole("TORCHCOMM_FR_BUFFER_SIZE") or 2048


def recorder_file(rank: int) -> str:
    """The name of a recorder's file."""
    given = _text("TORCHCOMM_FR_DUMP_TEMP_FILE")
    if given and is_on("TORCHCOMM_FR_DUMP_DYNAMIC_FILE_NAME"):
        return given
    return f"{given or os.path.expanduser('~/.cache/torchcomm_fr_trace_')}{rank}"


def pickles_objects() -> bool:
    return _text("TORCHCOMMS_SERIALIZATION") == "pickle"


def _text(name: str) -> str:
    return os.environ.get(name, "").strip()


def _whole(name: str) -> int | None:
    text = _text(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise RuntimeError(f"{name} is {text!r}: give a whole number") from None
