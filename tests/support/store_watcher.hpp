// SPDX-License-Identifier: Apache-2.0
// Collects the events of a store's watch, for tests that wait for an event.
#pragma once

#include "metadata/store.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace headrace::testing {

class StoreWatcher {
 public:
  explicit StoreWatcher(metadata::Store& store) {
    auto watch = store.watch([this](const metadata::StoreEvent& event) {
      {
        const std::scoped_lock lock(mutex_);
        events_.push_back(event);
      }
      came_.notify_all();
    });
    if (watch) watch_ = std::move(watch).value();
  }

  /// Waits until an event of this kind and name has come since the last call that found one. Drops it and all
  /// events before it. False after 30 s.
  bool saw(metadata::StoreEvent::Kind kind, const std::string& name,
           std::chrono::seconds within = std::chrono::seconds(30)) {
    return until(kind, name, within).has_value();
  }
  /// As `saw`, but returns the events before it. None after 30 s.
  std::optional<std::vector<metadata::StoreEvent>> until(
      metadata::StoreEvent::Kind kind, const std::string& name,
      std::chrono::seconds within = std::chrono::seconds(30)) {
    std::unique_lock lock(mutex_);
    const metadata::StoreEvent wanted{kind, name};
    std::vector<metadata::StoreEvent>::iterator found;
    const bool came = came_.wait_for(lock, within, [&] {
      found = std::find(events_.begin(), events_.end(), wanted);
      return found != events_.end();
    });
    if (!came) return std::nullopt;
    std::vector<metadata::StoreEvent> before(events_.begin(), found);
    events_.erase(events_.begin(), found + 1);
    return before;
  }
  bool joined(const std::string& name) { return saw(metadata::StoreEvent::Kind::joined, name); }
  bool updated(const std::string& name) { return saw(metadata::StoreEvent::Kind::updated, name); }
  bool left(const std::string& name) { return saw(metadata::StoreEvent::Kind::left, name); }

  /// The events that no call has waited for.
  [[nodiscard]] std::vector<metadata::StoreEvent> rest() {
    const std::scoped_lock lock(mutex_);
    return events_;
  }
  void end() { watch_.reset(); }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<metadata::StoreEvent> events_;
  std::unique_ptr<metadata::Store::Watch>
      watch_;  // the last member: the watch ends before the members that its callback uses
};

}  // namespace headrace::testing
