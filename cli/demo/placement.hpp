// SPDX-License-Identifier: Apache-2.0
// The device of each worker of the demo: CPU or GPU.
#pragma once

#include <headrace/tensor.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace headrace::cli::demo {

struct Placement {
  std::string prefill = "cpu";
  std::vector<std::string> decode{"cpu"};  ///< decode worker i has entry i modulo the size

  [[nodiscard]] const std::string& of_decode(std::size_t worker) const {
    return decode[worker % decode.size()];
  }
  /// "cpu" or "cuda": the kind of device that packages are compiled for.
  [[nodiscard]] std::string kind() const { return prefill.substr(0, prefill.find(':')); }
};

/// Chooses the devices. "cpu" and "cuda:1" go to all workers. "cuda" gives the first GPU to the prefill
/// worker and the others to the decode workers in turn; a single GPU goes to all workers.
///   errors  invalid_argument (not a device), not_supported (no such GPU; the text lists those that exist)
[[nodiscard]] Result<Placement> place(const std::string& device, int gpus);

}  // namespace headrace::cli::demo
