// SPDX-License-Identifier: Apache-2.0
// A request's life: prepared, posted, then exactly one of done, failed, canceled; and again. Or captured,
// until it is canceled.
//
// The core is what the engine knows; the caller's handle owns it and cancels it when the last copy goes. From
// post to end the in-flight list of its path keeps it alive, so that a backend may always call `completed`. A
// captured request stays in that list: there a deregistration looks for users of a region.
#pragma once

#include "engine/graph_capture.hpp"
#include "engine/in_flight.hpp"
#include "engine/path_choice.hpp"
#include "engine/post_slots.hpp"
#include "engine/request_plan.hpp"
#include "engine/transfer.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

namespace headrace::engine {

/// Of a post, by the clock.
struct PostTimes {
  std::uint64_t posted_ns = 0;
  std::uint64_t deadline_ns = UINT64_MAX;  ///< when it is given up
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
  /// The last reference may go anywhere, also inside a backend's call: the core is deleted by
  /// Requests::let_go.
  static std::shared_ptr<RequestCore> make(std::shared_ptr<const void> engine, const RequestContext& context,
                                           PostSlots::Hold slot, RequestPlan plan, std::uint64_t id);
  ~RequestCore() override;

  Status post(const PostOptions* options) override;
  void cancel() override { cancel(life_.post()); }
  Result<void> set_indices(const PageIndices& indices, void* stream) override;
  Result<std::uint64_t> check() override;
  [[nodiscard]] Error error() const override;
  [[nodiscard]] std::string explain() const override;
  [[nodiscard]] std::string backend() const override;
  [[nodiscard]] Result<CostEstimate> cost() const override;
  [[nodiscard]] std::vector<PartInfo> parts() const override;
  bool help() override;

  [[nodiscard]] const RequestPlan& plan() const { return plan_; }
  [[nodiscard]] std::uint64_t id() const { return id_; }

  // --- for the request that it is a part of

  /// From now on `whole` posts it and is told of its ends. It outlives every post.
  void belong_to(Whole& whole, std::size_t number);
  /// What a post is refused for before anything begins; ok: nothing.
  [[nodiscard]] Status refusal(const PostOptions* options) const;
  /// Of a post that begins now, with these options.
  [[nodiscard]] PostTimes times_from_now(const PostOptions* options) const;
  enum class Entry {
    refusable,  ///< if a queue is full nothing has begun: the post is refused
    certain,    ///< other parts have begun: it ends as theirs do, and waits while a queue is full
  };
  /// After `refusal`: only the path may still refuse it.
  Status post_at(const PostTimes& times, const PostOptions* options, Entry entry);

  // --- for the engine

  /// The backend's word that the present post has ended, once a post. From any thread, inside a backend's
  /// call.
  void completed(Status status, std::string_view text);
  /// The link that the present post waits for is ready, or is lost. Not from inside a backend's call.
  void link_ready();
  void link_lost(Status status, const std::string& text);
  /// Chooses a path (not one of those tried for this post) and prepares on it; writes down why.
  Result<void> bind();
  /// Gives the backend its request back, because the agent closes. False while a post is under way.
  bool release();

 private:
  /// What became of one attempt on the present path.
  struct Attempt {
    enum class Outcome {
      over,        ///< this thread need not do more: handed over, captured, or ended
      lost,        ///< the path had gone before
      no_streams,  ///< the path cannot post in the order of a stream
      failed,      ///< the path did not take the post
      refused,     ///< nothing has begun, and the request is as it was
    };
    Outcome outcome = Outcome::failed;
    Status status;
    std::string why = {};
  };
  static Attempt over(Status status) { return {Attempt::Outcome::over, status}; }

  RequestCore(std::shared_ptr<const void> engine, const RequestContext& context, PostSlots::Hold slot,
              RequestPlan plan, std::uint64_t id);
  Status refuse_closed(RequestState before, Entry entry);
  void set_contents(const PostOptions* options);
  Attempt start(Entry entry);
  Attempt try_path();
  std::optional<Attempt> wait_for(Link& link);
  Attempt hand_over(Link* link);
  [[nodiscard]] bool take_credit();
  void give_credit_back();
  headrace_post_v1 post_args(const Link* link);
  static std::string why_not_on_stream(const Attempt& attempt);
  Status end_unbound(const Error& error);
  Status start_later();
  void start_again();
  Attempt captured(std::unique_ptr<GraphCapture> graph);
  bool end_capture(std::uint64_t post);
  void cancel(std::uint64_t post);
  void cancel_on_path();
  void enforce_cancel(std::uint64_t post);
  [[nodiscard]] bool canceled() const { return cancel_asked_.load() == life_.post(); }
  void watch_deadline(std::uint64_t at_ns);
  void arm_timer(std::uint64_t at_ns);
  void expire();
  void fail_over(Status status, const std::string& text);
  void explain_end(Status& status, std::string& text) const;
  Status end(Status status, std::string text);
  void release_path();
  [[nodiscard]] bool may_go_over(Code code) const;
  [[nodiscard]] std::string describe(Status status, std::string_view text) const;

  PostSlots::Hold slot_;
  RequestPlan plan_;  // as it was made, until the end
  const std::uint64_t id_;
  Whole* whole_ = nullptr;  ///< null: it is one of its own
  std::size_t number_ = 0;  ///< among its parts

  std::atomic<std::uint64_t> timed_out_{0};  ///< the latest post that its deadline canceled
  std::atomic<std::uint64_t> deadline_ns_{UINT64_MAX};
  std::atomic<std::uint64_t> timer_at_ns_{UINT64_MAX};  ///< an armed timer that will look at the deadline

  // Calls into the backend on `path_.request` are made under the shared lock; changing the path under the
  // exclusive one.
  mutable std::shared_mutex path_mutex_;
  Path path_;
  Sides sides_;
  std::unique_ptr<GraphCapture> graph_;  ///< in state `captured`
  std::atomic<InFlight*> flying_in_{
      nullptr};  ///< of the present post: the path's, whose link outlives the post
  std::size_t flight_slot_ = InFlight::landed;
  std::vector<FailedPath> tried_;  ///< of this post
  std::string explanation_;

  std::string message_;  ///< 16 bytes of key, then the notification, while it may be needed by a next path
  bool has_message_ = false;
  std::shared_ptr<Link> charged_;  ///< whose credit the message of the present post has taken
  std::optional<Immediate> immediate_;
  void* stream_ = nullptr;              ///< of the present post, for the path alone that it was posted on
  std::optional<PageIndices> indices_;  ///< of the present post, while it is handed over

  std::string text_;  ///< of the outcome
};

}  // namespace headrace::engine
