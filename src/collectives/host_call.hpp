// SPDX-License-Identifier: Apache-2.0
// A call as the backend `host` runs it.
#pragma once

#include "collectives/exchange.hpp"
#include "collectives/reduction.hpp"
#include "collectives/settings.hpp"

#include <headrace/comm_call.hpp>

#include <cstddef>
#include <string>
#include <vector>

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

/// A copy of a call that outlives what the caller gave. The elements stay where they are.
class KeptCall {
 public:
  explicit KeptCall(const CommCall& call);
  [[nodiscard]] CommCall call() const;

 private:
  CommCall call_;
  std::vector<ConstElements> inputs_;
  std::vector<Elements> outputs_;
  std::vector<std::size_t> input_splits_, output_splits_;
};

}  // namespace headrace::collectives
