// SPDX-License-Identifier: Apache-2.0
// Reads little-endian bytes of unknown origin: never past their end, and every error names the offset.
#pragma once

#include "base/errors.hpp"

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace headrace::wire {

static_assert(std::endian::native == std::endian::little,
              "numbers have the same bytes on the wire and in memory");

/// A cursor over bytes; it does not own them.
class BoundedReader {
 public:
  /// `what` names the whole object in errors ("metadata"); `base_offset` is the offset of `bytes` in it.
  explicit BoundedReader(std::string_view bytes, const char* what, std::size_t base_offset = 0) noexcept
      : bytes_(bytes), what_(what), base_offset_(base_offset) {}

  /// The next number; `field` names it in errors.
  template <std::unsigned_integral T>
  [[nodiscard]] Result<T> number(const char* field) {
    HEADRACE_TRY(raw, bytes(sizeof(T), field));
    T value;
    std::memcpy(&value, raw.data(), sizeof value);
    return value;
  }

  /// A view of the next `count` bytes.
  [[nodiscard]] Result<std::string_view> bytes(std::size_t count, const char* field) {
    if (count > remaining()) return corrupt("{} needs {} bytes, {} are left", field, count, remaining());
    const std::string_view view = bytes_.substr(position_, count);
    position_ += count;
    return view;
  }

  /// The remaining bytes, and skipping `count` <= remaining() of them: for readers with their own checks.
  [[nodiscard]] std::string_view rest() const noexcept { return bytes_.substr(position_); }
  void advance(std::size_t count) noexcept { position_ += count; }

  [[nodiscard]] std::size_t remaining() const noexcept { return bytes_.size() - position_; }
  /// The offset in the whole object.
  [[nodiscard]] std::size_t offset() const noexcept { return base_offset_ + position_; }

  /// An error at the cursor.
  template <class... Args>
  [[nodiscard]] Error corrupt(fmt::format_string<Args...> text, Args&&... args) const {
    return corrupt_at(offset(), text, std::forward<Args>(args)...);
  }
  template <class... Args>
  [[nodiscard]] Error corrupt_at(std::size_t offset, fmt::format_string<Args...> text, Args&&... args) const {
    return make_error(Code::corrupt, "{} is corrupt at offset {}: {}", what_, offset,
                      fmt::format(text, std::forward<Args>(args)...));
  }

 private:
  std::string_view bytes_;
  const char* what_;
  std::size_t base_offset_;
  std::size_t position_ = 0;
};

}  // namespace headrace::wire
