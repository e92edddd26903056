// SPDX-License-Identifier: Apache-2.0
// The state of a CommFuture: it ends once, the first result counts.
#pragma once

#include <headrace/compat/comm_future.hpp>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>

namespace headrace::compat {

class CommFuture::State {
 public:
  /// Does nothing if it has ended.
  void end(commResult_t result);
  [[nodiscard]] std::optional<commResult_t> result() const;
  commResult_t wait() const;
  bool wait_for(std::chrono::milliseconds timeout) const;
  void on_ready(std::function<void(commResult_t)> done);

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  std::optional<commResult_t> result_;
  std::function<void(commResult_t)> done_;
};

}  // namespace headrace::compat
