// SPDX-License-Identifier: Apache-2.0
#include "engine/request_core.hpp"

#include "base/errors.hpp"
#include "base/log.hpp"
#include "engine/arrival_counters.hpp"
#include "engine/notifications.hpp"
#include "engine/requests.hpp"
#include "engine/revocation.hpp"

#include <algorithm>
#include <cstring>

namespace headrace::engine {
namespace {

constexpr std::size_t message_header_bytes = 16;           // request and post number (docs/wire.md)
constexpr auto canceling_limit = std::chrono::seconds(1);  // then the connection goes
constexpr auto full_queue_wait =
    std::chrono::microseconds(100);  // until a path whose queue was full is asked again

/// What a failure is about. The code stands beside the message wherever an error is shown: here are the
/// words.
std::string words(Status status, std::string_view text) {
  if (!text.empty()) return std::string(text);
  return status.os_error != 0 ? os_error_text(status.os_error) : std::string(code_sentence(status.code));
}

Error not_in_graph() {
  return make_error(Code::invalid_argument,
                    "the request lies in no graph: post it on a stream that is being captured");
}

}  // namespace

// ------------------------------------------------------------------ making and releasing

std::shared_ptr<RequestCore> RequestCore::make(std::shared_ptr<const void> engine,
                                               const RequestContext& context, PostSlots::Hold slot,
                                               RequestPlan plan, std::uint64_t id) {
  return {new RequestCore(std::move(engine), context, std::move(slot), std::move(plan), id),
          [](RequestCore* core) { core->context_.requests.let_go(core); }};
}

RequestCore::RequestCore(std::shared_ptr<const void> engine, const RequestContext& context,
                         PostSlots::Hold slot, RequestPlan plan, std::uint64_t id)
    : Transfer(std::move(engine), context), slot_(std::move(slot)), plan_(std::move(plan)), id_(id) {
  slot_.set_owner(*this);
  shape_ = {plan_.op, plan_.count, plan_.bytes, plan_.remote->peer};
}

RequestCore::~RequestCore() {
  if (context_.calls.forked()) {  // the backend's hold on it is the parent's
    (void)graph_.release();
    return;
  }
  release_path();
  context_.requests.forget(*this, plan_);  // last: an engine that closes waits for those that are still known
}

void RequestCore::belong_to(Whole& whole, std::size_t number) {
  whole_ = &whole;
  number_ = number;
}

Result<void> RequestCore::bind() {
  const Call call(context_.calls);
  HEADRACE_TRY_VOID(call.admitted());
  release_path();
  HEADRACE_TRY(choice, context_.paths.choose(plan_, tried_, sides_));
  const std::unique_lock lock(path_mutex_);
  path_ = std::move(choice.path);
  explanation_ = std::move(choice.explanation);
  return {};
}

void RequestCore::release_path() {
  const std::unique_lock lock(path_mutex_);
  if (path_.request != nullptr) path_.backend->release(path_.request);
  path_ = Path{};
}

bool RequestCore::release() {
  if (!ended()) return false;
  release_path();
  return true;
}

// ------------------------------------------------------------------ posting

Status RequestCore::refusal(const PostOptions* options) const {
  if (context_.calls.forked() || !may_post(state())) return {Code::invalid_argument};
  if (options == nullptr) return {};
  if (options->notification && options->notification->size() > max_notification_bytes)
    return {Code::invalid_argument};
  if (options->indices && (!options->stream || (whole_ == nullptr && options->indices->part != 0)))
    return {Code::invalid_argument};
  if (!options->stream) return {};
  const std::shared_lock lock(path_mutex_);
  return path_.backend != nullptr && !path_.backend->can(HEADRACE_STREAM) ? Status{Code::not_supported}
                                                                          : Status{};
}

PostTimes RequestCore::times_from_now(const PostOptions* options) const {
  const Timeout timeout = options != nullptr && options->timeout ? options->timeout : plan_.timeout;
  const std::uint64_t now = now_ns();
  return {now, timeout ? Deadline::after(*timeout, now).point_ns() : UINT64_MAX};
}

Status RequestCore::post(const PostOptions* options) {
  if (const Status refused = refusal(options); !refused.ok()) return refused;
  return post_at(times_from_now(options), options, Entry::refusable);
}

Status RequestCore::post_at(const PostTimes& times, const PostOptions* options, Entry entry) {
  RequestState before{};
  if (!begin(before, times.posted_ns)) return {Code::invalid_argument};
  // Begun first, then looked at: a close shuts the gate first and then cancels what has begun. So one of the
  // two sees the other.
  if (context_.calls.closed()) return refuse_closed(before, entry);
  tried_.clear();
  set_contents(options);
  deadline_ns_.store(times.deadline_ns, std::memory_order_relaxed);
  const Attempt attempt = start(entry);
  indices_.reset();
  if (attempt.outcome == Attempt::Outcome::refused) {
    deadline_ns_.store(UINT64_MAX);
    take_back(before);
    return attempt.status;
  }
  context_.counters.posts.add();
  if (times.deadline_ns != UINT64_MAX && !ended()) watch_deadline(times.deadline_ns);
  leave_post();
  return attempt.status;
}

/// The agent is closed: nothing of the post has been handed over.
Status RequestCore::refuse_closed(RequestState before, Entry entry) {
  if (entry == Entry::certain) return end({Code::canceled}, "its agent was closed");
  take_back(before);
  return {Code::invalid_argument};
}

/// What goes with this post.
void RequestCore::set_contents(const PostOptions* options) {
  has_message_ = options != nullptr && options->notification.has_value();
  if (has_message_) {
    const std::uint64_t number = life_.post();
    message_.resize(message_header_bytes + options->notification->size());
    std::memcpy(message_.data(), &id_, 8);
    std::memcpy(message_.data() + 8, &number, 8);
    std::memcpy(message_.data() + message_header_bytes, options->notification->data(),
                options->notification->size());
  }
  immediate_ = options != nullptr ? options->immediate : std::nullopt;
  const bool on_stream = options != nullptr && options->stream;
  stream_ = on_stream ? *options->stream : nullptr;
  if (on_stream && stream_ == nullptr) stream_ = default_stream;
  const bool has_indices = options != nullptr && options->indices && options->indices->part == number_;
  indices_ = has_indices ? options->indices : std::nullopt;
}

/// Tries the present path, then those that are left. In `posted`.
RequestCore::Attempt RequestCore::start(Entry entry) {
  using Outcome = Attempt::Outcome;
  for (bool bound = false;;) {
    Attempt attempt = try_path();
    if (attempt.outcome == Outcome::over) return attempt;
    if (attempt.outcome == Outcome::lost && !std::exchange(bound, true)) {
      if (auto found = bind(); !found) return over(end_unbound(found.error()));
      continue;
    }
    if (attempt.status.code == Code::would_block || attempt.outcome == Outcome::no_streams) {
      if (entry == Entry::refusable) return {Outcome::refused, attempt.status};
      return over(stream_ == nullptr ? start_later() : end(attempt.status, why_not_on_stream(attempt)));
    }
    if (!may_go_over(attempt.status.code)) return over(end(attempt.status, attempt.why));
    tried_.push_back({backend(), words(attempt.status, attempt.why)});
    if (!bind()) return over(end(attempt.status, attempt.why));
    bound = true;
  }
}

std::string RequestCore::why_not_on_stream(const Attempt& attempt) {
  if (attempt.outcome == Attempt::Outcome::no_streams) return attempt.why;
  return "a queue of its path is full, or the way to its memory is not made yet: post once without a stream "
         "before";
}

/// The path had gone, and there is no other. An agent that closes makes none.
Status RequestCore::end_unbound(const Error& error) {
  if (canceled()) return end({Code::canceled}, {});
  return end({error.code == Code::not_supported ? Code::peer_lost : error.code}, error.message);
}

RequestCore::Attempt RequestCore::try_path() {
  using Outcome = Attempt::Outcome;
  const std::shared_lock lock(path_mutex_);
  Link* const link = path_.link.get();  // the path is ours as long as the lock
  if (path_.backend == nullptr || (link != nullptr && link->state() == LinkState::lost))
    return {Outcome::lost,
            {link != nullptr ? link->lost_code() : Code::peer_lost},
            link != nullptr ? link->lost_text() : std::string()};
  if (stream_ != nullptr && !path_.backend->can(HEADRACE_STREAM))
    return {Outcome::no_streams, {Code::not_supported}, "the path that is left knows no streams"};
  InFlight& flying = link != nullptr ? link->in_flight() : context_.own_flights;
  flying_in_.store(&flying, std::memory_order_release);
  // First visible, then checked: a revocation makes the region invalid first and then looks for posts in
  // flight.
  flying.insert(shared_from_this(), flight_slot_);
  Status valid = context_.lists.still_valid(*plan_.local);
  if (valid.ok()) valid = context_.lists.still_valid(*plan_.remote);
  if (!valid.ok()) {
    const auto self = flying.take(flight_slot_);
    return over(end(valid, {}));
  }
  Attempt attempt = hand_over(link);
  if (attempt.outcome == Outcome::failed) (void)flying.take(flight_slot_);
  return attempt;
}

/// Until the link is ready, unless it is so by now. In the order of a stream nothing can wait.
std::optional<RequestCore::Attempt> RequestCore::wait_for(Link& link) {
  using Outcome = Attempt::Outcome;
  if (stream_ != nullptr) return Attempt{Outcome::failed, {Code::would_block}};
  switch (link.queue().add(shared_from_this())) {
    case LinkQueue::Answer::pass:
      return std::nullopt;
    case LinkQueue::Answer::full:
      return Attempt{Outcome::failed, {Code::would_block}};
    case LinkQueue::Answer::waits:
      break;
  }
  // A cancel that came before it was in the queue did not find it there.
  if (canceled() && link.queue().remove(*this)) {
    const auto self = link.in_flight().take(flight_slot_);
    return over(end({Code::canceled}, {}));
  }
  return over({});
}

void RequestCore::link_ready() {
  const auto self = flying_in_.load()->take(flight_slot_);
  start_again();
}

void RequestCore::link_lost(Status status, const std::string& text) {
  const auto self = flying_in_.load()->take(flight_slot_);
  // It was closed to end another request: this one may try its next path.
  if (status.code == Code::canceled) status.code = Code::backend_failed;
  // One side has no descriptors for it: another path may need fewer.
  const bool exhausted = status.code == Code::exhausted;
  if (!canceled() && (exhausted || may_go_over(status.code))) return fail_over(status, text);
  (void)end(canceled() ? Status{Code::canceled} : Status{Code::peer_lost, status.os_error}, text);
}

/// Posts, or records the post into the graph that its stream captures.
RequestCore::Attempt RequestCore::hand_over(Link* link) {
  using Outcome = Attempt::Outcome;
  std::optional<GatePass> pass;
  if (link != nullptr && !pass.emplace(link->gate()))
    return {Outcome::failed, {link->lost_code()}, link->lost_text()};
  if (stream_ != nullptr && (indices_ || path_.backend->can(HEADRACE_CAPTURE))) {
    auto graph = GraphCapture::record(path_, plan_, {stream_, &indices_, has_message_, &immediate_});
    if (!graph) return {Outcome::failed, {graph.code(), 0, graph.error().page}, graph.error().message};
    if (*graph) return captured(*std::move(graph));
  }
  if (immediate_ && link != nullptr && !path_.backend->can(HEADRACE_COUNT))
    return {Outcome::failed, {Code::not_supported}, "this path carries no immediates"};
  if (link != nullptr && link->state() == LinkState::connecting)
    if (auto waits = wait_for(*link)) return *std::move(waits);
  if (!take_credit()) return {Outcome::failed, {Code::would_block}};
  const headrace_post_v1 args = post_args(link);
  const Status status = path_.backend->post(path_.request, args);
  // A backend that refuses a post and completes it all the same has ended it.
  if (!status.ok()) {
    if (!slot_.withdraw(args.token)) return over(status);
    give_credit_back();
    return {Outcome::failed, status};
  }
  // A cancel that came before the backend had the request has to be repeated.
  if (canceled()) path_.backend->cancel(path_.request);
  return over(status);
}

/// The room of its message in the inbox that it goes to.
bool RequestCore::take_credit() {
  if (!has_message_) return true;
  if (!path_.link) return context_.notifications.inbox().has_room();
  if (!path_.link->credit().take(message_.size())) return false;
  charged_ = path_.link;
  return true;
}

/// The message was not delivered.
void RequestCore::give_credit_back() {
  if (const auto link = std::exchange(charged_, nullptr)) link->credit().give_back(message_.size());
}

/// What a request to ourselves carries stays here until the end.
headrace_post_v1 RequestCore::post_args(const Link* link) {
  headrace_post_v1 args{};
  args.struct_size = sizeof args;
  args.token = slot_.begin();
  args.post_number = life_.post();
  args.deadline_ns = deadline_ns_.load(std::memory_order_relaxed);
  args.channel = HEADRACE_CHANNEL_USER;
  args.stream = stream_;
  if (link == nullptr) return args;
  args.has_message = has_message_ ? 1 : 0;
  if (has_message_) args.message = {message_.data(), message_.size()};
  if (immediate_) {
    args.has_immediate = 1;
    args.immediate = immediate_->value;
    args.scope = immediate_->scope;
  }
  return args;
}

/// The path's queue is full, and what has begun elsewhere cannot be taken back: the post waits until there is
/// room.
Status RequestCore::start_later() {
  context_.progress.after(full_queue_wait, [self = shared_from_this()] { self->start_again(); });
  return {};
}

void RequestCore::start_again() {
  if (canceled())
    (void)end({Code::canceled}, {});
  else
    (void)start(Entry::certain);
}

/// Whether the next path may try. Not in the order of a stream: what was queued after the post has seen it
/// fail.
bool RequestCore::may_go_over(Code code) const {
  return stream_ == nullptr && (code == Code::backend_failed || code == Code::not_supported);
}

bool RequestCore::help() {
  const std::shared_lock lock(path_mutex_);
  return path_.request != nullptr && !ended() && path_.backend->poll(path_.request);
}

// ------------------------------------------------------------------ deadline and cancel

/// After the post: one that has ended by then needs no timer.
void RequestCore::watch_deadline(std::uint64_t at) {
  // `expire` says that no timer is armed, and then reads the deadline: it reads this one, or we see what it
  // said. Both change the same word, so one comes after the other. A fence would do; GCC's thread sanitizer
  // does not know fences.
  if (timer_at_ns_.fetch_or(0) > at) arm_timer(at);  // else an armed timer looks again in time
}

void RequestCore::arm_timer(std::uint64_t at) {
  timer_at_ns_.store(at);
  context_.progress.at(at, [weak = weak_from_this()] {
    if (const auto core = weak.lock()) core->expire();
  });
}

/// A deadline may have passed: that of the post which is read first, or a later one, which sees that no timer
/// is armed.
void RequestCore::expire() {
  timer_at_ns_.exchange(UINT64_MAX);
  const PostLife::Now now = life_.now();
  const std::uint64_t at = deadline_ns_.load();
  if (has_ended(now.state) || at == UINT64_MAX) return;
  if (now_ns() < at) return arm_timer(at);
  raise(timed_out_, now.post);
  cancel(now.post);
}

void RequestCore::cancel(std::uint64_t post) {
  if (context_.calls.forked()) return;  // it is the parent's, over sockets that both have
  if (end_capture(post)) return;
  raise(cancel_asked_, post);
  if (!life_.change(post, RequestState::posted, RequestState::canceling)) return;
  cancel_on_path();
  if (ended()) return;
  context_.progress.after(canceling_limit, [weak = weak_from_this(), post] {
    if (const auto core = weak.lock()) core->enforce_cancel(post);
  });
}

void RequestCore::cancel_on_path() {
  std::shared_ptr<RequestCore> waited;
  {
    const std::shared_lock lock(path_mutex_);
    if (path_.request == nullptr) return;
    if (path_.link && path_.link->queue().remove(*this)) waited = path_.link->in_flight().take(flight_slot_);
    std::optional<GatePass> pass;
    if (!waited && (!path_.link || pass.emplace(path_.link->gate()))) path_.backend->cancel(path_.request);
  }
  if (waited) (void)end({Code::canceled}, {});  // the backend does not have it: its memory is quiet
}

/// The second that canceling may take has passed.
void RequestCore::enforce_cancel(std::uint64_t post) {
  const PostLife::Now now = life_.now();
  if (now.post != post || now.state != RequestState::canceling) return;
  std::shared_ptr<Link> link;
  {
    const std::shared_lock lock(path_mutex_);
    link = path_.link;
  }
  if (link) context_.links.kill(link, "a canceled request was still running after 1 s");
}

// ------------------------------------------------------------------ graphs

/// The backend has recorded it. No thread waits for its end, so there is no deadline.
RequestCore::Attempt RequestCore::captured(std::unique_ptr<GraphCapture> graph) {
  deadline_ns_.store(UINT64_MAX);
  graph_ = std::move(graph);
  context_.counters.captured.add();
  if (life_.change(life_.post(), RequestState::posted, RequestState::captured)) return over({});
  graph_.reset();  // canceled while it was recorded
  const auto self = flying_in_.load()->take(flight_slot_);
  return over(end({Code::canceled}, {}));
}

/// Whether it was captured by that post; then it is no longer, as far as we are concerned.
bool RequestCore::end_capture(std::uint64_t post) {
  if (!life_.change(post, RequestState::captured, RequestState::canceling)) return false;
  {
    const std::unique_lock nobody_asks(path_mutex_);
    graph_.reset();
  }
  const auto self = flying_in_.load()->take(flight_slot_);
  (void)end({Code::canceled}, "taken out of its graph: replay that no more");
  return true;
}

Result<void> RequestCore::set_indices(const PageIndices& given, void* stream) {
  HEADRACE_TRY_VOID(context_.calls.usable());
  if (given.part != number_)
    return make_error(Code::invalid_argument, "the request has one part: number {} is none of it",
                      given.part);
  HEADRACE_TRY_VOID(check_indices(plan_, given));
  const std::shared_lock lock(path_mutex_);
  return state() == RequestState::captured ? graph_->set_indices(given, stream) : not_in_graph();
}

Result<std::uint64_t> RequestCore::check() {
  HEADRACE_TRY_VOID(context_.calls.usable());
  const std::shared_lock lock(path_mutex_);
  if (state() != RequestState::captured) return not_in_graph();
  std::uint64_t fresh = 0;
  auto replays = graph_->replays(context_.lists, fresh);
  if (fresh > 0) context_.counters.replayed.add(fresh);
  if (!replays) {
    Error& error = replays.error();
    error.message = describe({error.code, 0, error.page}, error.message);
  }
  return replays;
}

// ------------------------------------------------------------------ the end

void RequestCore::completed(Status status, std::string_view text) {
  // May run inside our own call to `post`, so it takes no lock that is held there.
  std::shared_ptr<RequestCore> self = flying_in_.load()->take(flight_slot_);
  if (status.ok())
    charged_.reset();
  else
    give_credit_back();
  std::string why(text);
  // Backends end the posts of a link that is closed here as canceled. The link knows why it was closed.
  if (status.code == Code::canceled && !canceled() && path_.link && path_.link->state() == LinkState::lost) {
    status = path_.link->lost_status();
    why = path_.link->lost_text();
    // If it was closed to end another request, this one may try its next path.
    if (status.code == Code::canceled) status.code = Code::backend_failed;
    if (status.code != Code::backend_failed && status.code != Code::not_supported)
      status.code = Code::peer_lost;
  }
  // The peer could not tell a second count of the post from that of another post.
  const bool counts_twice = immediate_ && plan_.remote->life && status.code == Code::backend_failed;
  if (canceled() || status.ok() || counts_twice || !may_go_over(status.code)) {
    (void)end(status, std::move(why));
    return;
  }
  context_.progress.defer(
      [self = std::move(self), status, why = std::move(why)] { self->fail_over(status, why); });
}

/// Continues over the next path, or ends with `status`. Not from inside a backend's call.
void RequestCore::fail_over(Status status, const std::string& text) {
  if (canceled()) {
    (void)end({Code::canceled}, text);
    return;
  }
  const std::string failed = backend();
  tried_.push_back({failed, words(status, text)});
  if (!bind()) {
    (void)end(status, text);
    return;
  }
  context_.log.warn("request {} to {} leaves {} for {}: {}", id_, plan_.remote->peer, failed, backend(),
                    text);
  context_.counters.failed_over.add();
  (void)start(Entry::certain);
}

std::string RequestCore::describe(Status status, std::string_view text) const {
  std::string what = fmt::format("{} {}", plan_.op == Op::read ? "read from" : "write to",
                                 plan_.remote->life ? "peer " + plan_.remote->peer : "this agent itself");
  if (status.page != no_page) what += fmt::format(" at page {}", status.page);
  return fmt::format("{}: {}", what, words(status, text));
}

/// What the caller can do about this end, and why it came; `text` may be empty.
void RequestCore::explain_end(Status& status, std::string& text) const {
  const auto& life = plan_.remote->life;
  if (status.code == Code::canceled && timed_out_.load() == life_.post()) {
    status.code = Code::timed_out;
    text = "its deadline passed before all pages had moved: give it more time, or look at how the peer is";
  } else if (status.code == Code::not_found && text.empty()) {
    text = "a region of its page lists is registered no longer: prepare the lists again";
    if (life && life->fate.load() != Fate::alive) status.code = Code::peer_lost;
  }
  if (status.code == Code::peer_lost && text.empty() && life) text = life->detail_text();
}

/// The one place where a post ends. The caller holds the request, also beyond this call.
Status RequestCore::end(Status status, std::string text) {
  if (!status.ok()) explain_end(status, text);
  const std::uint64_t ended_at_ns = now_ns();
  deadline_ns_.store(UINT64_MAX, std::memory_order_release);
  {
    const std::lock_guard lock(outcome_mutex_);
    status_ = status;
    text_ = status.ok() ? std::string() : describe(status, text);
  }
  context_.requests.count_end(plan_, status, ended_at_ns - posted_at_ns_.load(std::memory_order_relaxed));
  context_.revocation.post_ended();
  if (status.ok() && has_message_ && !plan_.remote->life)
    context_.notifications.received_from_self(std::string_view(message_).substr(message_header_bytes));
  if (status.ok() && immediate_ && !plan_.remote->life) context_.arrivals.add(*immediate_, 1);
  finish(status, ended_at_ns);
  if (whole_ != nullptr) whole_->part_ended(number_, status);
  return status;
}

// ------------------------------------------------------------------ state for the caller

Error RequestCore::error() const {
  const std::lock_guard lock(outcome_mutex_);
  return Error{status_.code, text_, status_.page};
}

std::string RequestCore::explain() const {
  const std::shared_lock lock(path_mutex_);
  return explanation_;
}

std::string RequestCore::backend() const {
  const std::shared_lock lock(path_mutex_);
  return path_.backend != nullptr ? path_.backend->name() : std::string();
}

Result<CostEstimate> RequestCore::cost() const {
  const std::shared_lock lock(path_mutex_);
  if (path_.backend == nullptr)
    return Error{Code::peer_lost,
                 "the request has no path any more: import the peer's metadata and make the request again"};
  const headrace_cost_v1 cost = context_.paths.cost_on(path_, plan_, sides_);
  CostEstimate estimate;
  estimate.duration = std::chrono::nanoseconds(static_cast<std::int64_t>(expected_ns(cost, plan_)));
  estimate.margin = cost.margin;
  estimate.method = cost.method != nullptr ? cost.method : "";
  estimate.backend = path_.backend->name();
  return estimate;
}

std::vector<PartInfo> RequestCore::parts() const {
  PartInfo part;
  part.peer = plan_.remote->peer;
  part.backend = backend();
  part.pages = plan_.count;
  part.bytes = plan_.bytes;
  part.state = state();
  part.error = error();
  return {std::move(part)};
}

}  // namespace headrace::engine
