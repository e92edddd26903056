// SPDX-License-Identifier: Apache-2.0
// The options that every backend with links of this kind has: rows for its table, and how they are read.
#pragma once

#include "base/backend_options.hpp"

#include <chrono>
#include <cstdint>

namespace headrace::host_link {

inline constexpr headrace_option_v1 ring_bytes_row{
    "ring_bytes",
    "256KiB",
    "bytes",
    "size of the message ring of each direction of a link, rounded up to a power of two that holds two "
    "messages",
    0,
    0};
inline constexpr headrace_option_v1 queue_bytes_row{"queue_bytes",
                                                    "4MiB",
                                                    "bytes",
                                                    "messages of running requests that a link keeps while "
                                                    "the peer's ring is full; beyond it a post or notify "
                                                    "answers would_block",
                                                    0,
                                                    0};
inline constexpr headrace_option_v1 handshake_timeout_row{
    "handshake_timeout", "5s", "duration", "how long a peer may take to answer a new link", 0, 0};

struct LinkSettings {
  std::uint64_t ring_bytes = 0;  ///< a power of two that holds two of the longest messages
  std::uint64_t queue_bytes = 0;
  std::chrono::nanoseconds handshake_timeout{};
};
[[nodiscard]] LinkSettings read_link_settings(BackendOptions& options);

}  // namespace headrace::host_link
