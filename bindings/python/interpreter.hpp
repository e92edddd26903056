// SPDX-License-Identifier: Apache-2.0
// Where Headrace's threads and Python's lock meet.
//
// Two rules keep them from waiting for each other. A thread that waits or copies does so without the GIL
// (`without_gil`). And a thread of Headrace's never takes the GIL to let go of a Python object, since it may
// hold a lock that somebody wants who holds the GIL: it lays the object aside (`Held`), and the next thread
// that has the GIL anyway frees it. The only threads of ours that take the GIL are those that run a callback,
// and they hold no lock.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

namespace nb = nanobind;

namespace headrace::python {

/// Something of Python's that C++ holds. Made with the GIL, shared without it, destroyed with it.
class Held {
 public:
  Held() = default;
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  virtual ~Held() = default;

 private:
  friend void lay_aside(Held*) noexcept;
  friend void free_laid_aside() noexcept;
  Held* next_ = nullptr;
};

/// Frees it soon on a thread that has the GIL. From any thread, never blocks.
void lay_aside(Held* held) noexcept;
/// Frees what was laid aside. With the GIL.
void free_laid_aside() noexcept;

template <class T, class... Arguments>
std::shared_ptr<T> hold(Arguments&&... arguments) {
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...), [](T* held) { lay_aside(held); });
}

/// A Python function that Headrace calls on a thread of its own. Its owner in Python shows it to the garbage
/// collector; who holds it besides is a copy of the owner's function in C++, and calls that are about to be
/// made.
class Callable final : public Held {
 public:
  explicit Callable(nb::object function) : object(std::move(function)) {}

  /// Whether a call is about to be made: then the collector must not take it apart.
  static bool is_pending(const std::shared_ptr<Callable>& callable) { return callable.use_count() > 2; }

  nb::object object;
  bool dropped = false;  ///< no call begins any more; read and written with the GIL
};

/// Gives the GIL away for as long as it lives. At the end it frees what was laid aside meanwhile.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* thread_;
};

/// What `call` returns, worked out without the GIL.
template <class Call>
auto without_gil(Call&& call) {
  const WithoutGil scope;
  return std::forward<Call>(call)();
}

/// Takes the GIL for one callback. False once the interpreter is going: the callback is dropped.
class CallbackScope {
 public:
  CallbackScope();
  ~CallbackScope();
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;
  explicit operator bool() const { return entered_; }

 private:
  bool entered_ = false;
  PyGILState_STATE gil_{};
};

/// Calls the Python function with the tuple that `arguments` makes. An exception goes to sys.unraisablehook.
template <class MakeArguments>
void call_back(const Callable& callable, MakeArguments&& arguments) {
  const CallbackScope scope;
  if (!scope || callable.dropped) return;
  try {
    const nb::object tuple = arguments();
    const nb::object result = nb::steal(PyObject_CallObject(callable.object.ptr(), tuple.ptr()));
    if (!result.is_valid()) throw nb::python_error();
  } catch (nb::python_error& error) {
    error.discard_as_unraisable(callable.object);
  }
}

/// Registers what happens when the process forks, and when the interpreter goes: agents are closed, log lines
/// delivered, later callbacks dropped.
void prepare_for_exit();

/// True in a process that was forked from the one that imported us.
bool forked_since_import() noexcept;

/// Which process made something. A forked child has the memory of its parent's agents, but none of their
/// threads, and whatever it would end there it would end in memory that it shares with the parent and with
/// peers.
class HomeProcess {
 public:
  HomeProcess() noexcept;
  [[nodiscard]] bool is_here() const noexcept;
  /// Lets go of it at home; in a child leaves it as it is.
  template <class T>
  void release(std::shared_ptr<T>& owned) const {
    if (!is_here()) (void)new std::shared_ptr<T>(owned);
    owned.reset();
  }

 private:
  unsigned forks_;  ///< that had been when it was made
};

}  // namespace headrace::python
