// SPDX-License-Identifier: Apache-2.0
// <headrace/comm.hpp>: works and reduce operations.
#include <headrace/comm.hpp>

#include "bindings/python/binding.hpp"
#include "bindings/python/comm_handle.hpp"
#include "bindings/python/refuse_pickle.hpp"
#include "bindings/python/stream_input.hpp"
#include "bindings/python/time_limit.hpp"

#include <array>
#include <string>
#include <utility>

namespace headrace::python {
namespace {

constexpr std::array reduce_ops{std::pair{"SUM", ReduceOp::sum},   std::pair{"PRODUCT", ReduceOp::product},
                                std::pair{"MIN", ReduceOp::min},   std::pair{"MAX", ReduceOp::max},
                                std::pair{"BAND", ReduceOp::band}, std::pair{"BOR", ReduceOp::bor},
                                std::pair{"BXOR", ReduceOp::bxor}, std::pair{"AVG", ReduceOp::avg}};

nb::str reduce_op_repr(const ReduceOp& op) {
  if (op.kind == ReduceOp::premul_sum) return nb::str("ReduceOp.PREMUL_SUM({})").format(op.factor);
  for (const auto& [name, kind] : reduce_ops)
    if (kind == op.kind) return nb::str("ReduceOp.{}").format(name);
  return nb::str("ReduceOp");
}

void bind_reduce_op(nb::module_& module) {
  auto op = nb::class_<ReduceOp>(
      module, "ReduceOp",
      "How the elements of all ranks become one: SUM, PRODUCT, MIN, MAX, AVG, BAND, BOR, BXOR or\n"
      "PREMUL_SUM(factor).\n\n"
      "float16, bfloat16 and float8 are added in float32 and rounded once. Floats have all but the bit\n"
      "operations. Complex numbers have SUM, PRODUCT, AVG and PREMUL_SUM. Integers have all: sums wrap\n"
      "around, AVG drops the fraction, the factor of PREMUL_SUM is whole. Of bool, SUM, MAX and BOR are\n"
      "\"or\", PRODUCT, MIN and BAND are \"and\", BXOR is \"xor\".");
  op.def_static(
        "PREMUL_SUM", [](double factor) { return ReduceOp(ReduceOp::premul_sum, factor); }, nb::arg("factor"),
        "The sum of each rank's elements times the factor, the same on every rank.")
      .def_prop_ro(
          "name", [](const ReduceOp& self) { return to_str(reduce_op_name(self.kind)); },
          "The name as in C++: \"sum\".")
      .def_ro("factor", &ReduceOp::factor, "The factor of PREMUL_SUM; else 1.")
      .def(
          "__eq__",
          [](const ReduceOp& self, nb::handle other) {
            if (!nb::isinstance<ReduceOp>(other)) return false;
            const auto& that = nb::cast<const ReduceOp&>(other);
            return self.kind == that.kind && self.factor == that.factor;
          },
          nb::arg("other"), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__",
           [](const ReduceOp& self) {
             return nb::hash(nb::make_tuple(static_cast<int>(self.kind), self.factor));
           })
      .def("__repr__", &reduce_op_repr);
  for (const auto& [name, kind] : reduce_ops) op.attr(name) = nb::cast(ReduceOp(kind));
}

}  // namespace

void bind_work(nb::module_& module) {
  bind_reduce_op(module);
  nb::class_<PyWork>(
      module, "Work", nb::is_weak_referenceable(),
      "An operation of a communicator that is under way, or done.\n\n"
      "Owns: until the operation has ended, its tensors stay in memory, also if the work is dropped.\n"
      "Threads: any. `await work` waits in the running asyncio loop; cancelling the task does not end the\n"
      "operation.")
      .def_prop_ro(
          "status", [](const PyWork& self) { return to_str(work_status_name(self.work().status())); },
          "\"not_started\", \"in_progress\", \"completed\", \"timed_out\", \"aborted\" or \"failed\".")
      .def("is_completed", &PyWork::completed,
           "Whether it has ended, well or not. Makes progress with sends and receives; does not wait.")
      .def(
          "wait", [](const PyWork& self, const TimeLimit& timeout) { self.wait(timeout.or_else(forever)); },
          nb::arg("timeout") = nb::none(),
          "Waits until it has ended. On a GPU, without a timeout, later work of the stream of the call waits "
          "and\n"
          "this returns at once.\n\n"
          "timeout: seconds or a timedelta; None: no limit but that of the operation.\n"
          "Errors: those of the operation; TimedOut (the timeout expired; the operation goes on).")
      .def(
          "wait_blocking",
          [](const PyWork& self, const TimeLimit& timeout) { self.wait_blocking(timeout.or_else(forever)); },
          nb::arg("timeout") = nb::none(),
          "Waits until it has ended, on a GPU too.\n\n"
          "Errors: as of wait.")
      .def(
          "wait_on", [](const PyWork& self, nb::handle stream) { self.wait_on(to_stream(stream)); },
          nb::arg("stream"),
          "Of a communicator on a GPU: makes later work of a stream wait for the operation, and returns at "
          "once.\n\n"
          "stream: a torch.cuda.Stream, or the number of a CUDA stream.\n"
          "Errors: those of the operation, if it has failed by now; InvalidArgument (no GPU).")
      .def("exception", &PyWork::exception, nb::sig("def exception(self) -> headrace.errors.Error | None"),
           "Why it failed; None if it did not fail, or has not ended.")
      .def(
          "source", [](const PyWork& self) { return self.work().source(); },
          "Of a receive that is completed: the rank that sent. Else -1.")
      .def(
          "get_future",
          [](nb::handle self) {
            return nb::module_::import_("headrace._work_futures").attr("future_of")(self);
          },
          nb::sig("def get_future(self) -> concurrent.futures.Future[None]"),
          "A future that ends with the operation, with its error if it failed. It cannot be cancelled.\n\n"
          "Threads: callbacks of all such futures run on one thread of the process.")
      .def(
          "__await__",
          [](nb::handle self) {
            return nb::module_::import_("headrace._asyncio").attr("work_ended")(self).attr("__await__")();
          },
          nb::sig("def __await__(self) -> collections.abc.Generator[object, None, None]"))
      .def("__repr__",
           [](const PyWork& self) {
             return nb::str("Work(status={!r})").format(to_str(work_status_name(self.work().status())));
           })
      .def("__reduce__", refuse_pickle("a Work cannot be pickled: it is an operation of this process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

}  // namespace headrace::python
