// SPDX-License-Identifier: Apache-2.0
// Moves pages between the GPUs of this process, and those of other processes of the host, by kernels and copy
// engines. README.md says how; this class only hands the entries of the plugin table to the parts that do it.
#pragma once

#include "backends/cuda_ipc/instance.hpp"

#include <headrace/plugin/backend.hpp>

#include <memory>
#include <span>
#include <string>

namespace headrace::cuda_ipc {

class CudaIpcBackend final : public plugin::Backend<Handles> {
 public:
  static constexpr const char* name = "cuda_ipc";
  static constexpr const char* version = "1.0";
  static constexpr std::uint32_t memory_kinds =
      HEADRACE_KIND_BIT(HEADRACE_VRAM) | HEADRACE_KIND_BIT(HEADRACE_DRAM);
  static constexpr bool maps = true;
  [[nodiscard]] static std::span<const headrace_option_v1> options() { return option_rows(); }

  [[nodiscard]] static Result<std::unique_ptr<CudaIpcBackend>> open(plugin::Host host,
                                                                    const plugin::CreateArgs& args);
  /// With another driver and other kernels, for tests.
  [[nodiscard]] static Result<std::unique_ptr<CudaIpcBackend>> open(plugin::Host host,
                                                                    const plugin::CreateArgs& args,
                                                                    GpuSource source);

  [[nodiscard]] headrace_info_v1 info() override;
  Result<std::string> connection_info() override;
  Result<Link*> connect(const headrace_connect_v1& args) override;
  void disconnect(Link& link) override;

  Result<Region*> register_region(const headrace_region_v1& region) override;
  void deregister_region(Region& region) override;
  Result<std::string> export_region(Region& region) override;
  Result<Remote*> load_remote(Link& link, const headrace_remote_region_v1& region) override;
  void unload(Remote& remote) override;
  Result<std::span<std::byte>> map(Remote& remote, int device, unsigned access) override;
  void unmap(Remote& remote, void* address) override;

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

  Result<bool> capture(Request& request, const headrace_capture_v1& args) override;
  void end_capture(Request& request) override;
  Result<void> set_indices(Request& request, const headrace_indices_v1& args) override;
  Result<std::uint64_t> check(Request& request) override;

 private:
  explicit CudaIpcBackend(std::unique_ptr<Instance> instance) : instance_(std::move(instance)) {}

  const std::unique_ptr<Instance> instance_;
};

}  // namespace headrace::cuda_ipc
