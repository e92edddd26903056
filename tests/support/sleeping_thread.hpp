// SPDX-License-Identifier: Apache-2.0
// Whether a thread sleeps: a test that wakes a waiting thread first waits until that thread sleeps, and one
// in which nothing may happen waits until each thread has had the time to do it.
#pragma once

#include "base/clock.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headrace::test {

namespace detail {

/// The words of the line of that thread in /proc, from its state on; none: it has ended.
inline std::vector<std::string> thread_stat(pid_t thread) {
  std::ifstream file("/proc/" + std::to_string(thread) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const auto end_of_name = stat.rfind(')');
  if (end_of_name == std::string::npos) return {};
  std::istringstream words(stat.substr(end_of_name + 1));
  return {std::istream_iterator<std::string>(words), {}};
}

}  // namespace detail

/// Whether that thread, of this process or of another one, sleeps in a system call.
inline bool sleeps(pid_t thread) {
  const auto stat = detail::thread_stat(thread);
  return !stat.empty() && stat[0] == "S";
}

/// A thread that waits may wake for a moment again and again, to look: it is asleep if so many looks say so.
inline constexpr int looks_asleep = 10;

/// Waits until each other thread of this process has had the time to do what it was about to do: it was found
/// asleep so often, or has run for a tick of the system's clock.
inline void settle_threads() {
  const auto ticks = [](const std::vector<std::string>& stat) {
    return std::stoull(stat[11]) + std::stoull(stat[12]);
  };
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const pid_t thread = std::stoi(entry.path().filename().string());
    const auto first = detail::thread_stat(thread);
    if (thread == ::gettid() || first.empty()) continue;
    for (int asleep = 0; asleep < looks_asleep;) {
      const auto now = detail::thread_stat(thread);
      if (now.empty() || ticks(now) > ticks(first)) break;
      if (now[0] == "S")
        ++asleep;
      else
        std::this_thread::yield();
    }
  }
}

/// A call, in a thread of its own, that has to wait for what the test keeps back.
class WaitingCall {
 public:
  explicit WaitingCall(std::function<void()> call)
      : thread_([this, call = std::move(call)] {
          thread_id_ = ::gettid();
          call();
          returned_ = true;
        }) {}

  /// Waits until the call sleeps or has returned. Whether it has not returned.
  [[nodiscard]] bool waits() const {
    const Deadline deadline = Deadline::after(std::chrono::seconds(30));
    for (int asleep = 0; asleep < looks_asleep && !returned_ && !deadline.expired();) {
      if (thread_id_ != 0 && sleeps(thread_id_))
        ++asleep;
      else
        std::this_thread::yield();
    }
    return !returned_;
  }
  void join() { thread_.join(); }

 private:
  std::atomic<pid_t> thread_id_ = 0;
  std::atomic<bool> returned_ = false;
  std::jthread thread_;
};

}  // namespace headrace::test
