// SPDX-License-Identifier: Apache-2.0
// <headrace/fabric_work.hpp>
#include <headrace/fabric_work.hpp>

#include "bindings/python/array_interface.hpp"
#include "bindings/python/bind_agent.hpp"
#include "bindings/python/bind_fabric.hpp"
#include "bindings/python/fabric_expectation.hpp"
#include "bindings/python/fabric_words.hpp"
#include "bindings/python/refuse_pickle.hpp"
#include "bindings/python/time_limit.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>

namespace headrace::python {
namespace {

// ------------------------------------------------------------------ works

/// A function that a work calls at its end. It keeps the work.
struct DoneCallback final : Held {
  DoneCallback(nb::object function, nb::object work) : function(std::move(function)), work(std::move(work)) {}
  nb::object function, work;
};

void add_done_callback(nb::handle self, nb::object callback) {
  if (PyCallable_Check(callback.ptr()) == 0)
    raise_invalid(shown(callback) + " cannot be called: give a function");
  const auto call = hold<DoneCallback>(std::move(callback), nb::borrow(self));
  nb::cast<const PyFabricWork&>(self).on_end(
      [call] { call_for_fabric([&] { call->function(call->work); }); });
}

nb::object fabric_error_of(const PyFabricWork& self) {
  const Error error = self.work().error();
  return error.code == Code::ok ? nb::object(nb::none()) : to_exception(error);
}

void bind_work_handle(nb::module_& module) {
  nb::class_<PyFabricWork>(
      module, "FabricWork", nb::is_weak_referenceable(),
      "A post of a fabric. It goes on without this object.\n\n"
      "States: posted (-> canceling) -> done | failed | canceled, once. At the end no network card touches\n"
      "the memory of the post any more, here and, over all links that live, at the peer. done: the bytes "
      "can\n"
      "be read at the peer (write) or here (read), and its immediate is counted, or will be, unless the "
      "link\n"
      "is lost first.\n"
      "Threads: any. `await work` waits in the running asyncio loop; cancelling the task cancels the post "
      "and\n"
      "waits for its end.")
      .def_prop_ro(
          "state", [](const PyFabricWork& self) { return to_str(state_name(self.work().state())); },
          "\"posted\", \"canceling\", \"done\", \"failed\" or \"canceled\".")
      .def_prop_ro("done", &PyFabricWork::ended, "Whether it has ended, well or not.")
      .def_prop_ro(
          "length_bytes", [](const PyFabricWork& self) { return self.work().bytes(); },
          "The bytes of the post, to all peers; of a receive that is done, of the message.")
      .def_prop_ro(
          "error", &fabric_error_of, nb::sig("def error(self) -> headrace.errors.Error | None"),
          "Why it failed: operation, peer, network card where one is known, page. None if it did not\n"
          "fail, or has not ended.")
      .def(
          "wait",
          [](const PyFabricWork& self, const TimeLimit& timeout) {
            self.wait(timeout.or_else(std::nullopt));
          },
          nb::arg("timeout") = nb::none(),
          "Waits until it has ended.\n\n"
          "timeout: seconds or a timedelta; None: no limit but that of the post.\n"
          "Errors: that of the post; TimedOut (still in flight: the post goes on).")
      .def(
          "cancel",
          [](const PyFabricWork& self) {
            const FabricWork& work = self.work();
            without_gil([&] { work.cancel(); });
          },
          "Asks that it ends, and returns at once. Does nothing if it has ended.")
      .def("add_done_callback", &add_done_callback, nb::arg("callback"),
           nb::sig("def add_done_callback(self, callback: collections.abc.Callable[[FabricWork], object]) -> "
                   "None"),
           "Calls callback(work) once at the end; at once if it has ended. Any number of them.\n\n"
           "Threads: the callback thread of the fabric. An exception goes to Fabric.on_error.")
      .def(
          "get_future",
          [](nb::handle self) {
            return nb::module_::import_("headrace._work_futures").attr("future_of")(self);
          },
          nb::sig("def get_future(self) -> concurrent.futures.Future[None]"),
          "A future that ends with the post, with its error if it failed. Use `cancel` to cancel the "
          "post.\n\n"
          "Threads: callbacks of all such futures run on one thread of the process.")
      .def(
          "fileno", [](const PyFabricWork& self) { return take(self.work().event_fd()); },
          "A descriptor that becomes readable at the end and stays so. The work owns it.\n\n"
          "Errors: Exhausted.")
      .def(
          "__await__",
          [](nb::handle self) {
            return nb::module_::import_("headrace._asyncio")
                .attr("fabric_work_ended")(self)
                .attr("__await__")();
          },
          nb::sig("def __await__(self) -> collections.abc.Generator[object, None, None]"))
      .def("__repr__",
           [](const PyFabricWork& self) -> nb::str {
             if (!self.is_here()) return nb::str("<FabricWork: of the parent process>");
             return nb::str("FabricWork(state={!r}, length_bytes={})")
                 .format(to_str(state_name(self.work().state())), self.work().bytes());
           })
      .def("__reduce__", refuse_pickle("a FabricWork cannot be pickled: it is a post of this process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

// ------------------------------------------------------------------ expectations

/// The word that counts rounds; it lives as long as a handle of the expectation.
struct PyFabricWord {
  FabricExpectation expectation;
  [[nodiscard]] std::uintptr_t address() const {
    return reinterpret_cast<std::uintptr_t>(&expectation.rounds());
  }
};

void bind_word(nb::module_& module) {
  nb::class_<PyFabricWord>(
      module, "FabricWord",
      "The number of full rounds as 8 bytes of host memory that grow by one with each, for readers that\n"
      "poll: from FabricExpectation.word. numpy.asarray(word) views it as one int64. Do not write to it.\n\n"
      "Owns: the memory stays while this object or a view of it lives.")
      .def_prop_ro("address", &PyFabricWord::address, "The address in this process.")
      .def_prop_ro(
          "__array_interface__",
          [](const PyFabricWord& self) { return array_interface(self.address(), 1, "<i8", true); },
          nb::sig("def __array_interface__(self) -> dict[str, typing.Any]"), "For NumPy.")
      .def("__reduce__",
           refuse_pickle("a FabricWord cannot be pickled: expect the immediate in the other process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

void bind_expectation(nb::module_& module) {
  nb::class_<PyFabricExpectation>(
      module, "FabricExpectation", nb::is_weak_referenceable(),
      "Counts an immediate in rounds of n arrivals, from Fabric.expect. What exceeds n stays for the next\n"
      "round. It counts without this object, until `remove` or the close of the fabric.\n\n"
      "A program that sees a full round, by any of these ways, can read the bytes of its posts: from the\n"
      "host, and by GPU work that is submitted afterwards. `wait`, `poll`, `await` and futures take rounds:\n"
      "each round ends one of them. The callback, the descriptor and the word see all rounds.\n"
      "Threads: any. `await expectation` takes the next round in the running asyncio loop.")
      .def_prop_ro(
          "immediate", [](const PyFabricExpectation& self) { return self.get().immediate().value; },
          "The immediate that is counted.")
      .def_prop_ro(
          "scope", [](const PyFabricExpectation& self) { return self.get().immediate().scope; },
          "The scope of the immediate.")
      .def_prop_ro(
          "arrivals_each", [](const PyFabricExpectation& self) { return self.get().arrivals_each(); },
          "Arrivals of a round.")
      .def_prop_ro(
          "rounds",
          [](const PyFabricExpectation& self) { return self.get().rounds().load(std::memory_order_acquire); },
          "The number of full rounds.")
      .def(
          "wait",
          [](const PyFabricExpectation& self, const TimeLimit& timeout) {
            self.wait(timeout.or_else(std::nullopt));
          },
          nb::arg("timeout") = nb::none(),
          "Takes the next full round that was not taken, and waits for it.\n\n"
          "timeout: seconds or a timedelta; None: no limit.\n"
          "Errors: TimedOut, Canceled (removed, or the fabric is closed).")
      .def("poll", &PyFabricExpectation::poll,
           "Takes the next full round that was not taken. False if there is none.\n\n"
           "Errors: Canceled (removed, or the fabric is closed).")
      .def(
          "on_reached",
          [](PyFabricExpectation& self, nb::object callback) {
            check_callback(callback);
            self.on_reached(std::move(callback));
          },
          nb::arg("callback").none(),
          nb::sig("def on_reached(self, callback: collections.abc.Callable[[], object] | None) -> None"),
          "Calls callback() for each full round that it was not called for, until it returns False.\n\n"
          "Replaces an earlier function; None: no callback. After `remove` no call begins.\n"
          "Threads: the callback thread of the fabric. An exception goes to Fabric.on_error.")
      .def(
          "get_future",
          [](nb::handle self) {
            return nb::module_::import_("headrace._round_futures").attr("future_of")(self);
          },
          nb::sig("def get_future(self) -> concurrent.futures.Future[None]"),
          "A future that takes the next round that was not taken. Futures end in the order in which they "
          "were\n"
          "made, with Canceled when the expectation is removed or the fabric closed.\n\n"
          "Threads: callbacks of all such futures run on one thread of the process.")
      .def(
          "fileno", [](const PyFabricExpectation& self) { return take(self.get().event_fd()); },
          "An eventfd that grows by one with each round. Read 8 bytes to clear it. The expectation owns it.\n"
          "It becomes readable for good when the expectation is removed or the fabric is closed.\n\n"
          "Errors: Exhausted.")
      .def(
          "word", [](const PyFabricExpectation& self) { return PyFabricWord{self.get()}; },
          "The number of full rounds as a word in memory that threads poll: a FabricWord.")
      .def(
          "flag", &flag_of, nb::kw_only(), nb::arg("device") = nb::none(), nb::arg("memory") = nb::none(),
          nb::sig("def flag(self, *, device: int | None = None, memory: object = None) -> FabricFlag"),
          "A word that grows with the rounds, for kernels and streams of GPUs: a FabricFlag.\n\n"
          "device: the ordinal of a GPU: pinned host memory that all GPUs of the process see; None: host\n"
          "memory for threads.\n"
          "memory: 8 bytes or more of a GPU's memory, aligned to 8 (a tensor by DLPack, a MemoryRange): the\n"
          "flag is in its first 8 bytes.\n"
          "Errors: NotSupported (no GPU driver), InvalidArgument (no such GPU, the expectation was "
          "removed),\n"
          "NotFound (no memory of the GPU there), Exhausted.")
      .def("remove", &PyFabricExpectation::remove,
           "Ends it. Returns the arrivals of the round that is not full. Later arrivals are unexpected "
           "ones.\n\n"
           "Waits end with Canceled, and the callback is not called any more.")
      .def(
          "__await__",
          [](nb::handle self) {
            return nb::module_::import_("headrace._asyncio").attr("round_taken")(self).attr("__await__")();
          },
          nb::sig("def __await__(self) -> collections.abc.Generator[object, None, None]"))
      .def("__repr__",
           [](const PyFabricExpectation& self) -> nb::str {
             if (!self.is_here()) return nb::str("<FabricExpectation: of the parent process>");
             const FabricExpectation& e = self.get();
             return nb::str("FabricExpectation(immediate={}, scope={}, arrivals_each={}, rounds={})")
                 .format(e.immediate().value, e.immediate().scope, e.arrivals_each(),
                         e.rounds().load(std::memory_order_acquire));
           })
      .def("__reduce__",
           refuse_pickle("a FabricExpectation cannot be pickled: expect the immediate in the other process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

}  // namespace

void bind_fabric_work(nb::module_& module) {
  bind_work_handle(module);
  bind_word(module);
  bind_expectation(module);
}

void bind_fabric_expect(nb::class_<PyFabric>& fabric) {
  fabric.def(
      "expect",
      [](const PyFabric& self, nb::handle immediate, nb::handle arrivals, nb::handle scope) {
        const Immediate at{to_u32(immediate, "the immediate"), to_u32(scope, "the scope")};
        const std::uint64_t each = to_u64(arrivals, "the number of arrivals", no_page);
        return std::make_unique<PyFabricExpectation>(
            self.ask([&](headrace::Fabric& f) { return f.expect(at, each); }), self.hooks());
      },
      nb::arg("immediate"), nb::arg("arrivals"), nb::kw_only(), nb::arg("scope") = 0,
      nb::sig("def expect(self, immediate: int, arrivals: int, *, scope: int = 0) -> FabricExpectation"),
      "Counts arrivals of an immediate in rounds of `arrivals`. What came before counts.\n\n"
      "Errors: InvalidArgument (0 arrivals; it is expected already; above 32 bits).");
}

}  // namespace headrace::python
