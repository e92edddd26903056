// SPDX-License-Identifier: Apache-2.0
// The folder in which the processes of one host find each other's sockets.
#pragma once

#include <string>
#include <string_view>

namespace headrace::host_link {

inline constexpr std::string_view socket_suffix = ".sock";

/// What the kernel drew when this host started; empty where it does not say.
[[nodiscard]] std::string boot_id();

/// Processes that were killed leave their sockets behind: removes some of those whose name begins with that.
void sweep_stale_sockets(const std::string& runtime_dir, const std::string& prefix);

}  // namespace headrace::host_link
