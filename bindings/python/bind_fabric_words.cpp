// SPDX-License-Identifier: Apache-2.0
// <headrace/fabric_words.hpp>, <headrace/fabric_commands.hpp>
#include "bindings/python/array_interface.hpp"
#include "bindings/python/bind_fabric.hpp"
#include "bindings/python/fabric_post.hpp"
#include "bindings/python/fabric_words.hpp"
#include "bindings/python/refuse_pickle.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

namespace headrace::python {
namespace {

constexpr const char* fabric_word_type = "<i8";  // torch has few operations for unsigned numbers of 64 bits

nb::dict cuda_word(std::uintptr_t address, const std::optional<int>& device) {
  if (!device) throw nb::attribute_error("the word is in host memory that no GPU sees: use NumPy");
  return cuda_array_interface(address, 1, fabric_word_type,
                              false);  // torch refuses what says that it is read-only
}

// ------------------------------------------------------------------ flags

void bind_flag(nb::module_& module) {
  nb::class_<PyFabricFlag>(
      module, "FabricFlag",
      "The full rounds of an expectation as 8 bytes that kernels and streams of GPUs wait for, from\n"
      "FabricExpectation.flag: headrace/device/fabric.cuh, cuStreamWaitValue64 with GEQ.\n"
      "torch.as_tensor(flag, device=...), cupy.asarray(flag) and, of host memory, numpy.asarray(flag) view\n"
      "it as one int64. Do not write to it.\n"
      "A kernel that loads the word with acquire order at the scope of the system, and work of a stream\n"
      "behind a wait, see the bytes of the posts of these rounds. When the expectation is removed or the\n"
      "fabric closed, the word gets 2**62, so that nothing waits for good.\n"
      "Owns: the memory stays while this object or a view of it lives; let kernels and streams that use it\n"
      "end first.")
      .def_prop_ro(
          "address", [](const PyFabricFlag& self) { return self.flag().address(); },
          "The address, as the GPUs see it; without one, in this process.")
      .def_prop_ro(
          "device", [](const PyFabricFlag& self) { return self.flag().device(); },
          "The ordinal of the GPU; None: host memory for threads.")
      .def_prop_ro(
          "rounds", [](const PyFabricFlag& self) { return self.flag().value() & ~FabricFlag::ended; },
          "The full rounds that it shows; of GPU memory, those that were stored last.")
      .def_prop_ro(
          "ended", [](const PyFabricFlag& self) { return (self.flag().value() & FabricFlag::ended) != 0; },
          "Whether the expectation was removed or the fabric closed.")
      .def_prop_ro(
          "__array_interface__",
          [](const PyFabricFlag& self) {
            if (self.flag().in_gpu_memory())
              throw nb::attribute_error("the flag is in GPU memory: use a tensor");
            return array_interface(self.flag().address(), 1, fabric_word_type, true);
          },
          nb::sig("def __array_interface__(self) -> dict[str, typing.Any]"),
          "For NumPy. Errors: AttributeError (the flag is in GPU memory).")
      .def_prop_ro(
          "__cuda_array_interface__",
          [](const PyFabricFlag& self) { return cuda_word(self.flag().address(), self.flag().device()); },
          nb::sig("def __cuda_array_interface__(self) -> dict[str, typing.Any]"),
          "For torch, Numba and CuPy. Errors: AttributeError (no GPU sees the flag).")
      .def("__reduce__",
           refuse_pickle("a FabricFlag cannot be pickled: expect the immediate in the other process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

// ------------------------------------------------------------------ watched words

void bind_watcher(nb::module_& module) {
  nb::class_<PyFabricWatcher>(
      module, "FabricWatcher", nb::is_weak_referenceable(),
      "8 bytes, 0 at first, that kernels, streams (cuStreamWriteValue64, in graphs too) or threads change,\n"
      "and that the fabric watches, from Fabric.watch. It is watched without this object, until its "
      "function\n"
      "returns False, `stop`, or the close of the fabric. numpy.asarray(watcher), and with a GPU\n"
      "torch.as_tensor(watcher, device=...), view it as one int64.\n"
      "Owns: the memory stays until then, and while this object or a view of it lives; let kernels that\n"
      "change it end first.")
      .def_prop_ro(
          "address", [](const PyFabricWatcher& self) { return self.watcher().address(); },
          "The address, as the GPUs see it; without one, in this process.")
      .def_prop_ro(
          "device", [](const PyFabricWatcher& self) { return self.device(); },
          "The ordinal of the GPU; None: host memory for threads.")
      .def_prop_ro(
          "value", [](const PyFabricWatcher& self) { return self.watcher().value(); }, "The word now.")
      .def(
          "store",
          [](const PyFabricWatcher& self, nb::handle value) {
            self.watcher().store(to_u64(value, "the value", no_page));
          },
          nb::arg("value"), nb::sig("def store(self, value: int) -> None"),
          "Changes the word from the host: what this thread has written before is seen with it.")
      .def("stop", &PyFabricWatcher::stop, "No call of its function begins any more.")
      .def_prop_ro(
          "__array_interface__",
          [](const PyFabricWatcher& self) {
            return array_interface(self.watcher().address(), 1, fabric_word_type, false);
          },
          nb::sig("def __array_interface__(self) -> dict[str, typing.Any]"), "For NumPy.")
      .def_prop_ro(
          "__cuda_array_interface__",
          [](const PyFabricWatcher& self) { return cuda_word(self.watcher().address(), self.device()); },
          nb::sig("def __cuda_array_interface__(self) -> dict[str, typing.Any]"),
          "For torch, Numba and CuPy. Errors: AttributeError (no GPU sees the word).")
      .def("__reduce__",
           refuse_pickle("a FabricWatcher cannot be pickled: watch a word in the other process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

std::unique_ptr<PyFabricWatcher> watch(const PyFabric& self, nb::object callback,
                                       const std::optional<int>& device) {
  if (PyCallable_Check(callback.ptr()) == 0)
    raise_invalid(shown(callback) + " cannot be called: give a function");
  static_cast<void>(self.fabric());
  const auto& hooks = self.hooks();
  const auto hook = hold<Callable>(std::move(callback));
  auto changed = [hook, weak = std::weak_ptr(hooks)](std::uint64_t before, std::uint64_t now) {
    const bool goes_on = call_hook(hook, [&] { return nb::make_tuple(before, now); });
    if (!goes_on)
      call_for_fabric([&] {
        if (const auto kept = weak.lock()) kept->reached.erase(hook);
        drop_hook(hook);
      });
    return goes_on;
  };
  hooks->reached.insert(hook);  // before it may decline
  try {
    return std::make_unique<PyFabricWatcher>(
        self.ask([&](headrace::Fabric& f) { return f.watch(changed, device); }), device, hooks, hook);
  } catch (...) {
    hooks->reached.erase(hook);
    drop_hook(hook);
    throw;
  }
}

// ------------------------------------------------------------------ queues of commands

void bind_queue_write(nb::module_& module) {
  const std::string signature =
      std::string(
          "def __init__(self, source: FabricMemory, target: FabricDescriptor, unit_bytes: int, "
          "units: int = 1, *, source_offset: int = 0, target_offset: int = 0, ") +
      fabric_post_signature + ") -> None";
  nb::class_<FabricQueueWrite>(
      module, "FabricQueueWrite",
      "A write of the list of a queue: units of unit_bytes bytes, one behind the other on both sides. A\n"
      "command moves all of them or a part.")
      .def(
          "__init__",
          [](FabricQueueWrite* self, const PyFabricMemory& source, const FabricDescriptor* target,
             nb::handle unit_bytes, nb::handle units, nb::handle source_offset, nb::handle target_offset,
             nb::handle immediate, nb::handle scope, const std::string& count_by, const std::string& spread,
             const std::optional<std::uint32_t>& nic, const TimeLimit& timeout) {
            new (self)
                FabricQueueWrite{source.memory,
                                 to_u64(source_offset, "the source's offset", no_page),
                                 given_descriptor(target),
                                 to_u64(target_offset, "the target's offset", no_page),
                                 to_u64(unit_bytes, "unit_bytes", no_page),
                                 to_u32(units, "units"),
                                 FabricPostInput{immediate, scope, count_by, spread, nic, timeout}.read()};
          },
          nb::arg("source"), nb::arg("target").none(), nb::arg("unit_bytes"), nb::arg("units") = 1,
          nb::kw_only(), nb::arg("source_offset") = 0, nb::arg("target_offset") = 0,
          nb::arg("immediate") = nb::none(), nb::arg("scope") = 0, nb::arg("count_by") = "request",
          nb::arg("spread") = "free", nb::arg("nic") = nb::none(), nb::arg("timeout") = nb::none(),
          nb::sig(signature.c_str()),
          "The arguments of posts are those of each command: count_by \"page\" counts once for each unit, "
          "and\n"
          "the timeout begins when the worker takes the command.")
      .def_ro("unit_bytes", &FabricQueueWrite::unit_bytes, "The length of a unit.")
      .def_ro("units", &FabricQueueWrite::units, "How many there are.");
  nb::class_<FabricQueueStatus>(module, "FabricQueueStatus", "What the first kernel that was late has left.")
      .def_ro("full", &FabricQueueStatus::full,
              "It had no place for a command; False: it waited for the end of one.")
      .def_ro("command", &FabricQueueStatus::command, "The number of the command.")
      .def_ro("ended", &FabricQueueStatus::ended, "Commands that had ended.")
      .def("__repr__", [](const FabricQueueStatus& self) {
        return nb::str("FabricQueueStatus(full={}, command={}, ended={})")
            .format(self.full, self.command, self.ended);
      });
}

void bind_queue(nb::module_& module) {
  nb::class_<PyFabricCommandQueue>(
      module, "FabricCommandQueue",
      "Writes that kernels post (headrace/device/fabric.cuh, class Commands), from Fabric.command_queue. A\n"
      "worker carries them in the order of their numbers. A command that names no write of the list, or\n"
      "units outside of it, and one that fails, are told to Fabric.on_error; the others go on.\n"
      "Owns: the memory stays while this object lives; let kernels that use it end first. Commands that "
      "were\n"
      "posted are carried also without it.\n"
      "Threads: any.")
      .def_prop_ro(
          "address", [](const PyFabricCommandQueue& self) { return self.queue().address(); },
          "Of the headrace_fabric_queue_v1 that kernels get, in GPU memory; without a GPU in this process.")
      .def_prop_ro(
          "device", [](const PyFabricCommandQueue& self) { return self.queue().device(); },
          "The ordinal of the GPU whose kernels post; None: threads.")
      .def_prop_ro(
          "capacity", [](const PyFabricCommandQueue& self) { return self.queue().capacity(); },
          "Commands that have not ended, at most.")
      .def_prop_ro(
          "ended", [](const PyFabricCommandQueue& self) { return self.queue().ended(); },
          "Commands that have ended: the first ones. Nothing reads their memory any more.")
      .def_prop_ro(
          "failed", [](const PyFabricCommandQueue& self) { return self.queue().failed(); },
          "Of them, those that have failed.")
      .def(
          "status", [](const PyFabricCommandQueue& self) { return self.queue().status(); },
          nb::sig("def status(self) -> FabricQueueStatus | None"),
          "What the first kernel that was late has left. None: no kernel was late.")
      .def("post", &PyFabricCommandQueue::post, nb::arg("write"), nb::arg("first") = 0,
           nb::arg("count") = nb::none(),
           nb::sig("def post(self, write: int, first: int = 0, count: int | None = None) -> int"),
           "Posts a command from this thread, of a queue without a GPU. Returns its number, from 1 on.\n\n"
           "count: units; None: the rest of the write.\n"
           "Errors: TimedOut (no place), Canceled (closed), InvalidArgument (a queue of kernels).")
      .def("wait", &PyFabricCommandQueue::wait, nb::arg("number"),
           "Waits until this command and all before it have ended, of a queue without a GPU.\n\n"
           "Errors: TimedOut (that of the queue), Canceled (closed), InvalidArgument (a queue of kernels).")
      .def(
          "close",
          [](const PyFabricCommandQueue& self) {
            const FabricCommandQueue& queue = self.queue();
            without_gil([&] { queue.close(); });
          },
          "Commands that were posted are carried; kernels that wait leave.")
      .def("__reduce__",
           refuse_pickle("a FabricCommandQueue cannot be pickled: make one in the other process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

std::unique_ptr<PyFabricCommandQueue> command_queue(const PyFabric& self,
                                                    const std::vector<FabricQueueWrite>& writes,
                                                    const std::optional<int>& device, nb::handle capacity,
                                                    const TimeLimit& timeout) {
  FabricQueueOptions options;
  options.device = device;
  options.capacity = to_u32(capacity, "the capacity");
  options.timeout = timeout.or_else(std::nullopt);
  std::vector<std::uint32_t> units;
  for (const FabricQueueWrite& write : writes) units.push_back(write.units);
  return std::make_unique<PyFabricCommandQueue>(
      self.ask([&](headrace::Fabric& f) { return f.command_queue(writes, options); }), std::move(units));
}

}  // namespace

void bind_fabric_words(nb::module_& module) {
  bind_flag(module);
  bind_watcher(module);
  bind_queue_write(module);
  bind_queue(module);
}

void bind_fabric_kernels(nb::class_<PyFabric>& fabric) {
  fabric
      .def("watch", &watch, nb::arg("callback"), nb::kw_only(), nb::arg("device") = nb::none(),
           nb::sig("def watch(self, callback: collections.abc.Callable[[int, int], object], *, device: int | "
                   "None = None) -> FabricWatcher"),
           "Watches 8 bytes that kernels, streams or threads change: a FabricWatcher.\n\n"
           "Calls callback(before, now) until it returns False. Values between two calls are not told. What "
           "was\n"
           "written before a value can be read by the callback, and by work that it begins. A worker that\n"
           "works looks at once; after an idle time t it looks within t/16, at most two milliseconds.\n"
           "device: the ordinal of the GPU that changes it; None: threads.\n"
           "Threads: the callback thread. An exception goes to `on_error`.\n"
           "Errors: Exhausted (4096 words of a group are watched), NotSupported (no GPU driver),\n"
           "InvalidArgument (no function, no such GPU).")
      .def("command_queue", &command_queue, nb::arg("writes"), nb::kw_only(), nb::arg("device") = nb::none(),
           nb::arg("capacity") = 1024, nb::arg("timeout").none() = 10.0,
           nb::sig("def command_queue(self, writes: collections.abc.Sequence[FabricQueueWrite], *, device: "
                   "int | None = None, capacity: int = 1024, timeout: float | datetime.timedelta | None = "
                   "10.0) -> "
                   "FabricCommandQueue"),
           "A queue through which kernels post writes of this list, all from memory of one group.\n\n"
           "device: the ordinal of the GPU whose kernels post; None: threads.\n"
           "capacity: commands that have not ended, 1 to 4096: then kernels wait.\n"
           "timeout: seconds, of a kernel that waits for a place or an end; None: no limit.\n"
           "Errors: as posts; NotSupported (no GPU driver), InvalidArgument (no write, no such GPU), "
           "Exhausted.");
}

}  // namespace headrace::python
