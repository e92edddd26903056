// SPDX-License-Identifier: Apache-2.0
#include <headrace/version.hpp>

#include "bindings/python/binding.hpp"
#include "bindings/python/interpreter.hpp"

NB_MODULE(_headrace, module) {
  using namespace headrace::python;
  module.doc() = "The compiled part of the package headrace. Import headrace, which has all names of it.";
  module.attr("__version__") = HEADRACE_VERSION;
  // Agents that are open at exit are closed. Objects that Python itself does not free at exit are not leaks.
  nb::set_leak_warnings(false);
  bind_result(module);
  bind_memory(module);
  bind_pages(module);
  bind_request(module);
  bind_work(module);
  bind_completion_queue(module);
  bind_comm_hooks(module);
  bind_comm(module);
  bind_flight_recorder(module);
  bind_comm_backend(module);
  bind_window(module);
  bind_counter(module);
  bind_telemetry(module);
  bind_topology(module);
  bind_agent(module);
  bind_fabric_memory(module);
  bind_fabric_work(module);
  bind_fabric(module);
  bind_log(module);
  bind_model(module);
  bind_moe(module);
  prepare_for_exit();
}
