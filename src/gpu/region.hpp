// SPDX-License-Identifier: Apache-2.0
// Memory that was registered: a GPU's, or the host's, which GPUs reach once it is pinned.
#pragma once

#include "gpu/pinned_memory.hpp"
#include "gpu/registered_memory.hpp"

#include <headrace/plugin/backend.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

namespace headrace::gpu {

class Region {
 public:
  /// `memory`: what `find_memory` returned. `pins`: whether memory of the host's that was registered may be
  /// pinned.
  Region(const headrace_region_v1& args, bool pins, std::optional<RegisteredMemory> memory);
  /// Of the host's memory nothing is looked at, and no GPU is opened.
  ///   errors   not_found (no GPU memory at that address), invalid_argument (of another GPU than was said),
  ///            exhausted, and those of Gpus::open
  [[nodiscard]] static Result<std::optional<RegisteredMemory>> find_memory(Gpus& gpus,
                                                                           const headrace_region_v1& args);

  /// The GPU whose memory it is; none: the host's.
  [[nodiscard]] const WorkingGpu* gpu() const noexcept { return memory_ ? memory_->gpu().get() : nullptr; }
  [[nodiscard]] std::uint32_t id() const noexcept { return id_; }
  [[nodiscard]] cuda::Address address() const noexcept { return address_; }
  [[nodiscard]] std::uint64_t length() const noexcept { return length_; }
  [[nodiscard]] bool read_only() const noexcept { return read_only_; }
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
  [[nodiscard]] Result<cuda::Address> pin(const WorkingGpu& gpu) const;

  const std::optional<RegisteredMemory> memory_;  // none: the host's
  const std::uint32_t id_;
  const cuda::Address address_;
  const std::uint64_t length_;
  const bool read_only_;
  const bool pins_;
  mutable std::mutex mutex_;
  mutable std::optional<Result<PinnedMemory>> pinned_;
};

}  // namespace headrace::gpu
