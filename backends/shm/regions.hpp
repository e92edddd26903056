// SPDX-License-Identifier: Apache-2.0
// The handles behind a request's two sides: our own registered memory, and a peer's.
#pragma once

#include "backends/shm/imports.hpp"
#include "host_link/live_table.hpp"

#include <headrace/plugin/backend.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

namespace headrace::shm {

using host_link::read_only_bit;
using host_link::RegionSlot;
using host_link::RegionState;

class Link;
class RemoteRegion;
class Request;
struct LocalRegion;
using Handles = plugin::Handles<LocalRegion, Link, RemoteRegion, Request>;

struct LocalRegion {
  std::uint32_t region_id = 0;
  std::byte* base = nullptr;
  std::uint64_t length_bytes = 0;
  const RegionSlot* slot = nullptr;
  bool shared = false;  ///< its memory file was sent to the peers

  // For ServedRegions (lanes/served_regions.hpp).
  std::atomic<bool> gone{false};                ///< being deregistered
  std::atomic<std::uint32_t> copied_out_of{0};  ///< threads that serve lanes
};

/// How a region is reached is found out when the link is ready, which may be after it was loaded. Metadata
/// may be forged: nothing is reached before the owner's own table has said where the region lies.
///   threads  any
class RemoteRegion {
 public:
  RemoteRegion(std::shared_ptr<Link> link, std::uint32_t region_id, std::uint64_t owner_address,
               std::uint64_t length_bytes);
  /// A region of this process without a link, for tests.
  explicit RemoteRegion(const LocalRegion& region);

  /// Looks how to reach it; false while that is still open (link not ready, memory file on its way).
  bool resolve();
  /// Metadata and owner say different things of where it lies: nothing is moved.
  [[nodiscard]] std::optional<Error> contradiction() const;
  /// The memory in this process; nullptr: reached by attach.
  [[nodiscard]] std::byte* mapped() const { return mapped_.load(std::memory_order_acquire); }
  [[nodiscard]] std::uint64_t owner_address() const { return owner_address_; }
  [[nodiscard]] std::uint64_t length_bytes() const { return length_bytes_; }
  [[nodiscard]] std::uint32_t region_id() const { return region_id_; }
  [[nodiscard]] RegionState state() const {
    const RegionSlot* const slot = slot_.load(std::memory_order_acquire);
    if (slot == nullptr) return RegionState::unknown;
    return static_cast<RegionState>(slot->load(std::memory_order_acquire) & ~read_only_bit);
  }
  /// What its owner says: not a word on what the system would allow.
  [[nodiscard]] bool writable() const {
    const RegionSlot* const slot = slot_.load(std::memory_order_acquire);
    return slot == nullptr || (slot->load(std::memory_order_acquire) & read_only_bit) == 0;
  }
  [[nodiscard]] bool live() const {
    const RegionState now = state();
    return now == RegionState::registered || now == RegionState::allocated;
  }
  [[nodiscard]] Link* link() const { return link_.get(); }
  /// Whether its owner may be asked to put its bytes into a lane.
  [[nodiscard]] bool relays() const { return relays_.load(std::memory_order_relaxed); }
  void refuse_relay(std::uint32_t region_id) {
    if (region_id == region_id_) relays_.store(false, std::memory_order_relaxed);
  }

 private:
  void find_slot();

  const std::shared_ptr<Link> link_;
  const std::uint32_t region_id_;
  const std::uint64_t owner_address_;
  const std::uint64_t length_bytes_;
  /// Once the owner's table has said the same of its place as the metadata, or that it is gone.
  std::atomic<const RegionSlot*> slot_{nullptr};
  std::atomic<bool> contradicted_{false};
  host_link::RegionPlace owners_word_;  // if so; written before it
  std::atomic<std::byte*> mapped_{nullptr};
  std::atomic<bool> relays_{true};
  std::mutex mutex_;
  std::shared_ptr<ImportedMemory> import_;  // what mapped_ points into
};

}  // namespace headrace::shm
