// SPDX-License-Identifier: Apache-2.0
// The backend of moves inside one agent, which every agent has: memory of the host by copying, memory of GPUs
// by kernels and copy engines. README.md says how; this class hands the entries of the plugin table to the
// parts.
#pragma once

#include "local/instance.hpp"

#include <headrace/plugin/backend.hpp>

#include <memory>
#include <span>

namespace headrace::local {

class LocalBackend final : public plugin::Backend<Handles> {
 public:
  static constexpr const char* name = "local";
  static constexpr const char* version = "1.0";
  static constexpr std::uint32_t memory_kinds =
      HEADRACE_KIND_BIT(HEADRACE_DRAM) | HEADRACE_KIND_BIT(HEADRACE_VRAM);
  static constexpr bool maps = false;
  [[nodiscard]] static std::span<const headrace_option_v1> options() { return option_rows(); }

  [[nodiscard]] static Result<std::unique_ptr<LocalBackend>> open(plugin::Host host,
                                                                  const plugin::CreateArgs& args);
  /// With another driver and other kernels, for tests.
  [[nodiscard]] static Result<std::unique_ptr<LocalBackend>> open(plugin::Host host,
                                                                  const plugin::CreateArgs& args,
                                                                  gpu::GpuSource source);

  [[nodiscard]] headrace_info_v1 info() override;
  Result<Region*> register_region(const headrace_region_v1& args) override;
  void deregister_region(Region& region) override;
  Result<Remote*> load_local(Region& region) override;
  void unload(Remote& remote) override;

  Result<Request*> prepare(Link* link, const headrace_prepare_v1& args) override;
  Status post(Request& request, const headrace_post_v1& args) override;
  bool poll(Request& request) override;
  void cancel(Request& request) override;
  void release(Request& request) override;

  Result<bool> capture(Request& request, const headrace_capture_v1& args) override;
  void end_capture(Request& request) override;
  Result<void> set_indices(Request& request, const headrace_indices_v1& args) override;
  Result<std::uint64_t> check(Request& request) override;

  std::uint32_t progress() override;
  std::uint32_t arm(bool on) override;
  headrace_cost_v1 cost(const headrace_prepare_v1& args) override;

 private:
  explicit LocalBackend(std::unique_ptr<Instance> instance) : instance_(std::move(instance)) {}

  [[nodiscard]] Result<void> check_gpus() const;

  const std::unique_ptr<Instance> instance_;
};

}  // namespace headrace::local
