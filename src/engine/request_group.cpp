// SPDX-License-Identifier: Apache-2.0
#include "engine/request_group.hpp"

#include "engine/engine.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace headrace::engine {

std::shared_ptr<RequestGroup> RequestGroup::make(std::shared_ptr<Engine> engine,
                                                 std::vector<std::shared_ptr<RequestCore>> parts) {
  return {new RequestGroup(std::move(engine), std::move(parts)),
          [](RequestGroup* group) { group->engine_->let_go(group); }};
}

RequestGroup::RequestGroup(std::shared_ptr<Engine> engine, std::vector<std::shared_ptr<RequestCore>> parts)
    : engine_(std::move(engine)), parts_(std::move(parts)) {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    RequestCore& part = *parts_[i];
    part.belong_to(*this, i);
    pages_ += part.pages();
    bytes_ += part.bytes();
    if (i > 0) peers_ += ", ";
    peers_ += part.peer();
  }
}

// ------------------------------------------------------------------ posting

Status RequestGroup::post(const PostOptions* options) {
  if (options != nullptr && options->indices && options->indices->part >= parts_.size())
    return {Code::invalid_argument};
  // What can be known to be wrong is said before anything moves anywhere.
  for (const auto& part : parts_)
    if (const Status refused = part->refusal(options); !refused.ok()) return refused;
  const RequestState before = state();
  const Status earlier = outcome();
  if (!begin()) return {Code::invalid_argument};
  bool refused = false;
  const Status first = post_parts(options, refused);
  if (refused) {
    keep_.reset();
    set_outcome(earlier);
    state_.store(before, std::memory_order_release);
    return first;
  }
  settle_capture();
  const bool on_stream = options != nullptr && options->stream.has_value();
  post_ns_.store(now_ns() - posted_at_ns_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  leave();
  // Who goes on in the order of a stream need not wait, and so hears of a failure here or never.
  return ended() || on_stream ? outcome() : Status{};
}

/// Whether the post is this caller's to make.
bool RequestGroup::begin() {
  cancel_asked_.store(false);
  RequestState before = state();
  do {
    if (!may_post(before)) return false;
  } while (!state_.compare_exchange_weak(before, RequestState::posted));
  posts_.fetch_add(1, std::memory_order_relaxed);
  posted_at_ns_.store(now_ns(), std::memory_order_relaxed);
  ended_at_ns_.store(0, std::memory_order_relaxed);
  set_outcome({});
  running_.store(parts_.size() + 1);
  keep_ = shared_from_this();
  return true;
}

/// `refused`: by the first part, and nothing has begun.
Status RequestGroup::post_parts(const PostOptions* options, bool& refused) {
  const PostTimes times = parts_.front()->times_from_now(options);
  auto entry = RequestCore::Entry::refusable;
  for (const auto& part : parts_) {
    const Status status = part->post_at(times, options, entry);
    // An error that has ended the part has been counted.
    refused = entry == RequestCore::Entry::refusable && !status.ok() && running_.load() == parts_.size() + 1;
    if (refused) return status;
    entry = RequestCore::Entry::certain;
  }
  return {};
}

/// A post on a stream that is being captured lies in the graph with all its parts, or with none.
void RequestGroup::settle_capture() {
  const auto is_captured = [](const auto& part) { return part->state() == RequestState::captured; };
  RequestState posted = RequestState::posted;
  if (std::ranges::all_of(parts_, is_captured))
    (void)state_.compare_exchange_strong(posted, RequestState::captured);
  // Looked at once more: one that ends from now on finds the state.
  const bool torn = std::ranges::any_of(parts_, is_captured) && !std::ranges::all_of(parts_, is_captured);
  // A cancel that came before a part was posted has to be said again to that one.
  if (torn || cancel_asked_.load()) cancel_parts();
}

// ------------------------------------------------------------------ the end

void RequestGroup::part_ended(std::size_t number, Status status) {
  if (!status.ok()) {
    const std::lock_guard lock(outcome_mutex_);
    if (status_.ok() || (status_.code == Code::canceled && status.code != Code::canceled)) {
      status_ = status;
      failed_part_ = number;
    }
  }
  // Out of its graph, which the others' replays go on in: nobody is to replay that any more. Later, since
  // this may be a backend's call.
  if (state() == RequestState::captured)
    engine_->defer([weak = weak_from_this()] {
      if (const auto group = weak.lock()) group->cancel();
    });
  leave();
}

void RequestGroup::leave() {
  if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) finish();
}

/// The last part has ended.
void RequestGroup::finish() {
  const auto keep = std::move(keep_);
  const Status status = outcome();
  ended_at_ns_.store(now_ns(), std::memory_order_relaxed);
  bell_.ring(*engine_, status, state_, state_after(status), posts_.load(std::memory_order_relaxed));
}

Status RequestGroup::outcome() const {
  const std::lock_guard lock(outcome_mutex_);
  return status_;
}

void RequestGroup::set_outcome(Status status) {
  const std::lock_guard lock(outcome_mutex_);
  status_ = status;
}

bool RequestGroup::help() {
  bool helped = false;
  for (const auto& part : parts_) helped = part->help() || helped;
  return helped;
}

RequestState RequestGroup::poll() {
  if (ended() || engine_->forked()) return state();
  (void)help();
  if (!ended()) (void)engine_->progress().poll();
  return state();
}

Status RequestGroup::wait(Timeout timeout) {
  if (state() == RequestState::prepared || state() == RequestState::captured) return {Code::invalid_argument};
  if (!ended() && engine_->forked()) return {Code::invalid_argument};
  const auto wait_for_end = [&] {
    const Deadline deadline = timeout ? Deadline::after(*timeout) : Deadline::never();
    return engine_->progress().wait([this] { return ended(); }, [this] { return help(); }, deadline);
  };
  if (!ended() && !wait_for_end()) return {Code::timed_out};
  return outcome();
}

void RequestGroup::cancel() {
  if (engine_->forked()) return;  // as a part's
  cancel_asked_.store(true);
  RequestState from = RequestState::posted;
  if (state_.compare_exchange_strong(from, RequestState::canceling)) return cancel_parts();
  from = RequestState::captured;
  if (state_.compare_exchange_strong(from, RequestState::canceling)) cancel_parts();
}

void RequestGroup::cancel_parts() {
  for (const auto& part : parts_) part->cancel();
}

// ------------------------------------------------------------------ graphs

Result<void> RequestGroup::set_indices(const PageIndices& indices, void* stream) {
  if (indices.part >= parts_.size())
    return make_error(Code::invalid_argument, "the request has {} parts: number {} is none of them",
                      parts_.size(), indices.part);
  return parts_[indices.part]->set_indices(indices, stream);
}

Result<std::uint64_t> RequestGroup::check() {
  std::uint64_t replays = std::numeric_limits<std::uint64_t>::max();
  for (const auto& part : parts_) {
    HEADRACE_TRY(of_part, part->check());
    replays = std::min(replays, of_part);
  }
  return replays;
}

// ------------------------------------------------------------------ what is told of it

Error RequestGroup::error() const {
  std::size_t number = 0;
  {
    const std::lock_guard lock(outcome_mutex_);
    if (status_.ok()) return {Code::ok, {}, no_page};
    number = failed_part_;
  }
  Error error = parts_[number]->error();
  error.message = fmt::format("part {} of {}: {}", number, parts_.size(), error.message);
  const auto failed =
      std::ranges::count_if(parts_, [](const auto& part) { return part->state() == RequestState::failed; });
  if (failed > 1) error.message += fmt::format(" ({} parts failed in all)", failed);
  return error;
}

RequestTimes RequestGroup::times() const {
  RequestTimes t;
  t.posted_at_ns = posted_at_ns_.load(std::memory_order_relaxed);
  t.post_ns = post_ns_.load(std::memory_order_relaxed);
  const std::uint64_t ended_at = ended_at_ns_.load(std::memory_order_relaxed);
  t.transfer_ns = ended_at > t.posted_at_ns ? ended_at - t.posted_at_ns : 0;
  t.bytes = bytes_;
  t.pages = pages_;
  t.posts = posts_.load(std::memory_order_relaxed);
  return t;
}

std::string RequestGroup::explain() const {
  std::string text = fmt::format("{} of {} pages, {} bytes, in {} parts", op() == Op::read ? "read" : "write",
                                 pages_, bytes_, parts_.size());
  for (std::size_t i = 0; i < parts_.size(); ++i)
    text += fmt::format("\npart {}, peer {}: {}", i, parts_[i]->peer(), parts_[i]->explain());
  return text;
}

std::string RequestGroup::backend() const {
  std::vector<std::string> names;
  for (const auto& part : parts_)
    if (std::string name = part->backend(); std::ranges::find(names, name) == names.end())
      names.push_back(std::move(name));
  return fmt::format("{}", fmt::join(names, ", "));
}

/// As if one went after the other: they share the memory and the links of this side.
Result<CostEstimate> RequestGroup::cost() const {
  CostEstimate sum;
  for (const auto& part : parts_) {
    HEADRACE_TRY(estimate, part->cost());
    sum.duration += estimate.duration;
    sum.margin = std::max(sum.margin, estimate.margin);
    if (sum.method.find(estimate.method) == std::string::npos)
      sum.method += (sum.method.empty() ? "" : ", ") + estimate.method;
  }
  sum.backend = backend();
  return sum;
}

std::vector<PartInfo> RequestGroup::parts() const {
  std::vector<PartInfo> all;
  all.reserve(parts_.size());
  for (const auto& part : parts_) all.push_back(std::move(part->parts().front()));
  return all;
}

}  // namespace headrace::engine
