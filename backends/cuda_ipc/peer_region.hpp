// SPDX-License-Identifier: Apache-2.0
// A region of a peer's: what its owner says of it, and where each of our GPUs reaches it.
#pragma once

#include "backends/cuda_ipc/imports.hpp"
#include "host_link/live_table.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace headrace::cuda_ipc {

/// One for each region of a link, shared by all handles of it.
///   threads  any
class PeerRegion {
 public:
  explicit PeerRegion(std::uint32_t id) : id_(id) {}
  PeerRegion(const PeerRegion&) = delete;
  PeerRegion& operator=(const PeerRegion&) = delete;

  [[nodiscard]] std::uint32_t id() const { return id_; }

  enum class Reach : std::uint8_t {
    unasked,
    asked,
    here,
    by_owner,  ///< not from here: its owner moves between it and our memory
    refused,
  };
  struct Found {
    Reach reach = Reach::unasked;
    ImportedMemory memory;  ///< here
    Error error;            ///< refused
  };
  /// Where GPU `device` of ours reaches it. `unasked` is told to one caller alone, who asks the owner.
  [[nodiscard]] Found find(int device);
  /// Whether an answer for this GPU is awaited.
  [[nodiscard]] bool awaits(int device) const;
  /// The owner's answer.
  void answered(int device, Result<ImportedMemory> answer);
  void answered_by_owner(int device);
  /// It is out of reach for good, and its memory is let go of here.
  void forget(const Error& why);

  // What the owner's table of live regions says. Unknown before the link was ready.

  void set_slot(const host_link::RegionSlot* slot) { slot_.store(slot, std::memory_order_release); }
  [[nodiscard]] bool has_slot() const { return slot_.load(std::memory_order_acquire) != nullptr; }
  [[nodiscard]] bool live() const { return state() == host_link::RegionState::registered; }
  [[nodiscard]] bool was_registered() const { return state() != host_link::RegionState::unknown; }
  [[nodiscard]] bool writable() const { return (byte() & host_link::read_only_bit) == 0; }

 private:
  struct Way {
    Reach reach = Reach::asked;
    ImportedMemory memory;
    Error error;
  };
  [[nodiscard]] std::uint8_t byte() const {
    const host_link::RegionSlot* const slot = slot_.load(std::memory_order_acquire);
    return slot == nullptr ? std::uint8_t{0} : slot->load(std::memory_order_acquire);
  }
  [[nodiscard]] host_link::RegionState state() const {
    return static_cast<host_link::RegionState>(byte() & ~host_link::read_only_bit);
  }

  const std::uint32_t id_;
  std::atomic<const host_link::RegionSlot*> slot_{nullptr};
  mutable std::mutex mutex_;
  std::map<int, Way> ways_;
  std::optional<Error> forgotten_;
};

}  // namespace headrace::cuda_ipc
