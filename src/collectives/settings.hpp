// SPDX-License-Identifier: Apache-2.0
// The hints of a communicator, and the sizes from which an operation changes its way. All numbers are here.
#pragma once

#include "base/options.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace headrace::collectives {

inline constexpr std::array hint_rows{
    OptionRow{"backends", "shm,tcp", "list",
              "Backends of agents that connect the ranks; fixed when the communicator opens."},
    OptionRow{
        "lane_bytes", "1MiB", "bytes",
        "Memory between two ranks for collectives, in each direction; fixed, and the same on all ranks."},
    OptionRow{"message_lane_bytes", "256KiB", "bytes", "The same for send and recv."},
    OptionRow{
        "chunk_bytes", "128KiB", "bytes",
        "Largest part of a message that moves at once, at most half of a lane: copying in and out overlap "
        "part by part."},
    OptionRow{
        "one_shot_bytes", "32KiB", "bytes",
        "all_reduce of at most so many bytes: every rank sends all its elements to all others and reduces "
        "them itself; the same on all ranks."},
    OptionRow{
        "block_bytes", "512KiB", "bytes",
        "Larger operations with two phases go block by block of so many bytes a rank, so that the second "
        "phase finds its bytes in the cache; the same on all ranks. Not if a rank is on another host."},
    OptionRow{
        "unexpected_bytes", "64MiB", "bytes",
        "Messages that have arrived before their recv are kept up to so many bytes; then senders wait."},
    OptionRow{
        "check", "off", "boolean",
        "Before each collective the ranks compare what they call; where it differs, every rank gets an "
        "error with all calls, and the communicator goes on. HEADRACE_CHECK=1 turns it on. Fixed, and the "
        "same on all ranks."},
    OptionRow{
        "lazy", "off", "boolean",
        "Ranks connect at their first message, and all of them at the first collective, instead of when the "
        "communicator opens. Fixed, and the same on all ranks."},
};

/// What the algorithms of collectives read.
struct Tuning {
  std::size_t chunk_bytes = 0, one_shot_bytes = 0, block_bytes = 0;
};

struct Settings {
  std::vector<std::string> backends;
  std::size_t lane_bytes = 0, message_lane_bytes = 0, message_chunk_bytes = 0, unexpected_bytes = 0;
  Tuning tuning;
  bool check = false, lazy = false;

  ///   errors  invalid_argument (unknown hint: the nearest; a value that is none)
  [[nodiscard]] static Result<Settings> read(const std::map<std::string, std::string>& hints);
};

}  // namespace headrace::collectives
