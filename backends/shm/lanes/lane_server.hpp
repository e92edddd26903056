// SPDX-License-Identifier: Apache-2.0
// The owner's side of a lane: a thread of the host's pool copies the runs that the reader asks for into the
// ring.
#pragma once

#include "backends/shm/lanes/fault_guard.hpp"
#include "backends/shm/lanes/lane.hpp"
#include "backends/shm/lanes/patience.hpp"
#include "backends/shm/lanes/served_regions.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace::shm {

/// Serves a lane until no run has come for a while, or `keep_on()` says no. Checks each run against our own
/// table, and holds the regions that it copies out of while there are runs.
class LaneServer {
 public:
  /// `give_up_ns`: after so long without room the reader is taken for stopped, or dead.
  LaneServer(ServedRegions& regions, LaneMemory& lane, std::uint64_t give_up_ns = 100'000'000)
      : regions_(regions), lane_(lane), give_up_ns_(give_up_ns) {}

  template <class KeepOn>
  void serve(const KeepOn& keep_on) {
    if (!begin()) return;
    for (bool more = FaultGuard::in_place(); more;) {
      switch (move()) {
        case Step::moved:
          let_go();  // a thread that deregisters waits no longer than this
          more = keep_on() && may_go_on();
          break;
        case Step::waits:
          more = wait() && keep_on();
          break;
        case Step::idle:
          more = keep_on();
          if (more && !linger()) return leave();
          more = more && FaultGuard::in_place();
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

  static constexpr std::uint64_t chunks_a_look = 256;

  struct Pinned {
    std::uint32_t region_id = 0;
    ServedRegions::Pin pin;
  };

  bool begin();
  Step move();
  void move_chunks();
  Step step();
  Step next_run();
  Step read_ahead();
  bool wait();
  bool linger();
  void leave();
  void refuse();
  [[nodiscard]] bool may_go_on();
  Step lost();
  void publish();
  [[nodiscard]] const LocalRegion* hold(std::uint32_t region_id);
  void let_go();
  [[nodiscard]] std::span<const std::byte> bytes_to_come(std::ptrdiff_t after) const;

  ServedRegions& regions_;
  LaneMemory& lane_;
  const std::uint64_t give_up_ns_;
  FaultGuard guard_;
  Step last_ = Step::moved;
  std::uint64_t begun_ns_ = 0;
  std::uint64_t checked_ns_ = 0;   // that the guard is in place
  std::uint64_t taken_ = 0;        // runs
  std::uint64_t given_ = 0;        // bytes in the ring
  std::uint64_t published_ = 0;    // of these
  std::uint64_t asked_ = 0;        // read again only when all of them are served
  std::uint64_t consumed_ = 0;     // read again only when the ring has no room
  LaneRun at_;                     // the rest of the run that is being served
  std::array<LaneRun, 64> ahead_;  // the runs after it, from next_ on
  LaneRun* next_ = ahead_.end();
  std::array<Pinned, 256> pinned_;  // by the low bits of their id
  Patience patience_;
  std::uint64_t moved_ = 0;  // chunks
};

}  // namespace headrace::shm
