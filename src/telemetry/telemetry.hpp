// SPDX-License-Identifier: Apache-2.0
// The measurements of one agent: named counters and histograms, and a ring of the latest events.
#pragma once

#include "base/clock.hpp"
#include "telemetry/counter.hpp"
#include "telemetry/histogram.hpp"

#include <headrace/telemetry.hpp>

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace headrace {

/// Owned by an agent. Thread-safe. Look a counter up once and keep the reference: the lookup takes a lock,
/// the count does not. References stay valid as long as the Telemetry.
class Telemetry {
 public:
  /// Keeps at most `event_capacity` events. `clock` must outlive the object.
  explicit Telemetry(const Clock& clock, std::size_t event_capacity = 1024)
      : clock_(&clock), event_capacity_(event_capacity) {}
  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;

  /// The counter or histogram of a name; created at the first lookup.
  [[nodiscard]] TelemetryCounter& counter(std::string_view name);
  [[nodiscard]] Histogram& histogram(std::string_view name);

  /// Records an event with the current time. For events once for each connection, not for each request: it
  /// takes a lock.
  void event(std::string_view room, std::string text);

  [[nodiscard]] TelemetrySnapshot snapshot() const;

 private:
  const Clock* clock_;
  const std::size_t event_capacity_;

  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<TelemetryCounter>, std::less<>> counters_;
  std::map<std::string, std::unique_ptr<Histogram>, std::less<>> histograms_;
  std::deque<EventSnapshot> events_;
  std::uint64_t events_dropped_ = 0;
};

}  // namespace headrace
