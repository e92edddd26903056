// SPDX-License-Identifier: Apache-2.0
// A ring of messages in memory that two processes share: one writes, one reads, neither waits.
//
// Positions count bytes since the beginning and never wrap; the data is mapped twice in a row, so that a
// record always lies in one piece. A record is a header of 8 bytes and its payload, padded to 8.
//
// Two flags tell when the other side must be rung, so that nobody makes a system call for a peer that is
// awake:
//   armed   set by the reader before it sleeps, cleared by the writer that rings. Reader: armed = 1, then
//   look at tail.
//           Writer: tail = new, then look at armed. All four are sequentially consistent: one of the two sees
//           the other.
//   starved set by a writer that found no room, cleared by the reader that rings. Writer: starved = 1, then
//   look at head.
//           Reader: head = new, then look at starved. Likewise.
//
// The other process is not trusted with our memory: each side keeps its own position to itself and checks
// what it reads of the other's; a record is copied out before anybody looks at it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace headrace::host_link {

struct alignas(64) RingControl {
  alignas(64) std::atomic<std::uint64_t> tail;  ///< bytes ever written; the writer's
  std::atomic<std::uint32_t> starved;
  alignas(64) std::atomic<std::uint64_t> head;  ///< bytes ever read; the reader's
  std::atomic<std::uint32_t> armed;
};
static_assert(sizeof(RingControl) == 128 && std::atomic<std::uint64_t>::is_always_lock_free);

/// A ring of `capacity` bytes (a power of two) whose data is mapped twice from `data` on.
struct RingMemory {
  RingControl* control = nullptr;
  std::byte* data = nullptr;
  std::uint64_t capacity = 0;
};

/// The writing side. One thread at a time.
class RingWriter {
 public:
  RingWriter() = default;
  explicit RingWriter(RingMemory memory) : ring_(memory) {}

  enum class Push : std::uint8_t { done, full, corrupt };
  [[nodiscard]] Push push(std::uint32_t channel, std::string_view bytes);
  /// Like push, but when it is full the reader will ring as soon as there is room for anything.
  [[nodiscard]] Push push_or_wait_for_room(std::uint32_t channel, std::string_view bytes);
  /// After pushing: whether the reader sleeps and must be rung. Says so once.
  [[nodiscard]] bool reader_sleeps();
  /// A push is likely to come soon: fetches the cache lines that it needs. Any thread.
  void prefetch() const;

  /// Bytes that a message takes in the ring.
  [[nodiscard]] static constexpr std::uint64_t record_bytes(std::uint64_t length) {
    return 8 + ((length + 7) & ~std::uint64_t{7});
  }

 private:
  RingMemory ring_;
  std::uint64_t tail_ = 0;
};

/// The reading side. One thread at a time, save `armed_and_empty`'s caller, which is that thread too.
class RingReader {
 public:
  RingReader() = default;
  RingReader(RingMemory memory, std::uint64_t max_message) : ring_(memory), max_message_(max_message) {}

  struct Message {
    std::uint32_t channel = 0;
    std::string_view bytes;  ///< valid until the next pop
  };
  enum class Pop : std::uint8_t { message, empty, corrupt };
  [[nodiscard]] Pop pop(Message& message);
  /// After popping: whether the writer waits for room and must be rung. Says so once.
  [[nodiscard]] bool writer_starves();

  [[nodiscard]] bool empty() const { return ring_.control->tail.load(std::memory_order_acquire) == head_; }
  /// The reader is about to sleep: the writer rings from now on. False if something came in before that took
  /// effect.
  [[nodiscard]] bool arm();
  void disarm() { ring_.control->armed.store(0, std::memory_order_relaxed); }

 private:
  RingMemory ring_;
  std::uint64_t max_message_ = 0;
  std::uint64_t head_ = 0;
  std::vector<char> copy_;
};

}  // namespace headrace::host_link
