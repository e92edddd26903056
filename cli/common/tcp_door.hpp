// SPDX-License-Identifier: Apache-2.0
// The default interface for the data port of a command.
#pragma once

#include <headrace/result.hpp>

#include <map>
#include <string>
#include <string_view>

namespace headrace::cli {

/// Sets tcp.listen, so that the tcp backend listens at the host of `address` only, with any free port. It
/// changes nothing if the option tcp.listen is set already or if the host means all interfaces.
///   address  "host:port"; the port is ignored
[[nodiscard]] Result<void> keep_tcp_door_at(std::string_view address,
                                            std::map<std::string, std::string>& options);

}  // namespace headrace::cli
