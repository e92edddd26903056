// SPDX-License-Identifier: Apache-2.0
// Handlers belong to the process, so each case runs in a process of its own: a death test that starts this
// program again.
#include "backends/shm/lanes/fault_guard.hpp"

#include "base/unique_fd.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <thread>

namespace headrace::shm {
namespace {

using testing::ExitedWithCode;
using testing::KilledBySignal;

void must(bool good, const char* sentence) {
  if (good) return;
  std::fprintf(stderr, "not so: %s\n", sentence);
  ::_exit(1);
}

const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));

/// A page that cannot be read.
std::byte* hole() {
  void* const at = ::mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  must(at != MAP_FAILED, "there is a page");
  return static_cast<std::byte*>(at);
}

/// Reads the first byte of `from`.
__attribute__((noinline, no_sanitize("address", "thread"))) void touch(const std::byte* from) {
  (void)*static_cast<const volatile std::byte*>(from);
}

/// A guarded read of one byte, where `watched` is the page that the guard is told.
bool read_guarded(FaultGuard& guard, const std::byte* from, const std::byte* watched) {
  struct Read {
    FaultGuard& guard;
    const std::byte* from;
    const std::byte* watched;
  } read{guard, from, watched};
  return guard.run(
      [](void* argument) {
        const Read& it = *static_cast<Read*>(argument);
        it.guard.watch({it.watched, page});
        touch(it.from);
      },
      &read);
}
bool read_guarded(const std::byte* from) {
  FaultGuard guard;
  return read_guarded(guard, from, from);
}

// ------------------------------------------------------------------ the program's handlers

struct Seen {
  int count = 0;
  int signal = 0;
  int code = 0;
  const void* address = nullptr;
  bool on_other_stack = false;
  bool blocked_usr1 = false;
};
Seen seen;
sigjmp_buf after_fault;
std::array<char, 64 * 1024> other_stack;

void note(int signal) {
  // Under the address sanitizer a local variable may lie elsewhere.
  const auto* const here = static_cast<const char*>(__builtin_frame_address(0));
  sigset_t mask;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  ++seen.count;
  seen.signal = signal;
  seen.on_other_stack = here >= other_stack.data() && here < other_stack.data() + other_stack.size();
  seen.blocked_usr1 = ::sigismember(&mask, SIGUSR1) == 1;
}
void plain_handler(int signal) {
  note(signal);
  if (signal == SIGSEGV) siglongjmp(after_fault, 1);
}
void handler_with_info(int signal, siginfo_t* info, void* /*context*/) {
  note(signal);
  seen.code = info->si_code;
  seen.address = info->si_addr;
  if (info->si_code > 0) siglongjmp(after_fault, 1);
}

void set_handler(int signal, void (*handler)(int), int flags = 0) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  ::sigaction(signal, &action, nullptr);
}
void set_handler(int signal, void (*handler)(int, siginfo_t*, void*), int flags = 0) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | flags;
  ::sigaddset(&action.sa_mask, SIGUSR1);
  ::sigaction(signal, &action, nullptr);
}

/// Whether a read of `from` ends in the program's handler.
bool faults(const std::byte* from) {
  if (sigsetjmp(after_fault, 1) != 0) return true;
  touch(from);
  return false;
}

#define EXPECT_IN_A_PROCESS(body, ending)                   \
  do {                                                      \
    ::testing::FLAGS_gtest_death_test_style = "threadsafe"; \
    EXPECT_EXIT((body(), ::_exit(0)), ending, "");          \
  } while (false)

// ------------------------------------------------------------------ our own faults

void read_what_is_gone() {
  must(FaultGuard::in_place(), "the handlers are installed");
  std::byte* const bad = hole();
  const std::array<std::byte, 8> good{};
  for (int i = 0; i < 3; ++i) {
    FaultGuard guard;
    must(!read_guarded(guard, bad, bad), "a read of a protected page fails");
    must(read_guarded(guard, good.data(), good.data()), "and the guard works on");
    must(!read_guarded(guard, bad, bad), "twice");
  }
  std::thread other([bad] { must(!read_guarded(bad), "in another thread too"); });
  other.join();
  must(::munmap(bad, page) == 0, "the page is unmapped");
  must(!read_guarded(bad), "a read of an unmapped page fails");
}

TEST(FaultGuard, a_read_of_memory_that_is_gone_fails) {
  EXPECT_IN_A_PROCESS(read_what_is_gone, ExitedWithCode(0));
}

void read_behind_a_file() {
  must(FaultGuard::in_place(), "the handlers are installed");
  const UniqueFd file(::memfd_create("short", MFD_CLOEXEC));
  must(::ftruncate(file.get(), static_cast<off_t>(page)) == 0, "the file has a page");
  void* const at = ::mmap(nullptr, page, PROT_READ, MAP_SHARED, file.get(), 0);
  must(at != MAP_FAILED, "which is mapped");
  must(read_guarded(static_cast<std::byte*>(at)), "and can be read");
  must(::ftruncate(file.get(), 0) == 0, "the file is cut");
  must(!read_guarded(static_cast<std::byte*>(at)), "the read fails");
}

TEST(FaultGuard, a_read_behind_the_end_of_a_file_fails) {
  EXPECT_IN_A_PROCESS(read_behind_a_file, ExitedWithCode(0));
}

void read_with_blocked_signals() {
  must(FaultGuard::in_place(), "the handlers are installed");
  sigset_t all, before, after;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  ::pthread_sigmask(SIG_BLOCK, nullptr, &before);
  must(!read_guarded(hole()), "the read fails");
  ::pthread_sigmask(SIG_BLOCK, nullptr, &after);
  for (int signal = 1; signal < 32; ++signal)
    must(::sigismember(&before, signal) == ::sigismember(&after, signal), "the mask is as it was");
}

TEST(FaultGuard, a_thread_that_blocks_all_signals_can_be_guarded_and_keeps_its_mask) {
  EXPECT_IN_A_PROCESS(read_with_blocked_signals, ExitedWithCode(0));
}

// ------------------------------------------------------------------ the program's faults

void program_faults_with_its_handler() {
  stack_t stack{};
  stack.ss_sp = other_stack.data();
  stack.ss_size = other_stack.size();
  must(::sigaltstack(&stack, nullptr) == 0, "there is another stack");
  set_handler(SIGSEGV, handler_with_info, SA_ONSTACK);
  must(FaultGuard::in_place(), "the handlers are installed");
  std::byte* const bad = hole();
  const FaultGuard guard;
  must(faults(bad + 3), "the program's fault comes to its handler");
  must(seen.signal == SIGSEGV && seen.code == SEGV_ACCERR && seen.address == bad + 3, "with its arguments");
  must(seen.on_other_stack && seen.blocked_usr1, "on its stack, with its mask");
  must(!read_guarded(bad) && seen.count == 1, "the guard's fault does not");
  must(faults(bad) && seen.count == 2, "the handler stays");
  must(::raise(SIGSEGV) == 0 && seen.count == 3 && seen.code == SI_TKILL, "a signal that is sent comes too");
}

TEST(FaultGuard, the_handler_that_was_there_gets_the_programs_faults_as_before) {
  EXPECT_IN_A_PROCESS(program_faults_with_its_handler, ExitedWithCode(0));
}

void program_faults_inside_a_body() {
  set_handler(SIGSEGV, handler_with_info);
  must(FaultGuard::in_place(), "the handlers are installed");
  std::byte* const bad = hole();
  std::byte* const watched = hole();
  FaultGuard guard;
  if (sigsetjmp(after_fault, 1) == 0) {
    (void)read_guarded(guard, bad, watched);
    must(false, "a fault beside the watched bytes leaves the body");
  }
  must(seen.count == 1 && seen.address == bad, "it comes to the program's handler");
}

TEST(FaultGuard, a_fault_of_the_body_beside_the_watched_bytes_is_the_programs) {
  EXPECT_IN_A_PROCESS(program_faults_inside_a_body, ExitedWithCode(0));
}

void other_thread_faults_at_watched_bytes() {
  set_handler(SIGSEGV, handler_with_info);
  must(FaultGuard::in_place(), "the handlers are installed");
  struct Both {
    std::byte* bad = hole();
    FaultGuard guard;
  } both;
  const bool whole = both.guard.run(
      [](void* argument) {
        Both& it = *static_cast<Both*>(argument);
        it.guard.watch({it.bad, page});
        std::thread other([&] { must(faults(it.bad), "it comes to the program's handler"); });
        other.join();
      },
      &both);
  must(whole && seen.count == 1 && seen.address == both.bad, "the guarded thread goes on");
}

TEST(FaultGuard, a_fault_of_another_thread_at_the_watched_bytes_is_the_programs) {
  EXPECT_IN_A_PROCESS(other_thread_faults_at_watched_bytes, ExitedWithCode(0));
}

void program_has_a_plain_handler() {
  set_handler(SIGSEGV, plain_handler);
  set_handler(SIGBUS, plain_handler);
  must(FaultGuard::in_place(), "the handlers are installed");
  must(faults(hole()) && seen.signal == SIGSEGV, "SIGSEGV comes");
  must(::raise(SIGBUS) == 0 && seen.signal == SIGBUS && seen.count == 2, "SIGBUS comes");
}

TEST(FaultGuard, a_handler_without_arguments_is_called_as_before) {
  EXPECT_IN_A_PROCESS(program_has_a_plain_handler, ExitedWithCode(0));
}

void program_has_a_handler_for_one_fault() {
  set_handler(SIGSEGV, handler_with_info, static_cast<int>(SA_RESETHAND));
  must(FaultGuard::in_place(), "the handlers are installed");
  std::byte* const bad = hole();
  must(!read_guarded(bad), "the guard's fault does not use it up");
  must(faults(bad) && seen.count == 1, "the first fault comes to it");
  touch(bad);
}

TEST(FaultGuard, a_handler_for_one_fault_gets_one) {
  EXPECT_IN_A_PROCESS(program_has_a_handler_for_one_fault, KilledBySignal(SIGSEGV));
}

// ------------------------------------------------------------------ no handler

void program_faults_without_handler() {
  ::signal(SIGSEGV, SIG_DFL);
  must(FaultGuard::in_place(), "the handlers are installed");
  must(!read_guarded(hole()), "the guard's fault ends nothing");
  touch(hole());
}
void program_is_sent_a_fault() {
  ::signal(SIGBUS, SIG_DFL);
  must(FaultGuard::in_place(), "the handlers are installed");
  ::raise(SIGBUS);
}
void program_faults_and_ignores_it() {
  ::signal(SIGSEGV, SIG_IGN);
  must(FaultGuard::in_place(), "the handlers are installed");
  touch(hole());
}
void program_ignores_what_is_sent() {
  ::signal(SIGSEGV, SIG_IGN);
  must(FaultGuard::in_place(), "the handlers are installed");
  ::raise(SIGSEGV);
  must(FaultGuard::in_place(), "they stay");
}

TEST(FaultGuard, a_program_without_handler_ends_as_before) {
  EXPECT_IN_A_PROCESS(program_faults_without_handler, KilledBySignal(SIGSEGV));
  EXPECT_IN_A_PROCESS(program_is_sent_a_fault, KilledBySignal(SIGBUS));
  EXPECT_IN_A_PROCESS(program_faults_and_ignores_it, KilledBySignal(SIGSEGV));
  EXPECT_IN_A_PROCESS(program_ignores_what_is_sent, ExitedWithCode(0));
}

// ------------------------------------------------------------------ handlers that come later

void program_installs_a_handler_later() {
  must(FaultGuard::in_place(), "the handlers are installed");
  struct sigaction ours {};
  ::sigaction(SIGBUS, nullptr, &ours);
  set_handler(SIGBUS, plain_handler);
  must(!FaultGuard::in_place(), "a later handler takes their place");
  must(::raise(SIGBUS) == 0 && seen.count == 1, "and is called");
  ::sigaction(SIGBUS, &ours, nullptr);
  must(FaultGuard::in_place(), "the program can put ours back");
}

TEST(FaultGuard, a_handler_that_is_installed_later_is_left_alone) {
  EXPECT_IN_A_PROCESS(program_installs_a_handler_later, ExitedWithCode(0));
}

}  // namespace
}  // namespace headrace::shm
