// SPDX-License-Identifier: Apache-2.0
// A post of a fabric's user: it ends once, and many threads may wait for it.
#pragma once

#include <headrace/request.hpp>

#include "base/event_fd.hpp"
#include "base/fork_guard.hpp"
#include "fabric/callbacks.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace headrace::fabric {

class Part;
class Worker;

/// The public methods are thread-safe; `run` is the worker's alone.
class Work : public std::enable_shared_from_this<Work> {
 public:
  struct Setup {
    std::string what;  ///< for errors: "write of 4096 bytes"
    std::uint64_t bytes = 0;
    std::uint64_t deadline_ns = UINT64_MAX;  ///< of the fabric's clock
    std::shared_ptr<Worker> worker;
    std::shared_ptr<Callbacks> callbacks;
    std::shared_ptr<const ForkGuard> fork;
  };
  explicit Work(Setup setup) : setup(std::move(setup)) {}

  [[nodiscard]] RequestState state() const;
  Status wait(Timeout timeout);
  void cancel();
  void on_done(std::function<void(Status)> done);
  Result<int> event_fd();
  [[nodiscard]] Error error() const;

  /// Of the worker: a receive has a message of that length.
  void received(std::uint64_t bytes) { received_ = bytes; }
  [[nodiscard]] std::uint64_t bytes() const {
    const std::uint64_t received = received_;
    return received == none_received ? setup.bytes : received;
  }
  /// Of the worker: it has been asked to end.
  void canceling();
  /// Of the worker, once: its memory is quiet.
  void end(Error error);

  const Setup setup;

  /// What the worker keeps of it.
  struct Run {
    std::vector<std::shared_ptr<Part>> parts;  ///< that have not ended
    bool waits_for_peers = false;              ///< of a barrier
    std::optional<Error> cause;                ///< it was canceled, or its time is over
    std::optional<Error> failed;               ///< the first error of a part
    std::function<void()> when_over;           ///< of a barrier: gives up what it waits for
    std::uint64_t range = 0;                   ///< of a profiler
  } run;

 private:
  [[nodiscard]] bool ended() const {
    return state_ != RequestState::posted && state_ != RequestState::canceling;
  }
  [[nodiscard]] Status status() const { return {error_.code, 0, error_.page}; }

  static constexpr std::uint64_t none_received = UINT64_MAX;
  std::atomic<std::uint64_t> received_ = none_received;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  RequestState state_ = RequestState::posted;
  Error error_{Code::ok, {}, no_page};
  std::function<void(Status)> done_;
  std::optional<EventFd> bell_;
};

}  // namespace headrace::fabric
