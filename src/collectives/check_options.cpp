// SPDX-License-Identifier: Apache-2.0
#include "collectives/check_options.hpp"

#include "base/errors.hpp"
#include "base/names.hpp"
#include "base/utf8.hpp"

#include <cstddef>
#include <numeric>

namespace headrace::collectives {

Result<void> check_name(const std::string& name) {
  constexpr std::size_t longest_name = 128;
  if (name.empty() || name.size() > longest_name || !is_utf8(name) || has_control_character(name)) {
    return make_error(Code::invalid_argument,
                      "a communicator's name is UTF-8 of 1 to {} bytes without control characters, not {}",
                      longest_name, name_text(name));
  }
  return {};
}

Result<void> check_options(const CommOptions& options) {
  HEADRACE_TRY_VOID(check_name(options.name));
  constexpr int most_ranks = 4096;
  if (options.size < 1 || options.size > most_ranks || options.rank < 0 || options.rank >= options.size) {
    return make_error(
        Code::invalid_argument,
        "rank {} of size {}: the size is 1 to {}, and the rank is at least 0 and below the size",
        options.rank, options.size, most_ranks);
  }
  return {};
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace headrace::collectives
