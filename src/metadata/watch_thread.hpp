// SPDX-License-Identifier: Apache-2.0
// Shared by the watches of all stores: a thread that can be ended from anywhere, and the difference between
// two readings.
#pragma once

#include "metadata/store.hpp"

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <stop_token>
#include <thread>

namespace headrace::metadata {

/// Names, each with a number that changes whenever its entries change.
using Snapshot = std::map<std::string, std::uint64_t>;

/// A watch whose events come from a loop on its own thread.
class WatchThread final : public Store::Watch {
 public:
  /// Calls the callback unless the watch has ended.
  using Tell = std::function<void(StoreEvent::Kind, const std::string& name)>;
  /// Runs until `stop`. It co-owns everything that it reads: the thread may outlive store and watch for a
  /// moment.
  using Loop = std::function<void(std::stop_token stop, const Tell& tell)>;

  ///   errors  exhausted (the system refuses a thread)
  [[nodiscard]] static Result<std::unique_ptr<Store::Watch>> start(Loop loop, Store::OnEvent on_event);

  ~WatchThread() override;

 private:
  explicit WatchThread(std::jthread thread);
  std::jthread thread_;
  const pid_t made_in_;
};

/// Calls `tell` for each difference between two readings.
void tell_difference(const Snapshot& before, const Snapshot& after, const WatchThread::Tell& tell);

}  // namespace headrace::metadata
