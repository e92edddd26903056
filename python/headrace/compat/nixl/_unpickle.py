# SPDX-License-Identifier: Apache-2.0
"""Reading what a peer has pickled: descriptor lists, and lists, dicts and numbers around them. Nothing else
is let in."""

from __future__ import annotations

import io
import pickle
from typing import Any

from ._descriptors import nixlRegDList, nixlXferDList
from ._errors import failure, nixlMismatchError

CLASSES = {kind.__name__: kind for kind in (nixlXferDList, nixlRegDList)}
PACKAGES = ("nixl", "nixl_cu12", "nixl_cu13", "nixl_rocm", __package__)


class _DescriptorUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        package, _, rest = module.rpartition(".")
        if package in PACKAGES and rest == "_bindings" and name in CLASSES:
            return CLASSES[name]
        raise pickle.UnpicklingError(
            f"{module}.{name} is no descriptor list: only those are taken from a peer"
        )

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("persistent objects are not taken from a peer")


def descriptors_of(pickled: bytes) -> Any:
    """Errors: pickle.UnpicklingError (something else is in it), EOFError (empty), nixlMismatchError
    (damaged)."""
    try:
        return _DescriptorUnpickler(io.BytesIO(pickled)).load()
    except (pickle.UnpicklingError, EOFError, nixlMismatchError):
        raise
    except Exception as error:
        raise failure(
            nixlMismatchError, f"these bytes are no pickle: {type(error).__name__}: {error}"
        ) from error
