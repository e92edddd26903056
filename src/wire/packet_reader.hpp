// SPDX-License-Identifier: Apache-2.0
// Reads packets that are refused as a whole: a field that is missing reads as 0, and the reader says at the
// end whether all was there. Where an error should name its place, BoundedReader reads field by field.
#pragma once

#include "wire/bounded_reader.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace headrace::wire {

/// Reads what a ByteWriter wrote; does not own it.
class PacketReader {
 public:
  explicit PacketReader(std::string_view bytes) : in_(bytes, "a packet") {}
  explicit PacketReader(std::span<const std::byte> bytes)
      : PacketReader(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())) {}

  template <std::integral T>
  T number() {
    T value{};
    const std::string_view raw = bytes(sizeof value);
    if (raw.size() == sizeof value) std::memcpy(&value, raw.data(), sizeof value);
    return value;
  }
  /// A view of the packet; empty if there is less.
  std::string_view bytes(std::size_t length) {
    if (in_.remaining() < length) {
      good_ = false;
      in_.advance(in_.remaining());
      return {};
    }
    const std::string_view view = in_.rest().substr(0, length);
    in_.advance(length);
    return view;
  }
  /// What ByteWriter::text wrote, of `least` to `most` bytes.
  std::string text(std::size_t least, std::size_t most) {
    const auto length = number<std::uint16_t>();
    if (length < least || length > most) {
      good_ = false;
      return {};
    }
    return std::string(bytes(length));
  }
  /// All that is left.
  std::string_view rest() { return bytes(in_.remaining()); }
  void fail() { good_ = false; }
  [[nodiscard]] bool good() const { return good_; }
  /// Everything was there and nothing is left over.
  [[nodiscard]] bool complete() const { return good_ && in_.remaining() == 0; }

 private:
  BoundedReader in_;
  bool good_ = true;
};

}  // namespace headrace::wire
