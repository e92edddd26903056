// SPDX-License-Identifier: Apache-2.0
// Host buffers of one size in one registered memory.
#pragma once

#include <headrace/fabric_memory.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace headrace::fabric {

/// Thread-safe.
class BufferPool {
 public:
  /// A memory page each, so that no two share a cache line.
  static constexpr std::size_t alignment = 4096;

  BufferPool(std::shared_ptr<Core> core, std::size_t count, std::uint64_t bytes);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// Before its first use: registers the memory.
  Result<void> open();
  std::optional<std::size_t> take();
  void give_back(std::size_t index);
  [[nodiscard]] std::size_t free() const;
  [[nodiscard]] std::span<std::byte> bytes_of(std::size_t index) const {
    return {data() + offset_of(index), static_cast<std::size_t>(bytes_each)};
  }
  [[nodiscard]] std::uint64_t offset_of(std::size_t index) const { return index * stride_; }
  [[nodiscard]] const FabricMemory& memory() const { return memory_; }

  const std::uint64_t bytes_each;

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  [[nodiscard]] std::byte* data() const { return bytes_.get(); }

  const std::shared_ptr<Core> core_;
  const std::uint64_t stride_;
  const std::size_t count_;
  std::unique_ptr<std::byte, Free> bytes_;
  FabricMemory memory_;
  mutable std::mutex mutex_;
  std::vector<std::size_t> free_;
};

}  // namespace headrace::fabric
