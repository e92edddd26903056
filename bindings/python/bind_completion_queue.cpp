// SPDX-License-Identifier: Apache-2.0
// <headrace/completion_queue.hpp>
#include <headrace/completion_queue.hpp>

#include "bindings/python/binding.hpp"
#include "bindings/python/comm_handle.hpp"
#include "bindings/python/fabric_handle.hpp"
#include "bindings/python/refuse_pickle.hpp"
#include "bindings/python/request_handle.hpp"

#include <nanobind/stl/vector.h>

namespace headrace::python {
namespace {

/// A forked child shares the eventfd with its parent: it must not drain it.
class PyCompletionQueue {
 public:
  PyCompletionQueue() : queue_(python::take(CompletionQueue::open())) {}

  void add(const PyRequest& request, std::uint64_t number) const {
    check_home();
    request.check_home();
    queue_.add(request.request(), number);
  }
  void add_work(const PyWork& work, std::uint64_t number) const {
    check_home();
    const headrace::Work& added = work.work();
    without_gil([&] {
      added.on_end([queue = queue_, number] { queue.put(number); });
      return true;
    });
  }
  void add_fabric_work(const PyFabricWork& work, std::uint64_t number) const {
    check_home();
    work.on_end([queue = queue_, number] { queue.put(number); });
  }
  [[nodiscard]] std::vector<std::uint64_t> take() const {
    check_home();
    return queue_.take();
  }
  [[nodiscard]] int event_fd() const { return queue_.event_fd(); }

 private:
  void check_home() const {
    if (home_.is_here()) return;
    raise(Error{Code::invalid_argument,
                "the completion queue belongs to the parent process: make one in this process, after the "
                "fork"});
  }

  HomeProcess home_;
  CompletionQueue queue_;
};

}  // namespace

void bind_completion_queue(nb::module_& module) {
  nb::class_<PyCompletionQueue>(
      module, "CompletionQueue",
      "One eventfd for the completions of many requests and works, for event loops.\n\n"
      "`await request` and `await work` use one for each asyncio loop. Requests of several agents, and "
      "works\n"
      "of several communicators and fabrics, may use one queue.\n"
      "Errors: Exhausted (no descriptors).\n"
      "Threads: any.")
      .def(nb::init<>())
      .def("add", &PyCompletionQueue::add, nb::arg("request"), nb::arg("number"),
           "Puts the number into the queue once, at the completion of the post that is in flight.\n\n"
           "If no post is in flight, or if it is refused after all: at once.")
      .def("add", &PyCompletionQueue::add_work, nb::arg("work"), nb::arg("number"),
           "Puts the number into the queue once, when the operation of the work has ended.")
      .def("add", &PyCompletionQueue::add_fabric_work, nb::arg("work"), nb::arg("number"),
           "Puts the number into the queue once, when the post of a fabric has ended.")
      .def("take", &PyCompletionQueue::take,
           "Returns the numbers in the order of their completions, and removes them. Does not wait.")
      .def("fileno", &PyCompletionQueue::event_fd,
           "An eventfd that is readable while the queue has numbers.\n\n"
           "The queue owns it, and take() drains it.")
      .def("__reduce__", refuse_pickle("a CompletionQueue cannot be pickled: make one in the other process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

}  // namespace headrace::python
