// SPDX-License-Identifier: Apache-2.0
// Which regions of an agent are registered right now, for every peer to see without asking.
//
// On mapped and attached paths the owner's CPU takes no part in a copy, so the initiator must find out by
// itself that a region has been deregistered. The owner keeps one byte for each region id in a memory file; a
// peer maps it read-only and looks before a copy, between its parts, and after it.
//
// Layout: the first 64 KiB are the header; the byte of region id i lies at 65536 + i. The file grows by whole
// steps as ids grow and never shrinks (sealed), so a peer's mapping stays good whatever the owner does. Ids
// are never used again, so a page of the file is given back when all its regions are gone.
#pragma once

#include "host_link/memory_file.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace headrace::host_link {

enum class RegionState : std::uint8_t {
  unknown = 0,  ///< never registered, or gone for long
  registered = 1,
  allocated = 2,  ///< registered, and its memory file has been, or is being, sent to each linked peer
  gone = 3,       ///< deregistered; ids are never used again
};

/// Beside the state in a region's byte: peers may not write it.
inline constexpr std::uint8_t read_only_bit = 0x80;

/// One byte of the table.
using RegionSlot = std::atomic<std::uint8_t>;
static_assert(sizeof(RegionSlot) == 1 && RegionSlot::is_always_lock_free);

/// The earlier copies are done before anything that is read later. Pairs with the owner's store of `gone`,
/// which comes before it lets go of the memory: a copy that still finds the region live afterwards copied its
/// bytes.
inline void copies_before_later_loads() {
#if defined(__x86_64__)
  asm volatile("" ::: "memory");  // loads are not reordered with loads here: only the compiler must be told
#elif defined(__aarch64__)
  asm volatile("dmb ishld" ::: "memory");
#else
#error "say how loads are kept in order on this processor"
#endif
}

struct LiveHeader {
  std::uint32_t magic;
  std::uint32_t version;
  std::atomic<std::uint32_t> closed;  ///< 1: the owner's instance has ended
};

inline constexpr std::uint64_t live_header_bytes = 64 * 1024;  ///< a multiple of every page size there is
inline constexpr std::uint64_t live_step_bytes = 1 << 20;
inline constexpr std::uint32_t live_page_bytes = 64 * 1024;  ///< likewise, and divides a step

/// The owner's side.
///   threads  any
class LiveTable {
 public:
  [[nodiscard]] static Result<std::unique_ptr<LiveTable>> create();
  LiveTable(const LiveTable&) = delete;
  LiveTable& operator=(const LiveTable&) = delete;

  [[nodiscard]] Result<const RegionSlot*> set(std::uint32_t region_id, RegionState state,
                                              bool writable = true);
  /// Everything is gone from now on: peers find `closed` at their next look.
  void close();
  /// What peers are given: opened for reading only where /proc allows that.
  [[nodiscard]] int fd() const { return shared_fd_.get(); }

 private:
  LiveTable() = default;
  void count_gone_locked(std::uint32_t region_id);

  std::mutex mutex_;
  std::unordered_map<std::uint32_t, std::uint32_t> gone_in_page_;
  UniqueFd fd_;
  UniqueFd shared_fd_;
  Mapping header_;
  std::uint64_t steps_in_file_ = 0;
  std::map<std::uint32_t, Mapping> steps_;
};

/// A peer's side.
///   threads  any
class LiveView {
 public:
  /// Takes over the descriptor that the owner sent.
  ///   errors   corrupt
  [[nodiscard]] static Result<std::unique_ptr<LiveView>> open(UniqueFd fd);
  LiveView(const LiveView&) = delete;
  LiveView& operator=(const LiveView&) = delete;

  /// The byte of a region, which stays mapped as long as the view.
  ///   errors   not_found (the owner has never had such a region), and the system's
  [[nodiscard]] Result<const RegionSlot*> slot(std::uint32_t region_id);
  [[nodiscard]] bool closed() const { return header()->closed.load(std::memory_order_acquire) != 0; }

 private:
  LiveView() = default;
  [[nodiscard]] const LiveHeader* header() const {
    return reinterpret_cast<const LiveHeader*>(header_.data());
  }

  std::mutex mutex_;
  UniqueFd fd_;
  Mapping header_;
  std::map<std::uint32_t, Mapping> steps_;
};

}  // namespace headrace::host_link
