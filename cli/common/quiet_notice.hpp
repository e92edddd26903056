// SPDX-License-Identifier: Apache-2.0
// Says what a command waits for, once nothing has happened for some seconds.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace headrace::cli {

class QuietNotice {
 public:
  /// Prints the sentence once if `progress` is not called for `quiet`. `say` prints it, on a thread of its
  /// own.
  QuietNotice(std::string sentence, std::function<void(const std::string&)> say,
              std::chrono::nanoseconds quiet = std::chrono::seconds(5));
  ~QuietNotice();
  QuietNotice(const QuietNotice&) = delete;
  QuietNotice& operator=(const QuietNotice&) = delete;

  /// Something has happened: the time begins anew.
  void progress();

 private:
  void run();

  const std::string sentence_;
  const std::function<void(const std::string&)> say_;
  const std::chrono::nanoseconds quiet_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  bool over_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace headrace::cli
