// SPDX-License-Identifier: Apache-2.0
#include "host_link/settings.hpp"

#include "host_link/message_pipe.hpp"

#include <algorithm>
#include <bit>

namespace headrace::host_link {

LinkSettings read_link_settings(BackendOptions& options) {
  constexpr std::uint64_t two_messages = 2 * max_message_bytes;
  constexpr std::uint64_t least_bytes = 4096;
  constexpr std::uint64_t largest_ring_bytes = 1ULL << 30;
  const std::uint64_t ring_bytes = options.bytes(ring_bytes_row.name, least_bytes, largest_ring_bytes);
  const std::uint64_t queue_bytes = options.bytes(queue_bytes_row.name, least_bytes, UINT64_MAX);
  return {std::bit_ceil(std::max(ring_bytes, two_messages)), std::max(queue_bytes, two_messages),
          options.duration(handshake_timeout_row.name)};
}

}  // namespace headrace::host_link
