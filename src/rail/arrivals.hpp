// SPDX-License-Identifier: Apache-2.0
// Counts the requests of one peer whose bytes have all arrived, each once.
//
// Marks and announcements come in any order, over any rail, more than once. A number is counted when it is
// announced and all of its marks have come, or when it is announced without marks. After a rail has died
// nothing that may have used it is counted by marks: docs/decisions/0016, section 4, has the reason.
#pragma once

#include "rail/link_message.hpp"

#include <cstdint>
#include <deque>
#include <optional>

namespace headrace::rail {

/// Not thread-safe. Memory: at most `number_window` slots.
class Arrivals {
 public:
  explicit Arrivals(std::uint64_t first = 1) : below_(first) {}

  /// A mark of the peer. Old ones, and ones that came before, change nothing.
  ///   errors  corrupt (a chunk that its announcement does not have)
  Result<void> marked(std::uint32_t mark);
  ///   errors  corrupt (beyond the window)
  Result<void> announced(const Announcement& announcement);
  /// The next that is counted with this; its amount may be 0.
  [[nodiscard]] std::optional<Announcement> next();

  /// Here a rail is told to be down, before the peer has told it: until it does, no marks count.
  void hold() { ++held_; }
  /// The peer has told it, too: only announcements without marks count numbers below `next`.
  void release() { --held_; }
  void settle_below(std::uint64_t next);
  /// Looks at the slots again, after one of these.
  void look_again();

  [[nodiscard]] CountedNumbers counted() const;
  [[nodiscard]] std::uint64_t counted_below() const { return below_; }
  /// Marks that were dropped: old, or there already.
  [[nodiscard]] std::uint64_t dropped_marks() const { return dropped_marks_; }
  [[nodiscard]] std::size_t open() const { return slots_.size(); }

 private:
  struct Slot {
    std::uint64_t bits = 0;
    std::optional<Announcement> announcement;
    bool counted = false;
  };

  Slot& slot(std::uint64_t number);
  [[nodiscard]] bool complete(std::uint64_t number, const Slot& slot) const;
  void count_if_complete(std::uint64_t number);

  std::deque<Slot> slots_;  // of number below_ and those after it
  std::uint64_t below_;
  std::uint64_t settled_only_below_ = 0;
  unsigned held_ = 0;
  std::deque<Announcement> ready_;  // counted, and not yet given by `next`
  std::uint64_t dropped_marks_ = 0;
};

}  // namespace headrace::rail
