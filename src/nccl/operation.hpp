// SPDX-License-Identifier: Apache-2.0
// One call as calls of NCCL.
#pragma once

#include "nccl/reduction.hpp"
#include "vendor/nccl/config.hpp"

#include <headrace/plugin/comm_v1.h>

#include <memory>

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
  void* scratch;             ///< memory of the GPU: at least one byte
  const CollConfig* config;  ///< of this call; null: none
};

/// The configuration of a call, and what its texts point to.
struct KeptConfig {
  CallConfig hints;
  CollConfig config;
};
/// The hints of a call; null: it has none.
///   errors  those of CallConfig, not_supported (an operation that takes none)
[[nodiscard]] Result<std::shared_ptr<const KeptConfig>> config_of(const Library& library,
                                                                  const headrace_comm_call_v1& call);

/// Refuses what NCCL cannot do: before anything has begun, and alike on all ranks.
///   errors  not_supported, invalid_argument
[[nodiscard]] Result<Reduction> check_call(const Library& library, const headrace_comm_call_v1& call);

/// Queues the call. in_progress: the library goes on by itself.
[[nodiscard]] Outcome run_call(const Place& place, const headrace_comm_call_v1& call,
                               const Reduction& reduction);

}  // namespace headrace::nccl
