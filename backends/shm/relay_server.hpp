// SPDX-License-Identifier: Apache-2.0
// The owner's side of a lane: a thread of the host's pool copies what was asked for into the ring.
#pragma once

#include "backends/shm/lane.hpp"
#include "backends/shm/regions.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

namespace headrace::shm {

/// Our registered memory that peers cannot map, by region id.
///   threads  any
class ServedRegions {
 public:
  void add(LocalRegion& region);
  /// Nobody copies out of it any more when this returns.
  void remove(LocalRegion& region);

  /// A region that is being copied out of: `remove` waits for it.
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
  /// None: it is not registered, or its memory is not such that reading it cannot fault (see `can_be_read`).
  [[nodiscard]] Pin pin(std::uint32_t region_id);

 private:
  std::mutex mutex_;
  std::unordered_map<std::uint32_t, LocalRegion*> by_id_;
};

/// All of it is mapped for reading and backed by memory, not by a file that somebody may cut short. Reads the
/// list of this process's mappings.
/// None: it could not be read.
[[nodiscard]] std::optional<bool> can_be_read(const std::byte* begin, std::uint64_t length_bytes);
/// All of it is still mapped: a short system call.
[[nodiscard]] bool is_mapped(const std::byte* begin, std::uint64_t length_bytes);

/// Serves a lane until nothing has been asked for a while, or `keep_on()` says no.
/// What was asked for is checked against our own table; regions that are being copied out of are held until
/// there is nothing to do.
class RelayServer {
 public:
  RelayServer(ServedRegions& regions, LaneMemory& lane) : regions_(regions), lane_(lane) {}

  template <class KeepOn>
  void serve(const KeepOn& keep_on) {
    if (!begin()) return;
    for (bool more = true; more;) {
      switch (step()) {
        case Step::moved:
          if (++moved_ % pieces_a_look == 0) {
            let_go();  // whoever deregisters waits no longer than this
            more = keep_on() && !takes_too_long();
          }
          break;
        case Step::waits:
          more = wait() && keep_on();
          break;
        case Step::idle:
          more = keep_on();
          if (more && !linger()) return leave();
          break;
        case Step::refused:
          more = false;
          break;
      }
    }
    refuse();
  }

 private:
  enum class Step : std::uint8_t { moved, waits, idle, refused };

  static constexpr std::uint64_t pieces_a_look = 256;

  struct Pinned {
    std::uint32_t region_id = 0;
    ServedRegions::Pin pin;
  };

  bool begin();
  Step step();
  Step next_stretch();
  Step read_ahead();
  bool wait();
  bool linger();
  void leave();
  void refuse();
  [[nodiscard]] bool takes_too_long() const;
  void publish();
  [[nodiscard]] const LocalRegion* hold(std::uint32_t region_id);
  void let_go();
  [[nodiscard]] std::span<const std::byte> bytes_to_come(std::ptrdiff_t after) const;

  ServedRegions& regions_;
  LaneMemory& lane_;
  std::uint64_t begun_ns_ = 0;
  std::uint64_t taken_ = 0;            // stretches
  std::uint64_t given_ = 0;            // bytes in the ring
  std::uint64_t published_ = 0;        // of those
  std::uint64_t asked_ = 0;            // when we last looked, and we look only when that is served
  std::uint64_t consumed_ = 0;         // likewise, when there is no more room
  LaneStretch at_;                     // what is left of the one that is being served
  std::array<LaneStretch, 64> ahead_;  // those behind it that were read already: from next_ on
  LaneStretch* next_ = ahead_.end();
  std::array<Pinned, 256> pinned_;  // by the low bits of their id
  Patience patience_;
  std::uint64_t moved_ = 0;  // pieces
};

}  // namespace headrace::shm
