// SPDX-License-Identifier: Apache-2.0
// <headrace/comm_hooks.hpp>: what the functions of Comm.add_hooks get.
#include <headrace/comm_hooks.hpp>

#include "bindings/python/binding.hpp"
#include "bindings/python/comm_hooks.hpp"
#include "bindings/python/convert.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <limits>
#include <optional>

namespace headrace::python {
namespace {

nb::str name_of(CommOperation operation) { return to_str(comm_operation_name(operation)); }

std::optional<double> limit_of(const PyCall& call) {
  const bool scheduled = call.id.number != 0;
  if (!call.timeout && !scheduled) return std::nullopt;
  const bool limited = call.timeout && *call.timeout != std::chrono::nanoseconds::max();
  return limited ? std::chrono::duration<double>(*call.timeout).count()
                 : std::numeric_limits<double>::infinity();
}

}  // namespace

void bind_comm_hooks(nb::module_& module) {
  nb::class_<PyElements>(module, "CommElements", "Elements that an operation of a communicator uses.")
      .def_ro("address", &PyElements::address, "Where they lie. The memory is the caller's.")
      .def_ro("count", &PyElements::count, "The number of elements.")
      .def_prop_ro(
          "dtype", [](const PyElements& self) { return to_str(dtype_name(self.dtype)); },
          "torch's name of their type, without \"torch.\": \"float32\".")
      .def("__repr__", [](const PyElements& self) {
        return nb::str("CommElements(address={:#x}, count={}, dtype={!r})")
            .format(self.address, self.count, to_str(dtype_name(self.dtype)));
      });

  nb::class_<CommCallId>(module, "CommCallId", "An operation of a communicator by its number.")
      .def_prop_ro(
          "operation", [](const CommCallId& self) { return name_of(self.operation); },
          "Its name: \"all_reduce\".")
      .def_ro("number", &CommCallId::number,
              "Of the communicator's collectives, the same on all ranks, or of this rank's messages; from 1.")
      .def("__repr__", [](const CommCallId& self) {
        return nb::str("CommCallId({!r}, {})").format(name_of(self.operation), self.number);
      });

  nb::class_<PyCall>(module, "CommCall", "One call of an operation, for the functions of Comm.add_hooks.")
      .def_prop_ro(
          "operation", [](const PyCall& self) { return name_of(self.id.operation); },
          "Its name: \"all_reduce\".")
      .def_prop_ro(
          "number", [](const PyCall& self) { return self.id.number; },
          "As in CommCallId; 0: the call has none yet.")
      .def_ro("inputs", &PyCall::inputs, "What it reads. Lists have an entry for each rank.")
      .def_ro("outputs", &PyCall::outputs, "What it writes.")
      .def_ro("input_splits", &PyCall::input_splits, "Of all_to_all_v_single: elements to each rank.")
      .def_ro("output_splits", &PyCall::output_splits, "Of all_to_all_v_single: elements from each rank.")
      .def_ro("op", &PyCall::op, "Of reductions.")
      .def_ro("peer", &PyCall::peer, "The root, or the other rank of a message; -1: none, or any_source.")
      .def_ro("tag", &PyCall::tag, "Of messages.")
      .def_ro("async_op", &PyCall::async_op, "Whether the call returns at once.")
      .def_prop_ro("timeout", &limit_of,
                   "Seconds; None: the communicator's, which stands here once the call has a number. "
                   "math.inf: no limit.")
      .def("__repr__", [](const PyCall& self) {
        return nb::str("CommCall({!r}, {}, inputs={}, outputs={})")
            .format(name_of(self.id.operation), self.id.number, self.inputs, self.outputs);
      });

  nb::class_<PyCommHook>(module, "CommHook", "Functions that were added to a communicator.")
      .def("remove", &PyCommHook::remove,
           "No call of the functions begins after it returns; one that another thread has begun may go on.");
}

}  // namespace headrace::python
