// SPDX-License-Identifier: Apache-2.0
// GPU memory that was registered.
#pragma once

#include "backends/cuda_ipc/gpus.hpp"

#include <headrace/plugin/backend_v1.h>

#include <cstdint>
#include <memory>

namespace headrace::cuda_ipc {

class Region {
 public:
  ///   errors   not_found (no GPU memory at that address), invalid_argument (of another GPU than was said),
  ///   and those of
  ///            Gpus::open
  [[nodiscard]] static Result<std::unique_ptr<Region>> make(Gpus& gpus, const headrace_region_v1& args);

  [[nodiscard]] const WorkingGpu& gpu() const noexcept { return *gpu_; }
  [[nodiscard]] std::uint32_t id() const noexcept { return id_; }
  [[nodiscard]] cuda::Address address() const noexcept { return address_; }
  [[nodiscard]] std::uint64_t length() const noexcept { return length_; }
  [[nodiscard]] bool read_only() const noexcept { return read_only_; }
  /// Which memory it is: the same number from two regions means the same pieces.
  [[nodiscard]] std::uint64_t buffers() const noexcept { return buffers_; }

  /// Whether the memory is still the one that was registered. An address says little: freed memory's comes
  /// back.
  ///   errors   not_found
  [[nodiscard]] Result<void> check_unchanged() const;

 private:
  explicit Region(std::shared_ptr<const WorkingGpu> gpu) : gpu_(std::move(gpu)) {}

  std::shared_ptr<const WorkingGpu> gpu_;
  std::uint32_t id_ = 0;
  cuda::Address address_ = 0;
  std::uint64_t length_ = 0;
  bool read_only_ = false;
  std::uint64_t buffers_ = 0;
};

}  // namespace headrace::cuda_ipc
