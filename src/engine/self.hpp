// SPDX-License-Identifier: Apache-2.0
// This agent, as its peers know it.
#pragma once

#include <cstdint>
#include <string>

namespace headrace::engine {

struct Self {
  std::string name;
  std::uint64_t incarnation = 0;  ///< a random number of this start of the agent
};

}  // namespace headrace::engine
