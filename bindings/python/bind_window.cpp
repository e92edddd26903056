// SPDX-License-Identifier: Apache-2.0
// <headrace/comm_window.hpp>: windows. Names and keywords are those of torchcomms where it has them.
#include <headrace/comm_window.hpp>

#include "bindings/python/binding.hpp"
#include "bindings/python/comm_call.hpp"
#include "bindings/python/refuse_pickle.hpp"
#include "bindings/python/tensor_handle.hpp"
#include "bindings/python/text.hpp"
#include "bindings/python/window_handle.hpp"

#include <nanobind/stl/optional.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace headrace::python {
namespace {

using Owner = std::shared_ptr<const void>;

/// One dimension, which keeps the memory.
PyTensor tensor_of(const RemoteTensor& remote, const Device& device) {
  const TensorView view{remote.elements.data,
                        remote.elements.dtype,
                        Shape{static_cast<std::int64_t>(remote.elements.count)},
                        {},
                        device};
  return PyTensor(
      Tensor(view, new Owner(remote.owner), [](void* owner) { delete static_cast<Owner*>(owner); }));
}

PyTensor map_remote(PyWindow& self, int rank) {
  return tensor_of(self.ask([=](headrace::Window& window) { return window.map_remote_tensor(rank); }),
                   self.comm().comm().device());
}

PyTensor own_tensor(PyWindow& self) { return map_remote(self, self.comm().comm().rank()); }

PyTensor allocate_in_window(PyWindow& self, std::size_t count, nb::handle dtype) {
  const DType type = take(dtype_from_name(nb::str(dtype).c_str()));
  self.ask([=](headrace::Window& window) { return window.allocate(count, type); });
  return own_tensor(self);
}

void register_tensor(PyWindow& self, nb::handle tensor, bool owning) {
  CommCall call(self.comm(), {.async_op = true, .hints = {}, .timeout = {}});  // so that there is an owner
  const Elements elements = call.writes(tensor, "tensor");
  call.start([&](headrace::Comm&, const OpOptions& options) -> Result<Work> {
    auto done = self.window().tensor_register(elements, owning ? options.owner : nullptr);
    if (!done) return std::move(done).error();
    return Work();
  });
}

WindowOptions options_of(const OpOptions& options) {
  return {options.async, options.timeout, options.owner, options.stream};
}

/// The position of a word in a list of names.
template <class List>
int position_of(const std::string& word, const List& names, const char* argument) {
  std::string all;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (word == names[i]) return static_cast<int>(i);
    all += (i == 0 ? "\"" : ", \"") + std::string(names[i]) + "\"";
  }
  raise_invalid(std::string(argument) + " is \"" + word + "\": give one of " + all);
}

constexpr std::array<std::string_view, 2> signal_kinds{"add", "set"};
constexpr std::array<std::string_view, 6> comparisons{"eq", "ne", "lt", "le", "gt", "ge"};

WorkObject send_signal(PyWindow& self, int peer_rank, bool async_op, std::uint64_t value,
                       const std::string& op, const TimeLimit& timeout, nb::handle stream) {
  const Signal sent{static_cast<Signal::Kind>(position_of(op, signal_kinds, "op")), value};
  CommCall call(self.comm(), {async_op, {}, timeout, stream});
  return call.start([&](headrace::Comm&, const OpOptions& options) {
    return self.window().signal(peer_rank, sent, options_of(options));
  });
}

std::uint64_t wait_for_signal(PyWindow& self, int peer_rank, bool async_op,
                              const std::optional<std::string>& condition, std::uint64_t value,
                              const TimeLimit& timeout) {
  if (async_op)
    raise(
        Error{Code::not_supported, "wait_signal waits in the call: call it on a thread of its own instead"});
  const Timeout limit = limit_of_call(timeout);
  if (!condition)
    return self.ask([&](headrace::Window& window) { return window.wait_signal(peer_rank, limit); });
  const SignalCondition held{static_cast<Comparison>(position_of(*condition, comparisons, "condition")),
                             value};
  return self.ask([&](headrace::Window& window) { return window.wait_signal(peer_rank, held, limit); });
}

using WindowClass = nb::class_<PyWindow>;

void bind_memory_of_window(WindowClass& window) {
  window
      .def("tensor_register", &register_tensor, nb::arg("tensor"), nb::arg("owning") = true,
           "Makes a tensor the memory of this rank. All ranks call this or allocate, in the order of their\n"
           "collectives. dtypes are the same on all ranks, counts may differ.\n\n"
           "owning: keep the tensor until tensor_deregister; False: the caller does.\n"
           "Errors: InvalidArgument (registered already; another dtype than on another rank), and those of\n"
           "collectives.")
      .def(
          "allocate", &allocate_in_window, nb::arg("count"), nb::arg("dtype"),
          nb::sig("def allocate(self, count: int, dtype: object) -> Tensor"),
          "The same with new memory, which holds zeros. Ranks of one host map it, so that an operation is a\n"
          "copy or one instruction. Use numpy.asarray(tensor) or torch.from_dlpack(tensor).\n\n"
          "dtype: torch's name, as \"float32\", or torch's or NumPy's dtype.")
      .def(
          "tensor_deregister",
          [](PyWindow& self) {
            self.ask([](headrace::Window& window) { return window.tensor_deregister(); });
          },
          "Takes the memory back. All ranks call it. Returns when no rank uses the memory any more, also "
          "when\n"
          "it raises, but for TimedOut: then a rank that stands still may use it yet.")
      .def("get_tensor", &own_tensor, "The memory of this rank.")
      .def("map_remote_tensor", &map_remote, nb::arg("rank"),
           "The memory of a rank at an address of this process: one dimension, which keeps it mapped.\n\n"
           "Errors: NotSupported (its access is \"separate\": why).")
      .def(
          "get_attr",
          [](PyWindow& self, int peer_rank) {
            return self.ask([=](headrace::Window& window) { return window.get_attr(peer_rank); });
          },
          nb::arg("peer_rank"), "How this rank reaches the memory of another one.")
      .def(
          "get_device_window",
          [](PyWindow& self) {
            return reinterpret_cast<std::uintptr_t>(
                self.ask([](headrace::Window& window) { return window.get_device_window(); }));
          },
          "The address of the window for kernels of this GPU (headrace/device/window.cuh). NotSupported on "
          "the CPU.");
}

void bind_operations_of_window(WindowClass& window) {
  window
      .def(
          "put",
          [](PyWindow& self, nb::handle tensor, int dst_rank, std::size_t target_offset_nelems, bool async_op,
             const TimeLimit& timeout, nb::handle stream) {
            CommCall call(self.comm(), {async_op, {}, timeout, stream});
            const ConstElements from = call.reads(tensor, "tensor");
            return call.start([&](headrace::Comm&, const OpOptions& options) {
              return self.window().put(from, dst_rank, target_offset_nelems, options_of(options));
            });
          },
          nb::arg("tensor"), nb::arg("dst_rank"), nb::arg("target_offset_nelems") = 0,
          nb::arg("async_op") = false, nb::arg("timeout") = nb::none(), nb::arg("stream") = nb::none(),
          "Writes a tensor to the memory of a rank, from that element on. When it is done the rank has it.")
      .def(
          "get",
          [](PyWindow& self, nb::handle tensor, int src_rank, std::size_t source_offset_nelems, bool async_op,
             const TimeLimit& timeout, nb::handle stream) {
            CommCall call(self.comm(), {async_op, {}, timeout, stream});
            const Elements to = call.writes(tensor, "tensor");
            return call.start([&](headrace::Comm&, const OpOptions& options) {
              return self.window().get(to, src_rank, source_offset_nelems, options_of(options));
            });
          },
          nb::arg("tensor"), nb::arg("src_rank"), nb::arg("source_offset_nelems") = 0,
          nb::arg("async_op") = false, nb::arg("timeout") = nb::none(), nb::arg("stream") = nb::none(),
          "Reads a tensor from the memory of a rank, from that element on.")
      .def("signal", &send_signal, nb::arg("peer_rank"), nb::arg("async_op") = false, nb::kw_only(),
           nb::arg("value") = 1, nb::arg("op") = "add", nb::arg("timeout") = nb::none(),
           nb::arg("stream") = nb::none(),
           "Changes the 64-bit word that this rank has at another one, after what was put there before.\n\n"
           "op: \"add\" or \"set\".")
      .def(
          "wait_signal", &wait_for_signal, nb::arg("peer_rank"), nb::arg("async_op") = false, nb::kw_only(),
          nb::arg("condition") = nb::none(), nb::arg("value") = 1, nb::arg("timeout") = nb::none(),
          "Waits for the word that a rank has here, and returns it.\n\n"
          "condition: None: until it is above 0, then 1 is taken from it: one wait for each signal. \"eq\",\n"
          "\"ne\", \"lt\", \"le\", \"gt\" or \"ge\": until it compares so with value; it stays as it is.\n"
          "Errors: NotSupported (async_op), TimedOut (the value of the word).")
      .def(
          "atomic_add",
          [](PyWindow& self, int dst_rank, std::size_t target_offset_nelems, std::int64_t value,
             const TimeLimit& timeout) {
            const Timeout limit = limit_of_call(timeout);
            return self.ask([&](headrace::Window& window) {
              return window.atomic_add(dst_rank, target_offset_nelems, value, limit);
            });
          },
          nb::arg("dst_rank"), nb::arg("target_offset_nelems"), nb::arg("value"),
          nb::arg("timeout") = nb::none(),
          "Adds to one element of a rank, in one step for all ranks, and returns the value before. int32,\n"
          "uint32, int64 and uint64; sums wrap around.")
      .def(
          "flush",
          [](PyWindow& self, const TimeLimit& timeout) {
            const Timeout limit = limit_of_call(timeout);
            self.ask([&](headrace::Window& window) { return window.flush(limit); });
          },
          nb::arg("timeout") = nb::none(),
          "Waits until all asynchronous operations of this rank have ended. Each work has its own error.");
}

}  // namespace

nb::object new_window(nb::handle self, nb::handle tensor) {
  auto window = nb::cast<PyComm&>(self).ask([](headrace::Comm& comm) { return comm.new_window(); });
  nb::object made =
      nb::cast(new PyWindow(nb::borrow(self), std::move(window)), nb::rv_policy::take_ownership);
  if (!tensor.is_none()) register_tensor(nb::cast<PyWindow&>(made), tensor, true);
  return made;
}

void bind_window(nb::module_& module) {
  nb::class_<WindowAttr>(module, "WindowAttr", "How a rank reaches the memory of another one in a window.")
      .def_prop_ro(
          "access_type", [](const WindowAttr& self) { return to_str(window_access_name(self.access)); },
          "\"unified\": its memory is mapped here. \"separate\": by requests.")
      .def_ro("count", &WindowAttr::count, "Elements of that rank.")
      .def("__repr__", [](const WindowAttr& self) {
        return nb::str("WindowAttr(access_type={!r}, count={})")
            .format(to_str(window_access_name(self.access)), self.count);
      });
  WindowClass window(
      module, "Window", nb::is_weak_referenceable(),
      "Memory of every rank that the others read and change without its help, from Comm.new_window.\n\n"
      "A signal comes after what the same rank has put before. Asynchronous operations run one after "
      "another,\n"
      "and the others, but for wait_signal, begin after them. An operation that fails ends nothing else.\n"
      "timeout: seconds or a timedelta; None: the communicator's.\n"
      "Errors of every operation: InvalidArgument (the values), PeerLost (which rank), NotFound (a rank has\n"
      "dropped its window), TimedOut, Canceled (the communicator was aborted).\n"
      "Threads: any.");
  bind_memory_of_window(window);
  bind_operations_of_window(window);
  window.def("__reduce__", refuse_pickle("a Window cannot be pickled: it is memory of this process"),
             nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

}  // namespace headrace::python
