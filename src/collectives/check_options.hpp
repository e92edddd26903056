// SPDX-License-Identifier: Apache-2.0
// What holds for the options of a communicator of any backend.
#pragma once

#include <headrace/comm.hpp>

#include <string>
#include <vector>

namespace headrace::collectives {

///   errors  invalid_argument (empty, too long, not UTF-8, a control character)
[[nodiscard]] Result<void> check_name(const std::string& name);
/// Name, rank and size.
///   errors  invalid_argument
[[nodiscard]] Result<void> check_options(const CommOptions& options);

/// The options with their device as device_text writes it: "cuda" becomes the current GPU of this thread.
///   errors  invalid_argument (no such form), and those of cuda::load_driver
[[nodiscard]] Result<CommOptions> with_device_number(CommOptions options);
/// The device of options whose device is written so.
[[nodiscard]] Device device_of(const CommOptions& options);

/// 0 to size - 1: the ranks of a communicator that no other one has made.
[[nodiscard]] std::vector<int> all_ranks(int size);

}  // namespace headrace::collectives
