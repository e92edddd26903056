// SPDX-License-Identifier: Apache-2.0
// The calls that threads keep between start_coalescing and end_coalescing.
#pragma once

#include "collectives/kept_call.hpp"
#include "collectives/work_state.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace headrace::collectives {

/// The calls of one thread, and the work that ends with them.
struct Coalesced {
  std::shared_ptr<Work::State> work;
  std::vector<KeptCall> calls;
};

/// Each thread keeps calls of its own. While none does, an operation pays for one look at a flag.
///   threads  any
class Coalescer {
 public:
  /// The work of this thread's calls; null: it keeps none.
  [[nodiscard]] std::shared_ptr<Work::State> mine() const;
  /// Begins to keep the calls of this thread.
  ///   errors  invalid_argument (it does already; the communicator is closed)
  Result<void> start(std::shared_ptr<Work::State> work);
  void keep(KeptCall call);
  /// What this thread has kept.
  ///   errors  invalid_argument (it keeps none; the communicator is closed)
  Result<Coalesced> take();
  /// Ends the works of all threads: their calls are not issued.
  void close();

 private:
  std::atomic<int> threads_{0};
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Coalesced> kept_;  // by the thread's number
  bool closed_ = false;
};

}  // namespace headrace::collectives
