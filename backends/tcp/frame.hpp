// SPDX-License-Identifier: Apache-2.0
// What travels on a link once it is up, byte by byte: docs/wire.md section 4.
#pragma once

#include "base/errors.hpp"
#include "transport/message.hpp"
#include "transport/region_table.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace headrace::tcp {

using transport::count_channel;
using transport::CountedImmediate;
using transport::max_message_bytes;

enum class FrameType : std::uint8_t {
  write = 1,
  write_ack = 2,
  read = 3,
  read_data = 4,
  message = 5,
  ping = 6,
  pong = 7,
  goodbye = 8,
  message_ack = 9,
};

inline constexpr std::uint8_t flag_optional = 1U << 0;
inline constexpr std::uint8_t flag_bound = 1U << 1;    ///< write: a message is bound to its request
inline constexpr std::uint8_t flag_uniform = 1U << 2;  ///< all ranges have one length
inline constexpr std::uint8_t flag_counted = 1U << 3;  ///< message: begins with an immediate to be counted

// Limits of docs/wire.md, besides those of messages. A peer that goes beyond them ends the link.
inline constexpr std::uint32_t max_ranges = 4096;
inline constexpr std::uint64_t max_unknown_payload = 1 << 20;
inline constexpr std::size_t max_unanswered_frames = 1024;            ///< writes and reads each, a channel
inline constexpr std::size_t max_unanswered_read_ranges = 64 * 1024;  ///< a channel

struct FrameHeader {
  FrameType type = FrameType::ping;
  std::uint8_t flags = 0;
  std::uint16_t channel = 0;  ///< of agents' messages
  std::uint32_t ranges = 0;
  std::uint64_t request = 0;
  std::uint32_t chunk = 0;
  std::uint32_t chunks = 0;
  std::uint64_t payload = 0;
  std::uint32_t code = 0;
  std::uint32_t os_error = 0;
};
inline constexpr std::size_t frame_header_bytes = 40;
static_assert(sizeof(FrameHeader) == frame_header_bytes && std::endian::native == std::endian::little,
              "headers and ranges are copied as they lie in memory");

/// A transport::Range as it travels.
struct WireRange {
  std::uint32_t region = 0;
  std::uint32_t reserved = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};
inline constexpr std::size_t uniform_range_bytes = 16;
inline constexpr std::size_t range_bytes = 24;
static_assert(sizeof(WireRange) == range_bytes);
inline constexpr std::size_t max_ranges_bytes = max_ranges * range_bytes;

/// Bytes of ranges behind this header.
[[nodiscard]] constexpr std::size_t ranges_bytes(const FrameHeader& header) noexcept {
  if (header.ranges == 0) return 0;
  if ((header.flags & flag_uniform) != 0) return 8 + header.ranges * uniform_range_bytes;
  return header.ranges * range_bytes;
}

/// Whether a header of a peer can be what it says, as far as it alone can tell.
///   errors  corrupt
[[nodiscard]] Result<void> check(const FrameHeader& header);

/// Ranges as they came.
class RangeList {
 public:
  RangeList(const FrameHeader& header, const std::byte* bytes) noexcept
      : bytes_(bytes), count_(header.ranges), uniform_((header.flags & flag_uniform) != 0) {}

  [[nodiscard]] std::uint32_t size() const noexcept { return count_; }
  /// As they came: what ranges_bytes says of the header.
  [[nodiscard]] const std::byte* data() const noexcept { return bytes_; }
  [[nodiscard]] transport::Range operator[](std::uint32_t i) const noexcept {
    std::array<std::byte, range_bytes> raw;
    if (uniform_) {
      std::memcpy(raw.data(), bytes_ + 8 + i * uniform_range_bytes, uniform_range_bytes);
      std::memcpy(raw.data() + uniform_range_bytes, bytes_, 8);
    } else {
      std::memcpy(raw.data(), bytes_ + i * range_bytes, range_bytes);
    }
    const auto range = std::bit_cast<WireRange>(raw);
    return {range.region, range.offset, range.length};
  }
  /// All lengths together.
  ///   errors  corrupt (more than 64 bits hold)
  [[nodiscard]] Result<std::uint64_t> total_bytes() const;

 private:
  const std::byte* bytes_;
  std::uint32_t count_;
  bool uniform_;
};

}  // namespace headrace::tcp
