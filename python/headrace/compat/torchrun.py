# SPDX-License-Identifier: Apache-2.0
"""The store of torchrun, in which the ranks that it has started meet."""

from __future__ import annotations

import os
from typing import Any


def store() -> Any:
    """Returns a client of the store that torchrun serves at MASTER_PORT; None if it serves none."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    from torch import distributed

    torch: Any = distributed  # its stores come from a compiled module without exported types
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return torch.PrefixStore("headrace", torch.TCPStore(host, port, is_master=False))
