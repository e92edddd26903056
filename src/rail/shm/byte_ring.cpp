// SPDX-License-Identifier: Apache-2.0
#include "rail/shm/byte_ring.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace headrace::rail::shm {
namespace {

/// Calls `copy(piece, at, bytes)` for what fits, and returns how much that was.
template <class Copy>
std::size_t walk(std::span<const iovec> pieces, std::uint64_t most, const Copy& copy) {
  std::size_t done = 0;
  for (const iovec& piece : pieces) {
    const auto step = static_cast<std::size_t>(std::min<std::uint64_t>(piece.iov_len, most - done));
    if (step > 0) copy(piece.iov_base, done, step);
    done += step;
    if (done == most) break;
  }
  return done;
}

bool take_flag(std::atomic<std::uint32_t>& flag) {
  return flag.load(std::memory_order_seq_cst) != 0 && flag.exchange(0, std::memory_order_seq_cst) != 0;
}

}  // namespace

std::optional<std::size_t> ByteRingWriter::write(std::span<const iovec> pieces) {
  const std::uint64_t room = free_bytes();
  if (room > ring_.capacity) return std::nullopt;
  std::byte* const at = ring_.data + (tail_ & (ring_.capacity - 1));
  const std::size_t done = walk(pieces, std::min(room, ring_step_bytes),
                                [at](const void* from, std::size_t offset, std::size_t bytes) {
                                  std::memcpy(at + offset, from, bytes);
                                });
  tail_ += done;
  // Publishes the bytes (pairs with the acquire in `read`) and, before `armed` is read, the news itself.
  if (done > 0) ring_.control->tail.store(tail_, std::memory_order_seq_cst);
  return done;
}

bool ByteRingWriter::reader_sleeps() { return take_flag(ring_.control->armed); }

bool ByteRingWriter::arm() {
  ring_.control->starved.store(1, std::memory_order_seq_cst);
  return !has_room();
}

std::optional<std::size_t> ByteRingReader::read(std::span<const iovec> places) {
  const std::uint64_t there = ring_.control->tail.load(std::memory_order_acquire) - head_;
  if (there > ring_.capacity) return std::nullopt;
  const std::byte* const at = ring_.data + (head_ & (ring_.capacity - 1));
  const std::size_t done =
      walk(places, std::min(there, ring_step_bytes),
           [at](void* to, std::size_t offset, std::size_t bytes) { std::memcpy(to, at + offset, bytes); });
  head_ += done;
  // Gives the room back after the copy, and before `starved` is read.
  if (done > 0) ring_.control->head.store(head_, std::memory_order_seq_cst);
  return done;
}

bool ByteRingReader::writer_sleeps() { return take_flag(ring_.control->starved); }

bool ByteRingReader::arm() {
  ring_.control->armed.store(1, std::memory_order_seq_cst);
  return ring_.control->tail.load(std::memory_order_seq_cst) == head_;
}

}  // namespace headrace::rail::shm
