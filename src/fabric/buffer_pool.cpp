// SPDX-License-Identifier: Apache-2.0
#include "fabric/buffer_pool.hpp"

#include "fabric/core.hpp"

#include <cstdlib>

namespace headrace::fabric {
namespace {

constexpr std::uint64_t rounded_up(std::uint64_t bytes) {
  return (bytes + BufferPool::alignment - 1) / BufferPool::alignment * BufferPool::alignment;
}

}  // namespace

BufferPool::BufferPool(std::shared_ptr<Core> core, std::size_t count, std::uint64_t bytes)
    : bytes_each(bytes), core_(std::move(core)), stride_(rounded_up(bytes)), count_(count) {}

/// Posts that use the memory end first.
BufferPool::~BufferPool() {
  if (memory_ && !core_->forked()) static_cast<void>(core_->deregister(memory_));
}

void BufferPool::Free::operator()(std::byte* bytes) const { std::free(bytes); }

Result<void> BufferPool::open() {
  constexpr std::uint64_t most = std::uint64_t{1} << 47;  // what a process can address
  if (bytes_each > most || count_ > most / stride_)
    return make_error(Code::exhausted, "{} buffers of {} bytes are more than there is memory", count_,
                      bytes_each);
  bytes_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, stride_ * count_)));
  if (bytes_ == nullptr)
    return make_error(Code::exhausted, "there is no memory for {} buffers of {} bytes", count_, bytes_each);
  HEADRACE_TRY(memory, core_->register_memory({.address = bytes_.get(), .length_bytes = stride_ * count_},
                                              FabricAccess::writable, 0));
  memory_ = std::move(memory);
  for (std::size_t index = count_; index-- > 0;) free_.push_back(index);
  return {};
}

std::optional<std::size_t> BufferPool::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return std::nullopt;
  const std::size_t index = free_.back();
  free_.pop_back();
  return index;
}

void BufferPool::give_back(std::size_t index) {
  const std::lock_guard lock(mutex_);
  free_.push_back(index);
}

std::size_t BufferPool::free() const {
  const std::lock_guard lock(mutex_);
  return free_.size();
}

}  // namespace headrace::fabric
