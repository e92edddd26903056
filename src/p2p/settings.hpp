// SPDX-License-Identifier: Apache-2.0
// The hints of a communicator over p2p, and the size from which an operation changes its way. All numbers are
// here.
#pragma once

#include "base/options.hpp"

#include <headrace/plugin/comm_v1.h>

#include <array>
#include <cstdint>
#include <string_view>

namespace headrace::p2p {

inline constexpr std::array hint_rows{
    OptionRow{"blocks", "0", "count",
              "Multiprocessors that an operation occupies at most; 0: 32, or as many as each rank of a GPU "
              "can have. The same on all ranks."},
    OptionRow{"packet_bytes", "0", "bytes",
              "The longest part that travels as packets, in one step: twice the bytes, and the shortest way; "
              "0: by the number of GPUs. The same on all ranks."},
    OptionRow{"chunk_bytes", "0", "bytes",
              "The longest chunk of longer parts; 0: 256 KiB over the ranks. The same on all ranks."},
    OptionRow{"slots", "0", "count",
              "Chunks that a rank's box holds of each rank, two for each block; 0: 64. The same on all "
              "ranks."},
    OptionRow{"copy_bytes", "0", "bytes",
              "Parts from this length on that are only moved go by copy engines, which leave the "
              "multiprocessors to other kernels; 0: none. The same on all ranks."},
    OptionRow{"is_high_priority_stream", "off", "boolean",
              "The stream of asynchronous operations has a high priority."},
};

struct Settings {
  std::uint32_t blocks = 0, packet_bytes = 0, chunk_bytes = 0, slots = 0;  ///< 0: the default
  std::uint32_t copy_bytes = 0;                                            ///< 0: no part is so long
  bool high_priority = false;

  /// From hints, HEADRACE_P2P_<NAME> and the table [p2p] of the configuration file.
  ///   errors  invalid_argument (unknown hint: the nearest; a value that is none)
  [[nodiscard]] static Result<Settings> read(const headrace_comm_setup_v1& setup);
};

/// Their values where no communicator gives hints.
///   errors  those of Options::resolve
[[nodiscard]] Result<Options> default_options();

/// A number of blocks, as the hint of one call has it: 1 to `most`.
///   errors  invalid_argument
[[nodiscard]] Result<std::uint32_t> blocks_of_call(std::string_view value, std::uint32_t most);

/// The longest part that travels as packets, by default.
[[nodiscard]] std::uint32_t packet_bytes_for(int gpus);

}  // namespace headrace::p2p
