# SPDX-License-Identifier: Apache-2.0
"""PyTorch's process groups on Headrace: torch.distributed.init_process_group("headrace").

An installed Headrace is known to torch as soon as torch is imported. Where that is switched off
(TORCH_DEVICE_BACKEND_AUTOLOAD=0), importing this module makes it known.
"""

from headrace_torch import register

__all__ = ["register"]

register()
