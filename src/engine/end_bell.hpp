// SPDX-License-Identifier: Apache-2.0
// Who hears of a request's end besides those who wait for it: a callback, and a descriptor.
#pragma once

#include <headrace/request.hpp>

#include "base/event_fd.hpp"

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>

namespace headrace::engine {

class Engine;

class EndBell {
 public:
  void on_done(std::function<void(Status)> done);
  Result<int> event_fd();
  /// The moment at which an end can be seen: `state` becomes `to`, then all are told. From any thread, also
  /// inside a backend's call.
  void ring(Engine& engine, Status status, std::atomic<RequestState>& state, RequestState to);

 private:
  std::mutex mutex_;
  std::function<void(Status)> done_;
  std::optional<EventFd> event_fd_;
  std::atomic<bool> listened_to_{false};  ///< done_ or event_fd_ is set
};

}  // namespace headrace::engine
