// SPDX-License-Identifier: Apache-2.0
// A request's life: prepared, posted, then exactly one of done, failed, canceled; and again. Or captured,
// until it is canceled.
//
// The core is what the engine knows; the caller's handle (Request::State) owns it and cancels it when the
// last copy goes. From post to end the in-flight list of its path keeps it alive, so that a backend may
// always call `completed`. A request that lies in a graph stays in that list: whoever looks there for users
// of a region finds it.
#pragma once

#include <headrace/request.hpp>

#include "engine/end_bell.hpp"
#include "engine/page_list_state.hpp"
#include "engine/transfer.hpp"

#include <shared_mutex>

namespace headrace::engine {

class Engine;

using PageListState = std::shared_ptr<const PageList::State>;

/// What the caller asked for; fixed at make_request.
struct RequestPlan {
  Op op = Op::read;
  PageListState local;
  PageListState remote;
  std::vector<std::uint32_t> local_index;  ///< empty: the whole list in order
  std::vector<std::uint32_t> remote_index;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  std::optional<headrace_page_grid_v1> grid;  ///< what each page consists of on both sides; none: one stretch
  std::vector<std::string> backends;          ///< only these; empty: all
  Timeout timeout;
};

/// What a post is likely to take by a backend's estimate.
double expected_ns(const headrace_cost_v1& cost, const RequestPlan& plan);

/// A backend that failed a post, and what it said.
struct FailedPath {
  std::string backend, why;
};

/// Of a post, by the clock.
struct PostTimes {
  std::uint64_t posted_ns = 0;
  std::uint64_t deadline_ns = UINT64_MAX;  ///< when it is given up
};

/// A backend's hold on a request.
struct Path {
  BackendInstance* backend = nullptr;
  std::shared_ptr<Link> link;  ///< null: to ourselves
  void* request = nullptr;
  PageList::State::Handles local_handles, remote_handles;
};

/// The larger request that one is a part of.
class Whole {
 public:
  /// Part `number` has ended. From any thread, also inside a backend's call; the last word about that post.
  virtual void part_ended(std::size_t number, Status status) = 0;

 protected:
  ~Whole() = default;
};

class RequestCore final : public Transfer, public std::enable_shared_from_this<RequestCore> {
 public:
  /// Whoever lets go of it last may do so anywhere, also inside a backend's call: it goes by Engine::let_go.
  static std::shared_ptr<RequestCore> make(std::shared_ptr<Engine> engine, RequestPlan plan,
                                           std::uint64_t id);
  ~RequestCore() override;

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
  [[nodiscard]] bool ended() const { return has_ended(state()); }
  [[nodiscard]] const RequestPlan& plan() const { return plan_; }
  [[nodiscard]] std::uint64_t id() const { return id_; }
  [[nodiscard]] Error error() const override;
  [[nodiscard]] RequestTimes times() const override;
  [[nodiscard]] std::string explain() const override;
  [[nodiscard]] std::string backend() const override;
  [[nodiscard]] Result<CostEstimate> cost() const override;
  [[nodiscard]] std::vector<PartInfo> parts() const override;
  [[nodiscard]] Op op() const override { return plan_.op; }
  [[nodiscard]] std::uint64_t pages() const override { return plan_.count; }
  [[nodiscard]] std::uint64_t bytes() const override { return plan_.bytes; }
  [[nodiscard]] std::string_view peer() const override { return plan_.remote->peer; }

  // --- for the request that it is a part of

  /// From now on `whole` posts it and is told of its ends. It outlives every post.
  void belong_to(Whole& whole, std::size_t number);
  /// What a post is refused for before anything begins; ok: nothing.
  [[nodiscard]] Status refusal(const PostOptions* options) const;
  /// Of a post that begins now, with these options.
  [[nodiscard]] PostTimes times_from_now(const PostOptions* options) const;
  enum class Entry {
    refusable,  ///< where a queue is full nothing has begun: the post is refused
    certain,    ///< other parts have begun: it ends as theirs do, and waits where a queue is full
  };
  Status post_at(const PostTimes& times, const PostOptions* options, Entry entry);
  /// Gives its path a slice of this thread's time. Returns whether something happened.
  bool help();

  // --- for the engine

  /// The backend's word that the present post has ended. From any thread, inside a backend's call.
  void completed(Status status, std::string_view text);
  /// Goes over to the next path, or ends with `status`. Not from inside a backend's call.
  void fail_over(Status status, const std::string& text);
  /// Chooses a path (not one of those tried for this post) and prepares on it; writes down why.
  Result<void> bind();
  /// Ends whatever runs because the agent closes: waits, and gives the backend its request back.
  void close();
  [[nodiscard]] bool uses(const Link& link) const;
  void expire();          ///< a deadline may have passed
  void enforce_cancel();  ///< the second that canceling may take has passed

 private:
  RequestCore(std::shared_ptr<Engine> engine, RequestPlan plan, std::uint64_t id);
  Status begin_post(const PostTimes& times, const PostOptions* options, Entry entry, bool& refused);
  Status start(Entry entry);
  Status start_later();
  void start_again();
  Status hand_over(const headrace_post_v1& args, bool& captured, std::string& why);
  [[nodiscard]] Result<bool> capture();
  [[nodiscard]] Result<headrace_indices_v1> checked(const PageIndices& given, void* stream) const;
  Status lies_in_graph();
  bool end_capture();
  [[nodiscard]] Error not_in_graph() const;
  Result<std::uint64_t> ask_for_replays();
  Status end(Status status, std::string text);
  void release_path();
  void set_deadline(std::uint64_t at_ns);
  [[nodiscard]] bool may_go_over(Code code) const;
  [[nodiscard]] std::string describe(Status status, std::string_view text) const;

  const std::shared_ptr<Engine> engine_;
  RequestPlan plan_;  // as it was made, until the end
  const std::uint64_t id_;
  Whole* whole_ = nullptr;  ///< null: it is one of its own
  std::size_t number_ = 0;  ///< among its parts

  std::atomic<RequestState> state_{RequestState::prepared};
  std::atomic<bool> cancel_asked_{false};
  std::atomic<bool> timed_out_{false};
  std::atomic<std::uint64_t> deadline_ns_{UINT64_MAX};
  std::atomic<std::uint64_t> timer_at_ns_{UINT64_MAX};  ///< an armed timer that will look at the deadline
  std::atomic<std::uint64_t> posts_{0};

  // Calls into the backend on `path_.request` are made under the shared lock; changing the path under the
  // exclusive one.
  mutable std::shared_mutex path_mutex_;
  Path path_;
  headrace_side_v1 local_side_{}, remote_side_{};
  std::atomic<InFlight*> flying_in_{
      nullptr};  ///< of the present post: the path's, whose link outlives the post
  std::size_t flight_slot_ = InFlight::landed;
  std::vector<FailedPath> tried_;  ///< of this post
  std::string explanation_;

  std::string message_;  ///< 16 bytes of key, then the notification, while it may be needed by a next path
  bool has_message_ = false;
  void* stream_ = nullptr;              ///< of the present post, for the path alone that it was posted on
  std::optional<PageIndices> indices_;  ///< of the present post, while it is handed over

  std::atomic<std::uint64_t> posted_at_ns_{0}, post_ns_{0}, ended_at_ns_{0};
  std::atomic<std::uint64_t> replays_{0};  ///< that have been counted

  mutable std::mutex outcome_mutex_;
  Status status_;
  std::string text_;
  EndBell bell_;
};

}  // namespace headrace::engine
