// SPDX-License-Identifier: Apache-2.0
#include "telemetry/telemetry.hpp"

#include <utility>

namespace headrace {
namespace {

template <class Thing>
Thing& find_or_make(std::map<std::string, std::unique_ptr<Thing>, std::less<>>& things,
                    std::string_view name) {
  auto found = things.find(name);
  if (found == things.end()) found = things.emplace(name, std::make_unique<Thing>()).first;
  return *found->second;
}

}  // namespace

TelemetryCounter& Telemetry::counter(std::string_view name) {
  const std::scoped_lock lock(mutex_);
  return find_or_make(counters_, name);
}

Histogram& Telemetry::histogram(std::string_view name) {
  const std::scoped_lock lock(mutex_);
  return find_or_make(histograms_, name);
}

void Telemetry::event(std::string_view room, std::string text) {
  const std::scoped_lock lock(mutex_);
  // The time is taken under the lock, so that the ring is ordered by time.
  events_.push_back({clock_->now_ns(), std::string(room), std::move(text)});
  if (events_.size() > event_capacity_) {
    events_.pop_front();
    ++events_dropped_;
  }
}

TelemetrySnapshot Telemetry::snapshot() const {
  TelemetrySnapshot copy;
  const std::scoped_lock lock(mutex_);
  for (const auto& [name, counter] : counters_) copy.counters.emplace(name, counter->value());
  for (const auto& [name, histogram] : histograms_) copy.histograms.emplace(name, histogram->snapshot());
  copy.events.assign(events_.begin(), events_.end());
  copy.events_dropped = events_dropped_;
  return copy;
}

}  // namespace headrace
