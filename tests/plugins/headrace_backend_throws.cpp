// SPDX-License-Identifier: Apache-2.0
#include "sound_table.hpp"

#include <stdexcept>

const headrace_backend_v1* headrace_backend_v1_table() {
  throw std::runtime_error("the flux is out of phase");
}
