// SPDX-License-Identifier: Apache-2.0
// Copies out of memory that the program may have unmapped: a fault ends the copy, and not the process.
//
// A copy by the kernel reports such memory without a signal, but takes much of a lane's speed
// (bench/notes/shm.md). So a process that serves a lane for the first time installs handlers of SIGSEGV and
// SIGBUS. A handler acts only if a guarded thread faults at an address that this thread copies from. Any
// other signal goes to the handler that was there before, with its own mask, stack and arguments, or has the
// system's default effect.
//
// Handlers that the program installs later replace ours. Then in_place() is false, and no lane is served:
// ours are never installed again, because the program's handlers may call them. Plugins are never unloaded
// (PluginHost), so the handlers stay valid.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstddef>
#include <span>

namespace headrace::shm {

/// Guards the thread that makes it, for one turn at a lane.
class FaultGuard {
 public:
  FaultGuard();
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

  /// Whether faults come to our handlers; the first call installs them.
  ///   threads  any
  [[nodiscard]] static bool in_place();

  /// Calls body(argument). False: a read of the watched bytes faulted, which ended `body` at this point,
  /// without the destructors of its frames.
  [[nodiscard]] bool run(void (*body)(void*), void* argument) noexcept;
  /// For `body`: the bytes that it reads next.
  void watch(std::span<const std::byte> source) noexcept;

 private:
  struct Slot;

  [[nodiscard]] static Slot* take_slot();
  [[nodiscard]] static Slot* slot_of(const siginfo_t& fault) noexcept;
  static void on_fault(int signal, siginfo_t* info, void* context);

  Slot* const slot_;
  const pid_t thread_;
  sigset_t mask_before_{};
};

}  // namespace headrace::shm
