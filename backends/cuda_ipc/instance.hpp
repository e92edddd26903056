// SPDX-License-Identifier: Apache-2.0
// What the parts of one backend instance share: what a site among others has, the GPUs, the posts that they
// work on, and the memory that peers may reach.
#pragma once

#include "backends/cuda_ipc/proof.hpp"
#include "backends/cuda_ipc/region.hpp"
#include "backends/cuda_ipc/settings.hpp"
#include "gpu/posts.hpp"
#include "gpu/staging.hpp"
#include "host_link/site.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace headrace::cuda_ipc {

using gpu::GpuSource;

/// Any thread.
class Instance final : public host_link::Site {
 public:
  Instance(plugin::Host its_host, const Settings& settings, GpuSource source, Parts parts);
  ~Instance() override;

  const gpu::CourierSettings courier;
  Gpus gpus;
  gpu::Posts posts;
  gpu::Staging staging;

  // ---- memory of ours

  [[nodiscard]] Result<Region*> add_region(const headrace_region_v1& args);
  /// Peers that reach it are told to let go. Waits for what GPUs of ours move between it and peers' memory.
  void remove_region(const Region* region);
  /// The region that a peer asks for; none: never was, or was deregistered.
  [[nodiscard]] std::shared_ptr<const Region> region(std::uint32_t id) const;
  /// Made at the first question for this GPU.
  [[nodiscard]] Result<const Proof*> proof(const WorkingGpu& gpu);

 private:
  [[nodiscard]] std::shared_ptr<host_link::Link> make_link(host_link::Side side, UnixSocket socket,
                                                           host_link::PeerProcess process) override;

  const bool pins_registered_;
  mutable std::mutex mutex_;
  std::unordered_map<std::uint32_t, std::shared_ptr<const Region>> regions_;
  std::mutex proof_mutex_;
  std::map<int, std::unique_ptr<const Proof>> proofs_;
};

}  // namespace headrace::cuda_ipc
