// SPDX-License-Identifier: Apache-2.0
#include "support/fake_cuda/streams.hpp"

#include "support/fake_cuda/driver.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace headrace::cuda {

void FakeStreams::start() {
  polling_ = std::jthread([this](const std::stop_token& stop) { run_what_waits(stop); });
}

void FakeStreams::stop() {
  polling_.request_stop();
  work_waits_.notify_all();
  polling_.join();
}

StreamObject* FakeStreams::add(ContextObject* context) {
  auto stream = std::make_unique<StreamObject>();
  stream->context = context;
  stream->serial = next_serial_++;
  StreamObject* const raw = stream.get();
  streams_[raw->serial] = std::move(stream);
  return raw;
}

Outcome FakeStreams::destroy(const StreamObject* stream) {
  return streams_.erase(stream->serial) == 1 ? Outcome::success : Outcome::invalid_handle;
}

Outcome FakeStreams::enqueue(StreamObject* stream, Work work) {
  if (stream == nullptr) return Outcome::invalid_context;
  if (stream->context->broken != Outcome::success) return stream->context->broken;
  if (stream->capture != nullptr) {
    if (stream->capture->spoilt) return Outcome::stream_capture_invalidated;
    stream->capture->works.push_back(std::move(work));
    return Outcome::success;
  }
  stream->queue.push_back(std::move(work));
  pump();
  return Outcome::success;
}

bool FakeStreams::run_front(StreamObject& stream) {
  if (stream.queue.empty() || (held_ && steps_ == 0)) return false;
  if (stream.context->broken != Outcome::success) {
    stream.queue.clear();
    return true;
  }
  if (!stream.queue.front()()) return false;
  if (held_) --steps_;
  stream.queue.pop_front();
  return true;
}

void FakeStreams::pump() {
  for (bool ran = true; ran;) {
    ran = false;
    for (auto& [serial, stream] : streams_) {
      while (run_front(*stream)) ran = true;
    }
  }
  changed_.notify_all();
  // The thread that polls is asleep but for this: woken at each call it would take half of the driver's time.
  if (anything_waits()) work_waits_.notify_one();
}

bool FakeStreams::anything_waits() const {
  return !held_ &&
         std::ranges::any_of(streams_, [](const auto& entry) { return !entry.second->queue.empty(); });
}

bool FakeStreams::is_idle(const ContextObject* context) const {
  return std::ranges::all_of(streams_, [context](const auto& entry) {
    return entry.second->context != context || entry.second->queue.empty();
  });
}

void FakeStreams::release() {
  held_ = false;
  steps_ = 0;
  pump();
}

void FakeStreams::step(int count) {
  steps_ += count;
  pump();
}

// Host memory that a stream waits for changes without a call to the driver, so this thread polls.
void FakeStreams::run_what_waits(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (work_waits_.wait(lock, stop, [this] { return anything_waits(); })) {
    pump();
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    lock.lock();
  }
}

// ------------------------------------------------------------------ the driver's functions

Outcome FakeDriver::ctx_get_stream_priority_range(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return Outcome::success;
}
Outcome FakeDriver::stream_create_with_priority(Stream* stream, unsigned, int) {
  if (contexts.top() == nullptr) return Outcome::invalid_context;
  *stream = streams.add(contexts.top());
  return Outcome::success;
}
Outcome FakeDriver::stream_destroy(Stream stream) { return streams.destroy(stream); }
Outcome FakeDriver::stream_query(Stream handle) {
  StreamObject* const stream = resolve(handle);
  if (stream == nullptr) return Outcome::invalid_context;
  if (stream->capture != nullptr) return Outcome::stream_capture_unsupported;
  streams.pump();
  if (stream->context->broken != Outcome::success) return stream->context->broken;
  return stream->queue.empty() ? Outcome::success : Outcome::not_ready;
}
Outcome FakeDriver::stream_synchronize(Stream handle) {
  StreamObject* const stream = resolve(handle);
  if (stream == nullptr) return Outcome::invalid_context;
  if (stream->capture != nullptr) return Outcome::stream_capture_unsupported;
  wait_for([&] { return stream->queue.empty(); });
  return stream->context->broken;
}
Outcome FakeDriver::stream_wait_event(Stream stream, Event event, unsigned) {
  const std::uint64_t wanted = event->recorded;
  // Documented: a capture cannot wait for work that was queued outside of it. The fake does not model events
  // inside a capture.
  if (StreamObject* const waiting = resolve(stream); waiting != nullptr && waiting->capture != nullptr) {
    waiting->capture->spoilt = true;
    return Outcome::stream_capture_isolation;
  }
  return enqueue(stream,
                 [this, event, wanted] { return !events.contains(event) || !event->open.contains(wanted); });
}
Outcome FakeDriver::stream_get_ctx(Stream handle, Context* context) {
  StreamObject* const stream = resolve(handle);
  if (stream == nullptr) return Outcome::invalid_context;
  *context = stream->context;
  return Outcome::success;
}

Outcome FakeDriver::event_create(Event* event, unsigned) {
  if (contexts.top() == nullptr) return Outcome::invalid_context;
  *event = events.add({});
  return Outcome::success;
}
Outcome FakeDriver::event_destroy(Event event) { return events.destroy(event); }
Outcome FakeDriver::event_record(Event event, Stream stream) {
  const std::uint64_t number = ++event->recorded;
  event->open.insert(number);
  return enqueue(stream, [this, event, number] {
    if (events.contains(event)) {
      event->open.erase(number);
      event->when = std::chrono::steady_clock::now();
    }
    return true;
  });
}
Outcome FakeDriver::event_query(Event event) {
  streams.pump();
  return event->reached() ? Outcome::success : Outcome::not_ready;
}
Outcome FakeDriver::event_synchronize(Event event) {
  wait_for([&] { return event->reached(); });
  return Outcome::success;
}
Outcome FakeDriver::event_elapsed_time(float* milliseconds, Event from, Event to) {
  if (from->recorded == 0 || to->recorded == 0) return Outcome::invalid_handle;
  if (!from->reached() || !to->reached()) return Outcome::not_ready;
  *milliseconds = std::chrono::duration<float, std::milli>(to->when - from->when).count();
  return Outcome::success;
}

}  // namespace headrace::cuda
