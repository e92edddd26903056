// SPDX-License-Identifier: Apache-2.0
// The registered memory of this agent that peers read through lanes.
#pragma once

#include "backends/shm/regions.hpp"

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace headrace::shm {

/// Registered memory that peers cannot map, by region id.
///   threads  any
class ServedRegions {
 public:
  void add(LocalRegion& region);
  /// When this returns, no thread copies out of the region.
  void remove(LocalRegion& region);

  /// No reader gets the region any more: a read of its memory has faulted.
  void withdraw(std::uint32_t region_id);

  /// A region that a thread copies out of: `remove` waits for it.
  class Pin {
   public:
    Pin() = default;
    explicit Pin(LocalRegion* region) : region_(region) {}
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;
    Pin(Pin&& other) noexcept : region_(std::exchange(other.region_, nullptr)) {}
    Pin& operator=(Pin&& other) noexcept {
      std::swap(region_, other.region_);
      return *this;
    }
    ~Pin() { drop(); }
    void drop() {
      if (region_ != nullptr) region_->copied_out_of.fetch_sub(1, std::memory_order_release);
      region_ = nullptr;
    }
    [[nodiscard]] const LocalRegion* get() const { return region_; }

   private:
    LocalRegion* region_ = nullptr;
  };
  /// None: it is not registered, or was withdrawn.
  [[nodiscard]] Pin pin(std::uint32_t region_id);

 private:
  std::mutex mutex_;
  std::unordered_map<std::uint32_t, LocalRegion*> by_id_;
};

}  // namespace headrace::shm
