// SPDX-License-Identifier: Apache-2.0
// Which regions of an agent are registered right now, and where they lie, for every peer to see without
// asking.
//
// On mapped and attached paths the owner's CPU takes no part in a copy, so the initiator must find out by
// itself that a region has been deregistered. The owner keeps one byte for each region id in a memory file; a
// peer maps it read-only and looks before a copy, between its parts, and after it.
//
// The file comes over a socket whose other end the kernel vouches for. Metadata does not: so a peer takes
// base and length of a region from here before it reaches into the owner's memory.
//
// Layout: the first 64 KiB are the header, then come steps, each for 65536 ids: a byte of state for each id,
// then base and length for each. The file grows by whole steps as ids grow and never shrinks (sealed), so a
// peer's mapping stays good whatever the owner does.
#pragma once

#include "host_link/memory_file.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

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

/// Where a region lies in the owner's memory. Written before its state says that it is registered.
struct RegionPlace {
  std::uint64_t base = 0;
  std::uint64_t length_bytes = 0;
  friend bool operator==(const RegionPlace&, const RegionPlace&) = default;
};
static_assert(sizeof(RegionPlace) == 16);  // it is shared as it lies in memory

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

/// The owner's side of it: the stores before are seen before any later one. It is no
/// `std::atomic_thread_fence`, which GCC's thread sanitizer does not take.
inline void stores_before_later_stores() {
#if defined(__x86_64__)
  asm volatile("" ::: "memory");  // stores are not reordered with stores here either
#elif defined(__aarch64__)
  asm volatile("dmb ishst" ::: "memory");
#else
#error "say how stores are kept in order on this processor"
#endif
}

struct LiveHeader {
  std::uint32_t magic;
  std::uint32_t version;
  std::atomic<std::uint32_t> closed;  ///< 1: the owner's instance has ended
};

inline constexpr std::uint64_t live_header_bytes = 64 * 1024;  ///< a multiple of every page size there is
inline constexpr std::uint64_t live_step_ids = 1 << 16;
inline constexpr std::uint64_t live_step_bytes =
    live_step_ids * (sizeof(RegionSlot) + sizeof(RegionPlace));  ///< a multiple, too

/// The owner's side.
///   threads  any
class LiveTable {
 public:
  [[nodiscard]] static Result<std::unique_ptr<LiveTable>> create();
  LiveTable(const LiveTable&) = delete;
  LiveTable& operator=(const LiveTable&) = delete;

  /// The region is registered, or `allocated`.
  [[nodiscard]] Result<const RegionSlot*> enter(std::uint32_t region_id, const RegionPlace& place,
                                                RegionState state = RegionState::registered,
                                                bool writable = true);
  /// It is deregistered: peers find that at their next look. Only of a region that was entered.
  void leave(std::uint32_t region_id);
  /// Everything is gone from now on: peers find `closed` at their next look.
  void close();
  /// What peers are given: opened for reading only where /proc allows that.
  [[nodiscard]] int fd() const { return shared_fd_.get(); }

 private:
  /// Places of so many ids are given back to the system at once, when all of them have left.
  static constexpr std::uint64_t ids_a_page = 4096 / sizeof(RegionPlace);
  struct Step {
    Mapping mapping;
    std::array<std::uint16_t, live_step_ids / ids_a_page> left{};  ///< for each page of places
    std::uint32_t all_left = 0;
  };

  LiveTable() = default;
  [[nodiscard]] Result<Step*> step_of(std::uint32_t region_id);
  void give_back(std::uint64_t offset, std::uint64_t bytes) const;

  std::mutex mutex_;
  UniqueFd fd_;
  UniqueFd shared_fd_;
  Mapping header_;
  std::uint64_t steps_in_file_ = 0;
  std::map<std::uint32_t, Step> steps_;
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

  struct Entry {
    const RegionSlot* slot = nullptr;
    const RegionPlace* place = nullptr;  ///< of a region that is registered

    /// Where the region lies; nullopt: it is not registered.
    [[nodiscard]] std::optional<RegionPlace> registered_at() const;
  };
  /// The words of a region, which stay mapped as long as the view.
  ///   errors   not_found (the owner has never had such a region), and the system's
  [[nodiscard]] Result<Entry> find(std::uint32_t region_id);
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
