// SPDX-License-Identifier: Apache-2.0
#include "sound_table.hpp"

const headrace_backend_v1* headrace_backend_v1_table() {
  static headrace_backend_v1 t = sound_table("wrong_name");
  t.name = "somebody_else";
  return &t;
}
