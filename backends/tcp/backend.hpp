// SPDX-License-Identifier: Apache-2.0
// The tcp backend: memory to memory over plain sockets, between any two agents that a network connects. Its
// I/O threads do it all: there is nothing for `progress`.
#pragma once

#include "backends/tcp/context.hpp"
#include "backends/tcp/link.hpp"
#include "backends/tcp/listener.hpp"
#include "backends/tcp/resolver.hpp"

#include <headrace/plugin/backend.hpp>

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace headrace::tcp {

class TcpBackend final : public plugin::Backend<Handles>, private Admission {
 public:
  static constexpr const char* name = "tcp";
  static constexpr const char* version = "1.0.0";
  static constexpr std::uint32_t memory_kinds =
      HEADRACE_KIND_BIT(HEADRACE_DRAM) | HEADRACE_KIND_BIT(HEADRACE_VRAM);
  static constexpr bool maps = false;
  static std::span<const headrace_option_v1> options() { return Settings::rows(); }
  static Result<std::unique_ptr<TcpBackend>> open(plugin::Host host, const plugin::CreateArgs& args);
  /// What tests put in the place of the system's.
  struct Parts {
    std::unique_ptr<SocketCalls> calls = std::make_unique<SystemCalls>();
    std::optional<gpu::GpuSource> gpus = {};  ///< none: the driver and the kernels that are installed
  };
  static Result<std::unique_ptr<TcpBackend>> open(plugin::Host host, const plugin::CreateArgs& args,
                                                  Parts parts);

  ~TcpBackend() override;

  [[nodiscard]] headrace_info_v1 info() override;
  Result<std::string> connection_info() override;
  Result<Link*> connect(const headrace_connect_v1& args) override;
  void disconnect(Link& link) override;

  Result<Region*> register_region(const headrace_region_v1& region) override;
  void deregister_region(Region& region) override;

  Result<Remote*> load_remote(Link& link, const headrace_remote_region_v1& region) override;
  void unload(Remote& remote) override;

  Result<Request*> prepare(Link* link, const headrace_prepare_v1& args) override;
  Status post(Request& request, const headrace_post_v1& args) override;
  bool poll(Request& request) override;
  void cancel(Request& request) override;
  void release(Request& request) override;

  Status notify(Link& link, std::uint32_t channel, std::string_view bytes) override;
  std::uint64_t unsent(Link& link) override { return link.unsent(); }

  headrace_cost_v1 cost(const headrace_prepare_v1& args) override;

 private:
  TcpBackend(plugin::Host host, Settings settings, Parts parts);
  Result<void> start();
  Result<std::shared_ptr<Link>> admit(const wire::Hello& peer) override;
  [[nodiscard]] std::vector<std::shared_ptr<Link>> links() const;
  std::shared_ptr<Link> take(const Link* link);

  Context context_;
  Resolver resolver_;
  std::unique_ptr<Listener> listener_;
  std::string ports_;  // for `info`
  mutable std::mutex mutex_;
  std::unordered_map<const Link*, std::shared_ptr<Link>> links_;
};

}  // namespace headrace::tcp
