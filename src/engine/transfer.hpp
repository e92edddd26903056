// SPDX-License-Identifier: Apache-2.0
// What a caller's handle asks of: a request to one peer (RequestCore), or requests to several that are one
// (RequestGroup). Here is what both have: the state, waiting for the end, the times and the outcome.
#pragma once

#include <headrace/request.hpp>

#include "engine/end_bell.hpp"
#include "engine/post_life.hpp"
#include "engine/request_context.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

namespace headrace::engine {

/// Each public function is that of its name in Request.
class Transfer {
 public:
  virtual ~Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// `options` may be null.
  virtual Status post(const PostOptions* options) = 0;
  virtual void cancel() = 0;
  virtual Result<void> set_indices(const PageIndices& indices, void* stream) = 0;
  virtual Result<std::uint64_t> check() = 0;
  [[nodiscard]] virtual Error error() const = 0;
  [[nodiscard]] virtual std::string explain() const = 0;
  [[nodiscard]] virtual std::string backend() const = 0;
  [[nodiscard]] virtual Result<CostEstimate> cost() const = 0;
  [[nodiscard]] virtual std::vector<PartInfo> parts() const = 0;

  RequestState poll();
  Status wait(Timeout timeout);
  void on_done(std::function<void(Status)> done) { bell_.on_done(std::move(done), life_); }
  Result<int> event_fd() { return bell_.event_fd(); }
  void enqueue_completion(const std::shared_ptr<CompletedNumbers>& queue, std::uint64_t number) {
    bell_.enqueue(queue, number, life_);
  }
  [[nodiscard]] RequestState state() const { return life_.state(); }
  [[nodiscard]] bool ended() const { return life_.ended(); }
  [[nodiscard]] RequestTimes times() const;
  [[nodiscard]] Op op() const { return shape_.op; }
  [[nodiscard]] std::uint64_t pages() const { return shape_.pages; }
  [[nodiscard]] std::uint64_t bytes() const { return shape_.bytes; }
  [[nodiscard]] std::string_view peer() const { return shape_.peer; }

  /// Gives its path a slice of this thread's time. Returns whether something happened.
  virtual bool help() = 0;

 protected:
  /// What it moves; constant. `peer` is the derived class's own text.
  struct Shape {
    Op op = Op::read;
    std::uint64_t pages = 0;
    std::uint64_t bytes = 0;
    std::string_view peer;
  };
  Transfer(std::shared_ptr<const void> engine, const RequestContext& context)
      : engine_(std::move(engine)), context_(context) {}

  /// Whether the post is this caller's to make. `before`: the state until now.
  bool begin(RequestState& before, std::uint64_t posted_ns);
  /// The post that has begun is refused.
  void take_back(RequestState before) {
    life_.set(before);
    bell_.taken_back();
  }
  /// It has left `post`, which took until `now_ns`, or until its end if that has come.
  void leave_post();
  /// The end of the post can be seen from here on. Returns how long the post took.
  void finish(Status status, std::uint64_t ended_ns);
  [[nodiscard]] Status outcome() const;
  [[nodiscard]] std::uint64_t now_ns() const { return context_.progress.clock().now_ns(); }

  const std::shared_ptr<const void> engine_;  ///< keeps what is in the context
  const RequestContext& context_;
  Shape shape_;
  PostLife life_;
  std::atomic<std::uint64_t> cancel_asked_{0};  ///< the latest post that a cancel was asked for
  std::atomic<std::uint64_t> posted_at_ns_{0}, post_ns_{0}, ended_at_ns_{0};
  mutable std::mutex outcome_mutex_;
  Status status_;

 private:
  EndBell bell_;
};

}  // namespace headrace::engine
