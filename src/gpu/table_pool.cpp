// SPDX-License-Identifier: Apache-2.0
#include "gpu/table_pool.hpp"

#include <algorithm>
#include <bit>

namespace headrace::gpu {

std::size_t TablePool::class_of(std::size_t bytes) {
  if (bytes <= line_bytes) return 0;
  return 1 + static_cast<std::size_t>(std::bit_width((bytes - 1) / smallest_table_bytes));
}

std::size_t TablePool::piece_bytes_of(std::size_t size_class) {
  return size_class == 0 ? line_bytes : smallest_table_bytes << (size_class - 1);
}

Result<TablePool::Table> TablePool::take(std::size_t bytes) {
  const std::size_t size_class = class_of(bytes);
  const std::scoped_lock lock(mutex_);
  if (size_class >= free_.size())
    return make_error(Code::exhausted, "a table of {} bytes is larger than any GPU's memory", bytes);
  std::vector<Piece>& free = free_[size_class];
  if (free.empty()) HEADRACE_TRY_VOID(refill(size_class));
  Table table;
  table.pool_ = shared_from_this();
  table.size_class_ = size_class;
  table.device_ = free.back().device;
  table.mapped_ = free.back().mapped;
  table.host_ = free.back().host;
  free.pop_back();
  return table;
}

Result<void> TablePool::refill(std::size_t size_class) {
  const std::size_t piece_bytes = piece_bytes_of(size_class);
  const std::size_t bytes = size_class == 0 ? lines_slab_bytes : std::max(piece_bytes, slab_bytes);
  HEADRACE_TRY(memory, DeviceMemory::allocate(device_, bytes));
  HEADRACE_TRY(pinned, PinnedMemory::allocate(device_, bytes));
  for (std::size_t at = 0; at < bytes; at += piece_bytes)
    free_[size_class].push_back({memory.address() + at, pinned.address() + at, pinned.bytes().data() + at});
  slabs_.emplace_back(std::move(memory), std::move(pinned));
  return {};
}

TablePool::Table& TablePool::Table::operator=(Table&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  pool_ = std::move(other.pool_);
  size_class_ = other.size_class_;
  device_ = other.device_;
  mapped_ = other.mapped_;
  host_ = other.host_;
  return *this;
}

void TablePool::Table::give_back() noexcept {
  const std::shared_ptr<TablePool> pool = std::move(pool_);  // outlives the lock on it
  if (pool == nullptr) return;
  const std::scoped_lock lock(pool->mutex_);
  pool->free_[size_class_].push_back(
      {device_, mapped_, host_});  // cannot fail: it had room for this entry before
}

}  // namespace headrace::gpu
