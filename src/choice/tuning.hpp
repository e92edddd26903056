// SPDX-License-Identifier: Apache-2.0
// The table of `auto` as text, and what it says of the calls of one communicator.
#pragma once

#include "base/errors.hpp"

#include <headrace/comm_tuning.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::choice {

/// The backends that a table names.
inline constexpr std::array<std::string_view, 2> table_backends{"p2p", "nccl"};

inline constexpr std::size_t most_text_bytes = std::size_t{1} << 20;

/// `from`: how errors name the text.
///   errors  corrupt (which line or entry, and what is expected there), not_supported (a newer version)
[[nodiscard]] Result<CommTuning> parse_tuning(std::string_view text, const std::string& from);
/// A line for each entry.
[[nodiscard]] std::string tuning_text(const CommTuning& tuning);

/// What a table knows of a communicator.
struct Topology {
  std::string gpu;  ///< of rank 0
  int ranks = 1;
  bool sharing = false;
};

/// What a table knows of a call; the same on all ranks.
struct CallSize {
  CommOperation operation = CommOperation::barrier;
  int dtype_bytes = 0;      ///< 0: it has no elements
  std::uint64_t bytes = 0;  ///< of what one rank gives to or gets from another
  bool registered = false;  ///< its communicator has registered tensors
};

/// The entries of a table that hold for one communicator.
class Choices {
 public:
  Choices() = default;
  /// `open`: the backends of the communicator. The entries that are built in follow those of the table.
  Choices(const CommTuning& tuning, const Topology& topology, const std::vector<std::string>& open);

  /// The position in `open` of the backend of the first entry that holds; nullopt: none does.
  [[nodiscard]] std::optional<std::size_t> pick(const CallSize& call) const;

 private:
  struct Row {
    std::optional<int> dtype_bytes;
    std::uint64_t up_to_bytes;
    std::optional<bool> registered;
    std::size_t backend;
  };
  std::vector<std::vector<Row>> rows_;  // by operation
};

}  // namespace headrace::choice
