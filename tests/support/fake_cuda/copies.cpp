// SPDX-License-Identifier: Apache-2.0
// The fake driver's copies and fills, and the words that streams write and wait for.
#include "support/fake_cuda/driver.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace headrace::cuda {
namespace {

template <class Word>
Outcome write_value(FakeDriver& driver, Stream stream, Address word, Word value) {
  if (!driver.pieces.reachable(word, sizeof value)) return Outcome::invalid_value;
  return driver.enqueue(stream, [word, value] {
    __atomic_store_n(static_cast<Word*>(pointer(word)), value, __ATOMIC_RELEASE);
    return true;
  });
}

template <class Word>
Outcome wait_value(FakeDriver& driver, Stream stream, Address word, Word value, unsigned flags) {
  if (!driver.pieces.reachable(word, sizeof value)) return Outcome::invalid_value;
  return driver.enqueue(stream, [word, value, flags] {
    const Word seen = __atomic_load_n(static_cast<Word*>(pointer(word)), __ATOMIC_ACQUIRE);
    return flags == wait_value_equal ? seen == value
                                     : static_cast<std::make_signed_t<Word>>(seen - value) >= 0;
  });
}

}  // namespace

Outcome FakeDriver::memcpy_async(Address target, Address source, std::size_t bytes, Stream stream) {
  if (!pieces.touchable(target, bytes) || !pieces.touchable(source, bytes)) return Outcome::invalid_value;
  return enqueue(stream, [target, source, bytes] {
    std::memmove(pointer(target), pointer(source), bytes);
    return true;
  });
}
Outcome FakeDriver::memcpy_peer_async(Address target, Context, Address source, Context, std::size_t bytes,
                                      Stream stream) {
  return memcpy_async(target, source, bytes, stream);
}
Outcome FakeDriver::memcpy_batch_async(Address* targets, Address* sources, std::size_t* bytes,
                                       std::size_t count, CopyAttributes* attributes,
                                       std::size_t* first_of_attributes, std::size_t attribute_count,
                                       std::size_t* failed, Stream stream) {
  if (stream == nullptr || stream == legacy_stream) return Outcome::invalid_value;  // documented
  if (count == 0 || attribute_count != 1 || *first_of_attributes != 0 ||
      attributes->source_order < SourceOrder::stream || attributes->source_order > SourceOrder::any)
    return Outcome::invalid_value;
  // The driver promises no order, so the fake copies the last first; a caller that relies on an order fails.
  // It is assumed that a batch with a wrong address is refused completely.
  for (std::size_t i = 0; i < count; ++i)
    if (!pieces.touchable(targets[i], bytes[i]) || !pieces.touchable(sources[i], bytes[i])) {
      *failed = i;
      return Outcome::invalid_value;
    }
  for (std::size_t i = count; i-- > 0;)
    if (const Outcome outcome = memcpy_async(targets[i], sources[i], bytes[i], stream);
        outcome != Outcome::success)
      return outcome;
  return Outcome::success;
}
Outcome FakeDriver::memcpy_2d_async(const Copy2D* copy, Stream stream) {
  const auto side = [](MemoryType type, const void* host, Address device) {
    return type == MemoryType::host ? address_of(host) : device;
  };
  const Address source = side(copy->source_type, copy->source_host, copy->source_device) +
                         copy->source_y * copy->source_pitch_bytes + copy->source_x_bytes;
  const Address target = side(copy->target_type, copy->target_host, copy->target_device) +
                         copy->target_y * copy->target_pitch_bytes + copy->target_x_bytes;
  for (std::size_t row = 0; row < copy->height; ++row)
    if (!pieces.touchable(source + row * copy->source_pitch_bytes, copy->width_bytes) ||
        !pieces.touchable(target + row * copy->target_pitch_bytes, copy->width_bytes))
      return Outcome::invalid_value;
  return enqueue(stream, [source, target, copy = *copy] {
    for (std::size_t row = 0; row < copy.height; ++row)
      std::memcpy(pointer(target + row * copy.target_pitch_bytes),
                  pointer(source + row * copy.source_pitch_bytes), copy.width_bytes);
    return true;
  });
}
Outcome FakeDriver::memset_d8_async(Address target, unsigned char value, std::size_t bytes, Stream stream) {
  if (!pieces.reachable(target, bytes)) return Outcome::invalid_value;
  return enqueue(stream, [target, value, bytes] {
    fill_memory(target, value, bytes);
    return true;
  });
}
Outcome FakeDriver::memset_d32_async(Address target, std::uint32_t value, std::size_t words, Stream stream) {
  if (target % sizeof value != 0 || !pieces.reachable(target, words * sizeof value))
    return Outcome::invalid_value;
  return enqueue(stream, [target, value, words] {
    std::fill_n(static_cast<std::uint32_t*>(pointer(target)), words, value);
    return true;
  });
}

Outcome FakeDriver::stream_write_value_32(Stream stream, Address word, std::uint32_t value, unsigned) {
  return write_value(*this, stream, word, value);
}
Outcome FakeDriver::stream_write_value_64(Stream stream, Address word, std::uint64_t value, unsigned) {
  return write_value(*this, stream, word, value);
}
Outcome FakeDriver::stream_wait_value_32(Stream stream, Address word, std::uint32_t value, unsigned flags) {
  return wait_value(*this, stream, word, value, flags);
}
Outcome FakeDriver::stream_wait_value_64(Stream stream, Address word, std::uint64_t value, unsigned flags) {
  return wait_value(*this, stream, word, value, flags);
}

}  // namespace headrace::cuda
