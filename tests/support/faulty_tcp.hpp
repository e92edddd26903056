// SPDX-License-Identifier: Apache-2.0
// The backend tcp over sockets that fail, linked into test programs: its option `faults` is a FaultPlan.
#pragma once

#include "backends/tcp/socket_calls.hpp"

#include <headrace/plugin/backend.hpp>

#include <memory>
#include <span>

namespace headrace::test {

/// Makes `load_plugin("tcp_faulty")` return it.
void link_faulty_tcp();

/// The options of tcp, and `faults`.
[[nodiscard]] std::span<const headrace_option_v1> faulty_tcp_options();
/// The system's calls, failing as `faults` says.
///   errors  invalid_argument (the plan makes no sense)
[[nodiscard]] Result<std::unique_ptr<tcp::SocketCalls>> faulty_sockets(const plugin::CreateArgs& args);

}  // namespace headrace::test
