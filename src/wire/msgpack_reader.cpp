// SPDX-License-Identifier: Apache-2.0
#include "wire/msgpack_reader.hpp"

namespace headrace::wire {
namespace {

/// The next number, which msgpack writes with the high byte first.
template <class T>
Result<std::uint64_t> big_endian(BoundedReader& reader, const char* field) {
  HEADRACE_TRY(raw, reader.bytes(sizeof(T), field));
  std::uint64_t value = 0;
  for (const char c : raw) value = value << 8 | static_cast<unsigned char>(c);
  return value;
}

}  // namespace

Result<MsgpackReader::Head> MsgpackReader::head(const char* field) {
  using enum Head::Kind;
  Head head{nil, 0, offset()};
  HEADRACE_TRY(first, reader_.number<std::uint8_t>(field));

  // How many bytes the number behind the first byte has; 0: it is part of it.
  const auto sized = [&](Head::Kind kind, int number_bytes) -> Result<Head> {
    head.kind = kind;
    auto value = number_bytes == 1   ? big_endian<std::uint8_t>(reader_, field)
                 : number_bytes == 2 ? big_endian<std::uint16_t>(reader_, field)
                 : number_bytes == 4 ? big_endian<std::uint32_t>(reader_, field)
                                     : big_endian<std::uint64_t>(reader_, field);
    if (!value) return std::move(value).error();
    head.value = *value;
    return head;
  };
  const auto fixed = [&](Head::Kind kind, std::uint64_t value) -> Result<Head> {
    head.kind = kind;
    head.value = value;
    return head;
  };
  // A signed integer of `number_bytes`: one that is not negative counts as unsigned.
  const auto signed_integer = [&](int number_bytes) -> Result<Head> {
    HEADRACE_TRY(read, sized(unsigned_integer, number_bytes));
    if ((read.value >> (8 * number_bytes - 1)) != 0) read.kind = negative;
    return read;
  };

  if (first <= 0x7f) return fixed(unsigned_integer, first);
  if (first <= 0x8f) return fixed(map, first & 0x0f);
  if (first <= 0x9f) return fixed(array, first & 0x0f);
  if (first <= 0xbf) return fixed(text, first & 0x1f);
  if (first >= 0xe0) return fixed(negative, 0);
  switch (first) {
    case 0xc0:
      return fixed(nil, 0);
    case 0xc2:
      return fixed(boolean, 0);
    case 0xc3:
      return fixed(boolean, 1);
    case 0xc4:
      return sized(binary, 1);
    case 0xc5:
      return sized(binary, 2);
    case 0xc6:
      return sized(binary, 4);
    case 0xc7:
      return sized(extension, 1);
    case 0xc8:
      return sized(extension, 2);
    case 0xc9:
      return sized(extension, 4);
    case 0xca:
      return sized(real, 4);
    case 0xcb:
      return sized(real, 8);
    case 0xcc:
      return sized(unsigned_integer, 1);
    case 0xcd:
      return sized(unsigned_integer, 2);
    case 0xce:
      return sized(unsigned_integer, 4);
    case 0xcf:
      return sized(unsigned_integer, 8);
    case 0xd0:
      return signed_integer(1);
    case 0xd1:
      return signed_integer(2);
    case 0xd2:
      return signed_integer(4);
    case 0xd3:
      return signed_integer(8);
    case 0xd4:
      return fixed(extension, 1);
    case 0xd5:
      return fixed(extension, 2);
    case 0xd6:
      return fixed(extension, 4);
    case 0xd7:
      return fixed(extension, 8);
    case 0xd8:
      return fixed(extension, 16);
    case 0xd9:
      return sized(text, 1);
    case 0xda:
      return sized(text, 2);
    case 0xdb:
      return sized(text, 4);
    case 0xdc:
      return sized(array, 2);
    case 0xdd:
      return sized(array, 4);
    case 0xde:
      return sized(map, 2);
    case 0xdf:
      return sized(map, 4);
    default:
      return reader_.corrupt_at(head.offset, "{}: 0x{:02x} begins no msgpack value", field, first);
  }
}

Result<MsgpackReader::Head> MsgpackReader::expect(Head::Kind kind, const char* kind_name, const char* field) {
  HEADRACE_TRY(head, this->head(field));
  if (head.kind != kind) return reader_.corrupt_at(head.offset, "{} should be {}", field, kind_name);
  return head;
}

Result<std::uint32_t> MsgpackReader::map(const char* field) {
  HEADRACE_TRY(head, expect(Head::Kind::map, "a map", field));
  return static_cast<std::uint32_t>(head.value);
}

Result<std::uint32_t> MsgpackReader::array(const char* field) {
  HEADRACE_TRY(head, expect(Head::Kind::array, "an array", field));
  return static_cast<std::uint32_t>(head.value);
}

Result<std::uint64_t> MsgpackReader::unsigned_integer(const char* field, std::uint64_t most) {
  HEADRACE_TRY(head, expect(Head::Kind::unsigned_integer, "a number that is not negative", field));
  if (head.value > most)
    return reader_.corrupt_at(head.offset, "{} is {}, at most {} is allowed", field, head.value, most);
  return head.value;
}

Result<bool> MsgpackReader::boolean(const char* field) {
  HEADRACE_TRY(head, expect(Head::Kind::boolean, "true or false", field));
  return head.value != 0;
}

Result<std::string_view> MsgpackReader::bytes(Head::Kind kind, const char* kind_name, const char* field,
                                              std::size_t most, std::size_t least) {
  HEADRACE_TRY(head, expect(kind, kind_name, field));
  if (head.value < least || head.value > most) {
    return reader_.corrupt_at(head.offset, "{} has {} bytes, {} to {} are allowed", field, head.value, least,
                              most);
  }
  return reader_.bytes(head.value, field);
}

Result<std::string_view> MsgpackReader::text(const char* field, std::size_t most, std::size_t least) {
  return bytes(Head::Kind::text, "a text", field, most, least);
}

Result<std::string_view> MsgpackReader::binary(const char* field, std::size_t most, std::size_t least) {
  return bytes(Head::Kind::binary, "bytes", field, most, least);
}

bool MsgpackReader::take_nil() {
  const BoundedReader before = reader_;
  const auto head = this->head("nil");
  if (head.ok() && head->kind == Head::Kind::nil) return true;
  reader_ = before;
  return false;
}

Result<void> MsgpackReader::skip(const char* field) { return skip(field, 0); }

Result<void> MsgpackReader::skip(const char* field, int depth) {
  constexpr int deepest = 16;
  HEADRACE_TRY(head, this->head(field));
  switch (head.kind) {
    case Head::Kind::text:
    case Head::Kind::binary:
      HEADRACE_TRY_VOID(reader_.bytes(head.value, field));
      return {};
    case Head::Kind::extension:
      HEADRACE_TRY_VOID(reader_.bytes(head.value + 1, field));
      return {};
    case Head::Kind::array:
    case Head::Kind::map: {
      if (depth == deepest)
        return reader_.corrupt_at(head.offset, "{} is nested deeper than {}", field, deepest);
      const std::uint64_t values = head.kind == Head::Kind::map ? 2 * head.value : head.value;
      for (std::uint64_t i = 0; i < values; ++i) HEADRACE_TRY_VOID(skip(field, depth + 1));
      return {};
    }
    default:
      return {};
  }
}

Result<void> MsgpackReader::end() {
  if (remaining() != 0) return corrupt("{} bytes follow the last value", remaining());
  return {};
}

}  // namespace headrace::wire
