# SPDX-License-Identifier: Apache-2.0
"""The backends that a program has created: names for paths of Headrace (_plugins.py), each with a handle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import headrace

from ._descriptors import as_text
from ._enums import kind_of, nixl_mem_t
from ._errors import failure, nixlInvalidParamError, nixlNotFoundError
from ._plugins import PLUGINS, Carried, available, carried
from .logging import get_logger

logger = get_logger("agent")


class Created(NamedTuple):
    """A backend that was created: the paths that its name stands for, and its parameters."""

    carried: Carried
    parameters: dict[str, str]


class Backends:
    """The created backends of one agent. Threads: any."""

    def __init__(self, agent: headrace.Agent, numbers: Iterator[int]):
        self._agent = agent
        self._numbers = numbers
        self._created: dict[int, Created] = {}

    def reach_peers(self) -> bool:
        """Returns whether a created backend stands for a path to other agents."""
        return any(created.carried.remote for created in self._created.values())

    def names(self) -> list[str]:
        """Returns the names that can be created."""
        return available(self._agent.backends())

    def plugin(self, name: str) -> Carried:
        """Returns the paths that a name stands for, created or not."""
        name = as_text(name, "a plugin's name")
        found = carried(name, self._agent.backends())
        if found is None:
            known = (
                "Headrace has no path for its kinds of memory"
                if name in PLUGINS
                else "there is no plugin of that name"
            )
            raise failure(nixlNotFoundError, f"plugin {name!r}: {known}")
        return found

    def create(self, name: str, parameters: Mapping[str, str]) -> int:
        """Creates a backend and returns its handle. An agent has at most one of each name."""
        found = self.plugin(name)
        if any(found.name == created.carried.name for created in self._created.values()):
            raise failure(
                nixlInvalidParamError, f"backend {found.name} exists already: an agent has one of each name"
            )
        handle = next(self._numbers)
        self._created[handle] = Created(found, {str(key): str(value) for key, value in parameters.items()})
        logger.info("backend %s: Headrace carries %s", found.name, found)
        return handle

    def get(self, handle: int) -> Created:
        """Returns the backend of a handle."""
        try:
            return self._created[handle]
        except (KeyError, TypeError):
            raise failure(nixlInvalidParamError, f"{handle!r} is not a backend of this agent") from None

    def standing_for(self, path: str) -> int:
        """Returns the handle of the first created backend that stands for this backend of Headrace."""
        for handle, created in self._created.items():
            if path in created.carried.backends():
                return handle
        raise failure(nixlNotFoundError, f"no created backend stands for {path}")

    def paths(self, memory: nixl_mem_t, handles: Sequence[int]) -> frozenset[str]:
        """Returns Headrace's backends for that kind of memory. No handles: of all created backends."""
        kind = kind_of(memory)
        chosen = [self.get(handle) for handle in handles] if handles else self._created.values()
        paths = frozenset(path for created in chosen for path in created.carried.paths.get(kind, ()))
        if not paths:
            raise failure(
                nixlNotFoundError, f"no created backend carries {memory.name}: create one with create_backend"
            )
        return paths

    def limited(self, handles: Sequence[int], *limits: frozenset[str] | None) -> list[str] | None:
        """Returns Headrace's backends that a request may use; None: any."""
        sets = [limit for limit in limits if limit is not None]
        if handles:
            sets.append(frozenset(path for handle in handles for path in self.get(handle).carried.backends()))
        return sorted(frozenset.intersection(*sets)) if sets else None
