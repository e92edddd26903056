// SPDX-License-Identifier: Apache-2.0
// What a dispatch and a combine are compared with: the thread of each rank copies the same rows by memcpy. It
// makes no route, waits for nothing, tells nothing and adds nothing.
#pragma once

#include "cli/bench/moe_tokens.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace headrace::cli {

/// Memory of a rank in this process.
struct MoEAddresses {
  std::byte *rows = nullptr, *scales = nullptr, *results = nullptr;
};

class MoECopies {
 public:
  ///   tokens, scales  of this rank's group
  ///   of_ranks        each a MoEAddresses, as bytes
  MoECopies(const MoEConfig& config, const std::byte* tokens, const std::byte* scales, std::byte* sums,
            const std::vector<std::string>& of_ranks);

  /// Finds the rows of a round. The members of a group share its tokens.
  void find(const MoEExpected& expected);
  /// Each row of a token, with its scales, to its place in the output of each of its experts.
  void dispatch() const;
  /// Each row of results to the row of its token's sum.
  void combine() const;
  /// Sums that are not the last result of their token.
  [[nodiscard]] MoEWrong wrong_sums() const;

 private:
  struct Copy {
    std::int64_t token;
    int rank;
    std::size_t row;  // of that rank
  };

  const MoEConfig& config_;
  const std::byte *tokens_, *token_scales_;
  std::byte* sums_;
  std::vector<MoEAddresses> of_ranks_;
  std::vector<Copy> sent_, taken_;  // by token
};

}  // namespace headrace::cli
