// SPDX-License-Identifier: Apache-2.0
#include "engine/request_core.hpp"

#include "engine/engine.hpp"

#include <algorithm>
#include <cstring>

namespace headrace::engine {
namespace {

constexpr std::size_t message_header_bytes = 16;  // request and post number (docs/wire.md)
constexpr std::size_t longest_notification = 65536;
constexpr std::uint64_t canceling_limit_ns = 1'000'000'000;  // then the connection goes
constexpr std::uint64_t full_queue_ns = 100'000;  // until a path whose queue was full is asked again

// How a plugin is told of the default stream.
void* const default_stream = reinterpret_cast<void*>(std::uintptr_t{1});  // NOLINT(performance-no-int-to-ptr)

/// What a failure is about. The code stands beside the message wherever an error is shown: here are the
/// words.
std::string words(Status status, std::string_view text) {
  if (!text.empty()) return std::string(text);
  return status.os_error != 0 ? os_error_text(status.os_error) : std::string(code_sentence(status.code));
}

}  // namespace

RequestCore::RequestCore(std::shared_ptr<Engine> engine, RequestPlan plan, std::uint64_t id)
    : engine_(std::move(engine)), plan_(std::move(plan)), id_(id) {}

std::shared_ptr<RequestCore> RequestCore::make(std::shared_ptr<Engine> engine, RequestPlan plan,
                                               std::uint64_t id) {
  return {new RequestCore(std::move(engine), std::move(plan), id),
          [](RequestCore* core) { core->engine_->let_go(core); }};
}

RequestCore::~RequestCore() {
  if (engine_->forked()) return;  // the backend's hold on it is the parent's
  release_path();
  engine_->forget_request(*this);  // last: an engine that closes waits for those that are still known
  engine_->index_pool().give(std::move(plan_.local_index));
  engine_->index_pool().give(std::move(plan_.remote_index));
}

Result<void> RequestCore::bind() {
  release_path();
  auto choice = engine_->choose(plan_, tried_, local_side_, remote_side_);
  if (!choice) return std::move(choice).error();
  const std::unique_lock lock(path_mutex_);
  path_ = std::move(choice->path);
  explanation_ = std::move(choice->explanation);
  return {};
}

void RequestCore::release_path() {
  const std::unique_lock lock(path_mutex_);
  if (path_.request != nullptr) path_.backend->release(path_.request);
  path_ = Path{};
}

void RequestCore::belong_to(Whole& whole, std::size_t number) {
  whole_ = &whole;
  number_ = number;
}

Status RequestCore::refusal(const PostOptions* options) const {
  Status refused;
  if (!engine_->usable_status(refused)) return refused;
  if (!may_post(state())) return {Code::invalid_argument};
  if (options == nullptr) return {};
  if (options->notification && options->notification->size() > longest_notification)
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

/// Nothing speaks against it but what the path may say.
Status RequestCore::post_at(const PostTimes& times, const PostOptions* options, Entry entry) {
  bool refused = false;
  const Status status = begin_post(times, options, entry, refused);
  if (!refused) engine_->counters().posts.add();
  return status;
}

/// `refused`: nothing has begun, and the request is as it was.
Status RequestCore::begin_post(const PostTimes& times, const PostOptions* options, Entry entry,
                               bool& refused) {
  // Before the state: who cancels from then on means this post.
  cancel_asked_.store(false, std::memory_order_relaxed);
  timed_out_.store(false, std::memory_order_relaxed);
  RequestState before = state();
  do {
    refused = !may_post(before);
    if (refused) return {Code::invalid_argument};
  } while (!state_.compare_exchange_weak(before, RequestState::posted));

  posted_at_ns_.store(times.posted_ns, std::memory_order_relaxed);
  ended_at_ns_.store(0, std::memory_order_relaxed);
  tried_.clear();
  const std::uint64_t number = posts_.fetch_add(1, std::memory_order_relaxed) + 1;
  has_message_ = options != nullptr && options->notification.has_value();
  if (has_message_) {
    message_.resize(message_header_bytes + options->notification->size());
    std::memcpy(message_.data(), &id_, 8);
    std::memcpy(message_.data() + 8, &number, 8);
    std::memcpy(message_.data() + message_header_bytes, options->notification->data(),
                options->notification->size());
  }
  stream_ = options != nullptr && options->stream ? *options->stream : nullptr;
  if (options != nullptr && options->stream && stream_ == nullptr) stream_ = default_stream;
  indices_ = options != nullptr && options->indices && options->indices->part == number_ ? options->indices
                                                                                         : std::nullopt;
  const bool lost = path_.backend == nullptr || (path_.link && path_.link->state() == LinkState::lost);
  if (lost) {
    if (auto bound = bind(); !bound)
      return end({bound.code() == Code::not_supported ? Code::peer_lost : bound.code()},
                 bound.error().message);
  }
  if (stream_ != nullptr && !path_.backend->can(HEADRACE_STREAM)) {
    if (entry == Entry::certain) return end({Code::not_supported}, "the path that is left knows no streams");
    refused = true;
    state_.store(before, std::memory_order_release);
    return {Code::not_supported};
  }
  set_deadline(times.deadline_ns);
  const Status status = start(entry);
  indices_.reset();
  refused = status.code == Code::would_block && entry == Entry::refusable;
  if (refused) state_.store(before, std::memory_order_release);
  // A small post has ended by now: looking at the clock once more would cost it a tenth of its time.
  const std::uint64_t ended_at = ended_at_ns_.load(std::memory_order_relaxed);
  post_ns_.store((ended_at != 0 ? ended_at : now_ns()) - posted_at_ns_.load(std::memory_order_relaxed),
                 std::memory_order_relaxed);
  return status;
}

/// Hands the request to the backend of the present path. In `posted`.
Status RequestCore::start(Entry entry) {
  for (;;) {
    Status status{Code::peer_lost};
    std::string why;
    bool captured = false;
    {
      const std::shared_lock lock(path_mutex_);
      Link* const link = path_.link.get();  // the path is ours as long as the lock
      InFlight& flying = link ? link->in_flight() : engine_->own_in_flight();
      flying_in_.store(&flying, std::memory_order_release);
      // First visible, then checked: a revocation makes the region invalid first and then looks for who is in
      // flight.
      flying.insert(shared_from_this(), flight_slot_);
      Status valid = engine_->still_valid(*plan_.local);
      if (valid.ok()) valid = engine_->still_valid(*plan_.remote);
      if (!valid.ok()) {
        const auto self = flying.take(flight_slot_);
        return end(valid, {});
      }
      headrace_post_v1 args{};
      args.struct_size = sizeof args;
      args.token = reinterpret_cast<std::uint64_t>(this);
      args.post_number = posts_.load(std::memory_order_relaxed);
      args.deadline_ns = deadline_ns_.load(std::memory_order_relaxed);
      const bool carries_message =
          has_message_ && link != nullptr;  // one to ourselves stays here until the end
      args.has_message = carries_message ? 1 : 0;
      args.channel = HEADRACE_CHANNEL_USER;
      args.message = {message_.data(), carries_message ? message_.size() : 0};
      args.stream = stream_;
      if (!link) {
        status = hand_over(args, captured, why);
      } else if (const GatePass pass(link->gate()); pass) {
        status = hand_over(args, captured, why);
      } else {
        why = link->lost_text();
      }
      if (captured) return lies_in_graph();
      if (status.ok()) {
        // A cancel that came before the backend had the request has to be said again.
        if (cancel_asked_.load()) path_.backend->cancel(path_.request);
        return status;
      }
      (void)flying.take(flight_slot_);
    }
    if (status.code == Code::would_block) {
      if (entry == Entry::refusable) return status;
      return stream_ == nullptr ? start_later()
                                : end(status,
                                      "a queue of its path is full, or the way to its memory is not made "
                                      "yet: post once without a stream before");
    }
    if (!may_go_over(status.code)) return end(status, why);
    tried_.push_back({path_.backend->name(), words(status, why)});
    if (!bind()) return end(status, why);
  }
}

/// The path's queue is full, and what has begun elsewhere cannot be taken back: it stays posted until there
/// is room.
Status RequestCore::start_later() {
  engine_->progress().at(now_ns() + full_queue_ns, [self = shared_from_this()] { self->start_again(); });
  return {};
}

void RequestCore::start_again() {
  if (cancel_asked_.load())
    (void)end({Code::canceled}, {});
  else
    (void)start(Entry::certain);
}

/// Posts, or records the post into the graph that its stream captures.
Status RequestCore::hand_over(const headrace_post_v1& args, bool& captured, std::string& why) {
  if (stream_ != nullptr && (indices_ || path_.backend->can(HEADRACE_CAPTURE))) {
    const auto asked = capture();
    if (!asked) {
      why = asked.error().message;
      return {asked.code(), 0, asked.error().page};
    }
    captured = *asked;
  }
  return captured ? Status{} : path_.backend->post(path_.request, args);
}

/// Whether the stream is being captured, and the request is part of its graph now.
Result<bool> RequestCore::capture() {
  if (!path_.backend->can(HEADRACE_CAPTURE))
    return make_error(Code::not_supported,
                      "requests over {} cannot lie in graphs, where alone page numbers go with a post",
                      path_.backend->name());
  headrace_capture_v1 args{};
  args.stream = stream_;
  args.local_pages = plan_.local->count;
  args.remote_pages = plan_.remote->count;
  args.has_message = has_message_ ? 1 : 0;
  headrace_indices_v1 indices{};
  if (indices_) {
    HEADRACE_TRY(good, checked(*indices_, stream_));
    indices = good;
    args.indices = &indices;
  }
  HEADRACE_TRY(captured, path_.backend->capture(path_.request, args));
  if (!captured && indices_)
    return make_error(
        Code::invalid_argument,
        "page numbers go with a post where its stream is being captured: else make a request of these pages");
  return captured;
}

/// The backend has recorded it. Nobody waits for its end, so there is no deadline.
Status RequestCore::lies_in_graph() {
  deadline_ns_.store(UINT64_MAX);
  replays_.store(0);
  engine_->counters().captured.add();
  RequestState posted = RequestState::posted;
  if (state_.compare_exchange_strong(posted, RequestState::captured)) return {};
  path_.backend->end_capture(path_.request);  // canceled while it was recorded
  const auto self = flying_in_.load()->take(flight_slot_);
  return end({Code::canceled}, {});
}

/// Whether it lay in a graph; then it does not any more, as far as we are concerned.
bool RequestCore::end_capture() {
  RequestState captured = RequestState::captured;
  if (!state_.compare_exchange_strong(captured, RequestState::canceling)) return false;
  {
    const std::unique_lock nobody_asks(path_mutex_);
    path_.backend->end_capture(path_.request);
  }
  const auto self = flying_in_.load()->take(flight_slot_);
  (void)end({Code::canceled}, "taken out of its graph: replay that no more");
  return true;
}

Error RequestCore::not_in_graph() const {
  return make_error(Code::invalid_argument,
                    "the request lies in no graph: post it on a stream that is being captured");
}

Result<void> RequestCore::set_indices(const PageIndices& given, void* stream) {
  HEADRACE_TRY_VOID(engine_->usable());
  if (given.part != number_)
    return make_error(Code::invalid_argument, "the request has one part: number {} is none of it",
                      given.part);
  HEADRACE_TRY(args, checked(given, stream != nullptr ? stream : default_stream));
  const std::shared_lock lock(path_mutex_);
  if (state() != RequestState::captured) return not_in_graph();
  return path_.backend->set_indices(path_.request, args);
}

/// Page numbers as a backend takes them; those in host memory are in the lists.
Result<headrace_indices_v1> RequestCore::checked(const PageIndices& given, void* stream) const {
  const auto check = [&](const char* side, const PageList::State& list,
                         std::span<const std::uint32_t> numbers) -> Result<void> {
    if (numbers.size() > plan_.count)
      return make_error(Code::invalid_argument, "{} {} page numbers are more than the request has pages: {}",
                        numbers.size(), side, plan_.count);
    if (given.kind != MemoryKind::dram) return {};
    const auto wrong = std::find_if(numbers.begin(), numbers.end(),
                                    [&](std::uint32_t number) { return number >= list.count; });
    if (wrong == numbers.end()) return {};
    Error error = make_error(Code::invalid_argument, "{} page number {} is {}: the list has {} pages", side,
                             wrong - numbers.begin(), *wrong, list.count);
    error.page = static_cast<std::uint64_t>(wrong - numbers.begin());
    return error;
  };
  const bool local = given.local.data() != nullptr, remote = given.remote.data() != nullptr;
  if (given.kind != MemoryKind::dram && given.kind != MemoryKind::vram)
    return make_error(Code::invalid_argument, "page numbers lie in dram or in vram, not in {}",
                      kind_name(given.kind));
  if (!local && !remote)
    return make_error(Code::invalid_argument,
                      "no page numbers were given: give them for the local side, the remote one, or both");
  if (local && remote && given.local.size() != given.remote.size()) {
    return make_error(Code::invalid_argument,
                      "{} local page numbers and {} remote ones: each page has one on each side",
                      given.local.size(), given.remote.size());
  }
  HEADRACE_TRY_VOID(check("local", *plan_.local, given.local));
  HEADRACE_TRY_VOID(check("remote", *plan_.remote, given.remote));
  headrace_indices_v1 args{};
  args.struct_size = sizeof args;
  args.local = given.local.data();
  args.remote = given.remote.data();
  args.count = local ? given.local.size() : given.remote.size();
  args.stream = stream;
  args.kind = static_cast<std::int32_t>(given.kind);
  return args;
}

Result<std::uint64_t> RequestCore::check() {
  HEADRACE_TRY_VOID(engine_->usable());
  const std::shared_lock lock(path_mutex_);
  if (state() != RequestState::captured) return not_in_graph();
  auto replays = ask_for_replays();
  if (!replays) {
    Error& error = replays.error();
    error.message = describe({error.code, 0, error.page}, error.message);
    return std::move(replays).error();
  }
  const std::uint64_t counted = replays_.exchange(*replays);
  if (*replays > counted) engine_->counters().replayed.add(*replays - counted);
  return replays;
}

/// With the path held.
Result<std::uint64_t> RequestCore::ask_for_replays() {
  if (const auto& life = plan_.remote->life; life && life->fate.load() != Fate::alive)
    return Error{Code::peer_lost,
                 "the peer is gone or has restarted: what replays read or write is no longer its memory"};
  for (const PageListState* list : {&plan_.local, &plan_.remote})
    if (!engine_->still_valid(**list).ok())
      return Error{Code::not_found,
                   "a region of its page lists is registered no longer: cancel the request, and replay its "
                   "graph no more"};
  if (!path_.link) return path_.backend->check(path_.request);
  if (const GatePass pass(path_.link->gate()); pass) return path_.backend->check(path_.request);
  return Error{Code::peer_lost, path_.link->lost_text()};
}

/// Whether the next path may try. Not in the order of a stream: what was queued after the post has seen it
/// fail.
bool RequestCore::may_go_over(Code code) const {
  return stream_ == nullptr && (code == Code::backend_failed || code == Code::not_supported);
}

void RequestCore::set_deadline(std::uint64_t at) {
  deadline_ns_.store(at);
  if (at == UINT64_MAX || timer_at_ns_.load() <= at) return;  // an armed timer looks again in time
  timer_at_ns_.store(at);
  engine_->progress().at(at, [weak = weak_from_this()] {
    if (const auto core = weak.lock()) core->expire();
  });
}

void RequestCore::expire() {
  timer_at_ns_.store(UINT64_MAX);
  const std::uint64_t at = deadline_ns_.load();
  if (ended() || at == UINT64_MAX) return;
  if (now_ns() >= at) {
    timed_out_.store(true);
    cancel();
    return;
  }
  timer_at_ns_.store(at);
  engine_->progress().at(at, [weak = weak_from_this()] {
    if (const auto core = weak.lock()) core->expire();
  });
}

bool RequestCore::help() {
  const std::shared_lock lock(path_mutex_);
  return path_.request != nullptr && !ended() && path_.backend->poll(path_.request);
}

RequestState RequestCore::poll() {
  if (ended() || engine_->forked()) return state();
  (void)help();
  if (!ended()) (void)engine_->progress().poll();
  return state();
}

Status RequestCore::wait(Timeout timeout) {
  if (state() == RequestState::prepared || state() == RequestState::captured) return {Code::invalid_argument};
  if (!ended() && engine_->forked()) return {Code::invalid_argument};
  const auto wait_for_end = [&] {
    const Deadline deadline = timeout ? Deadline::after(*timeout) : Deadline::never();
    return engine_->progress().wait([this] { return ended(); }, [this] { return help(); }, deadline);
  };
  if (!ended() && !wait_for_end()) return {Code::timed_out};
  const std::lock_guard lock(outcome_mutex_);
  return status_;
}

void RequestCore::cancel() {
  if (engine_->forked()) return;  // it is the parent's, over sockets that both have
  if (end_capture()) return;
  RequestState posted = RequestState::posted;
  cancel_asked_.store(true);
  if (!state_.compare_exchange_strong(posted, RequestState::canceling)) return;
  {
    const std::shared_lock lock(path_mutex_);
    if (path_.request != nullptr) {
      if (!path_.link) {
        path_.backend->cancel(path_.request);
      } else if (const GatePass pass(path_.link->gate()); pass) {
        path_.backend->cancel(path_.request);
      }
    }
  }
  if (ended()) return;
  engine_->progress().at(now_ns() + canceling_limit_ns, [weak = weak_from_this(), post = posts_.load()] {
    const auto core = weak.lock();
    if (core && core->posts_.load() == post) core->enforce_cancel();
  });
}

void RequestCore::enforce_cancel() {
  if (state() != RequestState::canceling) return;
  std::shared_ptr<Link> link;
  {
    const std::shared_lock lock(path_mutex_);
    link = path_.link;
  }
  if (link) engine_->kill_link(link, "a canceled request was still running after 1 s");
}

void RequestCore::completed(Status status, std::string_view text) {
  // May run inside our own call to `post`, so it takes no lock that is held there.
  std::shared_ptr<RequestCore> self = flying_in_.load()->take(flight_slot_);
  if (!self) return;  // a backend that says it twice
  if (cancel_asked_.load() || status.ok() || !may_go_over(status.code)) {
    (void)end(status, std::string(text));
    return;
  }
  engine_->defer([self = std::move(self), status, why = std::string(text)] { self->fail_over(status, why); });
}

void RequestCore::fail_over(Status status, const std::string& text) {
  if (cancel_asked_.load()) {
    (void)end({Code::canceled}, text);
    return;
  }
  const std::string failed = backend();
  tried_.push_back({failed, words(status, text)});
  if (!bind()) {
    (void)end(status, text);
    return;
  }
  engine_->log_room().warn("request {} to {} leaves {} for {}: {}", id_, plan_.remote->peer, failed,
                           backend(), text);
  engine_->counters().failed_over.add();
  (void)start(Entry::certain);
}

std::string RequestCore::describe(Status status, std::string_view text) const {
  const std::string verb = plan_.op == Op::read ? "read from" : "write to";
  const std::string whom = plan_.remote->life ? "peer " + plan_.remote->peer : "this agent itself";
  std::string what = fmt::format("{} {}", verb, whom);
  if (status.page != no_page) what += fmt::format(" at page {}", status.page);
  return fmt::format("{}: {}", what, words(status, text));
}

/// The one place where a post ends.
Status RequestCore::end(Status status, std::string text) {
  if (status.code == Code::canceled && timed_out_.load()) {
    status.code = Code::timed_out;
    text = "its deadline passed before all pages had moved: give it more time, or look at how the peer is";
  } else if (status.code == Code::not_found && text.empty()) {
    text = "a region of its page lists is registered no longer: prepare the lists again";
    if (const auto& life = plan_.remote->life; life && life->fate.load() != Fate::alive)
      status.code = Code::peer_lost;
  }
  if (status.code == Code::peer_lost && text.empty() && plan_.remote->life) {
    const std::shared_lock lock(plan_.remote->life->mutex);
    text = plan_.remote->life->detail;
  }
  const auto keep = shared_from_this();
  const std::uint64_t ended_at_ns = now_ns();
  ended_at_ns_.store(ended_at_ns, std::memory_order_relaxed);
  deadline_ns_.store(UINT64_MAX);
  {
    const std::lock_guard lock(outcome_mutex_);
    status_ = status;
    text_ = status.ok() ? std::string() : describe(status, text);
  }
  engine_->request_ended(*this, status, ended_at_ns - posted_at_ns_.load(std::memory_order_relaxed));
  if (status.ok() && has_message_ && !plan_.remote->life)
    engine_->received_from_self(std::string_view(message_).substr(message_header_bytes));
  bell_.ring(*engine_, status, state_, state_after(status), posts_.load(std::memory_order_relaxed));
  if (whole_ != nullptr) whole_->part_ended(number_, status);
  return status;
}

void RequestCore::close() {
  cancel();
  (void)engine_->progress().wait([this] { return ended(); }, [this] { return help(); },
                                 Deadline::after(std::chrono::seconds(5)));
  if (ended()) release_path();
}

bool RequestCore::uses(const Link& link) const {
  const std::shared_lock lock(path_mutex_);
  return path_.link.get() == &link;
}

Error RequestCore::error() const {
  const std::lock_guard lock(outcome_mutex_);
  return Error{status_.code, text_, status_.page};
}

RequestTimes RequestCore::times() const {
  RequestTimes t;
  t.posted_at_ns = posted_at_ns_.load(std::memory_order_relaxed);
  t.post_ns = post_ns_.load(std::memory_order_relaxed);
  const std::uint64_t ended_at = ended_at_ns_.load(std::memory_order_relaxed);
  t.transfer_ns = ended_at > t.posted_at_ns ? ended_at - t.posted_at_ns : 0;
  t.bytes = plan_.bytes;
  t.pages = plan_.count;
  t.posts = posts_.load(std::memory_order_relaxed);
  return t;
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
  const headrace_cost_v1 cost = engine_->cost_on(path_, plan_, local_side_, remote_side_);
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
