// SPDX-License-Identifier: Apache-2.0
// Which processor or GPU each worker of the demo has.
#pragma once

#include <headrace/tensor.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace headrace::cli::demo {

struct Placement {
  std::string prefill = "cpu";
  std::vector<std::string> decode{"cpu"};  ///< decode worker i has the i-th, and from the first on again

  [[nodiscard]] const std::string& of_decode(std::size_t worker) const {
    return decode[worker % decode.size()];
  }
  /// "cpu" or "cuda": what packages are compiled for.
  [[nodiscard]] std::string kind() const { return prefill.substr(0, prefill.find(':')); }
};

/// "cpu" and "cuda:1" are everybody's; "cuda" gives the first GPU to the prefill worker and the others to the
/// decode workers in turn, or the one that there is to all.
///   errors  invalid_argument (no device), not_supported (a GPU that is not there: how many there are)
[[nodiscard]] Result<Placement> place(const std::string& device, int gpus);

}  // namespace headrace::cli::demo
