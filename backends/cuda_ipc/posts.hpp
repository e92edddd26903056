// SPDX-License-Identifier: Apache-2.0
// The posts that GPUs are working on. Whoever looks first at one that has ended tells the host, once.
//
// A GPU rings no bell. While the host polls, ends are seen by looking at words in memory; while it sleeps, a
// thread of ours looks and rings.
#pragma once

#include "backends/cuda_ipc/request.hpp"
#include "base/event_fd.hpp"

#include <headrace/plugin/backend.hpp>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace headrace::cuda_ipc {

/// Any thread.
class Posts {
 public:
  Posts(plugin::Host host, EventFd bell) : host_(host), bell_(std::move(bell)) {}
  ~Posts();
  Posts(const Posts&) = delete;
  Posts& operator=(const Posts&) = delete;

  /// Starts it. On an error nothing is in flight.
  [[nodiscard]] Result<void> post(Request& request);
  /// Tells its end if it has come.
  bool poll(Request& request);
  /// Tells all ends that have come; returns how many.
  std::uint32_t progress();
  /// On: the bell is rung when an end comes. Returns how many have come already, and tells them.
  std::uint32_t arm(bool on);
  [[nodiscard]] int descriptor() const { return bell_.fd(); }

 private:
  std::vector<Request*> take_ended();
  std::uint32_t tell(const std::vector<Request*>& ended);
  std::uint32_t end_failed();
  [[nodiscard]] bool any_ended() const;
  void start_watching();
  void watch(const std::stop_token& stop);

  const plugin::Host host_;
  const EventFd bell_;
  std::mutex mutex_;
  std::vector<Request*> in_flight_;
  std::uint32_t idle_looks_ = 0;
  bool armed_ = false;
  bool rang_ = false;  // since the host last woke
  std::condition_variable_any changed_;
  std::jthread watcher_;  // from the first time that the host slept while a GPU worked
};

}  // namespace headrace::cuda_ipc
