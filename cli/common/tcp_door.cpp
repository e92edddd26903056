// SPDX-License-Identifier: Apache-2.0
#include "cli/common/tcp_door.hpp"

#include "cli/common/errors.hpp"

#include <headrace/agent.hpp>

#include <algorithm>

namespace headrace::cli {

Result<void> keep_tcp_door_at(std::string_view address, const std::vector<std::string>& backends,
                              std::map<std::string, std::string>& options) {
  if (!backends.empty() && std::find(backends.begin(), backends.end(), "tcp") == backends.end()) return {};
  const std::string host(address.substr(0, address.rfind(':')));
  if (host.empty() || host == "0.0.0.0" || host == "[::]" || host == "*") return {};
  HEADRACE_CLI_TRY(known, list_options(options));
  const auto listen = std::find_if(known.begin(), known.end(),
                                   [](const OptionInfo& option) { return option.name == "tcp.listen"; });
  if (listen != known.end() && listen->source == "default") options["tcp.listen"] = host + ":0";
  return {};
}

}  // namespace headrace::cli
