// SPDX-License-Identifier: Apache-2.0
// Host memory for words between a fabric and kernels.
#pragma once

#include "gpu/pinned_memory.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace headrace::fabric {

/// Zeros at first. With a GPU it is pinned, and every GPU of the process sees it.
class HostBlock {
 public:
  /// device: null: plain memory.
  ///   errors  exhausted
  static Result<HostBlock> make(const std::shared_ptr<const gpu::Device>& device, std::size_t bytes);

  [[nodiscard]] std::byte* bytes() const {
    return plain_ != nullptr ? reinterpret_cast<std::byte*>(plain_.get()) : pinned_.bytes().data();
  }
  /// As kernels see it.
  [[nodiscard]] std::uint64_t address() const {
    return plain_ != nullptr ? reinterpret_cast<std::uintptr_t>(plain_.get()) : pinned_.address();
  }
  /// 8 bytes, from there on.
  [[nodiscard]] std::uint64_t& word(std::size_t at_byte) const {
    return *reinterpret_cast<std::uint64_t*>(bytes() + at_byte);
  }

 private:
  struct alignas(64) Line {
    std::array<std::uint64_t, 8> words{};
  };
  explicit HostBlock(std::unique_ptr<Line[]> plain) : plain_(std::move(plain)) {}
  explicit HostBlock(gpu::PinnedMemory pinned) : pinned_(std::move(pinned)) {}

  std::unique_ptr<Line[]> plain_;
  gpu::PinnedMemory pinned_;
};

}  // namespace headrace::fabric
