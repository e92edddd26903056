// SPDX-License-Identifier: Apache-2.0
// Starts the library's threads. They take no signal of the program: signals are for the program's own
// threads.
#pragma once

#include "base/errors.hpp"

#include <headrace/result.hpp>

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <thread>
#include <utility>

namespace headrace {

/// While it lives this thread takes no signal, and neither do threads that it starts, from then on.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

/// A thread with this name, of at most 15 bytes, that runs `body`.
///   Thread  std::thread or std::jthread, whose body may take a std::stop_token
///   errors  exhausted (the system makes no more threads)
template <class Thread = std::thread, class Body>
[[nodiscard]] Result<Thread> start_thread(const char* name, Body body) {
  const SignalsBlocked blocked;
  try {
    Thread thread(std::move(body));
    ::pthread_setname_np(thread.native_handle(), name);  // without a name it works too
    return thread;
  } catch (const std::system_error& refused) {
    return os_error(Code::exhausted, refused.code().value(), "start thread {}", name);
  }
}

}  // namespace headrace
