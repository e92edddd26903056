// SPDX-License-Identifier: Apache-2.0
// Forms of tcp for tests: over the GPUs of the program that loads this plugin, and over sockets that fail.
// The program itself links no tcp, so it stays as it is when tcp changes.
#include "backends/tcp/backend.hpp"
#include "support/faulty_sockets.hpp"
#include "test_backends/on_gpus.hpp"

#include <string_view>
#include <vector>

namespace headrace::test {
namespace {

Result<std::unique_ptr<tcp::SocketCalls>> faulty_calls(const plugin::CreateArgs& args) {
  HEADRACE_TRY(plan, FaultPlan::parse(args.setting("faults")));
  return std::unique_ptr<tcp::SocketCalls>(
      std::make_unique<FaultySockets>(plan, std::make_unique<tcp::SystemCalls>()));
}

/// The options of tcp, and `faults`.
std::span<const headrace_option_v1> options_with_faults() {
  static const std::vector<headrace_option_v1> rows = [] {
    const auto of_tcp = tcp::TcpBackend::options();
    std::vector<headrace_option_v1> all(of_tcp.begin(), of_tcp.end());
    all.push_back({"faults", "", "list", "failures of system calls on sockets", 0, 0});
    return all;
  }();
  return rows;
}

/// The names differ from that of the built tcp, which moves host memory where there is no GPU.
struct TcpOnGpus : OnGpus<tcp::TcpBackend> {
  static constexpr const char* name = "tcp_gpu";
  static Result<std::unique_ptr<tcp::TcpBackend>> open(plugin::Host host, const plugin::CreateArgs& args) {
    return tcp::TcpBackend::open(host, args, {.gpus = source()});
  }
};

struct FaultyTcpOnGpus : OnGpus<tcp::TcpBackend> {
  static constexpr const char* name = "tcp_gpu_faulty";
  static std::span<const headrace_option_v1> options() { return options_with_faults(); }
  static Result<std::unique_ptr<tcp::TcpBackend>> open(plugin::Host host, const plugin::CreateArgs& args) {
    HEADRACE_TRY(calls, faulty_calls(args));
    return tcp::TcpBackend::open(host, args, {.calls = std::move(calls), .gpus = source()});
  }
};

struct FaultyTcp : OnGpus<tcp::TcpBackend> {
  static constexpr const char* name = "tcp_faulty";
  static std::span<const headrace_option_v1> options() { return options_with_faults(); }
  static Result<std::unique_ptr<tcp::TcpBackend>> open(plugin::Host host, const plugin::CreateArgs& args) {
    HEADRACE_TRY(calls, faulty_calls(args));
    return tcp::TcpBackend::open(host, args, {.calls = std::move(calls)});
  }
};

}  // namespace
}  // namespace headrace::test

extern "C" __attribute__((visibility("default"))) const headrace_backend_v1* headrace_test_backend(
    const char* name, const headrace::cuda::DriverTable* driver, const headrace_kernels_v1* kernels) {
  using namespace headrace;  // NOLINT: one function
  test::OnGpus<tcp::TcpBackend>::use(*driver, *kernels);
  if (name == std::string_view(test::TcpOnGpus::name)) return plugin::table<test::TcpOnGpus>();
  if (name == std::string_view(test::FaultyTcpOnGpus::name)) return plugin::table<test::FaultyTcpOnGpus>();
  return plugin::table<test::FaultyTcp>();
}
