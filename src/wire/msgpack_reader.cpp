// SPDX-License-Identifier: Apache-2.0
#include "wire/msgpack_reader.hpp"

#include <array>

namespace headrace::wire {

MsgpackReader::Shape MsgpackReader::shape_of(std::uint8_t first) {
  const auto inside = [first](Kind kind, std::uint8_t mask) {
    return Shape{kind, 0, static_cast<std::uint8_t>(first & mask)};
  };
  if (first <= 0x7f) return inside(Kind::unsigned_integer, 0x7f);
  if (first <= 0x8f) return inside(Kind::map, 0x0f);
  if (first <= 0x9f) return inside(Kind::array, 0x0f);
  if (first <= 0xbf) return inside(Kind::text, 0x1f);
  if (first >= 0xe0) return {Kind::signed_integer, 0, first};
  // The first bytes from 0xc0 on.
  static constexpr Shape shapes[32] = {{Kind::nil, 0, 0},
                                       {Kind::none, 0, 0},
                                       {Kind::boolean, 0, 0},
                                       {Kind::boolean, 0, 1},
                                       {Kind::binary, 1, 0},
                                       {Kind::binary, 2, 0},
                                       {Kind::binary, 4, 0},
                                       {Kind::extension, 1, 0},
                                       {Kind::extension, 2, 0},
                                       {Kind::extension, 4, 0},
                                       {Kind::real, 4, 0},
                                       {Kind::real, 8, 0},
                                       {Kind::unsigned_integer, 1, 0},
                                       {Kind::unsigned_integer, 2, 0},
                                       {Kind::unsigned_integer, 4, 0},
                                       {Kind::unsigned_integer, 8, 0},
                                       {Kind::signed_integer, 1, 0},
                                       {Kind::signed_integer, 2, 0},
                                       {Kind::signed_integer, 4, 0},
                                       {Kind::signed_integer, 8, 0},
                                       {Kind::extension, 0, 1},
                                       {Kind::extension, 0, 2},
                                       {Kind::extension, 0, 4},
                                       {Kind::extension, 0, 8},
                                       {Kind::extension, 0, 16},
                                       {Kind::text, 1, 0},
                                       {Kind::text, 2, 0},
                                       {Kind::text, 4, 0},
                                       {Kind::array, 2, 0},
                                       {Kind::array, 4, 0},
                                       {Kind::map, 2, 0},
                                       {Kind::map, 4, 0}};
  return shapes[first - 0xc0];
}

bool MsgpackReader::read_head(Head& head) {
  const std::string_view rest = reader_.rest();
  if (rest.empty()) return false;
  const Shape shape = shape_of(static_cast<std::uint8_t>(rest.front()));
  if (shape.kind == Kind::none || rest.size() - 1 < shape.number_bytes) return false;
  head = {shape.kind, shape.value, offset()};
  if (shape.number_bytes != 0) {
    head.value = 0;  // msgpack stores the high byte first
    for (const char c : rest.substr(1, shape.number_bytes))
      head.value = head.value << 8 | static_cast<unsigned char>(c);
  }
  // A writer may store a number that is not negative in a signed type.
  if (shape.kind == Kind::signed_integer && shape.number_bytes != 0 &&
      (head.value >> (8 * shape.number_bytes - 1)) == 0) {
    head.kind = Kind::unsigned_integer;
  }
  reader_.advance(1U + shape.number_bytes);
  return true;
}

Error MsgpackReader::head_error(const char* field) const {
  const std::string_view rest = reader_.rest();
  if (rest.empty()) return corrupt("{} needs 1 bytes, 0 are left", field);
  const auto first = static_cast<std::uint8_t>(rest.front());
  const Shape shape = shape_of(first);
  if (shape.kind == Kind::none) return corrupt("{}: no msgpack value begins with 0x{:02x}", field, first);
  return corrupt("{} needs {} bytes, {} are left", field, 1 + shape.number_bytes, rest.size());
}

Result<MsgpackReader::Head> MsgpackReader::expect(Kind kind, const char* kind_name, const char* field) {
  Head head;
  if (!read_head(head)) return head_error(field);
  if (head.kind != kind) return reader_.corrupt_at(head.offset, "{} should be {}", field, kind_name);
  return head;
}

Result<std::uint32_t> MsgpackReader::map(const char* field) {
  HEADRACE_TRY(head, expect(Kind::map, "a map", field));
  return static_cast<std::uint32_t>(head.value);
}

Result<std::uint32_t> MsgpackReader::array(const char* field) {
  HEADRACE_TRY(head, expect(Kind::array, "an array", field));
  return static_cast<std::uint32_t>(head.value);
}

Result<std::uint64_t> MsgpackReader::unsigned_integer(const char* field, std::uint64_t most) {
  HEADRACE_TRY(head, expect(Kind::unsigned_integer, "a number that is not negative", field));
  if (head.value > most)
    return reader_.corrupt_at(head.offset, "{} is {}, at most {} is allowed", field, head.value, most);
  return head.value;
}

Result<bool> MsgpackReader::boolean(const char* field) {
  HEADRACE_TRY(head, expect(Kind::boolean, "true or false", field));
  return head.value != 0;
}

Result<std::string_view> MsgpackReader::bytes(Kind kind, const char* kind_name, const char* field,
                                              std::size_t most, std::size_t least) {
  HEADRACE_TRY(head, expect(kind, kind_name, field));
  if (head.value < least || head.value > most) {
    return reader_.corrupt_at(head.offset, "{} has {} bytes, {} to {} are allowed", field, head.value, least,
                              most);
  }
  return reader_.bytes(head.value, field);
}

Result<std::string_view> MsgpackReader::text(const char* field, std::size_t most, std::size_t least) {
  return bytes(Kind::text, "a text", field, most, least);
}

Result<std::string_view> MsgpackReader::binary(const char* field, std::size_t most, std::size_t least) {
  return bytes(Kind::binary, "bytes", field, most, least);
}

bool MsgpackReader::take_nil() {
  const BoundedReader before = reader_;
  Head head;
  if (read_head(head) && head.kind == Kind::nil) return true;
  reader_ = before;
  return false;
}

Result<void> MsgpackReader::skip(const char* field) {
  constexpr std::size_t deepest = 16;
  std::array<std::uint64_t, deepest + 1> left{};  // values still to skip, on each level
  left[0] = 1;
  for (std::size_t level = 0;;) {
    if (left[level] == 0) {
      if (level-- == 0) return {};
      continue;
    }
    --left[level];
    Head head;
    if (!read_head(head)) return head_error(field);
    if (head.kind == Kind::array || head.kind == Kind::map) {
      if (level == deepest)
        return reader_.corrupt_at(head.offset, "{} is nested deeper than {}", field, deepest);
      left[++level] = head.kind == Kind::map ? 2 * head.value : head.value;
    } else if (head.kind == Kind::text || head.kind == Kind::binary || head.kind == Kind::extension) {
      const std::uint64_t bytes = head.value + (head.kind == Kind::extension ? 1 : 0);
      if (bytes > remaining()) return corrupt("{} needs {} bytes, {} are left", field, bytes, remaining());
      reader_.advance(bytes);
    }
  }
}

Result<void> MsgpackReader::end() {
  if (remaining() != 0) return corrupt("{} bytes follow the last value", remaining());
  return {};
}

}  // namespace headrace::wire
