// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/stop_signals.hpp"

#include "cli/common/errors.hpp"

#include <signal.h>
#include <sys/eventfd.h>

namespace headrace::cli::demo {
namespace {

constexpr int handled[] = {SIGINT, SIGTERM, SIGHUP};
volatile sig_atomic_t event_told = -1;
volatile sig_atomic_t number_seen = 0;

void note(int number) {
  const int saved = errno;
  number_seen = number;
  const std::uint64_t one = 1;
  (void)!::write(event_told, &one, sizeof one);
  errno = saved;
}

/// nohup ignores SIGHUP: a closed terminal must not end the process then.
bool is_ignored(int number) {
  struct sigaction now {};
  return ::sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace

Result<StopSignals> StopSignals::open() {
  FileDescriptor event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return fail(Code::exhausted, "make an eventfd: {}", system_text());
  event_told = event.get();
  number_seen = 0;
  struct sigaction action {};
  action.sa_handler = note;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int number : handled)
    if (number != SIGHUP || !is_ignored(number)) ::sigaction(number, &action, nullptr);
  return StopSignals(std::move(event));
}

StopSignals::~StopSignals() {
  if (!event_) return;
  for (const int number : handled)
    if (!is_ignored(number)) ::signal(number, SIG_DFL);
}

int StopSignals::number() { return number_seen; }

void StopSignals::pass_on() {
  if (number_seen == 0) return;
  ::signal(number_seen, SIG_DFL);
  ::raise(number_seen);
}

}  // namespace headrace::cli::demo
