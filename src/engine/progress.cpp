// SPDX-License-Identifier: Apache-2.0
#include "engine/progress.hpp"

#include "base/errors.hpp"
#include "base/futex.hpp"
#include "base/start_thread.hpp"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>

namespace headrace::engine {
namespace {

constexpr std::uint64_t bell_key = 0, instance_key = 1, timer_key = 2;  // in epoll
constexpr std::uint64_t user_polls_ns = 50'000;                         // a poll this recent: the user drives
constexpr std::uint64_t aside_ns =
    1'000'000;  // how long the progress thread stays aside before it looks again
}  // namespace

bool Timers::add(std::uint64_t at_ns, std::function<void()> function) {
  const std::lock_guard lock(mutex_);
  timers_.emplace(at_ns, Timer{++added_, std::move(function)});
  const bool first = at_ns < next_.load(std::memory_order_relaxed);
  if (first) next_.store(at_ns, std::memory_order_release);
  return first;
}

void Timers::run_due(std::uint64_t now_ns) {
  std::uint64_t last = UINT64_MAX;  // the latest that was there when the pass began
  while (now_ns >= next_.load(std::memory_order_acquire)) {
    std::function<void()> due;
    {
      const std::lock_guard lock(mutex_);
      last = std::min(last, added_);
      const auto first = timers_.begin();
      if (first == timers_.end() || first->first > now_ns || first->second.number > last) return;
      due = std::move(first->second.function);
      timers_.erase(first);
      next_.store(timers_.empty() ? UINT64_MAX : timers_.begin()->first, std::memory_order_release);
    }
    due();
  }
}

Result<std::unique_ptr<Progress>> Progress::open(const Clock& clock, std::chrono::nanoseconds net) {
  HEADRACE_TRY(epoll, Epoll::create());
  HEADRACE_TRY(bell, EventFd::create());
  UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer) return os_error(errno, "make a timer");
  HEADRACE_TRY_VOID(epoll.add(bell.fd(), EPOLLIN, bell_key));
  HEADRACE_TRY_VOID(epoll.add(timer.get(), EPOLLIN, timer_key));
  return std::unique_ptr<Progress>(
      new Progress(clock, std::move(epoll), std::move(bell), std::move(timer), net));
}

Progress::Progress(const Clock& clock, Epoll epoll, EventFd bell, UniqueFd timer,
                   std::chrono::nanoseconds net)
    : clock_(clock), net_(net), epoll_(std::move(epoll)), bell_(std::move(bell)), timer_(std::move(timer)) {}

Progress::~Progress() { stop(); }

Result<void> Progress::add(BackendInstance& instance) {
  const std::size_t at = instance_count_.load();
  if (at == max_backends)
    return make_error(Code::exhausted, "an agent opens at most {} backends: name those that it needs",
                      max_backends);
  if (instance.descriptor() >= 0) HEADRACE_TRY_VOID(epoll_.add(instance.descriptor(), EPOLLIN, instance_key));
  instances_[at].store(&instance);
  instance_count_.store(at + 1);
  wake();
  return {};
}

Result<void> Progress::start() {
  HEADRACE_TRY(thread, start_thread("headrace", [this] { run(); }));
  thread_ = std::move(thread);
  return {};
}

void Progress::stop() {
  if (!thread_.joinable()) return;
  stop_.store(1);
  futex_wake(stop_, futex_all);
  wake();
  thread_.join();
}

bool Progress::let_waiters_return(Deadline deadline) {
  while (waiters_.load() > 0) {
    if (deadline.expired(clock_)) return false;
    event();
    std::this_thread::yield();
  }
  return true;
}

std::uint32_t Progress::poll() { return poll_at(clock_.now_ns()); }

std::uint32_t Progress::poll_at(std::uint64_t now_ns) {
  last_poll_ns_.store(now_ns, std::memory_order_relaxed);
  driven_ns_.store(now_ns, std::memory_order_relaxed);
  if (now_ns >= timers_.next_ns()) timers_.run_due(now_ns);
  return progress_all();
}

std::uint32_t Progress::progress_all() {
  std::uint32_t done = 0;
  for (std::size_t i = 0, n = instance_count_.load(std::memory_order_acquire); i < n; ++i)
    done += instances_[i].load(std::memory_order_relaxed)->progress();
  return done;
}

std::uint32_t Progress::poll(BackendInstance& instance) {
  const std::uint64_t now = clock_.now_ns();
  if (others_are_due(now)) return poll_at(now);
  last_poll_ns_.store(now, std::memory_order_relaxed);
  if (now >= timers_.next_ns()) timers_.run_due(now);
  return instance.progress();
}

std::uint32_t Progress::arm_all(bool on) {
  std::uint32_t arrived = 0;
  for (std::size_t i = 0, n = instance_count_.load(std::memory_order_acquire); i < n; ++i)
    arrived += instances_[i].load(std::memory_order_relaxed)->arm(on);
  return arrived;
}

void Progress::event() {
  events_.fetch_add(
      1);  // seq_cst: pairs with the loads in sleep(), which announce themselves before they look
  if (followers_.load() > 0) futex_wake(events_, futex_all);
  if (driver_waits_.load() && asleep_.load() != 0) bell_.signal();
}

void Progress::wake() {
  if (asleep_.load() != 0) bell_.signal();
}

void Progress::at(std::uint64_t at_ns, std::function<void()> function) {
  if (timers_.add(at_ns, std::move(function))) wake();
}

void Progress::waiter_came() {
  if (waiters_.fetch_add(1) == 0 && asleep_.load() != 0 && !driver_waits_.load())
    bell_.signal();  // the progress thread steps aside
}

void Progress::waiter_left(std::uint64_t looked_last_ns) {
  // Another thread may have polled since.
  if (looked_last_ns > last_poll_ns_.load(std::memory_order_relaxed))
    last_poll_ns_.store(looked_last_ns, std::memory_order_relaxed);
  waiters_.fetch_sub(1);
}

void Progress::sleep(const std::function<bool()>& done, Deadline deadline) {
  if (driver_.try_lock()) {
    {
      const std::lock_guard held(driver_, std::adopt_lock);
      driver_waits_.store(true);
      sleep_as_driver(done, deadline);
      driver_waits_.store(false);
    }
    make_way();
    return;
  }
  followers_.fetch_add(1);
  const std::uint32_t seen = events_.load();
  // Who leaves the driver's seat looks for followers after it (make_way), and we look at the seat after we
  // have become one. Both change followers_, so one of the two sees the other. The time is a net below that.
  const std::unique_lock seat(driver_, std::try_to_lock);
  if (!seat.owns_lock() && !done()) {
    const Deadline soon = Deadline::after(net_);
    (void)futex_wait(events_, seen, Deadline::earliest(deadline, soon));
  }
  followers_.fetch_sub(1);
}

/// A timer wound to an earlier time stays: it ends a sleep that could have been longer, once. Setting a
/// timeout anew for every sleep costs microseconds on virtual machines, and most sleeps end long before
/// theirs.
void Progress::wind_timer(std::uint64_t at_ns) {
  if (at_ns >= timer_at_ns_) return;
  itimerspec at{};
  const std::uint64_t time = std::max<std::uint64_t>(at_ns, 1);  // 0 would stop it
  at.it_value.tv_sec = static_cast<time_t>(time / 1'000'000'000);
  at.it_value.tv_nsec = static_cast<long>(time % 1'000'000'000);
  if (::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &at, nullptr) == 0) timer_at_ns_ = at_ns;
}

void Progress::take_timer() {
  std::uint64_t times = 0;
  (void)!::read(timer_.get(), &times, sizeof times);
  timer_at_ns_ = UINT64_MAX;
}

/// Sleeps once, until a descriptor rings, the bell, a timer or the deadline. Needs driver_. Returns whether
/// it slept.
bool Progress::sleep_as_driver(const std::function<bool()>& done, Deadline deadline) {
  asleep_.store(1);
  bool slept = false;
  if (arm_all(true) == 0 && !done()) {
    std::array<epoll_event, 8> ready{};
    wind_timer(std::min(deadline.point_ns(), timers_.next_ns()));
    const auto count = epoll_.wait(ready, Deadline::never());
    slept = true;
    // Only a bell that rang is read, which saves a system call a wake-up. One that rings after this ends the
    // next sleep at once.
    for (const epoll_event& event : std::span(ready).first(count ? *count : 0)) {
      if (event.data.u64 == bell_key) bell_.drain();
      if (event.data.u64 == timer_key) take_timer();
    }
  }
  asleep_.store(0);
  arm_all(false);
  return slept;
}

void Progress::run() {
  const auto others_drive = [this] {
    return stop_.load() != 0 || waiters_.load() > 0 ||
           clock_.now_ns() - last_poll_ns_.load(std::memory_order_relaxed) < user_polls_ns;
  };
  while (stop_.load() == 0) {
    if (others_drive()) {
      (void)futex_wait(stop_, 0, Deadline::after(std::chrono::nanoseconds(aside_ns)));
      continue;
    }
    if (driver_.try_lock()) {
      drive();
      driver_.unlock();
      make_way();
    }
  }
}

/// A turn of the progress thread. Needs driver_.
void Progress::drive() {
  const std::uint64_t polled = last_poll_ns_.load(std::memory_order_relaxed);
  timers_.run_due(clock_.now_ns());
  if (progress_all() > 0) return;
  // A user that polls by itself does not need peers to ring: only sleep armed when nobody has polled
  // meanwhile.
  sleep_as_driver(
      [&] {
        return stop_.load() != 0 || waiters_.load() > 0 ||
               last_poll_ns_.load(std::memory_order_relaxed) != polled;
      },
      Deadline::never());
}

/// No thread drives any more: one of those that wait must.
void Progress::make_way() {
  if (followers_.fetch_add(0) > 0) event();  // a change, not a load: pairs with the one in sleep()
}

}  // namespace headrace::engine
