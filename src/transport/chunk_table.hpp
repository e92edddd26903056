// SPDX-License-Identifier: Apache-2.0
// The chunks that are on the wire and not answered, by number. A transport passes the number to its network
// with the chunk (verbs: the wr_id), and the completion has it. Completions come in any order. A number from
// the network is not trusted: one that was never given out, or is used up, finds nothing.
#pragma once

#include "transport/chunk.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace headrace::transport {

class Request;

/// A chunk of ours that waits for its answer.
struct Unanswered {
  Request* request = nullptr;  ///< null: abandoned
  std::uint64_t wire_id = 0;
  Chunk chunk;
  std::uint32_t ranges = 0;
};

/// A ring of slots from the oldest chunk to the newest: it allocates only when more chunks lie between the
/// two than ever before. Every call but `abandon` and `clear` is O(1).
///   threads  its link's lock guards it
class ChunkTable {
 public:
  /// Returns the chunk's number: from 1 upwards, and of no other chunk of this table, ever.
  std::uint64_t add(const Unanswered& chunk) {
    if (next_ - oldest_ == slots_.size()) grow();
    slot(next_) = chunk;
    ++size_;
    bytes_ += chunk.chunk.bytes;
    ranges_ += chunk.ranges;
    return next_++;
  }

  /// Null: no chunk with this number waits. Valid until the next `add`. Only `request` may be changed.
  [[nodiscard]] Unanswered* find(std::uint64_t number) {
    if (number - oldest_ >= next_ - oldest_) return nullptr;  // also of a number below, which wraps around
    auto& found = slot(number);
    return found ? &*found : nullptr;
  }
  /// The chunk has been answered: it leaves the table. None: no chunk with this number waits.
  std::optional<Unanswered> take(std::uint64_t number) {
    if (find(number) == nullptr) return std::nullopt;
    const auto taken = std::exchange(slot(number), std::nullopt);
    --size_;
    bytes_ -= taken->chunk.bytes;
    ranges_ -= taken->ranges;
    while (oldest_ != next_ && !slot(oldest_)) ++oldest_;
    return taken;
  }
  /// The number of the chunk that has waited longest: the next to be answered, if the network keeps order.
  /// An empty table: a number that finds nothing.
  [[nodiscard]] std::uint64_t front() const { return oldest_; }

  /// The chunks of this post stay in the table, but not its memory: their `request` is null from now on.
  /// Returns how many they were.
  std::size_t abandon(std::uint64_t wire_id) {
    std::size_t count = 0;
    for (auto& chunk : slots_)
      if (chunk && chunk->wire_id == wire_id && std::exchange(chunk->request, nullptr) != nullptr) ++count;
    return count;
  }
  /// Forgets all chunks: the link has ended.
  void clear() {
    slots_.clear();
    oldest_ = next_;
    size_ = bytes_ = ranges_ = 0;
  }

  // What is on the wire, for windows and credits.
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t ranges() const { return ranges_; }

 private:
  [[nodiscard]] std::optional<Unanswered>& slot(std::uint64_t number) {
    return slots_[number & (slots_.size() - 1)];
  }
  void grow() {
    std::vector<std::optional<Unanswered>> larger(std::max<std::size_t>(16, 2 * slots_.size()));
    for (std::uint64_t number = oldest_; number != next_; ++number)
      larger[number & (larger.size() - 1)] = slot(number);
    slots_ = std::move(larger);
  }

  std::vector<std::optional<Unanswered>> slots_;  // as many as a power of two; of a number: its low bits
  std::uint64_t oldest_ = 1;
  std::uint64_t next_ = 1;
  std::size_t size_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t ranges_ = 0;
};

}  // namespace headrace::transport
