// SPDX-License-Identifier: Apache-2.0
// Writing and reading the fields of a packet between processes of one host: in the host's own byte order,
// with a bound on everything that is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace headrace::host_link {

class PacketWriter {
 public:
  template <class T>
  void put(T value) {
    static_assert(std::is_integral_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_raw(std::string_view bytes) { bytes_.append(bytes); }
  /// Its length as 16 bits, then the text, cut after `most` bytes.
  void put_text(std::string_view text, std::size_t most) {
    text = text.substr(0, most);
    put(static_cast<std::uint16_t>(text.size()));
    bytes_.append(text);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads what a PacketWriter wrote. What is missing reads as 0 and makes `complete` false.
class PacketReader {
 public:
  explicit PacketReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  explicit PacketReader(std::string_view bytes) : bytes_(std::as_bytes(std::span(bytes))) {}

  template <class T>
  T get() {
    static_assert(std::is_integral_v<T>);
    T value{};
    const std::string_view raw = get_raw(sizeof value);
    if (raw.size() == sizeof value) std::memcpy(&value, raw.data(), sizeof value);
    return value;
  }
  /// Valid as long as the packet; empty if there is less.
  std::string_view get_raw(std::size_t length) {
    if (bytes_.size() - at_ < length) {
      good_ = false;
      at_ = bytes_.size();
      return {};
    }
    const char* const begin = reinterpret_cast<const char*>(bytes_.data()) + at_;
    at_ += length;
    return {begin, length};
  }
  std::string get_text(std::size_t least, std::size_t most) {
    const auto length = get<std::uint16_t>();
    if (length < least || length > most) {
      good_ = false;
      return {};
    }
    return std::string(get_raw(length));
  }
  /// All that is left.
  std::string_view get_rest() { return get_raw(bytes_.size() - at_); }
  void fail() { good_ = false; }
  /// Everything was there and nothing is left over.
  [[nodiscard]] bool complete() const { return good_ && at_ == bytes_.size(); }
  [[nodiscard]] bool good() const { return good_; }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  bool good_ = true;
};

}  // namespace headrace::host_link
