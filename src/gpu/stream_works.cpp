// SPDX-License-Identifier: Apache-2.0
#include "gpu/stream_works.hpp"

#include <algorithm>
#include <utility>

namespace headrace::gpu {

Result<Event> StreamWorks::take_event() {
  {
    const std::scoped_lock lock(mutex_);
    if (!spare_.empty()) {
      Event event = std::move(spare_.back());
      spare_.pop_back();
      return event;
    }
  }
  return Event::make(device_);
}

Result<void> StreamWorks::follow(cuda::Stream stream, cuda::Stream before) {
  HEADRACE_TRY(event, take_event());
  HEADRACE_TRY_VOID(event.record(before));
  HEADRACE_TRY_VOID(event.hold_back(stream));
  const std::scoped_lock lock(mutex_);
  spare_.push_back(std::move(event));  // the stream keeps the mark, not the event
  return {};
}

Result<void> StreamWorks::follow_last(cuda::Stream stream) {
  const std::scoped_lock lock(mutex_);
  if (running_.empty() || running_.back().stream == stream) return {};
  return running_.back().event.hold_back(stream);
}

Result<void> StreamWorks::add(std::uint64_t work, int note, cuda::Stream stream) {
  HEADRACE_TRY(event, take_event());
  HEADRACE_TRY_VOID(event.record(stream));
  const std::scoped_lock lock(mutex_);
  running_.push_back({work, note, stream, std::move(event)});
  return {};
}

Result<void> StreamWorks::wait_on(std::uint64_t work, cuda::Stream stream) {
  const std::scoped_lock lock(mutex_);
  const auto found = std::ranges::find(running_, work, &Running::work);
  if (found == running_.end()) return {};
  return found->event.hold_back(stream);
}

bool StreamWorks::oldest_has_ended() const {
  const std::scoped_lock lock(mutex_);
  if (running_.empty()) return false;
  const auto reached = running_.front().event.poll_reached();
  return !reached || *reached;
}

std::vector<StreamWorks::Ended> StreamWorks::take_ended() {
  return order_ == Order::of_all ? take_first_ended() : take_all_ended();
}

/// Asks the driver without the lock: calls take it several times each.
std::vector<StreamWorks::Ended> StreamWorks::take_first_ended() {
  std::vector<Ended> ended;
  while (true) {
    const Running* first = nullptr;
    {
      const std::scoped_lock lock(mutex_);
      if (running_.empty()) break;
      first = &running_.front();
    }
    auto reached = first->event.poll_reached();
    if (reached && !*reached) break;
    const std::scoped_lock lock(mutex_);
    take(running_.begin(), reached, ended);
  }
  return ended;
}

std::vector<StreamWorks::Ended> StreamWorks::take_all_ended() {
  std::vector<Ended> ended;
  const std::scoped_lock lock(mutex_);
  std::vector<cuda::Stream> busy;  // what was queued later on these has not ended either
  for (auto running = running_.begin(); running != running_.end();) {
    if (std::ranges::find(busy, running->stream) != busy.end()) {
      ++running;
      continue;
    }
    auto reached = running->event.poll_reached();
    if (reached && !*reached) {
      busy.push_back(running->stream);
      ++running;
    } else {
      running = take(running, reached, ended);
    }
  }
  return ended;
}

std::list<StreamWorks::Running>::iterator StreamWorks::take(std::list<Running>::iterator running,
                                                            Result<bool>& reached,
                                                            std::vector<Ended>& ended) {
  ended.push_back({running->work, running->note, reached ? Result<void>() : std::move(reached).error()});
  spare_.push_back(std::move(running->event));
  return running_.erase(running);
}

void StreamWorks::wait_all() {
  for (const Running& running : running_) static_cast<void>(running.event.wait_reached());
}

bool StreamWorks::any() const {
  const std::scoped_lock lock(mutex_);
  return !running_.empty();
}

}  // namespace headrace::gpu
