// SPDX-License-Identifier: Apache-2.0
// Memory that one process of a benchmark owns and registers, on the host or on a GPU. The benchmark fills and
// compares it between transfers.
#pragma once

#include <headrace/memory.hpp>

#include "cli/common/errors.hpp"

#include <cstdint>
#include <memory>
#include <span>

namespace headrace::cli {

class BenchMemory {
 public:
  virtual ~BenchMemory() = default;
  BenchMemory() = default;
  BenchMemory(const BenchMemory&) = delete;
  BenchMemory& operator=(const BenchMemory&) = delete;

  [[nodiscard]] virtual MemoryRange range() const = 0;
  /// See fill_pattern.
  [[nodiscard]] virtual Result<void> fill(std::uint64_t seed) = 0;
  /// The bytes that it holds now; valid until the next call of `fill` or `contents`.
  [[nodiscard]] virtual Result<std::span<const std::byte>> contents() = 0;
};

/// Anonymous memory of this process, as NumPy and the allocators of serving engines get it.
///   errors   exhausted
[[nodiscard]] Result<std::unique_ptr<BenchMemory>> host_memory(std::uint64_t bytes);
/// Memory of a GPU by cuMemAlloc.
///   errors   not_supported (no driver, no GPU), invalid_argument (no such ordinal), exhausted
[[nodiscard]] Result<std::unique_ptr<BenchMemory>> gpu_memory(int ordinal, std::uint64_t bytes);

}  // namespace headrace::cli
