// SPDX-License-Identifier: Apache-2.0
// One function for each public header.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace headrace::python {

void bind_result(nb::module_& module);
void bind_memory(nb::module_& module);
void bind_pages(nb::module_& module);
void bind_request(nb::module_& module);
void bind_work(nb::module_& module);
void bind_comm_hooks(nb::module_& module);
void bind_comm(nb::module_& module);
void bind_flight_recorder(nb::module_& module);
void bind_comm_backend(nb::module_& module);
void bind_window(nb::module_& module);
void bind_completion_queue(nb::module_& module);
void bind_counter(nb::module_& module);
void bind_telemetry(nb::module_& module);
void bind_topology(nb::module_& module);
void bind_agent(nb::module_& module);
void bind_fabric_memory(nb::module_& module);
void bind_fabric_work(nb::module_& module);
void bind_fabric(nb::module_& module);
void bind_log(nb::module_& module);
void bind_model(nb::module_& module);
void bind_moe(nb::module_& module);

}  // namespace headrace::python
