// SPDX-License-Identifier: Apache-2.0
// The table by which communicators of the backend `auto` choose what moves the elements of a call.
#pragma once

#include <headrace/comm_call.hpp>
#include <headrace/result.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

/// One entry. What is left out holds for any.
struct CommTuningEntry {
  std::string gpu = {};              ///< as its driver names it: "NVIDIA H200"
  std::optional<int> ranks = {};     ///< of the communicator
  std::optional<bool> sharing = {};  ///< whether ranks share a GPU
  std::optional<CommOperation> operation = {};
  std::optional<int> dtype_bytes = {};            ///< of one element
  std::optional<std::uint64_t> up_to_bytes = {};  ///< of what one rank gives to or gets from another
  std::optional<bool> registered = {};            ///< whether the communicator has registered tensors
  std::string backend = {};                       ///< "p2p" or "nccl"

  friend bool operator==(const CommTuningEntry&, const CommTuningEntry&) = default;
};

/// The first entry that holds for a call, and whose backend is open, decides. Behind them all stand those
/// that are built in.
struct CommTuning {
  std::string from = {};  ///< the path of its file; "built in"
  std::vector<CommTuningEntry> entries = {};
};

/// The entries that are built in.
HEADRACE_API CommTuning built_in_comm_tuning();
/// The file that rank 0 of a communicator reads: that of option comm.tune (HEADRACE_COMM_TUNE), else
/// headrace/collectives.json in $XDG_CONFIG_HOME or ~/.config.
///   errors  those of options
HEADRACE_API Result<std::string> comm_tuning_path();
/// Reads a file; empty: that of comm_tuning_path, and what is built in if option comm.tune names none and
/// there is none.
///   errors  not_found, corrupt (which line or entry, and what is expected there), not_supported (a newer
///           version)
HEADRACE_API Result<CommTuning> read_comm_tuning(const std::string& path = {});
/// Writes a file in one step: a reader finds the old one or the new one. Makes its folder. Empty: that of
/// comm_tuning_path. Returns the path.
///   errors  those of the system
HEADRACE_API Result<std::string> write_comm_tuning(const CommTuning& tuning, const std::string& path = {});

}  // namespace headrace
