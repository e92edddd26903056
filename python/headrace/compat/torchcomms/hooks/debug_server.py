# SPDX-License-Identifier: Apache-2.0
"""What torch's debug server asks each process for: torchcomms_fr_trace_json, torchcomms_fr_dump_file and
torchcomms_health_check."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import headrace

from .._comm import open_comms
from .fr import shared_recording

__all__ = ["register"]

PARAMETERS = {"includecollectives": True, "onlyactive": False}


class _Refused(Exception):
    """The request is wrong: what to give."""


def _trace(request: Any) -> tuple[str, str]:
    with_calls, only_active = (_truth(request, name) for name in PARAMETERS)
    dump = json.loads(shared_recording().dump_json(include_completed=not only_active))
    if dump["rank"] is None:  # nothing is recorded yet, and torch's page wants a number
        dump["rank"] = int(os.environ.get("RANK", "0"))
    if not with_calls:
        del dump["entries"]
    return json.dumps(dump), "application/json"


def _truth(request: Any, name: str) -> bool:
    text = request.get_param(name)
    if text not in ("", "true", "false"):
        raise _Refused(f"{name} is {text!r}: give true or false")
    return text == "true" if text else PARAMETERS[name]


def _dump_file(request: Any) -> tuple[str, str]:
    recording = shared_recording()
    if recording.rank is None:
        raise _Refused("no communicator is registered with a FlightRecorderHook that is not isolated")
    return f"wrote {recording.dump_file(recording.rank)}", "text/plain"


def _health(request: Any) -> tuple[str, str]:
    """Whether every open communicator works: one operation that failed ends it on all ranks."""
    return json.dumps({"healthy": not any(comm.is_aborted() for comm in open_comms())}), "application/json"


def _answers(make: Callable[[Any], tuple[str, str]], refusal: int) -> Callable[[Any, Any], None]:
    def handler(request: Any, response: Any) -> None:
        try:
            content, kind = make(request)
            status = 200
        except _Refused as error:
            content, kind, status = str(error), "text/plain", refusal
        except (OSError, RuntimeError, headrace.Error) as error:
            content, kind, status = str(error), "text/plain", 500
        response.set_content(content, kind)
        response.set_status(status)

    return handler


HANDLERS = {
    "torchcomms_fr_trace_json": _answers(_trace, 400),
    "torchcomms_fr_dump_file": _answers(_dump_file, 503),
    "torchcomms_health_check": _answers(_health, 400),
}


def register() -> None:
    """Enters the handlers into torch. If torchcomms itself is loaded, its own stay."""
    from torch._C import _distributed_c10d as c10d

    for name, handler in HANDLERS.items():
        try:
            c10d._register_handler(name, handler)
        except RuntimeError:
            return  # a handler of this name is there
