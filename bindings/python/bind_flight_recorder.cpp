// SPDX-License-Identifier: Apache-2.0
// <headrace/flight_recorder.hpp>
#include <headrace/flight_recorder.hpp>

#include "bindings/python/binding.hpp"
#include "bindings/python/comm_handle.hpp"
#include "bindings/python/comm_hooks.hpp"
#include "bindings/python/convert.hpp"
#include "bindings/python/text.hpp"

#include <nanobind/stl/optional.h>

#include <new>
#include <string>

namespace headrace::python {

void bind_flight_recorder(nb::module_& module) {
  nb::class_<FlightRecorder>(
      module, "FlightRecorder",
      "Keeps the last calls of one rank's communicators: operation, number, sizes, times and state.\n\n"
      "A dump has the layout of torch's flight recorder, version 2.10.\n"
      "python -m torch.distributed.flight_recorder.fr_trace FOLDER reads a folder with the pickle of each\n"
      "rank, and names the first operation that not all ranks have called.\n"
      "entries: so many calls are kept; a later one replaces the oldest.\n"
      "Threads: any; a dump may be made while calls are under way.")
      .def(
          "__init__",
          [](FlightRecorder* self, std::int64_t entries) {
            if (entries < 1) raise_invalid("entries is " + std::to_string(entries) + ": give at least 1");
            new (self) FlightRecorder(static_cast<std::size_t>(entries));
          },
          nb::arg("entries") = static_cast<std::int64_t>(FlightRecorder::default_entries))
      .def_static(
          "of_environment", &FlightRecorder::of_environment, nb::arg("rank"),
          "That which HEADRACE_COMM_TRACE has attached to the communicators of a rank of this process.\n\n"
          "None: the variable is not set, or the rank has opened no communicator.")
      .def(
          "attach",
          [](FlightRecorder& self, const PyComm& comm) {
            headrace::Comm& recorded = comm.comm();
            return PyCommHook{without_gil([&] { return self.attach(recorded); }), nullptr};
          },
          nb::arg("comm"),
          "Records the calls of a communicator from now on, until CommHook.remove. One recorder may have\n"
          "several communicators of one rank.")
      .def(
          "dump", [](const FlightRecorder& self) { return to_str(without_gil([&] { return self.dump(); })); },
          "The calls as JSON.")
      .def(
          "dump_pickle",
          [](const FlightRecorder& self) {
            return to_bytes(without_gil([&] { return self.dump_pickle(); }));
          },
          "The same dictionary as a pickle: what fr_trace reads.")
      .def(
          "write",
          [](const FlightRecorder& self, const std::string& prefix) {
            return to_str(take(without_gil([&] { return self.write(prefix); })));
          },
          nb::arg("prefix"),
          "Writes the pickle to the file prefix + rank, as fr_trace expects, and returns the file's name.\n\n"
          "Errors: InvalidArgument (no communicator was attached, so there is no rank), those of the file.");
}

}  // namespace headrace::python
