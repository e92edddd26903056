// SPDX-License-Identifier: Apache-2.0
#include "fabric/worker.hpp"

#include "base/affinity.hpp"
#include "base/start_thread.hpp"

#include <algorithm>
#include <array>
#include <future>
#include <utility>

namespace headrace::fabric {
namespace {

constexpr std::uint32_t most_posts = 16384;
constexpr std::uint64_t spin_ns = 20'000;
constexpr std::uint64_t poll_without_descriptor_ns = 200'000;
// A GPU wakes nobody. A worker that polls again after a sixteenth of the time since its last work is late by
// a sixteenth. An idle one polls five hundred times a second: less than a hundredth of a core.
constexpr std::uint64_t poll_least_ns = 20'000, poll_most_ns = 2'000'000, part_of_idle = 16;
constexpr std::uint64_t close_within_ns = 1'000'000'000;
constexpr std::uint64_t bell_key = 0;

}  // namespace

Result<std::shared_ptr<Worker>> Worker::start(std::unique_ptr<Carrier> carrier, Setup setup) {
  HEADRACE_TRY(epoll, Epoll::create());
  HEADRACE_TRY(bell, EventFd::create());
  std::shared_ptr<Worker> worker(
      new Worker(std::move(carrier), std::move(setup), std::move(epoll), std::move(bell)));
  HEADRACE_TRY_VOID(worker->watch_nics());
  std::promise<Result<void>> pinned;
  auto is_pinned = pinned.get_future();
  Worker* const self = worker.get();
  HEADRACE_TRY(thread, start_thread(self->setup_.name.c_str(), [self, pinned = std::move(pinned)]() mutable {
                 Result<void> done;
                 if (!self->setup_.cpus.empty()) done = set_affinity(self->setup_.cpus);
                 const bool goes_on = done.ok();
                 pinned.set_value(std::move(done));
                 if (goes_on) self->loop();
               }));
  worker->thread_ = std::make_unique<std::thread>(std::move(thread));
  auto done = is_pinned.get();
  if (!done) {
    worker->wait_closed();
    return std::move(done).error();
  }
  return worker;
}

Worker::Worker(std::unique_ptr<Carrier> carrier, Setup setup, Epoll epoll, EventFd bell)
    : setup_(std::move(setup)),
      carrier_(std::move(carrier)),
      epoll_(std::move(epoll)),
      bell_(std::move(bell)) {}

Worker::~Worker() {
  begin_close();
  wait_closed();
}

Result<void> Worker::watch_nics() {
  HEADRACE_TRY_VOID(epoll_.add(bell_.fd(), EPOLLIN, bell_key));
  for (const int descriptor : carrier_->descriptors()) {
    if (descriptor < 0) {
      polls_ = true;
    } else {
      HEADRACE_TRY_VOID(epoll_.add(descriptor, EPOLLIN, bell_key + 1));
    }
  }
  return {};
}

// ------------------------------------------------------------------ from any thread

bool Worker::push(Task task) {
  bool wakes = false;
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return false;
    tasks_.push_back(std::move(task));
    wakes = std::exchange(sleeping_, false);
  }
  if (wakes) bell_.signal();
  return true;
}

bool Worker::run(const Task& task) {
  auto done = std::make_shared<std::promise<void>>();
  const auto is_done = done->get_future();
  const bool pushed = push([&task, done](Carrier& carrier) {
    task(carrier);
    done->set_value();
  });
  if (pushed) {
    is_done.wait();  // tasks that were taken are run, also while it closes
    return true;
  }
  std::unique_lock lock(mutex_);
  ended_changed_.wait(lock, [this] { return ended_; });
  return false;
}

bool Worker::poll_memory(std::shared_ptr<PolledMemory> memory) {
  return push([this, memory = std::move(memory)](Carrier&) { polled_memories_.push_back(memory); });
}

bool Worker::take_room() {
  if (posts_.fetch_add(1) < most_posts) return true;
  --posts_;
  return false;
}

void Worker::begin_close() {
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    closing_ = true;
    sleeping_ = false;
  }
  bell_.signal();
}

void Worker::wait_closed() {
  std::unique_ptr<std::thread> ending;
  {
    const std::lock_guard lock(mutex_);
    ending = std::move(thread_);
  }
  if (ending != nullptr) {
    ending->join();
    carrier_->close();  // the thread did, unless it has never begun
    const std::lock_guard lock(mutex_);
    ended_ = true;
    ended_changed_.notify_all();
    return;
  }
  std::unique_lock lock(mutex_);
  if (!closing_) return;  // no thread was started
  ended_changed_.wait(lock, [this] { return ended_; });
}

void Worker::leak() {
  static_cast<void>(thread_.release());
  closing_ = ended_ = true;
}

// ------------------------------------------------------------------ the thread

void Worker::loop() {
  busy_ns_ = now_ns();
  while (!may_end()) {
    const bool tasks = take_tasks();
    const bool events = carrier_->poll() > 0;
    const bool words = poll_memories();
    const std::uint64_t now = now_ns();
    if (tasks || events || words) busy_ns_ = now;
    if (setup_.spin == FabricSpin::always || now - busy_ns_ < spin_ns) continue;
    sleep();
  }
  carrier_->close();
  polled_memories_.clear();
  const std::lock_guard lock(mutex_);
  ended_ = true;
  ended_changed_.notify_all();
}

bool Worker::take_tasks() {
  std::vector<Task> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
  }
  for (Task& task : tasks) {
    task(*carrier_);
    task = nullptr;
  }
  return !tasks.empty();
}

bool Worker::poll_memories() {
  bool any = false;
  for (const auto& memory : polled_memories_) any = memory->poll(*carrier_) || any;
  std::erase_if(polled_memories_, [](const auto& memory) { return memory->is_over(); });
  return any;
}

/// Lets leave what posts that are done have promised, for a while.
bool Worker::may_end() {
  {
    const std::lock_guard lock(mutex_);
    if (!closing_ || !tasks_.empty()) return false;
  }
  const std::uint64_t now = now_ns();
  if (close_by_ns_ == 0) {
    close_by_ns_ = now + close_within_ns;
    for (const auto& memory : polled_memories_) memory->begin_close();
    carrier_->begin_close();
  }
  return carrier_->is_quiet() || now >= close_by_ns_;
}

Deadline Worker::sleep_until() const {
  const std::uint64_t now = now_ns();
  if (polls_) return Deadline::at_ns(now + poll_without_descriptor_ns);
  const std::uint64_t next = carrier_->next_look_ns();
  if (close_by_ns_ != 0) return Deadline::at_ns(std::min(next, now + 1'000'000));
  return next == UINT64_MAX ? Deadline::never() : Deadline::at_ns(next);
}

/// Until a descriptor is ready, the deadline, or there is something in memory that is polled. Between two
/// polls of it the NICs are let be: so an idle worker pays one call of the system for each.
void Worker::wait_for_events(const Deadline& until) {
  std::array<epoll_event, 16> ready;
  for (;;) {
    const std::uint64_t now = now_ns();
    Deadline next = until;
    if (!polled_memories_.empty())
      next = Deadline::at_ns(std::min(
          until.point_ns(), now + std::clamp((now - busy_ns_) / part_of_idle, poll_least_ns, poll_most_ns)));
    const auto events = epoll_.wait(ready, next);
    ++sleeps_;
    if (polled_memories_.empty() || !events || *events != 0 || now_ns() >= until.point_ns()) return;
    if (!poll_memories()) continue;
    busy_ns_ = now_ns();
    return;
  }
}

void Worker::sleep() {
  {
    const std::lock_guard lock(mutex_);
    if (!tasks_.empty() || (closing_ && close_by_ns_ == 0)) return;
    sleeping_ = true;
  }
  if (carrier_->arm()) wait_for_events(sleep_until());
  const std::lock_guard lock(mutex_);
  sleeping_ = false;
  bell_.drain();
}

}  // namespace headrace::fabric
