// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/io_thread.hpp"

#include "base/clock.hpp"
#include "base/start_thread.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace headrace::tcp {
namespace {

constexpr std::uint64_t bell_key = 0;
constexpr std::uint64_t shortest_sleep_ns = 1'000'000;
// A timer that may go later by less than this stays.
constexpr std::uint64_t worth_moving_ns = 10'000'000;
// Between two looks at work of GPUs, once the thread no longer spins.
constexpr auto nap = std::chrono::microseconds(20);

}  // namespace

Result<std::unique_ptr<IoThread>> IoThread::open(unsigned number, Now now, std::chrono::nanoseconds spin) {
  HEADRACE_TRY(epoll, Epoll::create());
  HEADRACE_TRY(bell, EventFd::create());
  HEADRACE_TRY_VOID(epoll.add(bell.fd(), EPOLLIN, bell_key));
  std::unique_ptr<IoThread> io(new IoThread(std::move(epoll), std::move(bell), std::move(now), spin));
  HEADRACE_TRY(
      thread, start_thread(fmt::format("headrace-tcp{}", number).c_str(), [raw = io.get()] { raw->loop(); }));
  io->thread_ = std::move(thread);
  return io;
}

IoThread::~IoThread() { stop(); }

void IoThread::stop() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  bell_.signal();
  thread_.join();
  decltype(table_) watched;
  decltype(kicked_) kicked;
  decltype(functions_) functions;
  decltype(looking_) looking;
  decltype(hurried_) hurried;
  {
    const std::scoped_lock lock(mutex_);
    hurried.swap(hurried_);
    watched.swap(table_);
    kicked.swap(kicked_);
    functions.swap(functions_);
    looking.swap(looking_);
  }
  for (const auto& [key, object] : watched) object->on_stop();
}

Result<void> IoThread::watch(const std::shared_ptr<Watched>& object, int fd, std::uint32_t events) {
  {
    // The descriptor is added under the lock that the thread takes to find the object: whatever it then does
    // with the descriptor, closing it included, comes after.
    const std::scoped_lock lock(mutex_);
    object->key_ = next_key_++;
    if (fd >= 0) {
      if (auto added = epoll_.add(fd, events, object->key_); !added) return added;
    }
    table_.emplace(object->key_, object);
  }
  hurry(object);
  return {};
}

Result<void> IoThread::change(const Watched& object, int fd, std::uint32_t events) {
  return epoll_.modify(fd, events, object.key_);
}

void IoThread::forget(Watched& object, int fd) {
  if (fd >= 0) (void)epoll_.remove(fd);
  std::shared_ptr<Watched> last;  // it may go with this: not under the lock
  const std::scoped_lock lock(mutex_);
  if (const auto at = table_.find(object.key_); at != table_.end() && at->second.get() == &object) {
    last = std::move(at->second);
    table_.erase(at);
  }
}

void IoThread::kick(const std::shared_ptr<Watched>& object) {
  if (object->kicked_.exchange(true)) return;
  {
    const std::scoped_lock lock(mutex_);
    kicked_.push_back(object);
  }
  ring();
}

void IoThread::look_after(const std::shared_ptr<Watched>& object) {
  if (object->looked_after_.exchange(true)) return;
  {
    const std::scoped_lock lock(mutex_);
    looking_.push_back(object);
    looks_.store(true);
  }
  ring();
}

void IoThread::run(std::function<void()> function) {
  {
    const std::scoped_lock lock(mutex_);
    functions_.push_back(std::move(function));
  }
  ring();
}

void IoThread::hurry(const std::shared_ptr<Watched>& object) {
  {
    const std::scoped_lock lock(mutex_);
    hurried_.push_back(object);
  }
  ring();
}

/// What was queued is seen by the thread before it sleeps, or it is asleep and we wake it: both sides write,
/// then read.
void IoThread::ring() {
  queued_.store(true);
  if (asleep_.load()) bell_.signal();
}

std::shared_ptr<Watched> IoThread::find(std::uint64_t key) {
  const std::scoped_lock lock(mutex_);
  const auto at = table_.find(key);
  return at == table_.end() ? nullptr : at->second;
}

bool IoThread::do_queued() {
  if (!queued_.exchange(false)) return false;
  std::vector<std::shared_ptr<Watched>> kicked;
  std::vector<std::shared_ptr<Watched>> hurried;
  std::vector<std::function<void()>> functions;
  {
    const std::scoped_lock lock(mutex_);
    kicked.swap(kicked_);
    hurried.swap(hurried_);
    functions.swap(functions_);
  }
  for (const auto& object : hurried) set_timer(*object, 0);
  for (const auto& function : functions) function();
  for (const auto& object : kicked) {
    object->kicked_.store(false);
    object->on_kick();
  }
  return true;
}

/// Whether anything had come.
bool IoThread::do_looks() {
  if (!looks_.load(std::memory_order_relaxed)) return false;
  std::vector<std::shared_ptr<Watched>> looking;
  {
    const std::scoped_lock lock(mutex_);
    looking.swap(looking_);
    looks_.store(false);
  }
  bool moved = false;
  for (const auto& object : looking) {
    object->looked_after_.store(false);  // whoever asks from here on is heard
    const Watched::Look look = object->on_look();
    moved = moved || look == Watched::Look::moved;
    if (look != Watched::Look::over && !object->looked_after_.exchange(true)) {
      const std::scoped_lock lock(mutex_);
      looking_.push_back(object);
      looks_.store(true);
    }
  }
  return moved;
}

std::size_t IoThread::do_ready(Deadline deadline) {
  std::array<epoll_event, 64> events;
  const auto count = epoll_.wait(events, deadline);
  asleep_.store(false);
  woke_ns_.store(now_(), std::memory_order_relaxed);
  if (!count) return 0;  // out of descriptors or memory for the moment: the timers go on
  std::size_t work = 0;
  for (const epoll_event& event : std::span(events).first(*count)) {
    if (event.data.u64 == bell_key) {
      bell_.drain();
      continue;
    }
    ++work;
    if (const auto object = find(event.data.u64)) object->on_ready(event.events);
  }
  return work;
}

void IoThread::set_timer(Watched& object, std::uint64_t at_ns) {
  timers_.erase({object.timer_ns_, object.key_});
  object.timer_ns_ = at_ns;
  if (at_ns != Watched::never) timers_.emplace(at_ns, object.key_);
}

void IoThread::do_timers() {
  const std::uint64_t now = woke_ns();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const std::uint64_t key = timers_.begin()->second;
    timers_.erase(timers_.begin());
    const auto object = find(key);
    if (object == nullptr) continue;  // forgotten
    set_timer(*object, std::max(object->on_time(now), now + shortest_sleep_ns));
  }
}

/// How long the thread may sleep. What has happened since a timer was set may have made it needless.
Deadline IoThread::next_deadline() {
  while (!timers_.empty()) {
    const auto [at, key] = *timers_.begin();
    const auto object = find(key);
    if (object == nullptr) {
      timers_.erase(timers_.begin());
      continue;
    }
    const std::uint64_t due = object->due_ns();
    if (due < at + worth_moving_ns) {
      const std::uint64_t now = now_();
      return Deadline::after(std::chrono::nanoseconds(std::max(at > now ? at - now : 0, shortest_sleep_ns)));
    }
    set_timer(*object, due);
  }
  return Deadline::never();
}

void IoThread::loop() {
  std::uint64_t spin_until_ns = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    std::size_t work = do_queued() ? 1 : 0;
    work += do_looks() ? 1 : 0;
    if (work > 0 || (spin_ns_ != 0 && headrace::now_ns() < spin_until_ns)) {
      work += do_ready(Deadline::at_ns(0));
    } else {
      asleep_.store(true);
      // Whoever queued something before that took effect has not rung.
      const bool stay_awake = queued_.load() || stop_.load();
      work += do_ready(stay_awake      ? Deadline::at_ns(0)
                       : looks_.load() ? Deadline::after(nap)
                                       : next_deadline());
    }
    // Sockets before timers: after a pause of this process, what a peer said meanwhile must be heard before
    // its silence is judged.
    do_timers();
    if (work > 0 && spin_ns_ != 0) spin_until_ns = headrace::now_ns() + spin_ns_;
  }
}

}  // namespace headrace::tcp
