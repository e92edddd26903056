// SPDX-License-Identifier: Apache-2.0
// One region of ours: what the caller registered, and each backend's handle for it.
#pragma once

#include <headrace/plugin/backend_v1.h>
#include <headrace/memory.hpp>

#include <atomic>
#include <memory>
#include <mutex>

namespace headrace::engine {

/// Each backend's handles for a region. As many rows as backends were open when it was registered: 100,000
/// regions with rows for all that could ever be open would be page faults above all. A backend that was
/// opened later has no row, and no handle.
class RegionHandles {
 public:
  explicit RegionHandles(std::size_t backends) : rows_(std::make_unique<Row[]>(backends)), count_(backends) {}

  /// As `register_region` gave it; null: not registered with this backend.
  [[nodiscard]] void* local(std::size_t backend) const {
    return backend < count_ ? rows_[backend].local : nullptr;
  }
  /// As `load_local` gave it, at first use.
  [[nodiscard]] void* far(std::size_t backend) const {
    return backend < count_ ? rows_[backend].far : nullptr;
  }
  void set_local(std::size_t backend, void* handle) { rows_[backend].local = handle; }
  void set_far(std::size_t backend, void* handle) { rows_[backend].far = handle; }

 private:
  struct Row {
    void* local = nullptr;
    void* far = nullptr;
  };
  std::unique_ptr<Row[]> rows_;
  std::size_t count_ = 0;
};

/// Co-owned by the table, and by page lists that name it.
struct LocalRegion {
  explicit LocalRegion(std::size_t backends = 0) : handles(backends) {}

  Region info;  ///< without the names of its backends, which `LocalRegions::list` adds
  MemoryRange range;
  int memory_fd = -1;                      ///< the memfd of `allocate`, owned by `backing`
  std::shared_ptr<const void> keep_alive;  ///< the caller's
  std::shared_ptr<const void> backing;     ///< the allocation, if it is ours
  RegionHandles handles;
  std::mutex far_mutex;
  std::atomic<bool> live{true};     ///< false from the beginning of its deregistration
  std::atomic<bool> listed{false};  ///< exports have it: until peers are asked to release it

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
