// SPDX-License-Identifier: Apache-2.0
// When and in which thread an instance does what waits for it.
#pragma once

#include "backends/fake/bell.hpp"
#include "backends/fake/event.hpp"
#include "backends/fake/network.hpp"
#include "backends/fake/settings.hpp"

#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <vector>

namespace headrace::fake {

/// One thread at a time handles events, in the order in which they came. All is guarded by the network's
/// lock.
class Worker {
 public:
  /// Called with the lock held. It lets the lock go to copy or to call the host, and holds it again when it
  /// returns.
  using Handler = std::function<void(Lock&, Event&)>;

  Worker(FakeNetwork& network, plugin::Host host, Completion completion, Bell bell);
  ~Worker() { stop(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Before the instance joins the network.
  void start(Handler handler);
  /// Without the lock. When it returns no thread handles an event, and none will.
  void stop();

  // With the lock held. `now` is the host's clock, read before.

  /// Handles it here as soon as possible.
  void push(Event event);
  /// Forwards it this much later.
  void delay(Event event, std::uint64_t now, std::uint64_t nanoseconds);
  /// Forwards it after the next one of its kind, or when there is nothing else to do.
  void hold_back(Event event);
  /// The next one of the kind has been done.
  void release_held_back(Event::Kind kind);
  /// To the place that handles it: a message at its link's end, anything else here.
  void forward(Event event);

  /// Handles all that there is. Returns how much it was; 0 while another thread is at it: that one sees it.
  std::uint32_t drain(Lock& lock, bool nothing_else_to_do);
  [[nodiscard]] bool waits_for_caller() const {
    return completion_ == Completion::caller && !draining_ && !inbox_.empty();
  }

  // Without the lock: the entries of the table.

  std::uint32_t progress();
  [[nodiscard]] int descriptor() const;
  std::uint32_t arm(bool on);

 private:
  void run();
  void take_due(Lock& lock);
  void set_timer(std::uint64_t now);

  FakeNetwork& network_;
  const plugin::Host host_;
  const Completion completion_;
  Handler handler_;
  std::deque<Event> inbox_;
  std::multimap<std::uint64_t, Event> delayed_;  // by the host's clock
  std::vector<Event> late_runs_, late_messages_;
  bool draining_ = false;
  bool armed_ = false;
  bool stop_ = false;
  Bell bell_;
  std::condition_variable work_;  // Completion::thread
  std::thread thread_;
};

}  // namespace headrace::fake
