// SPDX-License-Identifier: Apache-2.0
// Moves pages between the processes of one host: through memory that both map, or by cross-memory attach.
//
// README.md says how; this class only hands the entries of the plugin table to the parts that do it.
#pragma once

#include "backends/shm/instance.hpp"
#include "backends/shm/link.hpp"
#include "backends/shm/regions.hpp"

#include <headrace/plugin/backend.hpp>

#include <memory>
#include <span>
#include <string>

namespace headrace::shm {

class ShmBackend final : public plugin::Backend<Handles> {
 public:
  static constexpr const char* name = "shm";
  static constexpr const char* version = "1.0";
  static constexpr std::uint32_t memory_kinds = HEADRACE_KIND_BIT(HEADRACE_DRAM);
  static constexpr bool maps = true;
  [[nodiscard]] static std::span<const headrace_option_v1> options() { return option_rows(); }

  [[nodiscard]] static Result<std::unique_ptr<ShmBackend>> open(plugin::Host host,
                                                                const plugin::CreateArgs& args);

  [[nodiscard]] headrace_info_v1 info() override;
  Result<std::string> connection_info() override;
  Result<Link*> connect(const headrace_connect_v1& args) override;
  void disconnect(Link& link) override;

  Result<Region*> register_region(const headrace_region_v1& region) override;
  void deregister_region(Region& region) override;

  Result<Remote*> load_remote(Link& link, const headrace_remote_region_v1& region) override;
  void unload(Remote& remote) override;
  Result<std::span<std::byte>> map(Remote& remote, int device, unsigned access) override;

  Result<Request*> prepare(Link* link, const headrace_prepare_v1& args) override;
  Status post(Request& request, const headrace_post_v1& args) override;
  bool poll(Request& request) override;
  void cancel(Request& request) override;
  void release(Request& request) override;

  Status notify(Link& link, std::uint32_t channel, std::string_view bytes) override;
  std::uint64_t unsent(Link& link) override;

  std::uint32_t progress() override;
  [[nodiscard]] int descriptor() override;
  std::uint32_t arm(bool on) override;

  headrace_cost_v1 cost(const headrace_prepare_v1& args) override;

 private:
  explicit ShmBackend(std::unique_ptr<Instance> instance) : instance_(std::move(instance)) {}

  std::uint32_t rescue_stranded();

  const std::unique_ptr<Instance> instance_;
};

}  // namespace headrace::shm
