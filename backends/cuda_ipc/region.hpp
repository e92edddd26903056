// SPDX-License-Identifier: Apache-2.0
// Memory that was registered: a GPU's, or the host's, which GPUs reach once it is pinned.
#pragma once

#include "base/unique_fd.hpp"
#include "gpu/pinned_memory.hpp"
#include "gpu/registered_memory.hpp"

#include <headrace/plugin/backend.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

namespace headrace::cuda_ipc {

using gpu::Gpus;
using gpu::WorkingGpu;

class Link;
class Region;
class RemoteRegion;
class Request;
using Handles = plugin::Handles<Region, Link, RemoteRegion, Request>;

class Region {
 public:
  /// Of the host's memory nothing is looked at, and no GPU is opened. `pins`: whether memory of the host's
  /// that was registered may be pinned.
  ///   errors   not_found (no GPU memory at that address), invalid_argument (of another GPU than was said),
  ///            exhausted, and those of Gpus::open
  [[nodiscard]] static Result<std::unique_ptr<Region>> make(Gpus& gpus, const headrace_region_v1& args,
                                                            bool pins = true);

  /// The GPU whose memory it is; none: the host's.
  [[nodiscard]] const WorkingGpu* gpu() const noexcept { return memory_ ? memory_->gpu().get() : nullptr; }
  [[nodiscard]] std::uint32_t id() const noexcept { return id_; }
  [[nodiscard]] cuda::Address address() const noexcept { return address_; }
  [[nodiscard]] std::uint64_t length() const noexcept { return length_; }
  [[nodiscard]] bool read_only() const noexcept { return read_only_; }
  /// The host's memory from `allocate`: the file that holds it, else -1, and where in it the region begins.
  [[nodiscard]] int memory_fd() const noexcept { return memory_fd_.get(); }
  [[nodiscard]] std::uint64_t memory_offset() const noexcept { return memory_offset_; }
  /// A GPU's memory: which it is. The same number from two regions means the same pieces.
  [[nodiscard]] std::uint64_t buffers() const noexcept { return memory_ ? memory_->buffers() : 0; }

  /// Whether the memory is still the one that was registered. An address says little: freed memory's comes
  /// back.
  ///   errors   not_found
  [[nodiscard]] Result<void> check_unchanged() const;
  /// Where `gpu` reaches it. The host's memory is pinned for all GPUs when the first asks, and stays so until
  /// it is deregistered.
  ///   errors   not_supported (no way from this GPU, or it cannot be pinned: why), not_found
  [[nodiscard]] Result<cuda::Address> reach(const WorkingGpu& gpu) const;

 private:
  Region() = default;
  [[nodiscard]] Result<cuda::Address> pin(const WorkingGpu& gpu) const;

  std::optional<gpu::RegisteredMemory> memory_;  // none: the host's
  std::uint32_t id_ = 0;
  cuda::Address address_ = 0;
  std::uint64_t length_ = 0;
  bool read_only_ = false;
  bool pins_ = true;
  UniqueFd memory_fd_;
  std::uint64_t memory_offset_ = 0;
  mutable std::mutex mutex_;
  mutable std::optional<Result<gpu::PinnedMemory>> pinned_;
};

}  // namespace headrace::cuda_ipc
