// SPDX-License-Identifier: Apache-2.0
// Who has which bytes of a ring: pieces of any length, each in one stretch, given back in the order in which
// they were taken.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace headrace::tcp {

/// Numbers alone, no memory. Not thread-safe.
class ByteRing {
 public:
  static constexpr std::uint64_t alignment = 256;

  explicit ByteRing(std::uint64_t capacity) : capacity_(capacity) {}

  /// Where a piece of so many bytes (> 0) begins, a multiple of the alignment; none: there is no room for it
  /// now.
  [[nodiscard]] std::optional<std::uint64_t> take(std::uint64_t bytes) {
    const auto begin = find(bytes);
    if (begin) pieces_.push_back({*begin, *begin + bytes});
    return begin;
  }
  void release_oldest() { pieces_.pop_front(); }
  void release_newest() { pieces_.pop_back(); }
  [[nodiscard]] bool empty() const { return pieces_.empty(); }

 private:
  struct Piece {
    std::uint64_t begin, end;
  };

  [[nodiscard]] std::optional<std::uint64_t> find(std::uint64_t bytes) const {
    if (pieces_.empty()) return bytes <= capacity_ ? std::optional<std::uint64_t>(0) : std::nullopt;
    const std::uint64_t head = (pieces_.back().end + alignment - 1) / alignment * alignment;
    const std::uint64_t tail = pieces_.front().begin;
    const bool wrapped = pieces_.back().begin < tail;
    const std::uint64_t limit = wrapped ? tail : capacity_;
    if (head <= limit && bytes <= limit - head) return head;
    if (!wrapped && bytes <= tail) return 0;
    return std::nullopt;
  }

  std::uint64_t capacity_;
  std::deque<Piece> pieces_;  // the oldest first
};

}  // namespace headrace::tcp
