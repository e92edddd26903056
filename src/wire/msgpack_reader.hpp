// SPDX-License-Identifier: Apache-2.0
// Reads msgpack one value at a time, in the order that the caller expects.
#pragma once

#include "wire/bounded_reader.hpp"

#include <cstdint>
#include <string_view>

namespace headrace::wire {

/// A cursor over msgpack bytes; it does not own them. It makes no objects, and allocates nothing for a count
/// that the input only claims. msgpack-cxx's unpacker does allocate, and does not say where it stopped; so
/// only its packer is used here.
class MsgpackReader {
 public:
  explicit MsgpackReader(std::string_view bytes, const char* what, std::size_t base_offset = 0) noexcept
      : reader_(bytes, what, base_offset) {}

  [[nodiscard]] Result<std::uint32_t> map(const char* field);    ///< how many pairs follow
  [[nodiscard]] Result<std::uint32_t> array(const char* field);  ///< how many values follow
  /// An integer from 0 to `most`, in any of msgpack's integer types.
  [[nodiscard]] Result<std::uint64_t> unsigned_integer(const char* field,
                                                       std::uint64_t most = ~std::uint64_t{0});
  [[nodiscard]] Result<bool> boolean(const char* field);
  /// Texts and byte strings of `least` to `most` bytes, as views of the input. Texts are not checked for
  /// UTF-8.
  [[nodiscard]] Result<std::string_view> text(const char* field, std::size_t most, std::size_t least = 0);
  [[nodiscard]] Result<std::string_view> binary(const char* field, std::size_t most, std::size_t least = 0);
  /// Skips nil, if it is the next value.
  [[nodiscard]] bool take_nil();
  /// Skips one value of any kind. Refuses nesting deeper than 16.
  [[nodiscard]] Result<void> skip(const char* field);
  /// Fails if bytes remain after the last value.
  [[nodiscard]] Result<void> end();

  [[nodiscard]] std::size_t offset() const noexcept { return reader_.offset(); }
  [[nodiscard]] std::size_t remaining() const noexcept { return reader_.remaining(); }

  template <class... Args>
  [[nodiscard]] Error corrupt(fmt::format_string<Args...> text, Args&&... args) const {
    return reader_.corrupt(text, std::forward<Args>(args)...);
  }
  template <class... Args>
  [[nodiscard]] Error corrupt_at(std::size_t offset, fmt::format_string<Args...> text, Args&&... args) const {
    return reader_.corrupt_at(offset, text, std::forward<Args>(args)...);
  }

 private:
  enum class Kind : std::uint8_t {
    none,
    nil,
    boolean,
    unsigned_integer,
    signed_integer,
    real,
    text,
    binary,
    array,
    map,
    extension
  };
  /// What the first byte of a value says: its kind, and the size of the number after it, or the number in it.
  struct Shape {
    Kind kind = Kind::none;
    std::uint8_t number_bytes = 0;
    std::uint8_t value = 0;
  };
  struct Head {
    Kind kind = Kind::none;
    std::uint64_t value = 0;  // the number or truth value, or how many bytes or values follow
    std::size_t offset = 0;
  };
  static Shape shape_of(std::uint8_t first);
  /// Reads a head without a Result, which would cost more than the read itself. False: nothing was read.
  bool read_head(Head& head);
  [[nodiscard]] Error head_error(const char* field) const;
  Result<Head> expect(Kind kind, const char* kind_name, const char* field);
  Result<std::string_view> bytes(Kind kind, const char* kind_name, const char* field, std::size_t most,
                                 std::size_t least);

  BoundedReader reader_;
};

}  // namespace headrace::wire
