// SPDX-License-Identifier: Apache-2.0
// The numbers that the sender has given and the peer has not yet counted, as far as is known here.
#pragma once

#include "rail/link_message.hpp"

#include <cstdint>
#include <deque>
#include <vector>

namespace headrace::rail {

/// Not thread-safe. Memory: at most `number_window` numbers.
class OpenNumbers {
 public:
  explicit OpenNumbers(std::uint64_t first) : below_(first) {}

  [[nodiscard]] bool has_room() const { return numbers_.size() < number_window; }
  /// What the next request gets.
  [[nodiscard]] std::uint64_t next() const { return below_ + numbers_.size(); }
  [[nodiscard]] std::uint64_t add(std::uint32_t scope, std::uint32_t immediate, std::uint32_t amount) {
    const std::uint64_t number = next();
    numbers_.push_back({{number, 0, scope, immediate, amount}, false, false});
    return number;
  }

  /// All bytes of the request are there: its number can be settled.
  void placed(std::uint64_t number) {
    if (Open* const open = find(number)) open->placed = true;
  }
  /// The request ended before: the number is used up, and nothing is counted.
  void failed(std::uint64_t number) {
    if (Open* const open = find(number)) open->placed = true, open->announcement.amount = 0;
  }
  /// Its announcement, without marks.
  [[nodiscard]] Announcement announcement(std::uint64_t number) {
    const Open* const open = find(number);
    return open != nullptr ? open->announcement : Announcement{number, 0, 0, 0, 0};
  }
  /// The peer has counted it, as far as is known.
  [[nodiscard]] bool counted(std::uint64_t number) {
    const Open* const open = find(number);
    return open == nullptr || open->counted;
  }

  void counted_below(std::uint64_t below) {
    while (!numbers_.empty() && below_ < below) {
      numbers_.pop_front();
      ++below_;
    }
  }
  void take(const CountedNumbers& counted) {
    counted_below(counted.below);
    for (Open& open : numbers_) open.counted = open.counted || counted.has(open.announcement.number);
  }
  /// Of the numbers below `next`: those that are placed and not counted.
  [[nodiscard]] std::vector<Announcement> to_settle(std::uint64_t next) const {
    std::vector<Announcement> all;
    for (const Open& open : numbers_)
      if (open.announcement.number < next && open.placed && !open.counted) all.push_back(open.announcement);
    return all;
  }
  [[nodiscard]] std::size_t size() const { return numbers_.size(); }

 private:
  struct Open {
    Announcement announcement;
    bool placed;
    bool counted;
  };
  [[nodiscard]] Open* find(std::uint64_t number) {
    if (number - below_ >= numbers_.size()) return nullptr;
    return &numbers_[number - below_];
  }

  std::deque<Open> numbers_;  // from below_ on
  std::uint64_t below_;
};

}  // namespace headrace::rail
