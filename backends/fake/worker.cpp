// SPDX-License-Identifier: Apache-2.0
#include "backends/fake/worker.hpp"

#include "backends/fake/instance.hpp"
#include "backends/fake/link_end.hpp"

#include <chrono>
#include <utility>

namespace headrace::fake {

Worker::Worker(FakeNetwork& network, plugin::Host host, Completion completion, Bell bell)
    : network_(network), host_(host), completion_(completion), bell_(std::move(bell)) {}

void Worker::start(Handler handler) {
  handler_ = std::move(handler);
  if (completion_ == Completion::thread) thread_ = std::thread([this] { run(); });
}

void Worker::stop() {
  {
    Lock lock(network_.mutex);
    stop_ = true;
    work_.notify_all();
    network_.changed.wait(lock, [this] { return !draining_; });
  }
  if (thread_.joinable()) thread_.join();
}

void Worker::push(Event event) {
  inbox_.push_back(std::move(event));
  if (completion_ == Completion::thread)
    work_.notify_one();
  else if (armed_)
    bell_.ring();
}

void Worker::delay(Event event, std::uint64_t now, std::uint64_t nanoseconds) {
  delayed_.emplace(now + nanoseconds, std::move(event));
  set_timer(now);
}

void Worker::hold_back(Event event) {
  auto& late = event.kind == Event::Kind::message ? late_messages_ : late_runs_;
  late.push_back(std::move(event));
  if (completion_ == Completion::thread)
    work_.notify_one();
  else if (completion_ == Completion::caller || armed_)
    bell_.ring();
}

void Worker::release_held_back(Event::Kind kind) {
  for (Event& late : std::exchange(kind == Event::Kind::message ? late_messages_ : late_runs_, {}))
    forward(std::move(late));
}

void Worker::forward(Event event) {
  if (event.kind != Event::Kind::message) return push(std::move(event));
  if (event.link->state == LinkState::closed) return;
  Worker& there = event.link->owner->worker;
  there.push(std::move(event));
}

void Worker::set_timer(std::uint64_t now) {
  if (completion_ == Completion::thread) return work_.notify_one();
  if (delayed_.empty()) return;
  // A host whose clock is turned by hand may not be due when the timer rings: then it is set again.
  const std::uint64_t due = delayed_.begin()->first;
  bell_.ring_in(due > now ? due - now : 1);
}

std::uint32_t Worker::drain(Lock& lock, bool nothing_else_to_do) {
  if (draining_) return 0;
  draining_ = true;
  std::uint32_t things = 0;
  for (;;) {
    take_due(lock);
    if (inbox_.empty() && nothing_else_to_do) {
      release_held_back(Event::Kind::message);
      release_held_back(Event::Kind::run);
    }
    if (inbox_.empty()) break;
    Event event = std::move(inbox_.front());
    inbox_.pop_front();
    ++things;
    handler_(lock, event);
  }
  draining_ = false;
  network_.changed.notify_all();
  return things;
}

void Worker::take_due(Lock& lock) {
  if (delayed_.empty()) return;
  lock.unlock();
  const std::uint64_t now = host_.now_ns();
  lock.lock();
  while (!delayed_.empty() && delayed_.begin()->first <= now) {
    Event event = std::move(delayed_.begin()->second);
    delayed_.erase(delayed_.begin());
    forward(std::move(event));
  }
  set_timer(now);
}

std::uint32_t Worker::progress() {
  if (completion_ == Completion::thread) return 0;
  std::uint32_t things = 0;
  {
    Lock lock(network_.mutex);
    bell_.silence();
    things = drain(lock, true);
  }
  network_.settle();
  return things;
}

int Worker::descriptor() const { return completion_ == Completion::thread ? -1 : bell_.descriptor(); }

std::uint32_t Worker::arm(bool on) {
  const Lock lock(network_.mutex);
  armed_ = on;
  if (!on || completion_ == Completion::thread) return 0;
  return static_cast<std::uint32_t>(inbox_.size() + late_runs_.size() + late_messages_.size());
}

void Worker::run() {
  Lock lock(network_.mutex);
  while (!stop_) {
    drain(lock, true);
    if (stop_ || !inbox_.empty()) continue;
    // The host's clock may be turned by hand: while something is delayed, look at it every millisecond.
    if (delayed_.empty())
      work_.wait(lock);
    else
      work_.wait_for(lock, std::chrono::milliseconds(1));
  }
}

}  // namespace headrace::fake
