// SPDX-License-Identifier: Apache-2.0
// <headrace/telemetry.hpp>
#include <headrace/telemetry.hpp>

#include "bindings/python/binding.hpp"
#include "bindings/python/convert.hpp"

namespace headrace::python {

void bind_telemetry(nb::module_& module) {
  nb::class_<HistogramSnapshot>(
      module, "HistogramSnapshot",
      "How often which size of value was seen. Bucket 0 counts zeros, bucket i counts 2^(i-1) to 2^i - 1.")
      .def_ro("count", &HistogramSnapshot::count, "How many values.")
      .def_ro("sum", &HistogramSnapshot::sum, "Of the values, modulo 2^64.")
      .def_ro("smallest", &HistogramSnapshot::smallest, "The smallest value.")
      .def_ro("largest", &HistogramSnapshot::largest, "The largest value.")
      .def_prop_ro(
          "buckets",
          [](const HistogramSnapshot& self) {
            nb::list counts;
            for (const std::uint64_t count : self.buckets) counts.append(count);
            return counts;
          },
          nb::sig("def buckets(self) -> list[int]"), "65 counts.")
      .def_prop_ro("mean", &HistogramSnapshot::mean, "0 where nothing was seen.")
      .def("percentile", &HistogramSnapshot::percentile, nb::arg("percent"),
           "The value that `percent` of a hundred values do not exceed: never more than a factor of two off, "
           "exact for 0\n"
           "and 100. 0 where nothing was seen.");

  nb::class_<EventSnapshot>(module, "EventSnapshot",
                            "Something that happened once: a peer came or went, a path failed over.")
      .def_ro("time_ns", &EventSnapshot::time_ns, "CLOCK_MONOTONIC, as time.monotonic_ns().")
      .def_prop_ro(
          "room", [](const EventSnapshot& self) { return to_str(self.room); },
          "Who says it: \"tcp\", \"engine\".")
      .def_prop_ro(
          "text", [](const EventSnapshot& self) { return to_str(self.text); }, "What happened.")
      .def("__repr__", [](const EventSnapshot& self) {
        return nb::str("EventSnapshot(time_ns={}, room={!r}, text={!r})")
            .format(self.time_ns, to_str(self.room), to_str(self.text));
      });

  nb::class_<TelemetrySnapshot>(module, "TelemetrySnapshot",
                                "What an agent has counted so far. Names carry their unit: "
                                "\"tcp.sent_bytes\", \"requests.duration_ns\".")
      .def_prop_ro(
          "counters",
          [](const TelemetrySnapshot& self) {
            nb::dict counters;
            for (const auto& [name, value] : self.counters) counters[to_str(name)] = value;
            return counters;
          },
          nb::sig("def counters(self) -> dict[str, int]"), "By name.")
      .def_prop_ro(
          "histograms",
          [](const TelemetrySnapshot& self) {
            nb::dict histograms;
            for (const auto& [name, histogram] : self.histograms) histograms[to_str(name)] = histogram;
            return histograms;
          },
          nb::sig("def histograms(self) -> dict[str, HistogramSnapshot]"), "By name.")
      .def_prop_ro(
          "events",
          [](const TelemetrySnapshot& self) {
            nb::list events;
            for (const EventSnapshot& event : self.events) events.append(nb::cast(event));
            return events;
          },
          nb::sig("def events(self) -> list[EventSnapshot]"), "The latest ones, oldest first.")
      .def_ro("events_dropped", &TelemetrySnapshot::events_dropped, "Older ones that were overwritten.")
      .def(
          "json", [](const TelemetrySnapshot& self) { return to_str(self.json()); },
          "All of it as one JSON object.");
}

}  // namespace headrace::python
