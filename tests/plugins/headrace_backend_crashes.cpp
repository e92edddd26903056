// SPDX-License-Identifier: Apache-2.0
#include "sound_table.hpp"

#include <signal.h>

const headrace_backend_v1* headrace_backend_v1_table() {
  raise(SIGKILL);
  return nullptr;
}
