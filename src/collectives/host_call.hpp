// SPDX-License-Identifier: Apache-2.0
// A call as the backend `host` runs it.
#pragma once

#include "collectives/exchange.hpp"
#include "collectives/reduction.hpp"
#include "collectives/settings.hpp"

#include <headrace/comm_call.hpp>

#include <cstddef>
#include <string>

namespace headrace::collectives {

/// What is found before another rank can know of the call: it may be refused still.
struct HostPlan {
  Reduction reduction;
  bool one_shot = false;  ///< of all_reduce
  std::size_t block_bytes = 0;

  ///   errors  invalid_argument (the reduction has no meaning for the type, an unknown hint)
  [[nodiscard]] static Result<HostPlan> make(const CommCall& call, const Tuning& tuning, int ranks);
  [[nodiscard]] Result<void> run(Exchange& exchange, const CommCall& call) const;
  /// The algorithm as errors name it, where ranks may take different ones.
  [[nodiscard]] std::string way(const CommCall& call) const;
};

}  // namespace headrace::collectives
