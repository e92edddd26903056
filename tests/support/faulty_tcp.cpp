// SPDX-License-Identifier: Apache-2.0
#include "support/faulty_tcp.hpp"

#include "backends/tcp/backend.hpp"
#include "support/faulty_sockets.hpp"
#include "support/plugin_instance.hpp"

#include <vector>

namespace headrace::test {
namespace {

struct FaultyTcp {
  static constexpr const char* name = "tcp_faulty";
  static constexpr const char* version = tcp::TcpBackend::version;
  static constexpr std::uint32_t memory_kinds = tcp::TcpBackend::memory_kinds;
  static constexpr bool maps = tcp::TcpBackend::maps;
  static std::span<const headrace_option_v1> options() { return faulty_tcp_options(); }
  static Result<std::unique_ptr<tcp::TcpBackend>> open(plugin::Host host, const plugin::CreateArgs& args) {
    HEADRACE_TRY(calls, faulty_sockets(args));
    return tcp::TcpBackend::open(host, args, {.calls = std::move(calls)});
  }
};

}  // namespace

void link_faulty_tcp() { link_plugin("tcp_faulty", plugin::table<FaultyTcp>()); }

std::span<const headrace_option_v1> faulty_tcp_options() {
  static const std::vector<headrace_option_v1> rows = [] {
    const auto of_tcp = tcp::TcpBackend::options();
    std::vector<headrace_option_v1> all(of_tcp.begin(), of_tcp.end());
    all.push_back({"faults", "", "list", "failures of system calls on sockets", 0, 0});
    return all;
  }();
  return rows;
}

Result<std::unique_ptr<tcp::SocketCalls>> faulty_sockets(const plugin::CreateArgs& args) {
  HEADRACE_TRY(plan, FaultPlan::parse(args.setting("faults")));
  return std::unique_ptr<tcp::SocketCalls>(
      std::make_unique<FaultySockets>(plan, std::make_unique<tcp::SystemCalls>()));
}

}  // namespace headrace::test
