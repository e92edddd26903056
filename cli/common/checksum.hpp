// SPDX-License-Identifier: Apache-2.0
// The checksum of served tensors: XXH3, 64 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace headrace::cli {

[[nodiscard]] std::uint64_t checksum(std::span<const std::byte> bytes);

/// The same checksum, of bytes that are added step by step.
class RunningChecksum {
 public:
  RunningChecksum();
  void add(std::span<const std::byte> bytes);
  /// The checksum of the bytes that were added since the last take(). The next bytes begin a new one.
  [[nodiscard]] std::uint64_t take();

 private:
  std::unique_ptr<void, void (*)(void*)> state_;
};

}  // namespace headrace::cli
