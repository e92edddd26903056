// SPDX-License-Identifier: Apache-2.0
// When a silent peer is pinged and when it is given up. A connection says what it hears and says from any
// thread; one thread asks what is to be done: often while other threads use the connection, otherwise not
// before there may be something to do.
//
// A peer is pinged if it was silent for an interval, so that it answers, and also if we were, so that it
// hears us. It is given up when nothing was heard for the timeout.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace headrace::transport {

class Heartbeat {
 public:
  Heartbeat(std::chrono::nanoseconds interval, std::chrono::nanoseconds timeout)
      : interval_ns_(in_ns(interval)), timeout_ns_(in_ns(timeout)) {}

  // From any thread.
  void heard() { heard_.store(true, std::memory_order_relaxed); }
  void spoke() { spoke_.store(true, std::memory_order_relaxed); }
  // From one that knows the time; a time that is older than the last one changes nothing.
  void heard_at(std::uint64_t now_ns) { raise(heard_ns_, now_ns); }
  void spoke_at(std::uint64_t now_ns) { raise(spoke_ns_, now_ns); }

  enum class Beat : std::uint8_t {
    rest,
    ping,  ///< send a ping now
    lost,  ///< the peer was silent for too long
  };
  // The rest by one thread, with times of one clock that never goes back.
  [[nodiscard]] Beat beat(std::uint64_t now_ns);
  /// How long nothing has been heard, as of the last beat.
  [[nodiscard]] std::chrono::milliseconds silence() const {
    return std::chrono::milliseconds(silent_ns_ / 1'000'000);
  }
  /// When to ask again, as of the last beat.
  [[nodiscard]] std::uint64_t next_ns(std::uint64_t now_ns) const;
  /// The same, as it moves on with heard_at and spoke_at; 0 while other threads use the connection. The times
  /// of many connections fall on common ones: a thread wakes once for them.
  [[nodiscard]] std::uint64_t due_ns() const;

 private:
  static void raise(std::atomic<std::uint64_t>& time_ns, std::uint64_t now_ns) {
    if (time_ns.load(std::memory_order_relaxed) < now_ns) time_ns.store(now_ns, std::memory_order_relaxed);
  }
  static std::uint64_t in_ns(std::chrono::nanoseconds time) {
    return static_cast<std::uint64_t>(time.count());
  }

  const std::uint64_t interval_ns_, timeout_ns_;
  // Only flags, because callers' threads have no clock: a beat takes them for events of its own time.
  std::atomic<bool> heard_{true};
  std::atomic<bool> spoke_{true};
  bool flagged_ = true;  // a flag was up at the last beat
  std::atomic<std::uint64_t> heard_ns_ = 0;
  std::atomic<std::uint64_t> spoke_ns_ = 0;
  std::uint64_t pinged_ns_ = 0;
  std::uint64_t silent_ns_ = 0;
};

}  // namespace headrace::transport
