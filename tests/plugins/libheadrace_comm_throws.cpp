// SPDX-License-Identifier: Apache-2.0
// Fails while it is loaded.
#include <headrace/plugin/comm_v1.h>

#include <stdexcept>

extern "C" __attribute__((visibility("default"))) const headrace_comm_backend_v1* headrace_comm_v1_table() {
  throw std::runtime_error("no such device");
}
