// SPDX-License-Identifier: Apache-2.0
#include "engine/request_group.hpp"

#include "base/errors.hpp"
#include "engine/call_gate.hpp"
#include "engine/requests.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace headrace::engine {

std::shared_ptr<RequestGroup> RequestGroup::make(std::shared_ptr<const void> engine,
                                                 const RequestContext& context,
                                                 std::vector<std::shared_ptr<RequestCore>> parts) {
  return {new RequestGroup(std::move(engine), context, std::move(parts)),
          [](RequestGroup* group) { group->context_.requests.let_go(group); }};
}

RequestGroup::RequestGroup(std::shared_ptr<const void> engine, const RequestContext& context,
                           std::vector<std::shared_ptr<RequestCore>> parts)
    : Transfer(std::move(engine), context), parts_(std::move(parts)) {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    RequestCore& part = *parts_[i];
    part.belong_to(*this, i);
    shape_.pages += part.pages();
    shape_.bytes += part.bytes();
    if (i > 0) peers_ += ", ";
    peers_ += part.peer();
  }
  shape_.op = parts_.front()->op();
  shape_.peer = peers_;
}

// ------------------------------------------------------------------ posting

Status RequestGroup::post(const PostOptions* options) {
  if (options != nullptr && options->indices && options->indices->part >= parts_.size())
    return {Code::invalid_argument};
  // What can be known to be wrong is said before anything moves anywhere.
  for (const auto& part : parts_)
    if (const Status refused = part->refusal(options); !refused.ok()) return refused;
  const PostTimes times = parts_.front()->times_from_now(options);
  const Status earlier = outcome();
  RequestState before{};
  if (!begin(before, times.posted_ns)) return {Code::invalid_argument};
  const std::uint64_t post = life_.post();
  set_outcome({});
  running_.store(parts_.size() + 1);
  keep_ = shared_from_this();
  bool refused = false;
  const Status first = post_parts(times, options, refused);
  if (refused) {
    keep_.reset();
    set_outcome(earlier);
    take_back(before);
    return first;
  }
  settle_capture(post);
  leave_post();
  leave();
  // A caller that goes on in the order of a stream need not wait: it hears of a failure here or never.
  const bool on_stream = options != nullptr && options->stream.has_value();
  return ended() || on_stream ? outcome() : Status{};
}

/// `refused`: by the first part, and nothing has begun.
Status RequestGroup::post_parts(const PostTimes& times, const PostOptions* options, bool& refused) {
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

/// A post on a stream that is being captured is captured with all its parts, or with none.
void RequestGroup::settle_capture(std::uint64_t post) {
  const auto is_captured = [](const auto& part) { return part->state() == RequestState::captured; };
  if (std::ranges::all_of(parts_, is_captured))
    (void)life_.change(post, RequestState::posted, RequestState::captured);
  // Looked at once more: one that ends from now on finds the state.
  const bool torn = std::ranges::any_of(parts_, is_captured) && !std::ranges::all_of(parts_, is_captured);
  // A cancel that came before a part was posted has to be repeated for that one.
  if (torn || cancel_asked_.load() == post) cancel_parts();
}

// ------------------------------------------------------------------ the end

void RequestGroup::part_ended(std::size_t number, Status status) {
  if (!status.ok()) {
    const std::lock_guard lock(outcome_mutex_);
    // A cancel gives way to any other failure.
    if (status_.ok() || (status_.code == Code::canceled && status.code != Code::canceled)) {
      status_ = status;
      failed_part_ = number;
    }
  }
  // It left its graph, in which the other parts are replayed: that graph must not be replayed any more.
  // Later, since this may be a backend's call.
  if (state() == RequestState::captured)
    context_.progress.defer([weak = weak_from_this()] {
      if (const auto group = weak.lock()) group->cancel();
    });
  leave();
}

void RequestGroup::leave() {
  if (running_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const auto keep = std::move(keep_);  // the last part has ended
  finish(outcome(), now_ns());
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

void RequestGroup::cancel() {
  if (context_.calls.forked()) return;  // as a part's
  const std::uint64_t post = life_.post();
  raise(cancel_asked_, post);
  if (life_.change(post, RequestState::posted, RequestState::canceling) ||
      life_.change(post, RequestState::captured, RequestState::canceling))
    cancel_parts();
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

// ------------------------------------------------------------------ state for the caller

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

std::string RequestGroup::explain() const {
  std::string text = fmt::format("{} of {} pages, {} bytes, in {} parts", op() == Op::read ? "read" : "write",
                                 pages(), bytes(), parts_.size());
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
