// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/interpreter.hpp"

#include "bindings/python/agent_handle.hpp"
#include "bindings/python/comm_handle.hpp"
#include "bindings/python/fabric_handle.hpp"
#include "bindings/python/log_relay.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>

namespace headrace::python {
namespace {

using namespace std::chrono_literals;

struct Shared {
  std::atomic<Held*> laid_aside{nullptr};
  std::atomic<bool> sweep_planned{false};
  std::atomic<bool> going{false};
  std::atomic<int> callbacks{0};
  std::atomic<int> returning{0};   ///< threads that return from C++ to Python and need the GIL
  std::thread::id last_thread;     ///< the thread that ends the interpreter; written before `going`
  std::atomic<unsigned> forks{0};  ///< forks between the process that imported the module and this one
};

/// Never destroyed: an agent's thread may outlive main.
Shared& shared() {
  static Shared& the = *new Shared;
  return the;
}

void count_fork() { shared().forks.fetch_add(1, std::memory_order_relaxed); }

int sweep(void*) {
  // First: what is laid aside from here on plans the next one. Another thread may have freed all there was.
  shared().sweep_planned.exchange(false);
  free_laid_aside();
  return 0;
}

/// When the interpreter has ended, Python before 3.14 ends a thread that takes the GIL by unwinding its
/// stack; in C++ frames this ends the process. Such a thread is a daemon thread: no thread joins it, so it
/// may block for ever.
[[noreturn]] void stand_still() {
  for (;;) ::pause();
}

void take_gil_back(PyThreadState* thread) {
  Shared& s = shared();
  // Count first, then read `going`: end_with_interpreter() sets `going` first, then waits for the counted
  // threads.
  s.returning.fetch_add(1);
  if (s.going.load() && std::this_thread::get_id() != s.last_thread) {
    s.returning.fetch_sub(1);
    stand_still();
  }
  PyEval_RestoreThread(thread);
  s.returning.fetch_sub(1);
}

void end_with_interpreter() {
  if (!forked_since_import()) {
    close_all_comms();
    close_all_fabrics();
    close_all_agents();
    stop_log_relay();
  }
  shared().last_thread = std::this_thread::get_id();
  shared().going.store(true);
  if (forked_since_import()) return;  // the counted threads are the parent's
  const WithoutGil scope;
  // Threads that were counted before `going` finish soon. A callback may be an endless loop: wait 2 s at
  // most.
  const auto give_up = std::chrono::steady_clock::now() + 2s;
  const auto waiting = [] { return shared().callbacks.load() > 0 || shared().returning.load() > 0; };
  while (waiting() && std::chrono::steady_clock::now() < give_up) std::this_thread::sleep_for(100us);
}

}  // namespace

void lay_aside(Held* held) noexcept {
  if (held == nullptr) return;
  Shared& s = shared();
  Held* first = s.laid_aside.load(std::memory_order_relaxed);
  do {
    held->next_ = first;
  } while (
      !s.laid_aside.compare_exchange_weak(first, held, std::memory_order_release, std::memory_order_relaxed));
  if (s.going.load() || s.sweep_planned.exchange(true)) return;
  if (Py_AddPendingCall(sweep, nullptr) != 0)
    s.sweep_planned.store(false);  // Python's list is full: the next call frees the object
}

void free_laid_aside() noexcept {
  Shared& s = shared();
  if (s.laid_aside.load(std::memory_order_relaxed) == nullptr) return;
  const nb::error_scope keep_error;  // destructors may run Python code
  Held* held = s.laid_aside.exchange(nullptr, std::memory_order_acquire);
  while (held != nullptr) delete std::exchange(held, held->next_);
}

void let_go(std::shared_ptr<const void>& held) {
  const nb::error_scope keep_error;  // destructors may run Python code
  if (held.use_count() == 1)
    if (auto* const deleter = std::get_deleter<HeldDeleter>(held)) deleter->now = true;
  held.reset();
}

WithoutGil::~WithoutGil() {
  take_gil_back(thread_);
  free_laid_aside();
}

CallbackScope::CallbackScope() {
  Shared& s = shared();
  s.callbacks.fetch_add(1);
  if (s.going.load()) {
    s.callbacks.fetch_sub(1);
    return;
  }
  gil_ = PyGILState_Ensure();
  entered_ = true;
}

CallbackScope::~CallbackScope() {
  if (!entered_) return;
  free_laid_aside();
  PyGILState_Release(gil_);
  shared().callbacks.fetch_sub(1);
}

void prepare_for_exit() {
  (void)shared();
  // Counted at the fork: a system call for each check would take a tenth of the time of a small request.
  if (::pthread_atfork(nullptr, nullptr, &count_fork) != 0) throw std::bad_alloc();
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&end_with_interpreter));
}

HomeProcess::HomeProcess() noexcept : forks_(shared().forks.load(std::memory_order_relaxed)) {}
bool HomeProcess::is_here() const noexcept {
  return shared().forks.load(std::memory_order_relaxed) == forks_;
}

bool forked_since_import() noexcept { return shared().forks.load(std::memory_order_relaxed) != 0; }

}  // namespace headrace::python
