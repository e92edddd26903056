// SPDX-License-Identifier: Apache-2.0
// Tells a request's end to a callback, a descriptor and completion queues, besides the threads that wait for
// it.
#pragma once

#include <headrace/request.hpp>

#include "base/event_fd.hpp"
#include "engine/callback_queue.hpp"
#include "engine/completed_numbers.hpp"
#include "engine/post_life.hpp"
#include "engine/progress.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace headrace::engine {

class EndBell {
 public:
  /// `life`: the one that `ring` is given. If the caller has not seen the end yet, `done` is
  /// called for it, also when it comes during this call.
  void on_done(std::function<void(Status)> done, const PostLife& life);
  Result<int> event_fd();
  /// `number` enters the queue once: at the end of the post that is under way, or at once if there is none.
  void enqueue(const std::shared_ptr<CompletedNumbers>& queue, std::uint64_t number, const PostLife& life);
  /// The moment at which an end can be seen: the state becomes `to`, then all are told. From any thread, also
  /// inside a backend's call.
  void ring(CallbackQueue& callbacks, Progress& progress, Status status, PostLife& life, RequestState to);
  /// The post that was under way is none any more.
  void taken_back();

 private:
  /// What enters a queue at the end of a post.
  struct Queued {
    std::weak_ptr<CompletedNumbers> queue;
    std::uint64_t number;
    std::uint64_t post;
  };

  [[nodiscard]] std::function<void(Status)> listener();
  void ring_late(std::function<void(Status)>& done, std::uint64_t post);
  void push_queued(std::uint64_t up_to_post);
  void update_listened_to();

  std::mutex mutex_;
  std::function<void(Status)> done_;
  std::uint64_t set_in_ = 0;    ///< the post in which, or after which, done_ was
  bool set_after_end_ = false;  ///< done_ was: it is for the next one
  std::optional<EventFd> event_fd_;
  std::vector<Queued> queued_;
  std::atomic<bool> listened_to_{false};  ///< done_, event_fd_ or queued_ has something
};

}  // namespace headrace::engine
