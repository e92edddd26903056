// SPDX-License-Identifier: Apache-2.0
// What the stores' watches share: a thread that can be ended from anywhere, and telling what changed between
// two looks.
#pragma once

#include "metadata/store.hpp"

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <stop_token>
#include <thread>

namespace headrace::metadata {

/// Names and something that changes whenever their entries do.
using Snapshot = std::map<std::string, std::uint64_t>;

/// A watch whose events come from a loop on a thread of its own.
class WatchThread final : public Store::Watch {
 public:
  /// Calls the callback unless the watch has ended.
  using Tell = std::function<void(StoreEvent::Kind, const std::string& name)>;
  /// Runs until `stop`. It co-owns whatever it looks at: the thread may outlive store and watch by a moment.
  using Loop = std::function<void(std::stop_token stop, const Tell& tell)>;

  ///   errors  exhausted (the system refuses a thread)
  [[nodiscard]] static Result<std::unique_ptr<Store::Watch>> start(Loop loop, Store::OnEvent on_event);

  ~WatchThread() override;

 private:
  explicit WatchThread(std::jthread thread);
  std::jthread thread_;
  const pid_t made_in_;
};

/// Tells what leads from one look to the next.
void tell_difference(const Snapshot& before, const Snapshot& after, const WatchThread::Tell& tell);

}  // namespace headrace::metadata
