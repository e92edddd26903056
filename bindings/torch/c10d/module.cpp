// SPDX-License-Identifier: Apache-2.0
// The extension module headrace._torch._c10d_torch<version>: headrace._torch.compiled finds it.
#include "bindings/torch/c10d/backend.hpp"
#include "bindings/torch/c10d/errors.hpp"
#include "bindings/torch/c10d/symmetric_allocator.hpp"
#include "bindings/torch/c10d/work.hpp"
#include "bindings/torch/comm/endings.hpp"

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace headrace::torch_group {
namespace {

void bind_options(py::module_& module) {
  py::class_<GroupOptions, c10d::Backend::Options, c10::intrusive_ptr<GroupOptions>>(
      module, "Options", "What a group was made with.")
      .def(py::init([](const std::string& backend, std::chrono::milliseconds timeout) {
             return c10::make_intrusive<GroupOptions>(backend, timeout);
           }),
           py::arg("backend") = "headrace", py::arg("timeout") = kBackendDefaultTimeout)
      .def_readwrite("hints", &GroupOptions::hints, "Of the communicator: headrace.list_comm_hints().")
      .def_readwrite("_threads", &GroupOptions::threads, "As gloo's, which torch's log of DDP shows.")
      .def("__copy__", [](const GroupOptions& self) { return c10::make_intrusive<GroupOptions>(self); })
      .def("__deepcopy__",
           [](const GroupOptions& self, const py::dict&) { return c10::make_intrusive<GroupOptions>(self); });
}

py::object exception_of(const GroupWork& work) {
  const Error error = work.error();
  if (error.code == Code::ok) return py::none();
  return python_exception(error);
}

void bind_work(py::module_& module) {
  py::class_<GroupWork, c10d::Work, c10::intrusive_ptr<GroupWork>>(
      module, "Work", "Operations that belong to one call, until they have ended.")
      .def("exception", &exception_of, "Why the first failed; None if none did, or they have not ended.")
      // As in torch, but found for this very class, and without a default that is converted at each call.
      .def(
          "wait", [](GroupWork& self) { return self.wait(); }, py::call_guard<py::gil_scoped_release>(),
          "Waits until they have ended. Raises the first error.")
      .def("wait", &GroupWork::wait, py::arg("timeout"), py::call_guard<py::gil_scoped_release>(),
           "The same for a time. The operations go on.")
      // torch's own methods warn that they are going away.
      .def("is_success", &GroupWork::isSuccess, "Whether all have ended well.")
      .def("source_rank", &GroupWork::sourceRank, "Of a receive: the rank that sent.")
      .def("result", &GroupWork::result, "The outputs.")
      .def("synchronize", &GroupWork::synchronize, py::call_guard<py::gil_scoped_release>(),
           "The same as wait.");
}

void bind_backend(py::module_& module) {
  py::class_<GroupBackend, c10d::Backend, c10::intrusive_ptr<GroupBackend>>(
      module, "Backend", "The operations of a headrace.Comm for a process group of torch.distributed.")
      .def(py::init([](py::object comm, c10::intrusive_ptr<GroupOptions> options) {
             return c10::make_intrusive<GroupBackend>(std::move(comm), std::move(options));
           }),
           py::arg("comm"), py::arg("options"))
      .def("get_error", &GroupBackend::getError, py::call_guard<py::gil_scoped_release>(),
           "How the group ended.")
      .def_property_readonly("options", &GroupBackend::options,
                             "What it was made with; torch sets its ranks.")
      .def_property_readonly("comm", &GroupBackend::comm,
                             "The communicator, for what torch has no name for.");
}

}  // namespace
}  // namespace headrace::torch_group

// NOLINTNEXTLINE(misc-use-anonymous-namespace): the macro's functions
PYBIND11_MODULE(HEADRACE_C10D_MODULE, module) {
  using namespace headrace::torch_group;     // NOLINT(google-build-using-namespace)
  py::module_::import("torch.distributed");  // has the classes that ours derive from
  bind_options(module);
  bind_work(module);
  bind_backend(module);
  translate_errors();
  register_symmetric_memory();
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    const py::gil_scoped_release without_gil;
    stop_endings();
    close_symmetric_memory();
  }));
}
