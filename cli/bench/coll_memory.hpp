// SPDX-License-Identifier: Apache-2.0
// What one rank gives to an operation, or gets from it: memory of the host, of a window, or of a GPU with a
// copy on the host.
#pragma once

#include "cli/bench/coll_gpu.hpp"
#include "cli/bench/zeroed_memory.hpp"

#include <cstddef>
#include <optional>
#include <span>

namespace headrace::cli {

class CollMemory {
 public:
  CollMemory() = default;
  /// New memory; of the GPU if there is one.
  ///   errors  exhausted
  [[nodiscard]] static Result<CollMemory> make(std::size_t bytes, const CollGpu* gpu) {
    CollMemory made;
    made.own_.emplace(static_cast<std::int64_t>(bytes));
    made.host_ = {made.own_->data(), bytes};
    if (gpu == nullptr || bytes == 0) return made;
    made.gpu_ = gpu;
    HEADRACE_CLI_TRY(device, gpu->allocate(bytes));
    made.device_ = std::move(device);
    return made;
  }
  /// Memory of another owner, on the host.
  [[nodiscard]] static CollMemory over(std::span<std::byte> host) {
    CollMemory made;
    made.host_ = host;
    return made;
  }

  /// The address for the operation.
  [[nodiscard]] void* data() const {
    return gpu_ != nullptr ? reinterpret_cast<void*>(device_.address()) : host_.data();
  }
  /// The bytes on the host. What is written there reaches a GPU by upload, and comes from it by download.
  [[nodiscard]] std::span<std::byte> host() const { return host_; }
  [[nodiscard]] Result<void> upload() const { return upload(host_.size()); }
  [[nodiscard]] Result<void> download() const { return download(host_.size()); }
  /// Of the first ones alone.
  [[nodiscard]] Result<void> upload(std::size_t bytes) const {
    return gpu_ ? gpu_->upload(device_, host_.first(bytes)) : Result<void>();
  }
  [[nodiscard]] Result<void> download(std::size_t bytes) const {
    return gpu_ ? gpu_->download(host_.first(bytes), device_) : Result<void>();
  }

 private:
  std::optional<ZeroedMemory> own_;  // a move keeps its address
  std::span<std::byte> host_;
  const CollGpu* gpu_ = nullptr;
  gpu::DeviceMemory device_;
};

}  // namespace headrace::cli
