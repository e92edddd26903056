// SPDX-License-Identifier: Apache-2.0
// Which thread runs the progress of the backends, and how threads sleep.
//
// Any thread that polls or waits drives all instances itself, one thread at a time per instance. A thread
// that has to sleep becomes the one *driver*: it arms the instances and sleeps in epoll on their descriptors,
// so that a message wakes the very thread that waits for it. Further waiters sleep on a futex and are woken
// at each event. The progress thread is the driver while no other thread waits or polls.
#pragma once

#include "base/clock.hpp"
#include "base/epoll.hpp"
#include "base/event_fd.hpp"
#include "base/unique_fd.hpp"
#include "engine/backend_instance.hpp"
#include "engine/spin_length.hpp"

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace headrace::engine {

/// Functions to be run at a time, by the thread that drives.
class Timers {
 public:
  using Id = std::uint64_t;
  /// Runs `function` once, at `at_ns` or soon after. Returns whether it is now the earliest (then wake the
  /// driver).
  bool add(std::uint64_t at_ns, std::function<void()> function);
  /// Runs those that are due. One that is added meanwhile waits for the next pass, so that a pass ends.
  void run_due(std::uint64_t now_ns);
  [[nodiscard]] std::uint64_t next_ns() const { return next_.load(std::memory_order_acquire); }

 private:
  struct Timer {
    std::uint64_t number = 0;  ///< counts those that were ever added
    std::function<void()> function;
  };
  std::mutex mutex_;
  std::multimap<std::uint64_t, Timer> timers_;
  std::uint64_t added_ = 0;
  std::atomic<std::uint64_t> next_{UINT64_MAX};
};

class Progress {
 public:
  /// Waits, timers and deadlines are by `clock`, which outlives this object. `net`: how long a waiter that
  /// found another thread driving sleeps at most without an event.
  static Result<std::unique_ptr<Progress>> open(const Clock& clock,
                                                std::chrono::nanoseconds net = std::chrono::milliseconds(2));
  ~Progress();

  /// The instance must outlive this object. Calls must not overlap; exhausted after max_backends.
  Result<void> add(BackendInstance& instance);
  [[nodiscard]] Result<void> start();
  void stop();  ///< joins the thread; no waiter may be left
  /// Returns whether no thread is inside `wait` any more, by the deadline. The caller has made true all that
  /// they wait for.
  bool let_waiters_return(Deadline deadline);

  /// One pass over all instances and due timers. Returns how many things happened.
  std::uint32_t poll();
  /// One pass over one instance, which is what a request's poll needs; over all where that was too long ago.
  std::uint32_t poll(BackendInstance& instance);

  /// Drives until `done()` or the deadline; `help()` is tried first each round (it returns whether it did
  /// something). Returns done(). `done` may be called by this thread at any time and must be cheap.
  template <class Done, class Help>
  bool wait(Done&& done, Help&& help, Deadline deadline) {
    if (done()) return true;
    Waiting waiting(*this);
    const std::uint64_t spin_ns = spins_.next();
    std::uint64_t& now =
        waiting.now_ns;  // read once a round: it costs as much as all else in a look at a small request
    // A small request ends before a round has been to the others: so a thread that waits for one after
    // another drives them here.
    if (others_are_due(now)) {
      (void)poll_at(now);
      if (done()) return true;
    }
    std::uint64_t spin_until = now + spin_ns;
    bool spun = false;
    const auto came = [&] {
      if (!done()) return false;
      if (spun) spins_.paid();
      return true;
    };
    for (std::uint32_t helped = 0;;) {
      const bool helps = help();
      if (came()) return true;
      now = clock_.now_ns();
      if (!helps ||
          ++helped % help_between_polls == 0) {  // others' work, timers and deadlines do not wait for ours
        const bool busy = poll_at(now) > 0;
        if (came()) return true;
        if (busy) now = clock_.now_ns(), spin_until = now + spin_ns;
      }
      if (now >= deadline.point_ns()) return false;
      if (helps) {
        spin_until = now + spin_ns;
        continue;
      }
      if (now < spin_until) {
        spun = true;
        continue;
      }
      if (std::exchange(spun, false)) spins_.in_vain();
      sleep([&] { return done(); }, deadline);
      spin_until = now = clock_.now_ns();  // woken for something: one pass, then sleep again
      if (done()) return true;
      if (now >= deadline.point_ns()) return false;
    }
  }
  template <class Done>
  bool wait(Done&& done, Deadline deadline) {
    return wait(
        std::forward<Done>(done), [] { return false; }, deadline);
  }

  /// Something changed that waiters may look for (a request ended, a message came): call after the change.
  void event();
  /// Makes the driver look again: a new timer, work without a descriptor.
  void wake();
  void at(std::uint64_t at_ns, std::function<void()> function);
  /// Runs `work` soon, on a thread that drives, outside every backend's call.
  void defer(std::function<void()> work) { at(clock_.now_ns(), std::move(work)); }
  /// The same `wait` from now on.
  void after(std::chrono::nanoseconds wait, std::function<void()> work) {
    at(Deadline::after(wait, clock_).point_ns(), std::move(work));
  }
  [[nodiscard]] const Clock& clock() const { return clock_; }
  [[nodiscard]] Deadline deadline_in(const std::optional<std::chrono::nanoseconds>& timeout) const {
    return timeout ? Deadline::after(*timeout, clock_) : Deadline::never();
  }

 private:
  Progress(const Clock& clock, Epoll epoll, EventFd bell, UniqueFd timer, std::chrono::nanoseconds net);

  static constexpr std::uint32_t help_between_polls = 64;
  static constexpr std::uint64_t most_undriven_ns =
      50'000;  // while threads wait or poll for requests of one instance

  /// A thread that waits: while there is one, the progress thread steps aside.
  class Waiting {
   public:
    explicit Waiting(Progress& p) : now_ns(p.clock_.now_ns()), p_(p) { p_.waiter_came(); }
    ~Waiting() { p_.waiter_left(now_ns); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

    std::uint64_t now_ns;  ///< when it looked last

   private:
    Progress& p_;
  };

  void waiter_came();
  void waiter_left(std::uint64_t looked_last_ns);
  std::uint32_t poll_at(std::uint64_t now_ns);
  [[nodiscard]] bool others_are_due(std::uint64_t now_ns) const {
    return now_ns >= driven_ns_.load(std::memory_order_relaxed) + most_undriven_ns;
  }
  void sleep(const std::function<bool()>& done, Deadline deadline);
  bool sleep_as_driver(const std::function<bool()>& done, Deadline deadline);
  void run();
  void drive();
  void make_way();
  void wind_timer(std::uint64_t at_ns);
  void take_timer();
  std::uint32_t progress_all();
  std::uint32_t arm_all(bool on);

  const Clock& clock_;
  const std::chrono::nanoseconds net_;
  Epoll epoll_;
  EventFd bell_;
  UniqueFd timer_;                          // a timerfd in epoll_
  std::uint64_t timer_at_ns_ = UINT64_MAX;  // what it is wound to; needs driver_
  Timers timers_;
  std::array<std::atomic<BackendInstance*>, max_backends>
      instances_{};  // grows only; no lock across a backend's call
  std::atomic<std::size_t> instance_count_{0};
  std::mutex driver_;                        // held by the thread that sleeps in epoll
  std::atomic<std::uint32_t> asleep_{0};     // 1: the driver is, or is about to be, in epoll
  std::atomic<bool> driver_waits_{false};    // the sleeping driver is a waiter, who must hear of events
  std::atomic<std::uint32_t> events_{0};     // counts event(); the futex of waiters that are not the driver
  std::atomic<std::uint32_t> followers_{0};  // threads that sleep on events_
  std::atomic<std::uint32_t> waiters_{0};
  std::atomic<std::uint64_t> driven_ns_{0};  ///< when all instances were last driven
  std::atomic<std::uint64_t> last_poll_ns_{0};
  std::atomic<std::uint32_t> stop_{0};
  SpinLength spins_;
  std::thread thread_;
};

}  // namespace headrace::engine
