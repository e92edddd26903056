// SPDX-License-Identifier: Apache-2.0
#include "sound_table.hpp"

const headrace_backend_v1* headrace_backend_v1_table() {
  static headrace_backend_v1 t = sound_table("other_major");
  t.abi_major = 2;
  return &t;
}
