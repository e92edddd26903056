// SPDX-License-Identifier: Apache-2.0
// Built for another major version of the table.
#include <headrace/plugin/comm_v1.h>

extern "C" __attribute__((visibility("default"))) const headrace_comm_backend_v1* headrace_comm_v1_table() {
  static const headrace_comm_backend_v1 table = [] {
    headrace_comm_backend_v1 made{};
    made.struct_size = sizeof made;
    made.abi_major = HEADRACE_COMM_ABI_MAJOR + 1;
    made.name = "other_version";
    made.version = "2";
    return made;
  }();
  return &table;
}
