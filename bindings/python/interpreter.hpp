// SPDX-License-Identifier: Apache-2.0
// The rules for Headrace's threads and Python's lock (GIL).
//
// Two rules prevent deadlocks. A thread that waits or copies does so without the GIL (`without_gil`). A
// thread of Headrace never takes the GIL to release a Python object, because it may hold a lock that a thread
// with the GIL waits for: it queues the object (`Held`, `lay_aside`), and the next thread that has the GIL
// frees it. The only threads of Headrace that take the GIL are those that run a callback, and they hold no
// lock.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

namespace nb = nanobind;

namespace headrace::python {

/// A Python object that C++ holds. Made and destroyed with the GIL; references may be copied without it.
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

/// Queues the object; a thread that has the GIL frees it soon. May be called on any thread; never blocks.
void lay_aside(Held* held) noexcept;
/// Frees the queued objects. The caller must have the GIL.
void free_laid_aside() noexcept;

/// What becomes of an object that nothing holds any more.
struct HeldDeleter {
  bool now = false;  ///< the thread has the GIL, and holds no lock
  void operator()(Held* held) const noexcept { now ? delete held : lay_aside(held); }
};

template <class T, class... Arguments>
std::shared_ptr<T> hold(Arguments&&... arguments) {
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...), HeldDeleter{});
}

/// Lets go of what `hold` made, with the GIL and no lock: if nothing else holds the object it is freed now.
/// The queue costs as much as the rest of a call that moves little.
void let_go(std::shared_ptr<const void>& held);

/// A Python function that Headrace calls on a thread of its own. Its owner in Python shows it to the garbage
/// collector. The other references are the std::function in C++ and calls that will be made.
class Callable final : public Held {
 public:
  explicit Callable(nb::object function) : object(std::move(function)) {}

  /// Whether a call will be made: the garbage collector must then keep it.
  static bool is_pending(const std::shared_ptr<Callable>& callable) { return callable.use_count() > 2; }

  nb::object object;
  bool dropped = false;  ///< no further call begins. Access needs the GIL
};

/// Releases the GIL while it lives. The destructor takes the GIL and frees the queued objects.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* thread_;
};

/// Returns call(), called without the GIL.
template <class Call>
auto without_gil(Call&& call) {
  const WithoutGil scope;
  return std::forward<Call>(call)();
}

/// Takes the GIL for one callback. False when the interpreter has begun to end: the callback is dropped.
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

/// Registers the work for a fork of the process and for the end of the interpreter: communicators, fabrics
/// and agents are closed, log lines delivered, later callbacks dropped.
void prepare_for_exit();

/// True in a process that was forked from the one that imported the module.
bool forked_since_import() noexcept;

/// The process that made an object. A forked child has the memory of its parent's agents but not their
/// threads. It must not end them, because parts of that memory are shared with the parent and with peers.
class HomeProcess {
 public:
  HomeProcess() noexcept;
  [[nodiscard]] bool is_here() const noexcept;
  /// Releases the object in its own process; a child leaks it.
  template <class T>
  void release(std::shared_ptr<T>& owned) const {
    if (!is_here()) (void)new std::shared_ptr<T>(owned);
    owned.reset();
  }

 private:
  unsigned forks_;  ///< the count of forks when it was made
};

}  // namespace headrace::python
