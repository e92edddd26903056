// SPDX-License-Identifier: Apache-2.0
// Memory that was registered, with the file that peers map if it is the host's.
#pragma once

#include "base/unique_fd.hpp"
#include "gpu/region.hpp"

#include <cstdint>
#include <memory>

namespace headrace::cuda_ipc {

using gpu::Gpus;
using gpu::WorkingGpu;

class Link;
class Region;
class RemoteRegion;
class Request;
using Handles = plugin::Handles<Region, Link, RemoteRegion, Request>;

class Region final : public gpu::Region {
 public:
  /// `pins`: whether memory of the host's that was registered may be pinned.
  ///   errors   those of find_memory, and exhausted (no free descriptor)
  [[nodiscard]] static Result<std::unique_ptr<Region>> make(Gpus& gpus, const headrace_region_v1& args,
                                                            bool pins = true);

  /// The host's memory from `allocate`: the file that holds it, else -1, and where in it the region begins.
  [[nodiscard]] int memory_fd() const noexcept { return memory_fd_.get(); }
  [[nodiscard]] std::uint64_t memory_offset() const noexcept { return memory_offset_; }

 private:
  using gpu::Region::Region;

  UniqueFd memory_fd_;
  std::uint64_t memory_offset_ = 0;
};

}  // namespace headrace::cuda_ipc
