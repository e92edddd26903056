// SPDX-License-Identifier: Apache-2.0
// Writes little-endian bytes: the counterpart of BoundedReader and PacketReader.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace headrace::wire {

static_assert(std::endian::native == std::endian::little,
              "numbers have the same bytes on the wire and in memory");

/// Appends to a string. `write` is the buffer interface of msgpack::packer.
class ByteWriter {
 public:
  template <std::integral T>
  void number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void bytes(std::string_view view) { bytes_.append(view); }
  /// Its length as 16 bits, then the text, cut after `most` bytes.
  void text(std::string_view text, std::uint16_t most) {
    text = text.substr(0, most);
    number(static_cast<std::uint16_t>(text.size()));
    bytes(text);
  }
  void write(const char* data, std::size_t size) { bytes_.append(data, size); }
  void reserve(std::size_t size) { bytes_.reserve(size); }

  [[nodiscard]] std::string_view view() const noexcept { return bytes_; }
  [[nodiscard]] std::string take() && { return std::move(bytes_); }

 private:
  std::string bytes_;
};

}  // namespace headrace::wire
