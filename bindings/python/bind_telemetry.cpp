// SPDX-License-Identifier: Apache-2.0
// <headrace/telemetry.hpp>
#include <headrace/telemetry.hpp>

#include "bindings/python/binding.hpp"
#include "bindings/python/convert.hpp"

namespace headrace::python {

void bind_telemetry(nb::module_& module) {
  nb::class_<HistogramSnapshot>(
      module, "HistogramSnapshot",
      "Counts of values by size. Bucket 0 counts zeros, bucket i counts values from 2^(i-1) to 2^i - 1.")
      .def_ro("count", &HistogramSnapshot::count, "The number of values.")
      .def_ro("sum", &HistogramSnapshot::sum, "The sum of the values, modulo 2^64.")
      .def_ro("smallest", &HistogramSnapshot::smallest, "The smallest value.")
      .def_ro("largest", &HistogramSnapshot::largest, "The largest value.")
      .def_prop_ro(
          "buckets",
          [](const HistogramSnapshot& self) {
            nb::list counts;
            for (const std::uint64_t count : self.buckets) counts.append(count);
            return counts;
          },
          nb::sig("def buckets(self) -> list[int]"), "The counts of the 65 buckets.")
      .def_prop_ro("mean", &HistogramSnapshot::mean, "The mean of the values; 0 without values.")
      .def("percentile", &HistogramSnapshot::percentile, nb::arg("percent"),
           "The value that `percent` % of the values do not exceed; 0 without values.\n\n"
           "It is wrong by a factor of two at most, and exact for 0 and 100.");

  nb::class_<EventSnapshot>(module, "EventSnapshot",
                            "A single event: a peer came or left, a path failed over.")
      .def_ro("time_ns", &EventSnapshot::time_ns,
              "When it happened: CLOCK_MONOTONIC, as time.monotonic_ns().")
      .def_prop_ro(
          "room", [](const EventSnapshot& self) { return to_str(self.room); },
          "The part of the library that reports it: \"tcp\", \"engine\".")
      .def_prop_ro(
          "text", [](const EventSnapshot& self) { return to_str(self.text); }, "What happened.")
      .def("__repr__", [](const EventSnapshot& self) {
        return nb::str("EventSnapshot(time_ns={}, room={!r}, text={!r})")
            .format(self.time_ns, to_str(self.room), to_str(self.text));
      });

  nb::class_<TelemetrySnapshot>(module, "TelemetrySnapshot",
                                "The telemetry of an agent. Names end in their unit: \"tcp.sent_bytes\", "
                                "\"requests.duration_ns\".")
      .def_prop_ro(
          "counters",
          [](const TelemetrySnapshot& self) {
            nb::dict counters;
            for (const auto& [name, value] : self.counters) counters[to_str(name)] = value;
            return counters;
          },
          nb::sig("def counters(self) -> dict[str, int]"), "The counters by name.")
      .def_prop_ro(
          "histograms",
          [](const TelemetrySnapshot& self) {
            nb::dict histograms;
            for (const auto& [name, histogram] : self.histograms) histograms[to_str(name)] = histogram;
            return histograms;
          },
          nb::sig("def histograms(self) -> dict[str, HistogramSnapshot]"), "The histograms by name.")
      .def_prop_ro(
          "events",
          [](const TelemetrySnapshot& self) {
            nb::list events;
            for (const EventSnapshot& event : self.events) events.append(nb::cast(event));
            return events;
          },
          nb::sig("def events(self) -> list[EventSnapshot]"), "The latest events, oldest first.")
      .def_ro("events_dropped", &TelemetrySnapshot::events_dropped,
              "The number of older events that were overwritten.")
      .def(
          "json", [](const TelemetrySnapshot& self) { return to_str(self.json()); },
          "The whole snapshot as one JSON object.");
}

}  // namespace headrace::python
