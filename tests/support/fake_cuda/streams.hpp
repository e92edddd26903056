// SPDX-License-Identifier: Apache-2.0
// The fake driver's streams, and how their work runs: at once if nothing blocks it, else inside a later call,
// or on a thread that polls.
#pragma once

#include "support/fake_cuda/objects.hpp"

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>

namespace headrace::cuda {

/// All members but `start` and `stop` require the driver's lock.
class FakeStreams {
 public:
  explicit FakeStreams(std::mutex& mutex) : mutex_(mutex) {}

  /// Starts and ends the thread that polls.
  void start();
  void stop();

  StreamObject* add(ContextObject* context);
  [[nodiscard]] Outcome destroy(const StreamObject* stream);
  [[nodiscard]] int count() const { return static_cast<int>(streams_.size()); }
  template <class Visit>
  void each(const Visit& visit) {
    for (auto& [serial, stream] : streams_) visit(*stream);
  }

  /// Queues work, or adds it to the stream's capture.
  [[nodiscard]] Outcome enqueue(StreamObject* stream, Work work);
  /// Runs what can run.
  void pump();
  [[nodiscard]] bool anything_waits() const;
  /// Whether no stream of the context has work left.
  [[nodiscard]] bool is_idle(const ContextObject* context) const;
  /// Waits for a condition that the work of streams makes true. `lock`: of the driver.
  template <class Condition>
  void wait(std::unique_lock<std::mutex>& lock, const Condition& condition) {
    changed_.wait(lock, condition);
  }

  void hold() { held_ = true; }
  void release();
  void step(int count);
  [[nodiscard]] bool is_held() const { return held_; }

 private:
  bool run_front(StreamObject& stream);
  void run_what_waits(const std::stop_token& stop);

  std::mutex& mutex_;
  std::map<std::uint64_t, std::unique_ptr<StreamObject>> streams_;  // by serial number
  std::uint64_t next_serial_ = 1;
  bool held_ = false;
  int steps_ = 0;                           // while held: how many pieces of work may run
  std::condition_variable_any changed_;     // for calls that wait
  std::condition_variable_any work_waits_;  // for the thread that polls
  std::jthread polling_;
};

}  // namespace headrace::cuda
