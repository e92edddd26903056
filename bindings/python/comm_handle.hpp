// SPDX-License-Identifier: Apache-2.0
// Communicators and works for Python.
#pragma once

#include <headrace/comm.hpp>

#include "bindings/python/comm_hooks.hpp"
#include "bindings/python/convert.hpp"
#include "bindings/python/tensor_input.hpp"

#include <memory>
#include <utility>
#include <vector>

namespace headrace::python {

/// A communicator, kept by its Python object and by the works of its operations. The last of them closes it,
/// without the GIL.
class CommHome {
 public:
  /// Needs the GIL, as the end of the last reference does.
  static std::shared_ptr<CommHome> make(headrace::Comm comm);
  [[nodiscard]] headrace::Comm& comm() { return *comm_; }
  /// Raises if the communicator belongs to the parent of this process.
  void check_home() const;

 private:
  explicit CommHome(headrace::Comm comm) : comm_(std::make_shared<headrace::Comm>(std::move(comm))) {}
  static void end(CommHome* home);

  HomeProcess home_;
  std::shared_ptr<headrace::Comm> comm_;
};

class PyWork {
 public:
  /// An operation that is done.
  PyWork() = default;
  /// `stream`: of the call.
  PyWork(std::shared_ptr<CommHome> home, headrace::Work work, void* stream)
      : home_(std::move(home)), work_(std::move(work)), stream_(stream) {}

  /// Raises if the communicator belongs to the parent of this process.
  const headrace::Work& work() const;
  [[nodiscard]] bool completed() const;
  /// On a GPU without a limit the stream of the call waits, else this thread.
  void wait(const Timeout& timeout) const;
  void wait_blocking(const Timeout& timeout) const;
  void wait_on(void* stream) const;
  /// None, or why the operation failed.
  [[nodiscard]] nb::object exception() const;

 private:
  std::shared_ptr<CommHome> home_;  // the work, which refers to the communicator, goes before it
  headrace::Work work_;
  void* stream_ = nullptr;
};

/// A PyWork, as a Python object.
class WorkObject : public nb::object {
  NB_OBJECT_DEFAULT(WorkObject, nb::object, "Work", is_work)
  static bool is_work(PyObject* object) { return nb::isinstance<PyWork>(object); }
};

class PyComm {
 public:
  explicit PyComm(headrace::Comm comm) : home(CommHome::make(std::move(comm))) {}
  ~PyComm();
  PyComm(const PyComm&) = delete;
  PyComm& operator=(const PyComm&) = delete;

  /// Raises if the communicator belongs to the parent of this process.
  [[nodiscard]] headrace::Comm& comm() const;
  /// Returns call(Comm&), called without the GIL. Raises its error, and the exception of a signal handler.
  template <class Call>
  auto ask(Call&& call) const {
    headrace::Comm& comm = this->comm();
    return take_uninterrupted(without_gil([&] { return call(comm); }));
  }

  const std::shared_ptr<CommHome> home;
  ExchangeCache exchange;
  std::vector<std::shared_ptr<HookFunctions>> hooks;  ///< for the garbage collector
  mutable bool left =
      false;        ///< for a communicator of the ranks that stay: its end is no error. Needs the GIL
  WorkObject done;  ///< the work of operations that are done when their call returns; made once
};

/// Closes the open communicators of this process; called when the interpreter ends.
void close_all_comms();

}  // namespace headrace::python
