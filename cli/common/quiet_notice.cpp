// SPDX-License-Identifier: Apache-2.0
#include "cli/common/quiet_notice.hpp"

#include <utility>

namespace headrace::cli {

QuietNotice::QuietNotice(std::string sentence, std::function<void(const std::string&)> say,
                         std::chrono::nanoseconds quiet)
    : sentence_(std::move(sentence)), say_(std::move(say)), quiet_(quiet), thread_([this] { run(); }) {}

QuietNotice::~QuietNotice() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void QuietNotice::progress() {
  const std::lock_guard lock(mutex_);
  last_ = std::chrono::steady_clock::now();
}

void QuietNotice::run() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    const auto due = last_ + quiet_;
    if (std::chrono::steady_clock::now() >= due) {
      say_(sentence_);
      return;
    }
    changed_.wait_until(lock, due);
  }
}

}  // namespace headrace::cli
