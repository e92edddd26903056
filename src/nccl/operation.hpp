// SPDX-License-Identifier: Apache-2.0
// One call as calls of NCCL.
#pragma once

#include "nccl/reduction.hpp"

#include <headrace/plugin/comm_v1.h>

namespace headrace::nccl {

/// Whether a call of the library went well so far, or goes on by itself.
[[nodiscard]] constexpr bool is_fine(Outcome outcome) {
  return outcome == Outcome::success || outcome == Outcome::in_progress;
}

/// Where a call runs.
struct Place {
  const Library& library;
  Comm comm;
  Stream stream;
  int rank;
  int size;
  void* scratch;  ///< memory of the GPU: at least one byte
};

/// Refuses what NCCL cannot do: before anything has begun, and alike on all ranks.
///   errors  not_supported, invalid_argument
[[nodiscard]] Result<Reduction> check_call(const Library& library, const headrace_comm_call_v1& call);

/// Queues the call. in_progress: the library goes on by itself.
[[nodiscard]] Outcome run_call(const Place& place, const headrace_comm_call_v1& call,
                               const Reduction& reduction);

}  // namespace headrace::nccl
