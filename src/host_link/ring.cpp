// SPDX-License-Identifier: Apache-2.0
#include "host_link/ring.hpp"

#include <cstring>

namespace headrace::host_link {
namespace {

struct RecordHeader {
  std::uint32_t length;
  std::uint32_t channel;
};
static_assert(sizeof(RecordHeader) == 8);

}  // namespace

RingWriter::Push RingWriter::push(std::uint32_t channel, std::string_view bytes) {
  const std::uint64_t head = ring_.control->head.load(std::memory_order_seq_cst);
  const std::uint64_t used = tail_ - head;
  if (used > ring_.capacity) return Push::corrupt;  // also if head has overtaken us
  const std::uint64_t needed = record_bytes(bytes.size());
  if (ring_.capacity - used < needed) return Push::full;
  std::byte* const at = ring_.data + (tail_ & (ring_.capacity - 1));
  const RecordHeader header{static_cast<std::uint32_t>(bytes.size()), channel};
  std::memcpy(at, &header, sizeof header);
  if (!bytes.empty()) std::memcpy(at + sizeof header, bytes.data(), bytes.size());
  tail_ += needed;
  // Publishes the record (pairs with the reader's acquire in pop) and, before `armed` is read, the news
  // itself.
  ring_.control->tail.store(tail_, std::memory_order_seq_cst);
  return Push::done;
}

RingWriter::Push RingWriter::push_or_wait_for_room(std::uint32_t channel, std::string_view bytes) {
  Push pushed = push(channel, bytes);
  if (pushed != Push::full) return pushed;
  ring_.control->starved.store(1, std::memory_order_seq_cst);
  pushed = push(channel, bytes);  // room made before the reader could see the flag
  if (pushed != Push::full) ring_.control->starved.store(0, std::memory_order_relaxed);
  return pushed;
}

bool RingWriter::reader_sleeps() {
  std::atomic<std::uint32_t>& armed = ring_.control->armed;
  return armed.load(std::memory_order_seq_cst) != 0 && armed.exchange(0, std::memory_order_seq_cst) != 0;
}

void RingWriter::prefetch() const {
  const std::uint64_t tail = ring_.control->tail.load(std::memory_order_relaxed);
  __builtin_prefetch(&ring_.control->head);
  __builtin_prefetch(ring_.data + (tail & (ring_.capacity - 1)), 1);
}

RingReader::Pop RingReader::pop(Message& message) {
  const std::uint64_t available = ring_.control->tail.load(std::memory_order_acquire) - head_;
  if (available == 0) return Pop::empty;
  if (available > ring_.capacity || available < sizeof(RecordHeader)) return Pop::corrupt;
  const std::byte* const at = ring_.data + (head_ & (ring_.capacity - 1));
  RecordHeader header{};
  std::memcpy(&header, at, sizeof header);
  const std::uint64_t record = RingWriter::record_bytes(header.length);
  if (header.length > max_message_ || record > available) return Pop::corrupt;
  if (copy_.size() < header.length) copy_.resize(header.length);
  if (header.length > 0) std::memcpy(copy_.data(), at + sizeof header, header.length);
  message = {header.channel, {copy_.data(), header.length}};
  head_ += record;
  // Gives the room back after the copy, and before `starved` is read.
  ring_.control->head.store(head_, std::memory_order_seq_cst);
  return Pop::message;
}

bool RingReader::writer_starves() {
  std::atomic<std::uint32_t>& starved = ring_.control->starved;
  return starved.load(std::memory_order_seq_cst) != 0 && starved.exchange(0, std::memory_order_seq_cst) != 0;
}

bool RingReader::arm() {
  ring_.control->armed.store(1, std::memory_order_seq_cst);
  return ring_.control->tail.load(std::memory_order_seq_cst) == head_;
}

}  // namespace headrace::host_link
