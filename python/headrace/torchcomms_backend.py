# SPDX-License-Identifier: Apache-2.0
"""The backend `headrace` of torchcomms: torchcomms imports this module when a program names it.

    comm = torchcomms.new_comm("headrace", torch.device("cpu"), name="world")

The module tells torchcomms where the library is. TORCHCOMMS_BACKEND_LIB_PATH_HEADRACE names another one.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
from pathlib import Path

VARIABLE = "TORCHCOMMS_BACKEND_LIB_PATH_HEADRACE"
LIBRARY = Path(__file__).parent / "lib" / "libheadrace_torchcomms.so"


def serve(name: str) -> None:
    """Makes it the backend of another name, too: of "gloo", for programs that name it.

    It is called before the process first opens a communicator of that name.
    Errors: ImportError (torchcomms is not installed), OSError (the library does not load: why).
    """
    # torch first: it looks for torchcomms while it is imported, and does not find one that is importing it.
    for package in ("torch", "torchcomms"):
        importlib.import_module(package)  # they load the libraries that this one stands on
    ctypes.CDLL(os.environ[VARIABLE]).headrace_torchcomms_serve(name.encode())


def _announce() -> None:
    if VARIABLE not in os.environ:
        if not LIBRARY.is_file():
            raise ImportError(
                "Headrace was built without its backend for torchcomms: install torchcomms, and build "
                "Headrace with HEADRACE_TORCHCOMMS_ROOT=<a clone of torchcomms> (docs/torchcomms.md), or let "
                f"{VARIABLE} name the library"
            )
        os.environ[VARIABLE] = str(LIBRARY)
    atexit.register(_stop, os.environ[VARIABLE])


def _stop(library: str) -> None:
    """Ends the library's thread before the interpreter goes: hooks and tensors may need it."""
    try:
        loaded = ctypes.CDLL(library, os.RTLD_LAZY | os.RTLD_NOLOAD)
    except OSError:
        return  # no program has opened a communicator
    loaded.headrace_torchcomms_stop()


_announce()
