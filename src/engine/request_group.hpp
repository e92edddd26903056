// SPDX-License-Identifier: Apache-2.0
// Requests to several peers that are one: posted, waited for, canceled and ended together.
//
// Each part is a request like any other, with a path, a link and an end of its own. The group counts their
// ends, and has its own when the last has come: then the memory of all is quiet. A part that fails stops no
// other.
#pragma once

#include "engine/request_core.hpp"

namespace headrace::engine {

class RequestGroup final : public Transfer, public Whole, public std::enable_shared_from_this<RequestGroup> {
 public:
  /// `parts`: two or more of one operation, to a peer each, that nobody else posts.
  static std::shared_ptr<RequestGroup> make(std::shared_ptr<Engine> engine,
                                            std::vector<std::shared_ptr<RequestCore>> parts);

  Status post(const PostOptions* options) override;
  RequestState poll() override;
  Status wait(Timeout timeout) override;
  void cancel() override;
  Result<void> set_indices(const PageIndices& indices, void* stream) override;
  Result<std::uint64_t> check() override;
  void on_done(std::function<void(Status)> done) override {
    bell_.on_done(std::move(done), state_, posts_.load());
  }
  Result<int> event_fd() override { return bell_.event_fd(); }

  [[nodiscard]] RequestState state() const override { return state_.load(std::memory_order_acquire); }
  [[nodiscard]] Error error() const override;
  [[nodiscard]] RequestTimes times() const override;
  [[nodiscard]] std::string explain() const override;
  [[nodiscard]] std::string backend() const override;
  [[nodiscard]] Result<CostEstimate> cost() const override;
  [[nodiscard]] std::vector<PartInfo> parts() const override;
  [[nodiscard]] Op op() const override { return parts_.front()->op(); }
  [[nodiscard]] std::uint64_t pages() const override { return pages_; }
  [[nodiscard]] std::uint64_t bytes() const override { return bytes_; }
  [[nodiscard]] std::string_view peer() const override { return peers_; }

  void part_ended(std::size_t number, Status status) override;

 private:
  RequestGroup(std::shared_ptr<Engine> engine, std::vector<std::shared_ptr<RequestCore>> parts);
  [[nodiscard]] bool ended() const { return has_ended(state()); }
  bool begin();
  Status post_parts(const PostOptions* options, bool& refused);
  void settle_capture();
  void cancel_parts();
  void leave();
  void finish();
  [[nodiscard]] Status outcome() const;
  void set_outcome(Status status);
  bool help();

  const std::shared_ptr<Engine> engine_;
  const std::vector<std::shared_ptr<RequestCore>> parts_;
  std::uint64_t pages_ = 0;
  std::uint64_t bytes_ = 0;
  std::string peers_;  ///< names, with commas

  std::atomic<RequestState> state_{RequestState::prepared};
  std::atomic<bool> cancel_asked_{false};
  std::atomic<std::size_t> running_{0};  ///< parts without an end, and who posts
  std::shared_ptr<RequestGroup> keep_;   ///< this, from post to end: the parts tell it of theirs

  std::atomic<std::uint64_t> posts_{0}, posted_at_ns_{0}, post_ns_{0}, ended_at_ns_{0};

  mutable std::mutex outcome_mutex_;
  Status status_;                ///< the first failure; a cancel gives way to any other
  std::size_t failed_part_ = 0;  ///< whose it is
  EndBell bell_;
};

}  // namespace headrace::engine
