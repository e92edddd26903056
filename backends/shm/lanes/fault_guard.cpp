// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/lanes/fault_guard.hpp"

#include <pthread.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csetjmp>
#include <cstdint>

namespace headrace::shm {

/// What the handler knows of one guarded thread. The handler finds it by the thread's number: variables of a
/// thread may have to be allocated at their first use. Slots are reused and never freed, so that a handler
/// can walk their list at any time.
struct FaultGuard::Slot {
  std::atomic<bool> taken{true};
  std::atomic<pid_t> thread{0};  ///< while it runs a body
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};
  sigjmp_buf resume{};
  Slot* next = nullptr;

  static inline std::atomic<Slot*> first{nullptr};
};

namespace {

pid_t this_thread() noexcept { return static_cast<pid_t>(::syscall(SYS_gettid)); }

/// Sent by a process, or told by the system of memory that no thread has touched: returning from a handler
/// does not repeat it.
bool is_sent(int signal, const siginfo_t& info) noexcept {
  return info.si_code <= 0 || (signal == SIGBUS && info.si_code == BUS_MCEERR_AO);
}

void set_default(int signal) noexcept {
  struct sigaction none {};
  none.sa_handler = SIG_DFL;
  ::sigaction(signal, &none, nullptr);
}

/// A signal that we handle before the handler that the program had, if it had one.
class Chained {
 public:
  using Handler = void (*)(int, siginfo_t*, void*);

  explicit Chained(int signal) : signal_(signal) {}

  /// With the mask, the stack and the flags of the handler before it, so that this one is called as it was.
  bool install(Handler handler) {
    if (::sigaction(signal_, nullptr, &before_) != 0) return false;
    struct sigaction ours = before_;
    ours.sa_sigaction = handler;
    ours.sa_flags = (ours.sa_flags & ~SA_RESETHAND) | SA_SIGINFO;
    return ::sigaction(signal_, &ours, nullptr) == 0;
  }
  [[nodiscard]] bool is_installed(Handler handler) const {
    struct sigaction now {};
    return ::sigaction(signal_, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
           now.sa_sigaction == handler;
  }

  void pass_on(siginfo_t* info, void* context) const noexcept {
    if (before_.sa_handler == SIG_DFL || before_.sa_handler == SIG_IGN) return without_handler(info);
    if ((before_.sa_flags & SA_RESETHAND) != 0) set_default(signal_);
    if ((before_.sa_flags & SA_SIGINFO) != 0)
      before_.sa_sigaction(signal_, info, context);
    else
      before_.sa_handler(signal_);
  }

 private:
  /// A fault happens again when we return, and then has the system's effect, ignored or not.
  void without_handler(siginfo_t* info) const noexcept {
    const bool sent = is_sent(signal_, *info);
    if (sent && before_.sa_handler == SIG_IGN) return;
    set_default(signal_);
    if (sent) ::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), this_thread(), signal_, info);
  }

  const int signal_;
  struct sigaction before_ {};  // constant from the moment in which our handler is installed
};

// Handlers belong to the process, not to an instance: hence the statics.
std::array<Chained, 2> chained{Chained(SIGSEGV), Chained(SIGBUS)};

}  // namespace

bool FaultGuard::in_place() {
  static const bool installed = chained[0].install(on_fault) && chained[1].install(on_fault);
  return installed && chained[0].is_installed(on_fault) && chained[1].is_installed(on_fault);
}

void FaultGuard::on_fault(int signal, siginfo_t* info, void* context) {
  Slot* const slot = is_sent(signal, *info) ? nullptr : slot_of(*info);
  if (slot == nullptr) return chained[signal == SIGBUS ? 1 : 0].pass_on(info, context);
  // The jump leaves the handler without sigreturn, which would restore the mask.
  ::pthread_sigmask(SIG_SETMASK, &static_cast<ucontext_t*>(context)->uc_sigmask, nullptr);
  siglongjmp(slot->resume, 1);
}

/// The system ends a process in which a fault meets a blocked signal, so this thread must not block them.
FaultGuard::FaultGuard() : slot_(take_slot()), thread_(this_thread()) {
  sigset_t faults;
  ::sigemptyset(&faults);
  ::sigaddset(&faults, SIGSEGV);
  ::sigaddset(&faults, SIGBUS);
  ::pthread_sigmask(SIG_UNBLOCK, &faults, &mask_before_);
  watch({});
}

FaultGuard::~FaultGuard() {
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  slot_->taken.store(false, std::memory_order_release);
}

FaultGuard::Slot* FaultGuard::take_slot() {
  for (Slot* slot = Slot::first.load(std::memory_order_acquire); slot != nullptr; slot = slot->next)
    if (!slot->taken.exchange(true, std::memory_order_acq_rel)) return slot;
  Slot* const made = new Slot;
  made->next = Slot::first.load(std::memory_order_relaxed);
  while (!Slot::first.compare_exchange_weak(made->next, made, std::memory_order_release)) {
  }
  return made;
}

FaultGuard::Slot* FaultGuard::slot_of(const siginfo_t& fault) noexcept {
  const pid_t thread = this_thread();
  const auto address = reinterpret_cast<std::uintptr_t>(fault.si_addr);
  for (Slot* slot = Slot::first.load(std::memory_order_acquire); slot != nullptr; slot = slot->next) {
    if (slot->thread.load(std::memory_order_relaxed) != thread) continue;
    const bool watched = address >= slot->begin.load(std::memory_order_relaxed) &&
                         address < slot->end.load(std::memory_order_relaxed);
    return watched ? slot : nullptr;
  }
  return nullptr;
}

bool FaultGuard::run(void (*body)(void*), void* argument) noexcept {
  if (sigsetjmp(slot_->resume, 0) != 0) {  // without the mask: a system call less
    slot_->thread.store(0, std::memory_order_relaxed);
    return false;
  }
  slot_->thread.store(thread_, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  body(argument);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  slot_->thread.store(0, std::memory_order_relaxed);
  return true;
}

void FaultGuard::watch(std::span<const std::byte> source) noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(source.data());
  slot_->begin.store(begin, std::memory_order_relaxed);
  slot_->end.store(begin + source.size(), std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace headrace::shm
