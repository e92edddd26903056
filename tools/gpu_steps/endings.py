# SPDX-License-Identifier: Apache-2.0
"""Why a step did not do its work."""

from __future__ import annotations

NOT_IN_BUILD = "no test of this kind in this build"


class NothingRun(Exception):
    """A step ran no test, or measured nothing. The text says why. The run fails."""


class NotInBuild(NothingRun):
    """The build has no test for a step. The text says why. The run fails only if --steps names the step."""

    def __str__(self) -> str:
        return f"{NOT_IN_BUILD}: {super().__str__()}"


class Failed(Exception):
    """A step stopped early. The text says why."""
