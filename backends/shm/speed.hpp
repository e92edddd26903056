// SPDX-License-Identifier: Apache-2.0
// How fast this machine copies by cross-memory attach, measured once when it is first asked for.
#pragma once

#include "memory/copy_speed.hpp"

namespace headrace::shm {

/// Tried on our own process. Any thread; the first call in the process measures. 1 byte a second: the kernel
/// forbids it, and this is no path to take.
[[nodiscard]] CopySpeed speed_of_attach();

}  // namespace headrace::shm
