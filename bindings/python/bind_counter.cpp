// SPDX-License-Identifier: Apache-2.0
// <headrace/counter.hpp>, and the section "counters" of <headrace/agent.hpp>.
#include <headrace/counter.hpp>

#include "bindings/python/array_interface.hpp"
#include "bindings/python/bind_agent.hpp"
#include "bindings/python/refuse_pickle.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>

namespace headrace::python {
namespace {

class PyCounter {
 public:
  explicit PyCounter(headrace::Counter counter)
      : counter_(std::make_shared<headrace::Counter>(std::move(counter))) {}
  ~PyCounter() {
    without_gil([this] {
      home_.release(counter_);  // it may be the last that keeps a closed agent's threads
      return true;
    });
  }
  PyCounter(const PyCounter&) = delete;
  PyCounter& operator=(const PyCounter&) = delete;

  [[nodiscard]] const headrace::Counter& counter() const { return *counter_; }

  void wait(std::uint64_t at_least, const Timeout& timeout) const {
    const auto wait = [&](std::chrono::nanoseconds time) {
      return without_gil([&] { return counter_->wait(at_least, time); });
    };
    const Status status =
        wait_in_slices(timeout, wait, [](Status got) { return got.code == Code::timed_out; });
    if (!status.ok()) raise(Error{status.code, why(status.code, at_least)});
  }

 private:
  [[nodiscard]] std::string why(Code code, std::uint64_t at_least) const {
    const std::string which = "the counter of immediate " + std::to_string(counter_->immediate().value) +
                              " in scope " + std::to_string(counter_->immediate().scope);
    if (code == Code::timed_out)
      return which + " is at " + std::to_string(counter_->value()) + " of " + std::to_string(at_least) +
             ": wait again, or check that the peers are alive";
    if (code == Code::canceled) return which + ": the agent was closed";
    return which + " belongs to the parent process: open an agent in this process, after the fork";
  }

  HomeProcess home_;
  std::shared_ptr<headrace::Counter> counter_;
};

class PyCounterWord {
 public:
  explicit PyCounterWord(CounterWord word) : word(std::make_shared<CounterWord>(std::move(word))) {}
  ~PyCounterWord() {
    without_gil([this] {
      home_.release(word);  // the end of GPU memory waits for the GPU
      return true;
    });
  }
  PyCounterWord(const PyCounterWord&) = delete;
  PyCounterWord& operator=(const PyCounterWord&) = delete;

  std::shared_ptr<CounterWord> word;

 private:
  HomeProcess home_;
};

constexpr const char* word_type = "<i8";  // torch has few operations for unsigned numbers of 64 bits

void bind_counter_word(nb::module_& module) {
  nb::class_<PyCounterWord>(
      module, "CounterWord",
      "A counter as 8 bytes of memory that grow while the agent is open, for readers that poll: from\n"
      "Counter.word. torch.as_tensor(word, device=...) and numpy.asarray(word) view it as one int64.\n"
      "A kernel reads it through a volatile pointer, then calls __threadfence_system(); after that it\n"
      "sees the bytes of the posts that are counted. Do not write to it.\n"
      "Owns: the memory stays while this object or a view of it lives; let kernels that read it end\n"
      "first.")
      .def_prop_ro(
          "address", [](const PyCounterWord& self) { return self.word->address(); },
          "The address, in this process or in the GPU's memory.")
      .def_prop_ro(
          "device", [](const PyCounterWord& self) { return self.word->device().value_or(-1); },
          "The ordinal of the GPU; -1: host memory.")
      .def_prop_ro(
          "__array_interface__",
          [](const PyCounterWord& self) {
            if (self.word->device()) throw nb::attribute_error("the word is in GPU memory: use a tensor");
            return array_interface(self.word->address(), 1, word_type, true);
          },
          nb::sig("def __array_interface__(self) -> dict[str, typing.Any]"),
          "For NumPy. Errors: AttributeError (the word is in GPU memory).")
      .def_prop_ro(
          "__cuda_array_interface__",
          [](const PyCounterWord& self) {
            if (!self.word->device()) throw nb::attribute_error("the word is in host memory: use NumPy");
            // torch refuses memory that says that it is read-only.
            return cuda_array_interface(self.word->address(), 1, word_type, false);
          },
          nb::sig("def __cuda_array_interface__(self) -> dict[str, typing.Any]"),
          "For torch, Numba and CuPy. Errors: AttributeError (the word is in host memory).")
      .def("__reduce__",
           refuse_pickle("a CounterWord cannot be pickled: open a counter in the other process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

}  // namespace

void bind_counter(nb::module_& module) {
  bind_counter_word(module);
  nb::class_<PyCounter>(
      module, "Counter",
      "The number of posts with one immediate that have arrived, from Agent.counter.\n\n"
      "It counts the posts of peers, and of the agent to itself, whose bytes can be read. It\n"
      "only grows. Posts that arrived before the counter was opened are in it.\n"
      "Threads: any.")
      .def_prop_ro(
          "immediate", [](const PyCounter& self) { return self.counter().immediate().value; },
          "The immediate that is counted.")
      .def_prop_ro(
          "scope", [](const PyCounter& self) { return self.counter().immediate().scope; },
          "The scope of the immediate.")
      .def_prop_ro(
          "value", [](const PyCounter& self) { return self.counter().value(); },
          "The count now: the bytes of these posts can be read.")
      .def(
          "wait",
          [](const PyCounter& self, std::uint64_t at_least, const Seconds& timeout) {
            self.wait(at_least, to_timeout(timeout));
          },
          nb::arg("at_least"), nb::arg("timeout") = nb::none(),
          "Waits until the count is at least that.\n\n"
          "timeout: seconds; None: no limit.\n"
          "Errors: TimedOut, Canceled (the agent was closed).")
      .def(
          "reached",
          [](nb::handle self, std::uint64_t at_least) {
            return nb::module_::import_("headrace._asyncio").attr("reached")(self, at_least);
          },
          nb::arg("at_least"),
          nb::sig("def reached(self, at_least: int) -> collections.abc.Coroutine[object, None, None]"),
          "`await counter.reached(n)` waits in the running asyncio loop until the count is at least n.\n\n"
          "Errors: Canceled (the agent was closed).")
      .def(
          "event_fd",
          [](const PyCounter& self, std::uint64_t at_least) {
            return take(self.counter().event_fd(at_least));
          },
          nb::arg("at_least"),
          "A new descriptor that becomes readable once the count is at least that, or the agent is "
          "closed.\n\n"
          "Owns: the caller closes it, and does not read from it.")
      .def(
          "word",
          [](const PyCounter& self, const std::optional<int>& device) {
            return std::make_unique<PyCounterWord>(
                take(without_gil([&] { return self.counter().word(device); })));
          },
          nb::arg("device") = nb::none(),
          "The count as a word in memory that threads or kernels poll: a CounterWord.\n\n"
          "device: the ordinal of a GPU; None: host memory.\n"
          "Errors: NotSupported (no GPU driver), InvalidArgument (no such GPU, the agent is closed),\n"
          "Exhausted.")
      .def("__repr__",
           [](const PyCounter& self) {
             return nb::str("Counter(immediate={}, scope={}, value={})")
                 .format(self.counter().immediate().value, self.counter().immediate().scope,
                         self.counter().value());
           })
      .def("__reduce__", refuse_pickle("a Counter cannot be pickled: open one in the other process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

void bind_agent_counters(nb::class_<PyAgent>& agent) {
  agent.def(
      "counter",
      [](PyAgent& self, std::uint32_t immediate, std::uint32_t scope) {
        return std::make_unique<PyCounter>(self.ask([&](headrace::Agent& a) {
          return a.counter({immediate, scope});
        }));
      },
      nb::arg("immediate"), nb::arg("scope") = 0,
      "The counter of the posts that arrive here with this immediate.\n\n"
      "immediate, scope: as the peers give them to post, read and write.");
}

}  // namespace headrace::python
