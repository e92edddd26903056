// SPDX-License-Identifier: Apache-2.0
#include "host_link/settings.hpp"

#include "base/errors.hpp"
#include "host_link/message_pipe.hpp"

#include <algorithm>
#include <bit>

namespace headrace::host_link {

Result<LinkSettings> read_link_settings(const BackendOptions& options) {
  constexpr std::uint64_t two_messages = 2 * max_message_bytes;
  constexpr std::uint64_t least_bytes = 4096;
  constexpr std::uint64_t largest_ring_bytes = 1ULL << 30;
  HEADRACE_TRY(ring_bytes, options.number(ring_bytes_row.name, least_bytes, largest_ring_bytes));
  HEADRACE_TRY(queue_bytes, options.number(queue_bytes_row.name, least_bytes, UINT64_MAX));
  HEADRACE_TRY(handshake_timeout, options.duration(handshake_timeout_row.name));
  return LinkSettings{std::bit_ceil(std::max(ring_bytes, two_messages)), std::max(queue_bytes, two_messages),
                      handshake_timeout};
}

}  // namespace headrace::host_link
