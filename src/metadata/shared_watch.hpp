// SPDX-License-Identifier: Apache-2.0
// The watches of all agents of a process on one store are one watch: the store is read once, however many
// agents listen.
#pragma once

#include "metadata/store.hpp"

#include <cstdint>
#include <map>
#include <mutex>
#include <stop_token>

namespace headrace::metadata {

/// Names, each with a number that changes whenever its entries change.
using Snapshot = std::map<std::string, std::uint64_t>;

/// Reports a change that a source has found.
using Tell = std::function<void(StoreEvent::Kind, const std::string& name)>;

/// Calls `tell` for each difference between two readings.
void tell_difference(const Snapshot& before, const Snapshot& after, const Tell& tell);

/// Runs a source while anybody listens: the first listener starts it, the end of the last one ends it. One
/// thread reads the store; another one calls the listeners, one after the other. So a listener that waits
/// delays the others, but not the reading.
class SharedWatch {
 public:
  /// Reads the store until `stop`, from the beginning: every name that has an entry joins. It co-owns
  /// everything that it reads, because its thread may outlive the watch for a moment.
  using Source = std::function<void(const std::stop_token& stop, const Tell& tell)>;

  /// A watch as Store::watch returns it: `on_event` hears of every name that is there, then of each change.
  /// `source` runs if nobody listened before.
  ///   errors  exhausted (no thread)
  [[nodiscard]] Result<std::unique_ptr<Store::Watch>> listen(const Source& source, Store::OnEvent on_event);

 private:
  struct Listener;
  class Audience;
  class Run;
  class Listening;

  std::mutex mutex_;
  std::weak_ptr<Run> run_;  // guarded by mutex_; owned by those who listen
};

}  // namespace headrace::metadata
