// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/interpreter.hpp"

#include "bindings/python/agent_handle.hpp"
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
  std::atomic<int> returning{0};   ///< threads between our code and Python's, which want the GIL
  std::thread::id last_thread;     ///< the one that ends the interpreter; written before `going`
  std::atomic<unsigned> forks{0};  ///< between the process that imported us and this one
};

/// Never destroyed: an agent's thread may outlive main.
Shared& shared() {
  static Shared& the = *new Shared;
  return the;
}

void count_fork() { shared().forks.fetch_add(1, std::memory_order_relaxed); }

int sweep(void*) {
  free_laid_aside();
  return 0;
}

/// Before 3.14 Python ends a thread that wants the GIL of a going interpreter by unwinding its stack, which
/// ends the process when it meets C++. Such a thread is a daemon: nobody waits for it, so it may as well
/// stand still.
[[noreturn]] void stand_still() {
  for (;;) ::pause();
}

void take_gil_back(PyThreadState* thread) {
  Shared& s = shared();
  // Counted first, then looked: the end sets `going` and then waits for those who were counted.
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
    close_all_agents();
    stop_log_relay();
  }
  shared().last_thread = std::this_thread::get_id();
  shared().going.store(true);
  if (forked_since_import()) return;  // the threads that the count speaks of are the parent's
  const WithoutGil scope;
  // Who got in before `going` is through soon, but for a callback that is somebody's endless loop: do not
  // hang for that.
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
    s.sweep_planned.store(false);  // its list is full: the next call frees it
}

void free_laid_aside() noexcept {
  Shared& s = shared();
  if (s.laid_aside.load(std::memory_order_relaxed) == nullptr) return;
  s.sweep_planned.store(false);
  const nb::error_scope keep_error;  // what is freed may run Python code
  Held* held = s.laid_aside.exchange(nullptr, std::memory_order_acquire);
  while (held != nullptr) delete std::exchange(held, held->next_);
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
  // Counted at the fork, since asking the system each time costs a small request a tenth of its time.
  if (::pthread_atfork(nullptr, nullptr, &count_fork) != 0) throw std::bad_alloc();
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&end_with_interpreter));
}

HomeProcess::HomeProcess() noexcept : forks_(shared().forks.load(std::memory_order_relaxed)) {}
bool HomeProcess::is_here() const noexcept {
  return shared().forks.load(std::memory_order_relaxed) == forks_;
}

bool forked_since_import() noexcept { return shared().forks.load(std::memory_order_relaxed) != 0; }

}  // namespace headrace::python
