// SPDX-License-Identifier: Apache-2.0
// Where a command's data port listens, if nobody has said so.
#pragma once

#include <headrace/result.hpp>

#include <map>
#include <string>
#include <string_view>

namespace headrace::cli {

/// Has the tcp backend listen on `address`'s host alone (a port of its own), unless the option tcp.listen is
/// set anywhere or the host stands for every interface.
///   address  "host:port"; the port is not looked at
[[nodiscard]] Result<void> keep_tcp_door_at(std::string_view address,
                                            std::map<std::string, std::string>& options);

}  // namespace headrace::cli
