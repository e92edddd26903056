# SPDX-License-Identifier: Apache-2.0
"""A hook that keeps the last calls, in the layout that torch's analyzer reads."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import headrace

from .. import _environment as environment
from .._comm import TorchComm

__all__ = ["FlightRecorderHook"]


class _Recording:
    """A recorder of Headrace and the communicators whose calls it keeps."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._comms: list[headrace.Comm] = []
        self.rank: int | None = None
        """This process's, in the communicator that came last; None: there is none."""
        self.reset()

    def add(self, comm: headrace.Comm) -> None:
        self._comms.append(comm)
        self.rank = comm.get_rank()
        self._hooks.append(self.recorder.attach(comm))

    def reset(self) -> None:
        """Begins with an empty recorder; what the communicators call goes on to be kept."""
        for hook in getattr(self, "_hooks", []):
            hook.remove()
        self.recorder = headrace.FlightRecorder(self._entries)
        self._hooks = [self.recorder.attach(comm) for comm in self._comms]

    def dump_json(self, include_completed: bool) -> str:
        return json.dumps(_without_ended(json.loads(self.recorder.dump()), include_completed))

    def dump_file(self, rank: int, include_completed: bool = True) -> Path:
        """Writes the pickle that torch's analyzer reads. Returns its path."""
        file = Path(environment.recorder_file(rank))
        file.parent.mkdir(parents=True, exist_ok=True)
        dump = _without_ended(pickle.loads(self.recorder.dump_pickle()), include_completed)
        file.write_bytes(pickle.dumps(dump))
        return file


def _without_ended(dump: dict[str, Any], include_completed: bool) -> dict[str, Any]:
    if not include_completed:
        dump["entries"] = [entry for entry in dump["entries"] if entry["state"] != "completed"]
    return dump


_shared: _Recording | None = None


def shared_recording(entries: int | None = None) -> _Recording:
    """That of the hooks that are not isolated, which the first of them makes."""
    global _shared
    _shared = _shared or _Recording(entries or environment.recorder_entries())
    return _shared


class FlightRecorderHook:
    """Keeps the last calls of the communicators that are registered with it.

    max_entries: so many calls; None: TORCHCOMM_FR_BUFFER_SIZE.
    isolated: keep the calls apart from those of other hooks of this process, which share one recorder.
    """

    def __init__(self, max_entries: int | None = None, isolated: bool = False) -> None:
        self._registered = 0
        entries = max_entries or environment.recorder_entries()
        self._recording = _Recording(entries) if isolated else shared_recording(entries)

    def register_with_comm(self, comm: TorchComm) -> None:
        """Keeps the calls of a communicator, and of those that split and reconfigure make of it."""
        comm.follow(self._recording.add)
        self._registered += 1

    def dump_json(self, include_completed: bool = True) -> str:
        """The calls as JSON; without those that have ended if include_completed is False."""
        return self._recording.dump_json(include_completed)

    def dump_file(self, rank: int, include_completed: bool = True) -> None:
        """Writes the pickle that torch's analyzer reads to TORCHCOMM_FR_DUMP_TEMP_FILE, the rank appended."""
        self._recording.dump_file(rank, include_completed)

    def reset(self) -> None:
        """Forgets the calls; their numbers begin anew."""
        self._recording.reset()

    def is_enabled(self) -> bool:
        """Whether a communicator was registered."""
        return self._registered > 0

    def size(self) -> int:
        """How many calls are kept."""
        return len(json.loads(self._recording.recorder.dump())["entries"])

    __len__ = size
