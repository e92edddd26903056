// SPDX-License-Identifier: Apache-2.0
// The options that every backend has whose GPUs move pages: rows for its table, and how they are read.
#pragma once

#include "base/backend_options.hpp"
#include "gpu/prepared_move.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace headrace::gpu {

inline constexpr std::array move_option_rows{
    headrace_option_v1{"multiprocessors", "64", "count",
                       "of the GPU that a kernel may occupy; 0: all. On H200 64 of 132 move 98 to 99 % of "
                       "what all do, 32 move 95 "
                       "to 99 %, 16 move 94 to 97 %",
                       0, 0},
    headrace_option_v1{"few_bytes", "64KiB", "bytes",
                       "lists of at most 8 parts and so many bytes travel inside the launch, without a table",
                       0, 0},
    headrace_option_v1{"copy_engine_bytes", "1", "bytes",
                       "what lies in one stretch on both sides and is at least so long goes by copy engine",
                       0, 0},
    headrace_option_v1{
        "host_copy_bytes", "4MiB", "bytes",
        "to and from host memory, at most 64 stretches that are all at least so long go by copy engine", 0,
        0},
    headrace_option_v1{"gpu_copy_bytes", "4MiB", "bytes",
                       "between GPUs, at most 256 stretches that are all at least so long go by copy engine, "
                       "in one call; 0: none do",
                       0, 0},
    headrace_option_v1{"pin_registered", "auto", "auto or off",
                       "off: host memory that was registered is never pinned for GPUs, but copied through "
                       "pinned memory",
                       0, 0},
    headrace_option_v1{"staging_bytes", "32MiB", "bytes",
                       "of pinned memory at most, through which host memory that cannot be pinned is copied; "
                       "0: such memory is refused",
                       0, 0},
    headrace_option_v1{
        "courier", "off", "on or off",
        "on: a kernel stays on the GPU, as long as it has work, and moves small requests without a launch "
        "for each. It occupies one multiprocessor, and who waits for the whole GPU waits for it",
        0, 0},
    headrace_option_v1{"courier_bytes", "64KiB", "bytes",
                       "requests of at most 10 stretches and so many bytes are the courier's", 0, 0},
    headrace_option_v1{
        "courier_idle", "200us", "duration",
        "without work the courier leaves after so long, and is launched anew for the next request", 0, 0},
};

/// A backend's own rows behind these.
template <std::size_t N>
[[nodiscard]] constexpr auto with_move_options(const std::array<headrace_option_v1, N>& own) {
  std::array<headrace_option_v1, move_option_rows.size() + N> rows{};
  std::copy(own.begin(), own.end(),
            std::copy(move_option_rows.begin(), move_option_rows.end(), rows.begin()));
  return rows;
}

struct MoveOptions {
  MoveSettings moves;
  std::uint64_t staging_bytes = 0;
  bool pins_registered = true;
};

[[nodiscard]] MoveOptions read_move_options(BackendOptions& options);

}  // namespace headrace::gpu
