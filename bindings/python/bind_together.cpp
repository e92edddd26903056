// SPDX-License-Identifier: Apache-2.0
// <headrace/comm.hpp>: several calls as one. Names and keywords are those of torchcomms, where it has them.
#include <headrace/comm.hpp>

#include "bindings/python/bind_comm.hpp"
#include "bindings/python/comm_call.hpp"
#include "bindings/python/refuse_pickle.hpp"
#include "bindings/python/stream_input.hpp"
#include "bindings/python/text.hpp"

#include <nanobind/stl/optional.h>

#include <cstdint>
#include <string>
#include <utility>

namespace headrace::python {
namespace {

/// A batch with its tensors.
class PyBatch {
 public:
  explicit PyBatch(nb::object comm)
      : comm_(std::move(comm)),
        call_(self(), {.async_op = true, .hints = {}, .timeout = {}}),
        batch_(self().comm().batch()) {}
  void send(nb::handle tensor, int dst, std::uint32_t tag) {
    take(batch_.send(call_.reads(tensor, "tensor"), dst, tag));
  }
  void recv(nb::handle tensor, int src, std::uint32_t tag) {
    take(batch_.recv(call_.writes(tensor, "tensor"), src, tag));
  }
  WorkObject issue(const CallOptions& options) {
    call_.set_options(options);
    return call_.start([this](headrace::Comm&, const OpOptions& how) { return batch_.issue(how); });
  }

 private:
  [[nodiscard]] PyComm& self() const { return nb::cast<PyComm&>(comm_); }

  const nb::object comm_;
  CommCall call_;
  Batch batch_;
};

/// `with comm.coalescing() as c:`
class PyCoalescing {
 public:
  PyCoalescing(nb::object comm, bool async_op, void* stream)
      : comm_(std::move(comm)), async_op_(async_op), stream_(stream) {}

  void begin() const {
    self().ask([](headrace::Comm& comm) { return comm.start_coalescing(); });
  }
  /// After an exception nothing is issued.
  void end(nb::handle exception) {
    if (!exception.is_none()) {
      const std::string reason = shown(exception);
      self().ask([&](headrace::Comm& comm) { return comm.cancel_coalescing(reason); });
      return;
    }
    const Work work = self().ask([this](headrace::Comm& comm) { return comm.end_coalescing(async_op_); });
    work_ = nb::cast(PyWork(self().home, work, stream_));
  }
  [[nodiscard]] nb::object work() const { return work_; }

 private:
  [[nodiscard]] PyComm& self() const { return nb::cast<PyComm&>(comm_); }

  const nb::object comm_;
  const bool async_op_;
  void* const stream_;
  nb::object work_ = nb::none();
};

/// The output of a persistent all_gather, with its tensor.
struct PyAllGather {
  AllGatherHandle handle;
  nb::object output;
};

void bind_batch(nb::module_& module, CommClass& comm) {
  nb::class_<PyBatch>(module, "BatchSendRecv",
                      "Sends and receives that are issued together, from Comm.batch_op_create.\n\n"
                      "Owns: its tensors stay in memory until the work has ended. Threads: one at a time.")
      .def("send", &PyBatch::send, nb::arg("tensor"), nb::arg("dst"), nb::kw_only(), nb::arg("tag") = 0,
           "Adds a message to rank dst. Nothing moves before issue.")
      .def("recv", &PyBatch::recv, nb::arg("tensor"), nb::arg("src"), nb::kw_only(), nb::arg("tag") = 0,
           "Adds a receive from rank src, or from headrace.any_source.")
      .def(
          "issue",
          [](PyBatch& self, bool async_op, const Hints& hints, const TimeLimit& timeout, nb::handle stream) {
            return self.issue({async_op, hints, timeout, stream});
          },
          nb::arg("async_op") = false, nb::arg("hints") = nb::none(), nb::arg("timeout") = nb::none(),
          nb::arg("stream") = nb::none(),
          "Begins all messages in the order in which they were added, once. The work ends when all have "
          "ended,\n"
          "with the first error; an empty batch is done at once. There are no hints.\n\n"
          "Errors: those of send and recv; InvalidArgument (the batch has been issued).")
      .def("__reduce__",
           refuse_pickle("a batch cannot be pickled: it belongs to a communicator of this process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
  comm.def(
      "batch_op_create", [](nb::object self) { return new PyBatch(std::move(self)); },
      nb::sig("def batch_op_create(self) -> BatchSendRecv"),
      "Makes a batch: sends and receives that are issued together, so that none waits for another.");
}

void bind_coalescing(nb::module_& module, CommClass& comm) {
  nb::class_<PyCoalescing>(module, "Coalescing", "The calls of a thread as one, from Comm.coalescing.")
      .def_prop_ro("work", &PyCoalescing::work, nb::sig("def work(self) -> Work | None"),
                   "Ends when all calls have ended, with the first error; None before the end of the block.")
      .def(
          "__enter__",
          [](nb::object self) {
            nb::cast<PyCoalescing&>(self).begin();
            return self;
          },
          nb::sig("def __enter__(self) -> Coalescing"))
      .def(
          "__exit__", [](PyCoalescing& self, nb::handle, nb::handle value, nb::handle) { self.end(value); },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none(),
          nb::sig("def __exit__(self, type: type[BaseException] | None, value: BaseException | None, "
                  "traceback: types.TracebackType | None) -> None"),
          "Issues the calls in their order. After an exception it issues none: their work ends with "
          "Canceled.")
      .def("__reduce__",
           refuse_pickle("a Coalescing cannot be pickled: it belongs to a communicator of this process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
  comm.def(
      "coalescing",
      [](nb::object self, bool async_op, nb::handle stream) {
        return new PyCoalescing(std::move(self), async_op, stream.is_none() ? nullptr : to_stream(stream));
      },
      nb::arg("async_op") = false, nb::arg("stream") = nb::none(),
      nb::sig("def coalescing(self, async_op: bool = False, stream: typing.Any = None) -> Coalescing"),
      "Issues the calls of a block together: `with comm.coalescing() as c: ...`, then c.work.\n\n"
      "Each call of this thread in the block is checked and returns the work of all. split, finalize and "
      "abort\n"
      "are not kept; finalize forgets the calls. Blocks are not nested.\n"
      "async_op: the end of the block does not wait.\n"
      "stream: on a GPU, the one that c.work.wait() makes wait; each call has a stream of its own.\n"
      "Owns: the tensors stay in memory until the work has ended.");
}

void bind_persistent(nb::module_& module, CommClass& comm) {
  nb::class_<PyAllGather>(module, "AllGatherHandle",
                          "The output of all_gather_p_exec, from Comm.all_gather_p_init. Keeps its tensor.")
      .def(
          "__reduce__",
          refuse_pickle("an AllGatherHandle cannot be pickled: it belongs to a communicator of this process"),
          nb::sig("def __reduce__(self) -> typing.NoReturn"));
  comm.def(
          "all_gather_p_init",
          [](PyComm& self, nb::object output) {
            CommCall call(self, {});
            const Elements to = call.writes(output, "output");
            return new PyAllGather{self.ask([&](headrace::Comm& comm) { return comm.all_gather_p_init(to); }),
                                   std::move(output)};
          },
          nb::arg("output"),
          "Checks the output of all_gather_single once, for any number of all_gather_p_exec. No other rank "
          "takes\n"
          "part.")
      .def(
          "all_gather_p_exec",
          [](PyComm& self, nb::handle_t<PyAllGather> handle, nb::handle input, bool async_op,
             const Hints& hints, const TimeLimit& timeout, nb::handle stream) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const auto from = call.reads(input, "input");
            call.keep(nb::borrow(handle));
            const AllGatherHandle prepared = nb::cast<PyAllGather&>(handle).handle;
            return call.start([&](headrace::Comm& comm, const OpOptions& options) {
              return comm.all_gather_p_exec(prepared, from, options);
            });
          },
          nb::arg("handle"), nb::arg("input"), nb::arg("async_op") = false, nb::arg("hints") = nb::none(),
          nb::arg("timeout") = nb::none(), nb::arg("stream") = nb::none(),
          nb::sig("def all_gather_p_exec(self, handle: AllGatherHandle, input: typing.Any, async_op: bool = "
                  "False, "
                  "hints: dict[str, typing.Any] | None = None, timeout: float | datetime.timedelta | None = "
                  "None, stream: typing.Any = None) "
                  "-> Work"),
          "all_gather_single into the output of the handle.\n\n"
          "Errors: InvalidArgument (another communicator's handle, or freed; another count or dtype).")
      .def(
          "all_gather_p_free",
          [](const PyComm& self, const PyAllGather& handle) {
            self.ask([&](headrace::Comm& comm) { return comm.all_gather_p_free(handle.handle); });
          },
          nb::arg("handle"), "Ends the use of a handle. Operations that are under way go on.");
}

}  // namespace

void bind_together(nb::module_& module, CommClass& comm) {
  bind_batch(module, comm);
  bind_coalescing(module, comm);
  bind_persistent(module, comm);
}

}  // namespace headrace::python
