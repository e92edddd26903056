// SPDX-License-Identifier: Apache-2.0
// Backends of communicators: those that the process brings along, and what is known of all.
#pragma once

#include <headrace/plugin/comm_v1.h>
#include <headrace/result.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// Makes a backend known to Comm::open by the name of its table.
///   owns    the table is copied; its texts and functions stay to the end of the process
///   threads any
///   errors  invalid_argument (the name is taken), not_supported (the table: what is wrong with it)
HEADRACE_API Result<void> register_comm_backend(const headrace_comm_backend_v1* table);

/// Whether this build leaves out a backend of Headrace: HEADRACE_COMM_<NAME>=OFF when it was built.
[[nodiscard]] HEADRACE_API bool is_comm_backend_left_out(std::string_view name);

/// A backend of communicators, as this process finds it.
struct CommBackendInfo {
  std::string name;
  std::string version;                ///< empty: it is not known
  std::string from;                   ///< "linked in", "registered", or the path of its library
  std::vector<std::string> devices;   ///< whose memory it moves: "cpu", "cuda"
  std::vector<std::string> features;  ///< what it has beside the operations: "split", "windows"
  std::string refusal;                ///< why it cannot be used, and what to install; empty: it can be
};
/// Looks at every backend that list_comm_backends() names, and loads its library.
HEADRACE_API std::vector<CommBackendInfo> survey_comm_backends();

}  // namespace headrace
