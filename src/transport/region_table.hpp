// SPDX-License-Identifier: Apache-2.0
// The memory that peers may reach: what was registered, by id. The owner looks up every range of a peer here
// before it touches a byte.
#pragma once

#include "base/errors.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace headrace::transport {

/// Bytes of a region, as peers name them: never by address.
struct Range {
  std::uint32_t region = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

/// A transport derives what it knows of a region besides: a key of its network, a GPU.
struct Region {
  std::uint32_t id = 0;
  std::byte* base = nullptr;
  std::uint64_t length = 0;
  bool writable = true;
};

enum class Access : std::uint8_t { read, write };

/// Thread-safe.
template <std::derived_from<Region> Kept>
class RegionTable {
 public:
  /// The region lives until `remove`, at one address.
  ///   errors  invalid_argument (the id is taken)
  Result<Kept*> add(const Kept& region) {
    const std::unique_lock lock(mutex_);
    const auto [at, fresh] = by_id_.try_emplace(region.id, region);
    if (!fresh) return make_error(Code::invalid_argument, "region {} is registered already", region.id);
    return &at->second;
  }

  using Removed = typename std::unordered_map<std::uint32_t, Kept>::node_type;

  /// From the return on no range finds it. Ranges that were looked up before are the caller's to call back:
  /// it does so with the region in hand (`mapped()`, where it always was), for they point into it. Empty: it
  /// is not there.
  [[nodiscard]] Removed remove(const Kept* region) {
    const std::unique_lock lock(mutex_);
    return by_id_.extract(region->id);
  }

  /// While it lives nothing is removed. For the ranges of one frame, not longer.
  class View {
   public:
    explicit View(const RegionTable& table) : table_(table), lock_(table.mutex_) {}

    struct Answer {
      const Kept* region = nullptr;  ///< null: refused
      Code code = Code::ok;
      std::uint64_t good_bytes = 0;  ///< of a refused range: how many at its beginning could be reached
    };
    [[nodiscard]] Answer find(const Range& range, Access access) {
      if (last_ == nullptr || last_->id != range.region) {
        const auto at = table_.by_id_.find(range.region);
        if (at == table_.by_id_.end()) return {nullptr, Code::not_found, 0};
        last_ = &at->second;
      }
      if (range.offset > last_->length) return {nullptr, Code::invalid_argument, 0};
      const std::uint64_t left = last_->length - range.offset;
      if (range.length > left) return {nullptr, Code::invalid_argument, left};
      if (access == Access::write && !last_->writable) return {nullptr, Code::not_supported, 0};
      return {last_, Code::ok, range.length};
    }

   private:
    const RegionTable& table_;
    std::shared_lock<std::shared_mutex> lock_;
    const Kept* last_ = nullptr;
  };

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<std::uint32_t, Kept> by_id_;  // whose elements stay where they are
};

/// Why an owner refuses a range, for the initiator's error.
[[nodiscard]] constexpr const char* why_refused(Code code) {
  switch (code) {
    case Code::not_found:
      return "no such region is registered there (any more)";
    case Code::not_supported:
      return "its region is registered read-only";
    case Code::backend_failed:
      return "its memory cannot be reached: it is read-only, its owner has unmapped it, or its GPU has "
             "failed";
    default:
      return "it lies outside its region";
  }
}

}  // namespace headrace::transport
