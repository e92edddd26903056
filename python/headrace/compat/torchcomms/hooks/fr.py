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
        self.reset()

    def add(self, comm: headrace.Comm) -> None:
        self._comms.append(comm)
        self._hooks.append(self.recorder.attach(comm))

    def reset(self) -> None:
        """Begins with an empty recorder; what the communicators call goes on to be kept."""
        for hook in getattr(self, "_hooks", []):
            hook.remove()
        self.recorder = headrace.FlightRecorder(self._entries)
        self._hooks = [self.recorder.attach(comm) for comm in self._comms]


_shared: _Recording | None = None


class FlightRecorderHook:
    """Keeps the last calls of the communicators that are registered with it.

    max_entries: so many calls; None: TORCHCOMM_FR_BUFFER_SIZE.
    isolated: keep the calls apart from those of other hooks of this process, which share one recorder.
    """

    def __init__(self, max_entries: int | None = None, isolated: bool = False) -> None:
        global _shared
        entries = max_entries or environment.recorder_entries()
        self._registered = 0
        if isolated:
            self._recording = _Recording(entries)
            return
        _shared = _shared or _Recording(entries)
        self._recording = _shared

    def register_with_comm(self, comm: TorchComm) -> None:
        """Keeps the calls of a communicator, and of those that split and reconfigure make of it."""
        comm.follow(self._recording.add)
        self._registered += 1

    def dump_json(self, include_completed: bool = True) -> str:
        """The calls as JSON; without those that have ended if include_completed is False."""
        return json.dumps(self._dump(json.loads(self._recording.recorder.dump()), include_completed))

    def dump_file(self, rank: int, include_completed: bool = True) -> None:
        """Writes the pickle that torch's analyzer reads to TORCHCOMM_FR_DUMP_TEMP_FILE, the rank appended."""
        file = Path(environment.recorder_file(rank))
        file.parent.mkdir(parents=True, exist_ok=True)
        dump = self._dump(pickle.loads(self._recording.recorder.dump_pickle()), include_completed)
        file.write_bytes(pickle.dumps(dump))

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

    @staticmethod
    def _dump(dump: dict[str, Any], include_completed: bool) -> dict[str, Any]:
        if not include_completed:
            dump["entries"] = [entry for entry in dump["entries"] if entry["state"] != "completed"]
        return dump
