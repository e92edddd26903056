// SPDX-License-Identifier: Apache-2.0
// Bytes in order through memory that two processes share: one writes, one reads, neither waits.
//
// The control words and their two flags are those of host_link/ring.hpp. Here a flag is set only by a side
// that is about to sleep: the reader's `armed`, and the writer's `starved` if it waits for room. The other
// process is not trusted: each side keeps its own position to itself and checks the other's.
#pragma once

#include "host_link/ring.hpp"

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace headrace::rail::shm {

/// At most so much moves at a time, so that the other side can begin with it.
inline constexpr std::uint64_t ring_step_bytes = 64 * 1024;

/// The writing side. One thread at a time.
class ByteRingWriter {
 public:
  ByteRingWriter() = default;
  explicit ByteRingWriter(host_link::RingMemory memory) : ring_(memory) {}

  /// Takes bytes of the pieces, in order; 0: it is full. Nullopt: the reader's position cannot be.
  [[nodiscard]] std::optional<std::size_t> write(std::span<const iovec> pieces);
  [[nodiscard]] bool has_room() const { return free_bytes() != 0; }
  /// After writing: the reader sleeps and must be rung. Says so once.
  [[nodiscard]] bool reader_sleeps();
  /// The writer is about to sleep until there is room: the reader rings then. False: there is room now.
  [[nodiscard]] bool arm();
  void disarm() { ring_.control->starved.store(0, std::memory_order_relaxed); }

 private:
  /// More than the capacity: the reader's position cannot be.
  [[nodiscard]] std::uint64_t free_bytes() const {
    return ring_.capacity - (tail_ - ring_.control->head.load(std::memory_order_seq_cst));
  }

  host_link::RingMemory ring_;
  std::uint64_t tail_ = 0;
};

/// The reading side. One thread at a time.
class ByteRingReader {
 public:
  ByteRingReader() = default;
  explicit ByteRingReader(host_link::RingMemory memory) : ring_(memory) {}

  /// Fills places, in order; 0: it is empty. Nullopt: the writer's position cannot be.
  [[nodiscard]] std::optional<std::size_t> read(std::span<const iovec> places);
  [[nodiscard]] bool empty() const { return ring_.control->tail.load(std::memory_order_acquire) == head_; }
  /// After reading: the writer waits for room and must be rung. Says so once.
  [[nodiscard]] bool writer_sleeps();
  /// The reader is about to sleep: the writer rings from now on. False: there is something now.
  [[nodiscard]] bool arm();
  void disarm() { ring_.control->armed.store(0, std::memory_order_relaxed); }

 private:
  host_link::RingMemory ring_;
  std::uint64_t head_ = 0;
};

}  // namespace headrace::rail::shm
