// SPDX-License-Identifier: Apache-2.0
// Memory for page tables: for each table a block of device memory, and a block of pinned host memory from
// which it is filled.
//
// The driver takes 100 us or more to allocate either, and may wait for the device to free it; making a
// request takes less. So blocks come in a few sizes, are cut from larger allocations, and are kept.
//
// Many requests have only the head of a table, with the word that reports their end. These heads are packed
// line by line: a GPU that writes to a different page of host memory each time must translate a different
// address each time.
// that writes to another page of host memory each time has its place to look up each time.
#pragma once

#include "gpu/device_memory.hpp"
#include "gpu/pinned_memory.hpp"

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace headrace::gpu {

///   threads  any
class TablePool : public std::enable_shared_from_this<TablePool> {
 public:
  /// A table; the destructor returns it. It still has the bytes of its previous user.
  class Table {
   public:
    Table() = default;
    Table(Table&& other) noexcept
        : pool_(std::move(other.pool_)),
          size_class_(other.size_class_),
          device_(other.device_),
          mapped_(other.mapped_),
          host_(other.host_) {}
    Table& operator=(Table&& other) noexcept;
    ~Table() { give_back(); }

    [[nodiscard]] cuda::Address device() const noexcept { return device_; }
    [[nodiscard]] std::byte* host() const noexcept { return host_; }
    /// The address of `host` on GPUs.
    [[nodiscard]] cuda::Address mapped() const noexcept { return mapped_; }

   private:
    friend class TablePool;
    void give_back() noexcept;
    std::shared_ptr<TablePool> pool_;
    std::size_t size_class_ = 0;
    cuda::Address device_ = 0;
    cuda::Address mapped_ = 0;
    std::byte* host_ = nullptr;
  };

  explicit TablePool(std::shared_ptr<const Device> device) : device_(std::move(device)) {}

  /// A table of at least `bytes` bytes on either side, both aligned to 64.
  ///   errors   exhausted
  [[nodiscard]] Result<Table> take(std::size_t bytes);

 private:
  struct Piece {
    cuda::Address device = 0;
    cuda::Address mapped = 0;
    std::byte* host = nullptr;
  };
  // Sizes of class 0 and of class 1; each later class is twice as large as the one before.
  static constexpr std::size_t line_bytes = 64, smallest_table_bytes = 4096;
  static constexpr std::size_t lines_slab_bytes = std::size_t{64} << 10, slab_bytes = std::size_t{1} << 20;
  static std::size_t class_of(std::size_t bytes);
  static std::size_t piece_bytes_of(std::size_t size_class);
  Result<void> refill(std::size_t size_class);

  std::shared_ptr<const Device> device_;
  std::mutex mutex_;
  std::array<std::vector<Piece>, 40> free_;
  std::vector<std::pair<DeviceMemory, PinnedMemory>> slabs_;
};

}  // namespace headrace::gpu
