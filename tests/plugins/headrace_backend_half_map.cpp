// SPDX-License-Identifier: Apache-2.0
#include "sound_table.hpp"

const headrace_backend_v1* headrace_backend_v1_table() {
  static headrace_backend_v1 t = sound_table("half_map");
  t.map = [](void*, void*, headrace_map_v1*, headrace_text_v1*) { return int32_t{0}; };
  return &t;
}
