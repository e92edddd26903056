// SPDX-License-Identifier: Apache-2.0
#include "fabric/flags.hpp"

#include "gpu/allocation_info.hpp"

namespace headrace::fabric {

// ------------------------------------------------------------------ lines

Result<LinePool::Line> LinePool::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    HEADRACE_TRY(block, HostBlock::make(device_, lines_a_block * line_bytes));
    const std::size_t first = blocks_.size() * lines_a_block;
    blocks_.push_back(std::move(block));
    for (std::size_t i = lines_a_block; i-- > 0;) free_.push_back(first + i);
  }
  const std::size_t number = free_.back();
  free_.pop_back();
  const HostBlock& block = blocks_[number / lines_a_block];
  const std::size_t at = number % lines_a_block * line_bytes;
  Line line(shared_from_this(), number, &block.word(at), block.address() + at);
  line.word().store(0, std::memory_order_relaxed);
  return line;
}

void LinePool::give_back(std::size_t number) {
  const std::lock_guard lock(mutex_);
  free_.push_back(number);
}

// ------------------------------------------------------------------ one word

std::uint64_t Flag::value() const {
  return gpu_ != nullptr ? gpu_->stored() : line_->word().load(std::memory_order_acquire);
}

Result<void> Flag::raise_to(std::uint64_t value) {
  if (gpu_ != nullptr) return gpu_->raise_to(value);
  line_->word().store(value, std::memory_order_release);
  return {};
}

// ------------------------------------------------------------------ making them

Result<std::shared_ptr<const gpu::Device>> FlagMaker::open_gpu(int ordinal) {
  const std::lock_guard lock(mutex_);
  if (!driver_) driver_ = load_();
  if (!*driver_) return driver_->error();
  auto& gpu = gpus_[ordinal];
  if (gpu != nullptr) return gpu;
  HEADRACE_TRY(opened, gpu::Device::open(**driver_, ordinal));
  return gpu = std::move(opened);
}

Result<std::unique_ptr<Flag>> FlagMaker::make(const FabricFlagPlace& place) {
  if (!place.device) {
    if (place.gpu_memory != 0)
      return make_error(Code::invalid_argument, "a flag in GPU memory needs the GPU: give its device");
    HEADRACE_TRY(line, plain_->take());
    return std::make_unique<Flag>(std::move(line), std::nullopt);
  }
  if (place.gpu_memory != 0) return make_in_gpu_memory(*place.device, place.gpu_memory);
  HEADRACE_TRY(device, open_gpu(*place.device));
  std::shared_ptr<LinePool> pool;
  {
    const std::lock_guard lock(mutex_);
    if (pinned_ == nullptr) pinned_ = std::make_shared<LinePool>(std::move(device));
    pool = pinned_;
  }
  HEADRACE_TRY(line, pool->take());
  return std::make_unique<Flag>(std::move(line), place.device);
}

Result<std::unique_ptr<Flag>> FlagMaker::make_in_gpu_memory(int ordinal, std::uint64_t address) {
  if (address % sizeof(std::uint64_t) != 0)
    return make_error(Code::invalid_argument, "a flag at {:#x} is not aligned: give 8 bytes, aligned to 8",
                      address);
  HEADRACE_TRY(device, open_gpu(ordinal));
  HEADRACE_TRY(found, gpu::describe_allocation(*device, address));
  if (!found.on_device || found.device != ordinal)
    return make_error(Code::invalid_argument,
                      "a flag at {:#x} is not in memory of GPU {}: give memory of this GPU, or none", address,
                      ordinal);
  HEADRACE_TRY(word, gpu::GpuWord::at(device, address, 0));
  return std::make_unique<Flag>(std::move(word));
}

}  // namespace headrace::fabric
