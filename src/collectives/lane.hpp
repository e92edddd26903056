// SPDX-License-Identifier: Apache-2.0
// The two ends of a lane. No call waits: what does not fit now is offered again.
#pragma once

#include "collectives/box.hpp"

#include <optional>

namespace headrace::collectives {

/// Carries lines to a rank whose memory is not mapped here, and positions back to its writer.
class FarLane {
 public:
  virtual ~FarLane() = default;
  /// Sends line `number` (from 1), and before it the bytes at `bytes_at` of the lane's copy.
  ///   errors  false: not now, offer it again
  virtual bool send(const Line& line, std::uint64_t number, std::size_t bytes_at) = 0;
  /// Tells the writer what has been taken. False: not now.
  virtual bool tell_taken(std::uint64_t lines, std::uint64_t bytes) = 0;
};

/// What a line says of its message.
struct MessageHead {
  std::uint32_t tag = 0;
  std::uint64_t bytes = 0;
};

/// The ring's bytes that a part takes: the next one begins at a cache line.
[[nodiscard]] inline std::size_t ring_bytes(std::size_t length) {
  return length <= inline_bytes ? 0 : BoxLayout::round_up(length, cache_line);
}

class LaneWriter {
 public:
  LaneWriter() = default;
  /// `far`: null if the lane is the reader's own memory, whose bell it rings then.
  LaneWriter(const LaneMemory& lane, FarLane* far, Bell reader = {})
      : lane_(lane), far_(far), reader_(reader) {}

  /// Copies the next part of a message into the lane: up to `chunk` bytes, a multiple of a cache line.
  /// Returns how many; nullopt: the lane is full.
  std::optional<std::size_t> write(const MessageHead& head, const std::byte* data, std::size_t length,
                                   std::size_t chunk) {
    if (lines_ - taken_lines_ == lane_.line_count && !look(lines_ + 1, bytes_)) return std::nullopt;
    const std::size_t at = bytes_ % std::max<std::size_t>(lane_.byte_count, 1);
    if (length > inline_bytes) length = std::min({length, chunk, lane_.byte_count - at});
    const std::size_t needed = ring_bytes(length);
    if (bytes_ + needed - taken_bytes_ > lane_.byte_count && !look(lines_ + 1, bytes_ + needed))
      return std::nullopt;
    Line& line = lane_.lines[lines_ % lane_.line_count];
    line.length = static_cast<std::uint32_t>(length);
    line.tag = head.tag;
    line.message_bytes = head.bytes;
    if (length != 0) std::memcpy(length <= inline_bytes ? line.bytes : lane_.bytes + at, data, length);
    if (far_ != nullptr) {
      if (!far_->send(line, lines_ + 1, at)) return std::nullopt;
    } else {
      // Pairs with the load in LaneReader::next: the reader sees the bytes.
      line.ready.store(lines_ + 1, std::memory_order_seq_cst);
      reader_.ring();
    }
    ++lines_;
    bytes_ += needed;
    return length;
  }

 private:
  /// Whether the reader has taken enough for these positions.
  bool look(std::uint64_t lines, std::uint64_t bytes) {
    // Pairs with the stores in LaneReader::take: the reader is done with what is overwritten.
    taken_lines_ = lane_.taken->lines.load(std::memory_order_seq_cst);
    taken_bytes_ = lane_.taken->bytes.load(std::memory_order_acquire);
    return lines - taken_lines_ <= lane_.line_count && bytes - taken_bytes_ <= lane_.byte_count;
  }

  LaneMemory lane_;
  FarLane* far_ = nullptr;
  Bell reader_;
  std::uint64_t lines_ = 0, bytes_ = 0;              // written
  std::uint64_t taken_lines_ = 0, taken_bytes_ = 0;  // as last seen
};

/// A line as its reader has read it, once: the memory is its writer's, who may be any process of this user.
struct Front {
  std::uint32_t tag = 0;
  std::uint64_t message_bytes = 0;        ///< of the whole message
  std::span<const std::byte> bytes = {};  ///< those of this part that have not been taken
};

class LaneReader {
 public:
  LaneReader() = default;
  /// `writer`: the bell of a rank that writes into this memory itself.
  LaneReader(const LaneMemory& lane, FarLane* far, Bell writer = {})
      : lane_(lane), far_(far), writer_(writer) {}

  /// The line at the front, if it is there.
  [[nodiscard]] const Front* next() {
    if (has_front_) return &front_;
    const Line& line = lane_.lines[lines_ % lane_.line_count];
    if (line.ready.load(std::memory_order_seq_cst) != lines_ + 1) return nullptr;
    has_front_ = true;
    const std::uint64_t message_bytes = line.message_bytes;
    // Bytes of an empty message would never be taken.
    length_ = std::min<std::uint64_t>(line.length, message_bytes);
    const std::size_t at = bytes_ % std::max<std::size_t>(lane_.byte_count, 1);
    // No length leads out of the ring.
    if (length_ > inline_bytes) length_ = std::min(length_, lane_.byte_count - at);
    front_ = {line.tag, message_bytes, {length_ <= inline_bytes ? line.bytes : lane_.bytes + at, length_}};
    return &front_;
  }
  /// Takes bytes of the front line; with the last one the line goes.
  void take(std::size_t length) {
    front_.bytes = front_.bytes.subspan(length);
    if (!front_.bytes.empty()) return;
    has_front_ = false;
    bytes_ += ring_bytes(length_);
    ++lines_;
    if (far_ != nullptr) return tell_far();
    lane_.taken->bytes.store(bytes_, std::memory_order_release);
    lane_.taken->lines.store(lines_, std::memory_order_seq_cst);
    writer_.ring();
  }
  /// Tells a far writer what it could not be told before.
  void tell_far() {
    if (far_ == nullptr) return;
    const bool worth =
        lines_ - told_lines_ >= lane_.line_count / 4 || bytes_ - told_bytes_ >= lane_.byte_count / 4;
    if (!worth || !far_->tell_taken(lines_, bytes_)) return;
    told_lines_ = lines_;
    told_bytes_ = bytes_;
  }

 private:
  LaneMemory lane_;
  FarLane* far_ = nullptr;
  Bell writer_;
  std::uint64_t lines_ = 0, bytes_ = 0;  // taken
  std::uint64_t told_lines_ = 0, told_bytes_ = 0;
  bool has_front_ = false;
  std::size_t length_ = 0;  // of the front line
  Front front_;
};

}  // namespace headrace::collectives
