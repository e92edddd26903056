// SPDX-License-Identifier: Apache-2.0
// <headrace/comm_backend.hpp>: backends of communicators that are Python classes. Each is a table whose
// entries call an Adapter of headrace._comm_backend with the GIL.
#include <headrace/comm.hpp>
#include <headrace/comm_backend.hpp>

#include "bindings/python/binding.hpp"
#include "bindings/python/convert.hpp"
#include "bindings/python/interpreter.hpp"
#include "bindings/python/refuse_pickle.hpp"
#include "bindings/python/tensor_object.hpp"
#include "bindings/python/text.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>

namespace headrace::python {
namespace {

/// The buffer into which the host writes why.
struct Why {
  std::array<char, 1024> buffer{};
  headrace_text_v1 text{sizeof(headrace_text_v1), buffer.data(), buffer.size(), 0};
  [[nodiscard]] std::string str() const { return {buffer.data(), std::min(text.length, buffer.size())}; }
};

Code code_of(nb::handle exception) {
  if (PyErr_GivenExceptionMatches(exception.ptr(), PyExc_Exception) == 0) return Code::canceled;
  if (!nb::isinstance(exception, nb::module_::import_("headrace.errors").attr("Error")))
    return Code::backend_failed;
  const auto name = nb::cast<std::string>(nb::str(exception.attr("code")));
  for (int code = 1; code <= static_cast<int>(Code::internal); ++code)
    if (code_name(static_cast<Code>(code)) == name) return static_cast<Code>(code);
  return Code::backend_failed;
}

/// The code and the sentence of an exception that a class raised. Its `code` and its text may be any object,
/// and raise again.
Error error_of(nb::handle exception) {
  try {
    const Code code = code_of(exception);
    const bool ours = nb::isinstance(exception, nb::module_::import_("headrace.errors").attr("Error"));
    return {code, ours ? nb::cast<std::string>(nb::str(exception)) : "it raised " + shown(exception)};
  } catch (const std::exception&) {
    return {Code::backend_failed, "it raised " + shown(exception)};
  }
}

std::int32_t failed(const Error& error, headrace_text_v1* why) {
  why->length = error.message.copy(why->data, why->capacity);
  return static_cast<std::int32_t>(error.code);
}

nb::object seconds_or_none(std::int64_t ns) {
  return ns < 0 ? nb::none() : nb::object(nb::float_(static_cast<double>(ns) / 1e9));
}

nb::dict hints_of(const headrace_setting_v1* first, std::uint64_t count) {
  nb::dict hints;
  for (std::uint64_t i = 0; i < count; ++i) hints[to_str(first[i].name)] = to_str(first[i].value);
  return hints;
}

/// The functions of the host for one communicator. After its close it does nothing.
class CommLink {
 public:
  explicit CommLink(const headrace_comm_host_v1* host) : host_(host) {}

  void end(std::uint64_t work, nb::handle exception, int source) {
    Error error{Code::ok, {}};
    if (!exception.is_none()) error = error_of(exception);
    call([&](const headrace_comm_host_v1& host) {
      host.end(host.context, work, static_cast<std::int32_t>(error.code), error.message.data(),
               error.message.size(), source);
    });
  }
  void ended(nb::handle exception) {
    const Error error = error_of(exception);
    call([&](const headrace_comm_host_v1& host) {
      host.ended(host.context, static_cast<std::int32_t>(error.code), error.message.data(),
                 error.message.size());
    });
  }
  void set(const std::string& key, const nb::bytes& value) {
    const std::string bytes(value.c_str(), value.size());
    Why why;
    std::int32_t code = HEADRACE_CANCELED;
    call([&](const headrace_comm_host_v1& host) {
      code = host.set(host.context, key.c_str(), bytes.data(), bytes.size(), &why.text);
    });
    if (code != HEADRACE_OK) raise(Error{static_cast<Code>(code), why.str()});
  }
  nb::object get(const std::string& key) {
    Why why;
    std::string value;
    const headrace_sink_v1 sink{
        sizeof sink, &value, [](void* context, const void* bytes, std::size_t length) {
          static_cast<std::string*>(context)->append(static_cast<const char*>(bytes), length);
        }};
    std::int32_t code = HEADRACE_CANCELED;
    call([&](const headrace_comm_host_v1& host) {
      code = host.get(host.context, key.c_str(), &sink, &why.text);
    });
    if (code == HEADRACE_NOT_FOUND) return nb::none();
    if (code != HEADRACE_OK) raise(Error{static_cast<Code>(code), why.str()});
    return to_bytes(value);
  }
  /// Waits for calls of other threads. Without the GIL.
  void close() {
    const std::unique_lock lock(mutex_);
    host_ = nullptr;
  }

 private:
  template <class Body>
  void call(const Body& body) {
    const WithoutGil scope;
    const std::shared_lock lock(mutex_);
    if (host_ != nullptr) body(*host_);
  }

  std::shared_mutex mutex_;
  const headrace_comm_host_v1* host_;
};

/// A communicator: the Python objects behind the handle.
struct ClassComm final : Held {
  ClassComm(nb::object adapter_of_it, nb::object link_of_it)
      : adapter(std::move(adapter_of_it)), link(std::move(link_of_it)) {}
  nb::object adapter, link;
};
using CommHandle = std::shared_ptr<ClassComm>;

ClassComm& class_comm(void* comm) { return **static_cast<CommHandle*>(comm); }

/// Runs `body` with the GIL; the code of what it raises.
template <class Body>
std::int32_t with_gil(headrace_text_v1* why, const Body& body) noexcept {
  const CallbackScope scope;
  if (!scope) return failed({Code::canceled, "the interpreter ends"}, why);
  try {
    return body();
  } catch (nb::python_error& raised) {
    return failed(error_of(raised.value()), why);
  } catch (const std::exception& thrown) {
    return failed({Code::internal, thrown.what()}, why);
  }
}

/// The same for an entry that cannot fail: what `body` raises goes to sys.unraisablehook.
template <class Body>
void told_with_gil(const Body& body) noexcept {
  const CallbackScope scope;
  if (!scope) return;
  try {
    body();
  } catch (nb::python_error& raised) {
    raised.discard_as_unraisable("a backend of communicators");
  }
}

nb::dict setup_of(const headrace_comm_setup_v1& setup) {
  nb::dict given;
  nb::list ranks;
  for (int i = 0; i < setup.size; ++i) ranks.append(setup.ranks[i]);
  given["rank"] = setup.rank;
  given["size"] = setup.size;
  given["ranks"] = ranks;
  given["timeout"] = seconds_or_none(setup.timeout_ns);
  given["meeting_timeout"] = seconds_or_none(setup.meeting_timeout_ns);
  given["hints"] = hints_of(setup.hints, setup.hint_count);
  return given;
}

std::int32_t backend_open(void* context, const headrace_comm_setup_v1* setup, void** comm,
                          headrace_text_v1* why) {
  return with_gil(why, [&] {
    const nb::handle cls(static_cast<PyObject*>(context));
    nb::object link = nb::cast(new CommLink(setup->host), nb::rv_policy::take_ownership);
    nb::object adapter = nb::module_::import_("headrace._comm_backend")
                             .attr("open_comm")(cls, link, to_str(setup->name), **setup_of(*setup));
    *comm = new CommHandle(hold<ClassComm>(std::move(adapter), std::move(link)));
    return HEADRACE_OK;
  });
}

void backend_close(void* handle) {
  const std::unique_ptr<CommHandle> comm(static_cast<CommHandle*>(handle));
  CommLink* link = nullptr;
  told_with_gil([&] {
    link = nb::cast<CommLink*>((*comm)->link);
    (*comm)->adapter.attr("close")();
  });
  if (link != nullptr) link->close();
}

nb::list tensors_of(const headrace_comm_elements_v1* first, std::uint64_t count) {
  nb::list tensors;
  for (std::uint64_t i = 0; i < count; ++i) {
    const TensorView view{first[i].data, static_cast<DType>(first[i].dtype),
                          Shape{static_cast<std::int64_t>(first[i].count)}};
    tensors.append(tensor_object(Tensor(view, nullptr, nullptr)));
  }
  return tensors;
}

nb::list numbers_of(const std::uint64_t* first, std::uint64_t count) {
  nb::list numbers;
  for (std::uint64_t i = 0; i < count; ++i) numbers.append(first[i]);
  return numbers;
}

nb::dict call_of(const headrace_comm_call_v1& call, std::uint64_t work) {
  nb::dict given;
  given["operation"] = to_str(comm_operation_name(static_cast<CommOperation>(call.operation)));
  given["work"] = work;
  given["inputs"] = tensors_of(call.inputs, call.input_count);
  given["outputs"] = tensors_of(call.outputs, call.output_count);
  given["input_splits"] = numbers_of(call.input_splits, call.split_count);
  given["output_splits"] = numbers_of(call.output_splits, call.split_count);
  given["op"] = ReduceOp(static_cast<ReduceOp::Kind>(call.reduction), call.factor);
  given["peer"] = call.peer;
  given["async_op"] = call.async != 0;
  given["timeout"] = seconds_or_none(call.timeout_ns);
  given["hints"] = hints_of(call.hints, call.hint_count);
  given["tag"] = call.tag;
  given["number"] = call.number;
  return given;
}

/// The interface of the classes has all_reduce in place alone.
void reduce_in_place(const headrace_comm_call_v1& call) {
  if (call.operation != HEADRACE_COMM_ALL_REDUCE || call.inputs[0].data == call.outputs[0].data) return;
  const std::size_t bytes = call.inputs[0].count * element_bytes(static_cast<DType>(call.inputs[0].dtype));
  std::copy_n(static_cast<const std::byte*>(call.inputs[0].data), bytes,
              static_cast<std::byte*>(call.outputs[0].data));
}

std::int32_t backend_issue(void* comm, const headrace_comm_call_v1* call, std::uint64_t work,
                           headrace_text_v1* why) {
  reduce_in_place(*call);
  return with_gil(why, [&]() -> std::int32_t {
    const bool goes_on = nb::cast<bool>(class_comm(comm).adapter.attr("issue")(**call_of(*call, work)));
    return goes_on ? HEADRACE_COMM_BEGUN : HEADRACE_COMM_DONE;
  });
}

void backend_abort(void* comm, const char* reason, std::size_t length) {
  told_with_gil([&] { class_comm(comm).adapter.attr("abort")(to_str({reason, length})); });
}

std::int32_t backend_split(void* comm, const std::int32_t* ranks, std::uint64_t count,
                           const headrace_comm_setup_v1* setup, void** part, headrace_text_v1* why) {
  return with_gil(why, [&] {
    nb::list group;
    for (std::uint64_t i = 0; i < count; ++i) group.append(ranks[i]);
    if (setup == nullptr) {
      class_comm(comm).adapter.attr("split")(group, "", nb::none());
      return HEADRACE_OK;
    }
    nb::object link = nb::cast(new CommLink(setup->host), nb::rv_policy::take_ownership);
    nb::object adapter =
        class_comm(comm).adapter.attr("split")(group, to_str(setup->name), link, **setup_of(*setup));
    *part = new CommHandle(hold<ClassComm>(std::move(adapter), std::move(link)));
    return HEADRACE_OK;
  });
}

std::int32_t backend_tensor_register(void* comm, const headrace_comm_elements_v1* tensor, std::int64_t,
                                     std::uint64_t* registration, headrace_text_v1* why) {
  return with_gil(why, [&] {
    const nb::object number = class_comm(comm).adapter.attr("tensor_register")(tensors_of(tensor, 1)[0]);
    *registration = nb::cast<std::uint64_t>(number);
    return HEADRACE_OK;
  });
}

std::int32_t backend_tensor_deregister(void* comm, std::uint64_t registration, std::int64_t,
                                       headrace_text_v1* why) {
  return with_gil(why, [&] {
    class_comm(comm).adapter.attr("tensor_deregister")(registration);
    return HEADRACE_OK;
  });
}

std::int32_t backend_set_hints(void* comm, const headrace_setting_v1* hints, std::uint64_t count,
                               headrace_text_v1* why) {
  return with_gil(why, [&] {
    class_comm(comm).adapter.attr("set_hints")(hints_of(hints, count));
    return HEADRACE_OK;
  });
}

void backend_set_timeout(void* comm, std::int64_t timeout_ns) {
  told_with_gil([&] { class_comm(comm).adapter.attr("set_timeout")(seconds_or_none(timeout_ns)); });
}

/// Name and version stay to the end of the process, as the class does.
void register_backend(const std::string& name, nb::object cls) {
  if (PyCallable_Check(cls.ptr()) == 0 || !nb::hasattr(cls, "init"))
    raise_invalid("cls is " + shown(cls) +
                  ": give a class with init(device, name, options) and methods named as the operations");
  struct Texts {
    std::string name, version;
  };
  auto texts = std::make_unique<Texts>();
  texts->name = name;
  texts->version = nb::cast<std::string>(nb::str(nb::getattr(cls, "version", nb::str("0"))));
  headrace_comm_backend_v1 table{};
  table.struct_size = sizeof table;
  table.abi_major = HEADRACE_COMM_ABI_MAJOR;
  table.abi_minor = HEADRACE_COMM_ABI_MINOR;
  table.name = texts->name.c_str();
  table.version = texts->version.c_str();
  table.devices = HEADRACE_COMM_MOVES_HOST_MEMORY;
  table.context = cls.ptr();
  table.open = backend_open;
  table.close = backend_close;
  table.issue = backend_issue;
  table.abort = backend_abort;
  table.split = backend_split;
  table.set_hints = backend_set_hints;
  table.set_timeout = backend_set_timeout;
  table.tensor_register = backend_tensor_register;
  table.tensor_deregister = backend_tensor_deregister;
  take(register_comm_backend(&table));
  static_cast<void>(texts.release());
  static_cast<void>(cls.release());
}

}  // namespace

void bind_comm_backend(nb::module_& module) {
  nb::class_<CommLink>(module, "CommLink",
                       "What a communicator on a Python class tells Headrace. For headrace._comm_backend.")
      .def("end", &CommLink::end, nb::arg("work"), nb::arg("exception").none(), nb::arg("source"),
           nb::sig("def end(self, work: int, exception: BaseException | None, source: int) -> None"),
           "Ends a work, well or with an exception. source: of a receive.")
      .def("ended", &CommLink::ended, nb::arg("exception"),
           nb::sig("def ended(self, exception: BaseException) -> None"),
           "The communicator has ended, and no work of this rank says why.")
      .def("set", &CommLink::set, nb::arg("key"), nb::arg("value"), "Sets a key of the meeting place.")
      .def("get", &CommLink::get, nb::arg("key"), nb::sig("def get(self, key: str) -> bytes | None"),
           "The value of a key; None: it has none yet.")
      .def("__reduce__", refuse_pickle("a CommLink cannot be pickled: it belongs to this process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
  module.def(
      "is_comm_backend_left_out", [](const std::string& name) { return is_comm_backend_left_out(name); },
      nb::arg("name"), "Whether this build leaves out a backend of communicators: HEADRACE_COMM_<NAME>=OFF.");
  module.def(
      "register_backend", &register_backend, nb::arg("name"), nb::arg("cls"),
      nb::sig("def register_backend(name: str, cls: type) -> None"),
      "Makes a class a backend of communicators: new_comm(name) makes an object of it.\n\n"
      "cls: has init(device, name, options) and methods named as the operations. Each takes the\n"
      "arguments of torchcomms, then async_op and options, and returns None (it is done), a Future, or\n"
      "an object with wait(). docs/collectives.md has the list.\n"
      "Errors: InvalidArgument (the name is taken, no such class), NotSupported (the name is not\n"
      "[a-z0-9_]+).");
}

}  // namespace headrace::python
