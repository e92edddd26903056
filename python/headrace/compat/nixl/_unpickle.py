# SPDX-License-Identifier: Apache-2.0
"""Reads a peer's pickles. It accepts descriptor lists and plain values around them (lists, dicts, numbers),
and refuses everything else."""

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
            f"{module}.{name} is not a descriptor list: only these are accepted from a peer"
        )

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("persistent objects are not accepted from a peer")


def descriptors_of(pickled: bytes) -> Any:
    """Returns the object of a pickle.

    errors   pickle.UnpicklingError (it contains other classes), EOFError (it is empty), nixlMismatchError (it
             is damaged)
    """
    try:
        return _DescriptorUnpickler(io.BytesIO(pickled)).load()
    except (pickle.UnpicklingError, EOFError, nixlMismatchError):
        raise
    except Exception as error:
        raise failure(
            nixlMismatchError, f"these bytes are not a pickle: {type(error).__name__}: {error}"
        ) from error
