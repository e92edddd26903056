// SPDX-License-Identifier: Apache-2.0
// The memory that peers may reach: what was registered, by id. Every range that comes in is looked up here
// first.
#pragma once

#include "backends/tcp/frame.hpp"
#include "gpu/registered_memory.hpp"

#include <headrace/plugin/backend.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace headrace::tcp {

class Link;
class RemoteRequest;
struct Region;
struct RemoteRegion;
using Handles = plugin::Handles<Region, Link, RemoteRegion, RemoteRequest>;

struct Region {
  std::uint32_t id = 0;
  std::byte* base = nullptr;  ///< of a GPU's memory: its address there, not to be touched from here
  std::uint64_t length = 0;
  bool writable = true;
  std::shared_ptr<const gpu::RegisteredMemory> gpu{};  ///< null: the host's

  [[nodiscard]] bool of_gpu() const { return gpu != nullptr; }
};

enum class Access { read, write };

class Regions {
 public:
  /// The region lives until `remove`, at one address.
  ///   errors  invalid_argument (the id is taken)
  Result<Region*> add(const Region& region) {
    const std::unique_lock lock(mutex_);
    const auto [at, fresh] = by_id_.try_emplace(region.id, region);
    if (!fresh) return make_error(Code::invalid_argument, "region {} is registered already", region.id);
    if (region.of_gpu()) any_of_gpu_.store(true, std::memory_order_relaxed);
    return &at->second;
  }

  /// Whether memory of a GPU was ever added.
  [[nodiscard]] bool any_of_gpu() const { return any_of_gpu_.load(std::memory_order_relaxed); }

  using Removed = std::unordered_map<std::uint32_t, Region>::node_type;

  /// From the return on no range finds it. Ranges that were looked up before are the caller's to call back:
  /// it does so with the region in hand (`mapped()`, where it always was), for they point into it. Empty: it
  /// is not there.
  [[nodiscard]] Removed remove(const Region* region) {
    const std::unique_lock lock(mutex_);
    return by_id_.extract(region->id);
  }

  /// While it lives nothing is removed. For the ranges of one frame, not longer.
  class View {
   public:
    explicit View(const Regions& regions) : regions_(regions), lock_(regions.mutex_) {}

    struct Answer {
      const Region* region = nullptr;  ///< null: refused
      Code code = Code::ok;
      std::uint64_t good_bytes = 0;  ///< of a refused range: how many at its beginning could be reached
    };
    [[nodiscard]] Answer find(const Range& range, Access access) {
      if (last_ == nullptr || last_->id != range.region) {
        const auto at = regions_.by_id_.find(range.region);
        if (at == regions_.by_id_.end()) return {nullptr, Code::not_found, 0};
        last_ = &at->second;
      }
      if (range.offset > last_->length) return {nullptr, Code::invalid_argument, 0};
      const std::uint64_t left = last_->length - range.offset;
      if (range.length > left) return {nullptr, Code::invalid_argument, left};
      if (access == Access::write && !last_->writable) return {nullptr, Code::not_supported, 0};
      return {last_, Code::ok, range.length};
    }

   private:
    const Regions& regions_;
    std::shared_lock<std::shared_mutex> lock_;
    const Region* last_ = nullptr;
  };

 private:
  mutable std::shared_mutex mutex_;
  std::atomic<bool> any_of_gpu_{false};
  std::unordered_map<std::uint32_t, Region> by_id_;  // whose elements stay where they are
};

}  // namespace headrace::tcp
