// SPDX-License-Identifier: Apache-2.0
// Our own regions: what the caller registered, and each backend's handle for it.
#pragma once

#include <headrace/memory.hpp>

#include "engine/progress.hpp"

#include <any>
#include <array>
#include <atomic>
#include <mutex>

namespace headrace::engine {

/// Co-owned by the table, and by page lists that name it.
struct LocalRegion {
  Region info;
  MemoryRange range;
  int memory_fd = -1;                      ///< the memfd of `allocate`, owned by `backing`
  std::shared_ptr<const void> keep_alive;  ///< the caller's
  std::shared_ptr<const void> backing;     ///< the allocation, if it is ours
  std::array<void*, max_backends> handles{};
  std::array<void*, max_backends> far_handles{};  ///< from load_local, made at first use
  std::mutex far_mutex;
  std::atomic<bool> live{true};  ///< false from the beginning of its deregistration

  [[nodiscard]] headrace_region_v1 to_c() const {
    headrace_region_v1 r{};
    r.struct_size = sizeof r;
    r.region_id = info.id.value;
    r.kind = static_cast<std::int32_t>(info.kind);
    r.address = info.address;
    r.length = info.length_bytes;
    r.device = range.device;
    r.memory_fd = memory_fd;
    r.memory_offset = 0;
    r.file_fd = range.file_descriptor;
    r.name = range.path.empty() ? nullptr : range.path.c_str();
    r.flags = range.writable ? 0U : HEADRACE_REGION_READ_ONLY;
    return r;
  }
};

}  // namespace headrace::engine
