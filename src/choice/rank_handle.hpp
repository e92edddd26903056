// SPDX-License-Identifier: Apache-2.0
// One rank as Communicator::reconfigure takes it.
#pragma once

#include "base/errors.hpp"

#include <map>
#include <string>
#include <string_view>

namespace headrace::choice {

struct RankHandle {
  std::string gpu, uuid;                        ///< the name and the identity of its GPU
  std::string from, table;                      ///< its table of choices, which holds if it comes first
  std::map<std::string, std::string> backends;  ///< the handles of those that reconfigure, by name

  [[nodiscard]] std::string encode() const;
  ///   errors  invalid_argument (it is none)
  [[nodiscard]] static Result<RankHandle> decode(std::string_view bytes);
};

}  // namespace headrace::choice
