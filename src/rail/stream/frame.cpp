// SPDX-License-Identifier: Apache-2.0
#include "rail/stream/frame.hpp"

#include "wire/byte_writer.hpp"

#include <cstring>

namespace headrace::rail::stream {
namespace {

Error lie(const FrameHeader& header, std::string_view why) {
  return make_error(Code::corrupt,
                    "a frame of type {} for post {}, with {} ranges and {} bytes of payload: {}",
                    static_cast<unsigned>(header.type), header.post, header.ranges, header.payload, why);
}

struct Shape {
  bool ranges = false;
  std::uint64_t most_payload = 0;
  std::uint8_t flags = 0;
};

Shape shape_of(FrameType type) {
  switch (type) {
    case FrameType::write:
      return {true, UINT64_MAX, flag_mark};
    case FrameType::read:
      return {true, 0, flag_lend};
    case FrameType::data:
      return {false, UINT64_MAX, 0};
    case FrameType::offer:
      return {false, max_short_message_bytes, 0};
    case FrameType::message:
      return {false, max_message_bytes, 0};
    case FrameType::fetch:
      return {true, max_ranges * source_bytes, flag_mark};
    case FrameType::lend:
      return {false, max_ranges * source_bytes, 0};
    default:
      return {};
  }
}

/// What a header's value may be.
Result<void> check_value(const FrameHeader& header) {
  if (header.type == FrameType::end && header.value != code_value(Code::ok) &&
      header.value != code_value(Code::not_found) && header.value != code_value(Code::invalid_argument) &&
      header.value != code_value(Code::not_supported))
    return lie(header, fmt::format("no post ends with code {}", header.value));
  if (header.type == FrameType::returned && header.value != code_value(Code::ok) &&
      header.value != code_value(Code::not_supported))
    return lie(header, fmt::format("nothing is returned with code {}", header.value));
  if (header.type != FrameType::offer) return {};
  if (header.value == 0 || header.value > max_message_bytes)
    return lie(header, "a message has 1 to 65600 bytes");
  const bool is_short = header.value <= max_short_message_bytes;
  if (header.payload != (is_short ? header.value : 0))
    return lie(header, "a message travels with its offer if it has at most 256 bytes, and then whole");
  return {};
}

}  // namespace

std::string encode(FrameHeader header, const std::vector<Range>& ranges) {
  header.ranges = static_cast<std::uint32_t>(ranges.size());
  wire::ByteWriter out;
  out.reserve(header_bytes + ranges.size() * range_bytes);
  out.write(reinterpret_cast<const char*>(&header), header_bytes);
  for (const Range& range : ranges) {
    out.number(range.region);
    out.number(std::uint32_t{0});
    out.number(range.offset);
    out.number(range.length);
  }
  return std::move(out).take();
}

Result<void> check(const FrameHeader& header) {
  if (header.type < FrameType::write || header.type > FrameType::returned)
    return lie(header, "there is no such type");
  const Shape shape = shape_of(header.type);
  if (header.reserved != 0 || header.reserved_too != 0 || (header.flags & ~shape.flags) != 0)
    return lie(header, "bits are set that have no meaning");
  if (header.post == 0) return lie(header, "posts are numbered from 1");
  if (header.ranges > (shape.ranges ? max_ranges : 0)) return lie(header, "too many ranges");
  if (header.payload > shape.most_payload) return lie(header, "the payload is too long");
  const bool empty = header.ranges == 0 && header.payload == 0;
  if (header.type == FrameType::read && header.ranges == 0) return lie(header, "it reads nothing");
  if (header.type == FrameType::write && empty && header.flags == 0)
    return lie(header, "it has neither bytes nor a mark");
  if ((header.type == FrameType::data || header.type == FrameType::message) && empty)
    return lie(header, "it is empty");
  if (header.type == FrameType::fetch && header.ranges == 0) return lie(header, "it fetches nothing");
  if ((header.type == FrameType::fetch || header.type == FrameType::lend) &&
      (header.payload == 0 || header.payload % source_bytes != 0))
    return lie(header, "it names no place, or a part of one");
  return check_value(header);
}

Result<std::vector<Range>> read_ranges(const FrameHeader& header, std::string_view bytes) {
  std::vector<Range> ranges(header.ranges);
  std::uint64_t sum = 0;
  for (Range& range : ranges) {
    std::memcpy(&range.region, bytes.data(), sizeof range.region);
    std::memcpy(&range.offset, bytes.data() + 8, sizeof range.offset);
    std::memcpy(&range.length, bytes.data() + 16, sizeof range.length);
    bytes.remove_prefix(range_bytes);
    if (range.length == 0) return lie(header, "a range is empty");
    if (sum + range.length < sum) return lie(header, "its ranges have more bytes than 64 bits count");
    sum += range.length;
  }
  if (header.type == FrameType::write && sum != header.payload)
    return lie(header, fmt::format("its ranges have {} bytes", sum));
  return ranges;
}

}  // namespace headrace::rail::stream
