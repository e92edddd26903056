# SPDX-License-Identifier: Apache-2.0
"""Whether a thread of this process sleeps inside the library. A test waits for that before it disturbs the
sleep."""

import platform
from pathlib import Path

# The numbers of epoll_wait, epoll_pwait and epoll_pwait2.
EPOLL = {"x86_64": ("232", "281", "441"), "aarch64": ("22", "441")}[platform.machine()]


def sleeps_in_epoll(native_id):
    """Whether the thread with this id sleeps until a descriptor is readable, as a wait of the library does. A
    thread that waits for the GIL or for a lock sleeps in a futex."""
    return Path(f"/proc/self/task/{native_id}/syscall").read_text().split()[0] in EPOLL
