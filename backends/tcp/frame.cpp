// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/frame.hpp"

namespace headrace::tcp {
namespace {

Error wrong(const FrameHeader& header, std::string_view what) {
  return make_error(Code::corrupt,
                    "a frame of type {} for request {} with {} ranges and {} bytes of payload: {}",
                    static_cast<int>(header.type), header.request, header.ranges, header.payload, what);
}

}  // namespace

Result<void> check(const FrameHeader& header) {
  if (header.ranges > max_ranges)
    return wrong(header, fmt::format("at most {} ranges are allowed", max_ranges));
  const auto expect = [&](bool ranges, std::uint64_t least, std::uint64_t most) -> Result<void> {
    if (ranges != (header.ranges > 0)) return wrong(header, ranges ? "it needs ranges" : "it has no ranges");
    if (header.payload < least || header.payload > most)
      return wrong(header, fmt::format("{} to {} bytes are allowed", least, most));
    return {};
  };
  const auto expect_message = [&]() -> Result<void> {
    const bool counted = (header.flags & flag_counted) != 0;
    const std::uint64_t before = counted ? sizeof(CountedImmediate) : 0;
    const std::uint64_t most = header.channel == count_channel ? 0 : max_message_bytes;
    if (header.channel == count_channel && !counted) return wrong(header, "it has neither message nor count");
    return header.code == 0 ? expect(false, before, before + most) : expect(false, 0, 0);
  };
  switch (header.type) {
    case FrameType::write:
      return expect(true, 1, UINT64_MAX);
    case FrameType::write_ack:
      return expect(false, 8, 8);
    case FrameType::read:
      return expect(true, 0, 0);
    case FrameType::read_data:
      return header.code == 0 ? expect(false, 1, UINT64_MAX) : expect(false, 8, 8);
    case FrameType::message:
      return expect_message();
    case FrameType::ping:
    case FrameType::pong:
    case FrameType::goodbye:
      return expect(false, 0, 0);
    case FrameType::message_ack:
      return expect(false, 0, 0);
  }
  if ((header.flags & flag_optional) == 0)
    return wrong(header, "this version does not know the type, and it is not optional");
  if (header.payload > max_unknown_payload)
    return wrong(header, fmt::format("at most {} bytes can be passed over", max_unknown_payload));
  return {};
}

Result<std::uint64_t> RangeList::total_bytes() const {
  std::uint64_t total = 0;
  if (uniform_ && count_ > 0) {
    if (__builtin_mul_overflow((*this)[0].length, std::uint64_t{count_}, &total))
      return make_error(Code::corrupt, "{} ranges of {} bytes are more than 64 bits hold", count_,
                        (*this)[0].length);
    return total;
  }
  for (std::uint32_t i = 0; i < count_; ++i) {
    if (__builtin_add_overflow(total, (*this)[i].length, &total))
      return make_error(Code::corrupt, "the lengths of {} ranges are more than 64 bits hold", count_);
  }
  return total;
}

}  // namespace headrace::tcp
