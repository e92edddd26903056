# SPDX-License-Identifier: Apache-2.0
"""The backend `gloo` of communicators, as it is registered: it imports torch when a communicator opens."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from . import errors

NAME = "gloo"


def torch_version() -> str | None:
    """The version of the installed torch, without an import of it."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


class Gloo:
    """Its objects are those of _torch.gloo.Gloo."""

    version = torch_version() or "none"

    def __new__(cls) -> Any:
        try:
            from ._torch import gloo
        except ImportError as error:
            raise errors.NotSupported(
                f"it is torch's ProcessGroupGloo, and torch cannot be imported ({error}): install torch "
                "(pip install torch), or use the backend host"
            ) from error
        return gloo.Gloo()

    def init(self, device: str, name: str, options: Any) -> None:
        """Of the objects."""
