// SPDX-License-Identifier: Apache-2.0
#include "telemetry/histogram.hpp"

#include <headrace/telemetry.hpp>

#include <nlohmann/json.hpp>

namespace headrace {
namespace {

nlohmann::json json_of(const HistogramSnapshot& histogram) {
  nlohmann::json buckets = nlohmann::json::object();
  for (std::size_t i = 0; i < histogram.buckets.size(); ++i) {
    if (histogram.buckets[i] > 0) buckets[std::to_string(Histogram::lower_bound(i))] = histogram.buckets[i];
  }
  return {{"count", histogram.count},        {"sum", histogram.sum},
          {"smallest", histogram.smallest},  {"largest", histogram.largest},
          {"p50", histogram.percentile(50)}, {"p90", histogram.percentile(90)},
          {"p99", histogram.percentile(99)}, {"buckets", std::move(buckets)}};
}

nlohmann::json json_of(const EventSnapshot& event) {
  return {{"time_ns", event.time_ns}, {"room", event.room}, {"text", event.text}};
}

}  // namespace

std::string TelemetrySnapshot::json() const {
  nlohmann::json all = {{"counters", counters},
                        {"histograms", nlohmann::json::object()},
                        {"events", nlohmann::json::array()},
                        {"events_dropped", events_dropped}};
  for (const auto& [name, histogram] : histograms) all["histograms"][name] = json_of(histogram);
  for (const EventSnapshot& event : events) all["events"].push_back(json_of(event));
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace headrace
