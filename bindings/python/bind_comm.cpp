// SPDX-License-Identifier: Apache-2.0
// <headrace/comm.hpp>: communicators. Names and keywords are those of torchcomms.
#include <headrace/comm.hpp>
#include <headrace/nan_check.hpp>

#include "bindings/python/bind_comm.hpp"
#include "bindings/python/binding.hpp"
#include "bindings/python/comm_call.hpp"
#include "bindings/python/comm_store.hpp"
#include "bindings/python/refuse_pickle.hpp"
#include "bindings/python/text.hpp"
#include "bindings/python/window_handle.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace headrace::python {
namespace {

using Splits = std::vector<std::size_t>;

double seconds_of(const Timeout& timeout) {
  return timeout ? std::chrono::duration<double>(*timeout).count() : std::numeric_limits<double>::infinity();
}

/// A copy of the options without what is of no use in Python.
struct PyCommOptions {
  CommOptions options;
};

/// A backend that is not known may be a class: one of Headrace, or of an installed package.
void load_entry_point(const std::string& backend) {
  const auto known = list_comm_backends();
  if (std::find(known.begin(), known.end(), backend) == known.end())
    nb::module_::import_("headrace._comm_backend").attr("load")(to_str(backend));
}

/// Rank and size of the caller, or of the launcher.
CommOptions options_of(const std::optional<int>& rank, const std::optional<int>& size) {
  if (rank.has_value() != size.has_value())
    raise_invalid(std::string(rank ? "rank is given and size is not" : "size is given and rank is not") +
                  ": give both, or none for those of the launcher");
  if (!rank) return take(CommOptions::from_environment());
  CommOptions options;
  options.rank = *rank;
  options.size = *size;
  return options;
}

/// The place where the ranks meet: the caller's, or the launcher's.
std::shared_ptr<PyStore> set_place(CommOptions& options, std::optional<std::string> meeting,
                                   nb::object store) {
  if (meeting && !store.is_none()) raise_invalid("meeting and store are given: give one of them");
  if (meeting) {
    options.meeting = *std::move(meeting);
  } else if (store.is_none() && options.size > 1) {
    store = nb::module_::import_("headrace.compat.torchrun").attr("store")();
    if (store.is_none()) options.meeting = take(CommOptions::meeting_from_environment());
  }
  if (store.is_none()) return nullptr;
  options.meeting.clear();
  auto made = PyStore::open(store, options.device != "cpu");  // splits on GPUs meet there
  options.store = made;
  return made;
}

[[noreturn]] void raise_of_store(const Error& error, const nb::object& cause) {
  if (PyErr_GivenExceptionMatches(cause.ptr(), PyExc_Exception) == 0) {  // KeyboardInterrupt
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(cause.ptr())), cause.ptr());
    throw nb::python_error();
  }
  const nb::object exception = to_exception(error);
  PyException_SetCause(exception.ptr(), nb::object(cause).release().ptr());
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

nb::object open_comm(CommOptions options, const std::shared_ptr<PyStore>& store) {
  options.interrupted = interrupted_by_signal;
  auto opened = without_gil([&] { return headrace::Comm::open(options); });
  if (store) {
    if (!opened || !store->lasts()) store->forget();
    if (!opened && store->raised().is_valid()) raise_of_store(opened.error(), store->raised());
  }
  return nb::cast(new PyComm(take_uninterrupted(std::move(opened))), nb::rv_policy::take_ownership);
}

nb::object new_comm(const std::string& backend, nb::handle device, std::optional<int> rank,
                    std::optional<int> size, std::optional<Text> meeting, nb::object store,
                    const std::string& name, const TimeLimit& timeout, const TimeLimit& meeting_timeout,
                    bool abort_on_error, const Hints& hints, bool enable_reconfigure) {
  CommOptions options = options_of(rank, size);
  options.backend = backend;
  options.device = nb::str(device).c_str();
  load_entry_point(backend);
  std::optional<std::string> address;
  if (meeting) address = meeting->str();
  const auto place = set_place(options, std::move(address), std::move(store));
  options.name = name;
  options.timeout = timeout.or_else(options.timeout);
  options.meeting_timeout = meeting_timeout.or_else(options.meeting_timeout);
  options.abort_on_error = abort_on_error;
  options.hints = to_options(hints);
  options.enable_reconfigure = enable_reconfigure;
  return open_comm(std::move(options), place);
}

nb::object split(const PyComm& self, const std::vector<int>& ranks, const std::string& name,
                 const Hints& hints, const TimeLimit& timeout) {
  SplitOptions changes;
  changes.hints = to_options(hints);
  changes.timeout = limit_of_call(timeout);
  auto child = self.ask([&](headrace::Comm& comm) { return comm.split(ranks, name, changes); });
  if (!child) return nb::none();
  return nb::cast(new PyComm(std::move(*child)), nb::rv_policy::take_ownership);
}

// What takes a lock of the communicator releases the GIL: hooks take it while such a lock is held.

void set_timeout(const PyComm& self, const TimeLimit& timeout) {
  const Timeout limit = timeout.or_else(forever);
  self.ask([&](headrace::Comm& comm) -> Result<void> {
    comm.set_timeout(limit);
    return {};
  });
}

/// Calls call(Comm&, tensor, owner) with the memory of an object.
template <class Call>
void with_tensor(PyComm& self, nb::handle object, const Call& call) {
  CommCall tensors(self, {.async_op = true, .hints = {}, .timeout = {}});  // so that there is an owner
  const Elements tensor = tensors.uses(object, "tensor", false);
  tensors.start([&](headrace::Comm& comm, const OpOptions& options) -> Result<Work> {
    auto done = call(comm, tensor, options.owner);
    if (!done) return std::move(done).error();
    return Work();
  });
}

void register_with_comm(PyComm& self, nb::handle tensor) {
  with_tensor(self, tensor, [](headrace::Comm& comm, const Elements& elements, const auto& owner) {
    return comm.tensor_register(elements, owner);
  });
}

void deregister_with_comm(PyComm& self, nb::handle tensor) {
  with_tensor(self, tensor, [](headrace::Comm& comm, const Elements& elements, const auto&) {
    return comm.tensor_deregister(elements);
  });
}

PyCommOptions get_options(const PyComm& self) {
  headrace::Comm& comm = self.comm();
  return {without_gil([&] { return comm.options(); })};
}

void abort(const PyComm& self, const std::string& reason) {
  headrace::Comm& comm = self.comm();
  without_gil([&] {
    comm.abort(reason);
    return true;
  });
}

void finalize(const PyComm& self) {
  self.ask([](headrace::Comm& comm) { return comm.finalize(); });
}

/// The end of a with statement. After an exception no rank waits for this one.
void leave(const PyComm& self, nb::handle exception) {
  if (exception.is_none() && !self.left) return finalize(self);
  headrace::Comm& comm = self.comm();
  const std::string reason = exception.is_none() ? "it was left" : shown(exception);
  without_gil([&] {
    if (!comm.is_aborted()) comm.abort(reason);
    comm.close();
    return true;
  });
}

using GivenFunction = std::optional<nb::callable>;

PyCommHook add_hooks(PyComm& self, const GivenFunction& before, const GivenFunction& scheduled,
                     const GivenFunction& started, const GivenFunction& completed, const GivenFunction& after,
                     const GivenFunction& aborted) {
  headrace::Comm& comm = self.comm();
  auto functions = hold<HookFunctions>();
  const GivenFunction* given[] = {&before, &scheduled, &started, &completed, &after, &aborted};
  for (std::size_t event = 0; event < std::size(given); ++event)
    if (*given[event]) functions->functions[event] = **given[event];
  std::erase_if(self.hooks, [](const auto& one) { return one->removed(); });
  self.hooks.push_back(functions);
  return {without_gil([&] { return comm.add_hooks(HookFunctions::hooks(functions)); }), functions};
}

PyCommHook add_nan_check(const PyComm& self) {
  headrace::Comm& comm = self.comm();
  return {without_gil([&] { return comm.add_hooks(nan_check(comm)); }), nullptr};
}

// For the garbage collector: a function that uses its communicator is a cycle.

int comm_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  for (const auto& hooks : nb::inst_ptr<PyComm>(self)->hooks)
    for (const nb::object& function : hooks->functions) Py_VISIT(function.ptr());
  return 0;
}

int comm_clear(PyObject* self) {
  if (!nb::inst_ready(self)) return 0;
  for (const auto& hooks : std::exchange(nb::inst_ptr<PyComm>(self)->hooks, {})) hooks->functions = {};
  return 0;
}

PyType_Slot comm_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&comm_traverse)},
                            {Py_tp_clear, reinterpret_cast<void*>(&comm_clear)},
                            {0, nullptr}};

void bind_values(nb::module_& module) {
  nb::class_<PyCommOptions>(module, "CommOptions", "The options of a communicator, from Comm.get_options.")
      .def_prop_ro(
          "timeout", [](const PyCommOptions& self) { return seconds_of(self.options.timeout); },
          "Seconds that an operation may take, unless it has a timeout of its own; math.inf: no limit.")
      .def_prop_ro(
          "meeting_timeout",
          [](const PyCommOptions& self) { return seconds_of(self.options.meeting_timeout); },
          "Seconds within which all ranks had to come.")
      .def_prop_ro(
          "backend", [](const PyCommOptions& self) { return to_str(self.options.backend); }, "The backend.")
      .def_prop_ro(
          "meeting", [](const PyCommOptions& self) { return to_str(self.options.meeting); },
          "Where the ranks met; \"\" if it was a store, or if there is one rank.")
      .def_prop_ro(
          "abort_process_on_timeout_or_error",
          [](const PyCommOptions& self) { return self.options.abort_on_error; },
          "Whether an operation that fails ends the process.")
      .def_prop_ro(
          "hints",
          [](const PyCommOptions& self) {
            nb::dict hints;
            for (const auto& [name, value] : self.options.hints) hints[to_str(name)] = to_str(value);
            return hints;
          },
          nb::sig("def hints(self) -> dict[str, str]"), "The hints that were given, with their later values.")
      .def("__repr__", [](nb::handle self) {
        return nb::str(
                   "CommOptions(backend={!r}, timeout={}, meeting_timeout={}, meeting={!r}, "
                   "abort_process_on_timeout_or_error={}, hints={})")
            .format(self.attr("backend"), self.attr("timeout"), self.attr("meeting_timeout"),
                    self.attr("meeting"), self.attr("abort_process_on_timeout_or_error"), self.attr("hints"));
      });

  nb::class_<CommHint>(module, "CommHint", "A hint of communicators, from list_comm_hints.")
      .def_prop_ro(
          "name", [](const CommHint& self) { return to_str(self.name); }, "The name.")
      .def_prop_ro(
          "default_value", [](const CommHint& self) { return to_str(self.default_value); },
          "The value that holds if none is given.")
      .def_prop_ro(
          "unit", [](const CommHint& self) { return to_str(self.unit); },
          "\"bytes\", \"list\" or \"boolean\".")
      .def_prop_ro(
          "sentence", [](const CommHint& self) { return to_str(self.sentence); }, "What it does.")
      .def("__repr__", [](const CommHint& self) {
        return nb::str("CommHint({!r}, default_value={!r})")
            .format(to_str(self.name), to_str(self.default_value));
      });
  module.def(
      "list_comm_hints", [] { return list_comm_hints(); }, "Lists the hints of the backend \"host\".");
  module.def(
      "list_comm_backends",
      [] {
        nb::module_::import_("headrace._comm_backend").attr("register_own")();
        nb::list names;
        for (const std::string& name : list_comm_backends()) names.append(to_str(name));
        return names;
      },
      nb::sig("def list_comm_backends() -> list[str]"), "Lists the backends of communicators, for new_comm.");
  module.attr("any_source") = any_source;
}

void bind_life(CommClass& comm) {
  comm.def(
          "get_rank", [](const PyComm& self) { return self.comm().rank(); },
          "The rank of this participant, from 0.")
      .def(
          "get_size", [](const PyComm& self) { return self.comm().size(); }, "The number of ranks.")
      .def(
          "get_ranks", [](const PyComm& self) { return self.comm().ranks(); },
          "The ranks of this communicator as those of the one that was opened first.")
      .def(
          "get_name", [](const PyComm& self) { return to_str(self.comm().name()); },
          "The name, the same on all ranks.")
      .def("get_options", &get_options, "The options, with the values that were set since.")
      .def(
          "get_device", [](const PyComm& self) { return to_str(device_text(self.comm().device())); },
          "Where the tensors lie: \"cpu\", \"cuda:1\".")
      .def(
          "get_backend", [](const PyComm& self) { return to_str(self.comm().backend()); },
          "The name of the backend: \"host\".")
      .def(
          "get_backend_version", [](const PyComm& self) { return to_str(self.comm().backend_version()); },
          "The version of the backend; of \"host\" that of Headrace.")
      .def("set_timeout", &set_timeout, nb::arg("timeout"),
           "Sets the timeout of operations that begin later, in seconds or as a timedelta; math.inf: no "
           "limit.")
      .def(
          "set_hints",
          [](const PyComm& self, const HintValues& hints) {
            const auto texts = to_options(hints);
            self.ask([&](headrace::Comm& comm) { return comm.set_hints(texts); });
          },
          nb::arg("hints"),
          "Changes hints for operations that begin later, on every rank alike.\n\n"
          "Errors: InvalidArgument (unknown: the nearest; a hint that is fixed when the communicator opens).")
      .def(
          "split", &split, nb::arg("ranks"), nb::arg("name"), nb::arg("hints") = nb::none(),
          nb::arg("timeout") = nb::none(),
          nb::sig(
              "def split(self, ranks: collections.abc.Sequence[int], name: str, hints: dict[str, "
              "typing.Any] | None = None, timeout: float | datetime.timedelta | None = None) -> Comm | None"),
          "Makes a communicator of some ranks, in the given order. All ranks of this one call it.\n\n"
          "ranks: the group that this rank belongs to; empty: none, the answer is None.\n"
          "hints, timeout: of the new communicator, instead of those of this one.\n"
          "Errors: InvalidArgument (this rank is not in ranks; a rank twice or out of range; another rank "
          "of\n"
          "the group gave another list or name).")
      .def(
          "add_hooks", &add_hooks, nb::kw_only(), nb::arg("before") = nb::none(),
          nb::arg("scheduled") = nb::none(), nb::arg("started") = nb::none(),
          nb::arg("completed") = nb::none(), nb::arg("after") = nb::none(), nb::arg("aborted") = nb::none(),
          nb::sig(
              "def add_hooks(self, *, before: collections.abc.Callable[[CommCall], object] | None = None, "
              "scheduled: collections.abc.Callable[[CommCall], object] | None = None, "
              "started: collections.abc.Callable[[CommCallId], object] | None = None, "
              "completed: collections.abc.Callable[[CommCallId, headrace.errors.Error | None], object] | "
              "None = None, "
              "after: collections.abc.Callable[[CommCall, headrace.errors.Error | None], object] | None = "
              "None, "
              "aborted: collections.abc.Callable[[headrace.errors.Error], object] | None = None) -> "
              "CommHook"),
          "Adds functions that are called beside operations, until CommHook.remove or the communicator's "
          "end.\n"
          "A communicator that split makes has none.\n\n"
          "before(call): its exception refuses the operation and is raised by the call; no other rank knows "
          "of\n"
          "it. Exceptions of the others go to sys.unraisablehook.\n"
          "scheduled(call): the operation has its number. started(id): those before it have ended.\n"
          "completed(id, error): it has ended; error is None if it ended well. after(call, error): the call\n"
          "returns. aborted(error): the communicator has ended, by an abort or an operation that failed.\n"
          "Threads: before and after run on the caller's and may call the communicator. The others run on "
          "any\n"
          "thread, are quick and do not call it.")
      .def("add_nan_check", &add_nan_check,
           "Refuses an operation if an element that it reads on this rank is a NaN: InvalidArgument, with "
           "the\n"
           "operation, the input and the index. HEADRACE_COMM_NAN_CHECK=1 does this for all communicators.")
      .def(
          "tensor_register", &register_with_comm, nb::arg("tensor"),
          "Tells the backend that calls will use this memory again and again. It changes speed alone: calls\n"
          "whose elements lie in registered memory may go without a copy, calls with other memory work as\n"
          "before. All ranks call it, as a collective, each with a tensor of its own; sizes may differ. It\n"
          "waits for the collectives of this rank that are under way. The tensor is kept until\n"
          "tensor_deregister or the end of the communicator.\n\n"
          "Errors: InvalidArgument (memory at this address is registered already), NotSupported (memory\n"
          "that other GPUs cannot map), and those of collectives.")
      .def("tensor_deregister", &deregister_with_comm, nb::arg("tensor"),
           "Takes back what tensor_register has told: afterwards no rank uses the memory. All ranks call\n"
           "it, as a collective. Messages and replays of graphs that use the memory have ended before, and\n"
           "none of these graphs is replayed later.\n\n"
           "tensor: of the address, size and dtype with which it was registered.\n"
           "Errors: InvalidArgument (it is not registered), and those of tensor_register.")
      .def(
          "suspend",
          [](const PyComm& self) { self.ask([](headrace::Comm& comm) { return comm.suspend(); }); },
          "Gives back memory of the GPU that the backend can do without while no call runs, say while a\n"
          "model sleeps. All ranks call it, as a collective. It waits for the collectives of this rank that\n"
          "are under way. Until resume every call raises InvalidArgument, and no graph with calls is\n"
          "replayed. A rank that does not come ends the communicator.\n\n"
          "Errors: InvalidArgument (it is suspended; a message of this rank is under way), NotSupported "
          "(the\n"
          "backend, or this version of its library, gives nothing back), TimedOut, and those of collectives.")
      .def(
          "resume", [](const PyComm& self) { self.ask([](headrace::Comm& comm) { return comm.resume(); }); },
          "Takes the memory again. All ranks call it, as a collective.\n\n"
          "Errors: InvalidArgument (it is not suspended), and those of suspend.")
      .def(
          "is_suspended", [](const PyComm& self) { return self.comm().is_suspended(); },
          "Whether it is suspended.")
      .def("new_window", &new_window, nb::arg("tensor") = nb::none(),
           nb::sig("def new_window(self, tensor: object | None = None) -> Window"),
           "Makes a window. All ranks make their windows in the same order.\n\n"
           "tensor: registered at once, as by Window.tensor_register.")
      .def("abort", &abort, nb::arg("reason") = "abort was called",
           "Ends every operation on all ranks: they raise Canceled, with this rank and the reason.\n\n"
           "Threads: any.")
      .def(
          "is_aborted", [](const PyComm& self) { return self.comm().is_aborted(); },
          "Whether the communicator has ended: by abort, or by an operation that failed on some rank.")
      .def("finalize", &finalize,
           "Waits for queued operations and leaves; later operations raise InvalidArgument.\n\n"
           "Errors: those of the operations that were queued.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Comm"))
      .def(
          "__exit__",
          [](const PyComm& self, nb::handle, nb::handle value, nb::handle) { leave(self, value); },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none(),
          nb::sig(
              "def __exit__(self, type: type[BaseException] | None, value: BaseException | None, traceback: "
              "types.TracebackType | None) -> None"),
          "Finalizes. After an exception it aborts, with the exception as the reason.")
      .def("__repr__",
           [](const PyComm& self) {
             const headrace::Comm& comm = self.comm();
             return nb::str("Comm({!r}, rank={}, size={})")
                 .format(to_str(comm.name()), comm.rank(), comm.size());
           })
      .def("__reduce__",
           refuse_pickle("a Comm cannot be pickled: open one in the other process, with a rank of its own"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

// The last arguments of each operation. A macro, because nanobind takes them one by one.
#define HEADRACE_CALL_OPTIONS bool async_op, const Hints &hints, const TimeLimit &timeout, nb::handle stream
#define HEADRACE_CALL_ARGUMENTS                                                                \
  nb::arg("async_op") = false, nb::arg("hints") = nb::none(), nb::arg("timeout") = nb::none(), \
  nb::arg("stream") = nb::none()

void bind_all_to_all(CommClass& comm) {
  comm.def(
          "all_reduce",
          [](PyComm& self, nb::handle tensor, const ReduceOp& op, HEADRACE_CALL_OPTIONS, nb::handle output) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const Elements from = call.uses(tensor, "tensor", output.is_none());
            const Elements to = output.is_none() ? from : call.writes(output, "output");
            return call.start([=](headrace::Comm& comm, const OpOptions& options) {
              return comm.all_reduce(from, to, op, options);
            });
          },
          nb::arg("tensor"), nb::arg("op"), HEADRACE_CALL_ARGUMENTS, nb::kw_only(),
          nb::arg("output") = nb::none(),
          "Every rank gets the reduction of all ranks' elements, bit for bit the same.\n\n"
          "output: the memory of the result, of the same count and dtype; None: the tensor itself.\n"
          "hints: \"algorithm\": \"one_shot\" or \"two_shot\", the same on every rank.")
      .def(
          "all_gather",
          [](PyComm& self, nb::handle tensor_list, nb::handle tensor, HEADRACE_CALL_OPTIONS) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const auto to = call.writes_each(tensor_list, "tensor_list");
            const auto from = call.reads(tensor, "tensor");
            return call.start([&](headrace::Comm& comm, const OpOptions& options) {
              return comm.all_gather(to, from, options);
            });
          },
          nb::arg("tensor_list"), nb::arg("tensor"), HEADRACE_CALL_ARGUMENTS,
          "tensor_list[r] gets the tensor of rank r. All have the same count.")
      .def(
          "all_gather_v",
          [](PyComm& self, nb::handle tensor_list, nb::handle tensor, HEADRACE_CALL_OPTIONS) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const auto to = call.writes_each(tensor_list, "tensor_list");
            const auto from = call.reads(tensor, "tensor");
            return call.start([&](headrace::Comm& comm, const OpOptions& options) {
              return comm.all_gather_v(to, from, options);
            });
          },
          nb::arg("tensor_list"), nb::arg("tensor"), HEADRACE_CALL_ARGUMENTS,
          "The same with counts that differ: tensor_list[r] has the count of rank r's tensor.")
      .def(
          "all_gather_single",
          [](PyComm& self, nb::handle output, nb::handle input, HEADRACE_CALL_OPTIONS) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const auto to = call.writes(output, "output");
            const auto from = call.reads(input, "input");
            return call.start([&](headrace::Comm& comm, const OpOptions& options) {
              return comm.all_gather_single(to, from, options);
            });
          },
          nb::arg("output"), nb::arg("input"), HEADRACE_CALL_ARGUMENTS,
          "output gets the inputs of all ranks in a row.")
      .def(
          "reduce_scatter",
          [](PyComm& self, nb::handle output, nb::handle input_list, const ReduceOp& op,
             HEADRACE_CALL_OPTIONS) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const auto to = call.writes(output, "output");
            const auto from = call.reads_each(input_list, "input_list");
            return call.start([&](headrace::Comm& comm, const OpOptions& options) {
              return comm.reduce_scatter(to, from, op, options);
            });
          },
          nb::arg("output"), nb::arg("input_list"), nb::arg("op"), HEADRACE_CALL_ARGUMENTS,
          "Rank r gets the reduction of all ranks' input_list[r]. All have the same count.")
      .def(
          "reduce_scatter_v",
          [](PyComm& self, nb::handle output, nb::handle input_list, const ReduceOp& op,
             HEADRACE_CALL_OPTIONS) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const auto to = call.writes(output, "output");
            const auto from = call.reads_each(input_list, "input_list");
            return call.start([&](headrace::Comm& comm, const OpOptions& options) {
              return comm.reduce_scatter_v(to, from, op, options);
            });
          },
          nb::arg("output"), nb::arg("input_list"), nb::arg("op"), HEADRACE_CALL_ARGUMENTS,
          "The same with counts that differ: input_list[r] has the count of rank r's output.")
      .def(
          "reduce_scatter_single",
          [](PyComm& self, nb::handle output, nb::handle input, const ReduceOp& op, HEADRACE_CALL_OPTIONS) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const auto to = call.writes(output, "output");
            const auto from = call.reads(input, "input");
            return call.start([&](headrace::Comm& comm, const OpOptions& options) {
              return comm.reduce_scatter_single(to, from, op, options);
            });
          },
          nb::arg("output"), nb::arg("input"), nb::arg("op"), HEADRACE_CALL_ARGUMENTS,
          "The same with the inputs in a row, one for each rank.")
      .def(
          "reduce_scatter_quantized",
          [](PyComm& self, nb::handle output, nb::handle input, const ReduceOp& op, std::uint64_t seed,
             HEADRACE_CALL_OPTIONS) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const auto to = call.writes(output, "output");
            const auto from = call.reads(input, "input");
            return call.start([&](headrace::Comm& comm, const OpOptions& options) {
              return comm.reduce_scatter_quantized(to, from, op, seed, options);
            });
          },
          nb::arg("output"), nb::arg("input"), nb::arg("op"), nb::arg("seed"), HEADRACE_CALL_ARGUMENTS,
          "reduce_scatter_single of float32, SUM or AVG, that sends bfloat16, rounded up or down by chance, "
          "so that\n"
          "the mean of the error is 0. Sums are float32. The same seed on all ranks gives the same elements.")
      .def(
          "all_to_all",
          [](PyComm& self, nb::handle outputs, nb::handle inputs, HEADRACE_CALL_OPTIONS) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const auto to = call.writes_each(outputs, "output_tensor_list");
            const auto from = call.reads_each(inputs, "input_tensor_list");
            return call.start([&](headrace::Comm& comm, const OpOptions& options) {
              return comm.all_to_all(to, from, options);
            });
          },
          nb::arg("output_tensor_list"), nb::arg("input_tensor_list"), HEADRACE_CALL_ARGUMENTS,
          "output_tensor_list[r] gets input_tensor_list[this rank] of rank r. Counts may differ.")
      .def(
          "all_to_all_single",
          [](PyComm& self, nb::handle output, nb::handle input, HEADRACE_CALL_OPTIONS) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const auto to = call.writes(output, "output");
            const auto from = call.reads(input, "input");
            return call.start([&](headrace::Comm& comm, const OpOptions& options) {
              return comm.all_to_all_single(to, from, options);
            });
          },
          nb::arg("output"), nb::arg("input"), HEADRACE_CALL_ARGUMENTS,
          "The same with the parts in a row, all of one count.")
      .def(
          "all_to_all_v_single",
          [](PyComm& self, nb::handle output, nb::handle input, const Splits& output_splits,
             const Splits& input_splits, HEADRACE_CALL_OPTIONS) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const auto to = call.writes(output, "output");
            const auto from = call.reads(input, "input");
            return call.start([&](headrace::Comm& comm, const OpOptions& options) {
              return comm.all_to_all_v_single(to, from, output_splits, input_splits, options);
            });
          },
          nb::arg("output"), nb::arg("input"), nb::arg("output_split_sizes"), nb::arg("input_split_sizes"),
          HEADRACE_CALL_ARGUMENTS, "The same with counts for each rank, in elements.")
      .def(
          "device_all_to_all_v_single",
          [](PyComm& self, nb::handle output, nb::handle input, nb::handle output_splits,
             nb::handle input_splits, HEADRACE_CALL_OPTIONS) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const auto to = call.writes(output, "output");
            const auto from = call.reads(input, "input");
            const auto to_splits = call.reads(output_splits, "output_split_sizes");
            const auto from_splits = call.reads(input_splits, "input_split_sizes");
            return call.start([&](headrace::Comm& comm, const OpOptions& options) {
              return comm.device_all_to_all_v_single(to, from, to_splits, from_splits, options);
            });
          },
          nb::arg("output"), nb::arg("input"), nb::arg("output_split_sizes"), nb::arg("input_split_sizes"),
          HEADRACE_CALL_ARGUMENTS,
          "The same with splits in tensors of int64, which are read when the operation begins: an "
          "asynchronous one\n"
          "may be called before they are known. Their sums are at most the sizes of output and input. Splits "
          "that do\n"
          "not fit end the communicator with InvalidArgument, and nothing is written.")
      .def(
          "barrier",
          [](PyComm& self, HEADRACE_CALL_OPTIONS) {
            CommCall call(self, {async_op, hints, timeout, stream});
            return call.start(
                [](headrace::Comm& comm, const OpOptions& options) { return comm.barrier(options); });
          },
          HEADRACE_CALL_ARGUMENTS, "Returns once every rank has called it.")
      .def(
          "monitored_barrier",
          [](const PyComm& self, const TimeLimit& timeout, bool wait_all_ranks) {
            const Timeout limit = limit_of_call(timeout);
            self.ask([&](headrace::Comm& comm) { return comm.monitored_barrier(limit, wait_all_ranks); });
          },
          nb::arg("timeout") = nb::none(), nb::arg("wait_all_ranks") = false,
          "A barrier that finds out which ranks do not come: rank 0 names each that is late or gone, and the "
          "others\n"
          "hear it from rank 0.\n\n"
          "wait_all_ranks: a rank that is gone does not end the wait for the others, so that all are named.");
}

void bind_one_to_all(CommClass& comm) {
  comm.def(
          "broadcast",
          [](PyComm& self, nb::handle tensor, int root, HEADRACE_CALL_OPTIONS) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const Elements all = call.uses(tensor, "tensor", self.comm().rank() != root);
            return call.start([&](headrace::Comm& comm, const OpOptions& options) {
              return comm.broadcast(all, root, options);
            });
          },
          nb::arg("tensor"), nb::arg("root"), HEADRACE_CALL_ARGUMENTS, "Every rank gets the root's elements.")
      .def(
          "reduce",
          [](PyComm& self, nb::handle tensor, int root, const ReduceOp& op, HEADRACE_CALL_OPTIONS) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const Elements all = call.uses(tensor, "tensor", self.comm().rank() == root);
            return call.start([&](headrace::Comm& comm, const OpOptions& options) {
              return comm.reduce(all, root, op, options);
            });
          },
          nb::arg("tensor"), nb::arg("root"), nb::arg("op"), HEADRACE_CALL_ARGUMENTS,
          "The root gets the reduction of all ranks' elements; those of other ranks stay as they are.")
      .def(
          "gather",
          [](PyComm& self, nb::handle outputs, nb::handle input, int root, HEADRACE_CALL_OPTIONS) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const auto to = call.writes_each(outputs, "output_tensor_list");
            const auto from = call.reads(input, "input_tensor");
            return call.start([&](headrace::Comm& comm, const OpOptions& options) {
              return comm.gather(to, from, root, options);
            });
          },
          nb::arg("output_tensor_list").none(), nb::arg("input_tensor"), nb::arg("root"),
          HEADRACE_CALL_ARGUMENTS,
          "output_tensor_list[r] of the root gets the input of rank r. On other ranks it is empty or None.")
      .def(
          "gather_single",
          [](PyComm& self, nb::handle output, nb::handle input, int root, HEADRACE_CALL_OPTIONS) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const Elements to = output.is_none() ? Elements() : call.writes(output, "output");
            const auto from = call.reads(input, "input");
            return call.start([&](headrace::Comm& comm, const OpOptions& options) {
              return comm.gather_single(to, from, root, options);
            });
          },
          nb::arg("output").none(), nb::arg("input"), nb::arg("root"), HEADRACE_CALL_ARGUMENTS,
          "The same with the inputs of all ranks in a row. On other ranks the output may be None.")
      .def(
          "scatter",
          [](PyComm& self, nb::handle output, nb::handle inputs, int root, HEADRACE_CALL_OPTIONS) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const auto to = call.writes(output, "output_tensor");
            const auto from = call.reads_each(inputs, "input_tensor_list");
            return call.start([&](headrace::Comm& comm, const OpOptions& options) {
              return comm.scatter(to, from, root, options);
            });
          },
          nb::arg("output_tensor"), nb::arg("input_tensor_list").none(), nb::arg("root"),
          HEADRACE_CALL_ARGUMENTS,
          "Rank r gets input_tensor_list[r] of the root. On other ranks the list is empty or None.");
}

void bind_messages(CommClass& comm) {
  comm.def(
          "send",
          [](PyComm& self, nb::handle tensor, int dst, HEADRACE_CALL_OPTIONS, std::uint32_t tag) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const auto from = call.reads(tensor, "tensor");
            return call.start_message(tag, [&](headrace::Comm& comm, const MessageOptions& options) {
              return comm.send(from, dst, options);
            });
          },
          nb::arg("tensor"), nb::arg("dst"), HEADRACE_CALL_ARGUMENTS, nb::kw_only(), nb::arg("tag") = 0,
          "Sends a message. Done when the elements may be changed; the receiver may not have them yet.")
      .def(
          "recv",
          [](PyComm& self, nb::handle tensor, int src, HEADRACE_CALL_OPTIONS, std::uint32_t tag) {
            CommCall call(self, {async_op, hints, timeout, stream});
            const auto to = call.writes(tensor, "tensor");
            return call.start_message(tag, [&](headrace::Comm& comm, const MessageOptions& options) {
              return comm.recv(to, src, options);
            });
          },
          nb::arg("tensor"), nb::arg("src"), HEADRACE_CALL_ARGUMENTS, nb::kw_only(), nb::arg("tag") = 0,
          "Receives the next message of the tag from a rank, or from headrace.any_source: Work.source() "
          "tells\n"
          "which. The message has as many bytes as the tensor.");
}

#undef HEADRACE_CALL_OPTIONS
#undef HEADRACE_CALL_ARGUMENTS

}  // namespace

void bind_comm(nb::module_& module) {
  bind_values(module);
  CommClass comm(
      module, "Comm", nb::type_slots(comm_slots), nb::is_weak_referenceable(),
      "One rank of a communicator, from new_comm or split.\n\n"
      "Every rank calls the same operations in the same order; sends and receives are apart from that "
      "order.\n"
      "An operation takes NumPy arrays, torch tensors and other objects with the buffer protocol or DLPack,\n"
      "contiguous, of any shape, on the device of the communicator.\n"
      "async_op: return at once; the work waits. timeout: seconds or a timedelta, from the call on; None: "
      "the\n"
      "communicator's. An operation that fails or is late ends the communicator on all ranks. Ctrl-C in an\n"
      "operation that is not async ends it too, before KeyboardInterrupt is raised.\n"
      "On a GPU no operation waits. stream: a torch.cuda.Stream or the number of a CUDA stream; None: the\n"
      "default stream. The operation sees what was queued on it before; without async_op later work of it "
      "sees\n"
      "the result, with async_op after Work.wait().\n"
      "Errors of every operation: InvalidArgument (rank, root, counts, dtypes, memory; another rank is in\n"
      "another operation), TimedOut, Canceled (aborted: by which rank, why), PeerLost (which rank).\n"
      "Threads: any. A forked child opens its own communicators.");
  bind_life(comm);
  bind_all_to_all(comm);
  bind_one_to_all(comm);
  bind_messages(comm);
  bind_comm_groups(comm);
  bind_together(module, comm);
  module.def(
      "new_comm", &new_comm, nb::arg("backend") = "host", nb::arg("device") = "cpu", nb::kw_only(),
      nb::arg("rank") = nb::none(), nb::arg("size") = nb::none(), nb::arg("meeting") = nb::none(),
      nb::arg("store") = nb::none(), nb::arg("name") = "world", nb::arg("timeout") = nb::none(),
      nb::arg("meeting_timeout") = nb::none(), nb::arg("abort_process_on_timeout_or_error") = false,
      nb::arg("hints") = nb::none(), nb::arg("enable_reconfigure") = false,
      nb::sig(
          "def new_comm(backend: str = 'host', device: typing.Any = 'cpu', *, rank: int | None = None, size: "
          "int | None = None, meeting: str | None = None, store: typing.Any = None, name: str = 'world', "
          "timeout: float | datetime.timedelta | None = None, meeting_timeout: float | datetime.timedelta | "
          "None = None, abort_process_on_timeout_or_error: bool = False, hints: dict[str, typing.Any] | None "
          "= None, enable_reconfigure: bool = False) -> Comm"),
      "Opens a communicator: meets the other ranks and connects to each.\n\n"
      "backend: the same on all ranks; list_comm_backends() has the names. \"lazy\" connects ranks at their "
      "first\nmessage, \"fake\" moves nothing.\n"
      "device: where the tensors lie: \"cpu\", \"cuda:1\", or \"cuda\": the current GPU.\n"
      "rank, size: of this participant; None: what a launcher has set in the environment (torchrun, mpirun,\n"
      "srun and others, or HEADRACE_RANK and HEADRACE_SIZE).\n"
      "meeting: where the ranks meet: \"tcp://host:port\", at which rank 0 listens; \"file:///folder\";\n"
      "\"memory:NAME\" for threads of one process; \"etcd://host:port\". None: tcp:// with MASTER_ADDR and\n"
      "MASTER_PORT, or torchrun's own store. One rank needs none.\n"
      "store: instead of meeting, an object like torch.distributed.Store, with set(key, value), get(key) "
      "and\n"
      "wait([key], timedelta). Values are bytes.\n"
      "name: the same on all ranks. Communicators at one place have different names.\n"
      "timeout: of each operation, in seconds or as a timedelta; None: 600 s; math.inf: no limit.\n"
      "meeting_timeout: until all ranks have come; None: 120 s.\n"
      "abort_process_on_timeout_or_error: ends the process when an operation fails, or is late.\n"
      "enable_reconfigure: ranks of other hosts may join it by reconfigure, though its meeting is of this "
      "host\n"
      "alone, or it has one rank.\n"
      "hints: for the backend; list_comm_hints() has the names for \"host\".\n"
      "Errors: InvalidArgument (rank, size, name, an unknown hint: the nearest; a rank that two callers\n"
      "have), NotFound (no such backend: which there are; no launcher has set rank and size: what was\n"
      "looked for), NotSupported (the backend does not move memory of the device), TimedOut (which ranks "
      "have\n"
      "not come), and those of the store and of the backend.");
}

}  // namespace headrace::python
