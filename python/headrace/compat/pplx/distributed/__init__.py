# SPDX-License-Identifier: Apache-2.0
"""pplx_garden.distributed: ranks as processes, and groups of them."""

from .parallel_group import ParallelGroup
from .process_group import ParallelLaunch, ProcessGroup

__all__ = ["ParallelGroup", "ParallelLaunch", "ProcessGroup"]
