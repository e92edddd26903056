// SPDX-License-Identifier: Apache-2.0
// The default interface for the data port of a command.
#pragma once

#include <headrace/result.hpp>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::cli {

/// Sets tcp.listen, so that the tcp backend listens at the host of `address` only, with any free port. It
/// changes nothing if the option tcp.listen is set already or if the host means all interfaces.
///   address   "host:port"; the port is ignored
///   backends  those that the agent is to open; empty: all. Without tcp among them nothing is looked up.
[[nodiscard]] Result<void> keep_tcp_door_at(std::string_view address,
                                            const std::vector<std::string>& backends,
                                            std::map<std::string, std::string>& options);

}  // namespace headrace::cli
