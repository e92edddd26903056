// SPDX-License-Identifier: Apache-2.0
#include "collectives/messages.hpp"

#include "base/errors.hpp"
#include "collectives/missing_ranks.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <span>
#include <utility>

namespace headrace::collectives {
namespace {

/// What a message that is kept takes beside its bytes: empty ones, too, have an end.
constexpr std::size_t bytes_beside_kept = 128;

Error wrong_length(int from, std::size_t sent, std::size_t expected) {
  return make_error(
      Code::invalid_argument,
      "the message of rank {} has {} bytes, the elements to receive have {}: give both sides the "
      "same count and type",
      from, sent, expected);
}

}  // namespace

Messages::Messages(Members& members, const Settings& settings)
    : members_(members),
      sends_(static_cast<std::size_t>(members.size())),
      arriving_(static_cast<std::size_t>(members.size())) {
  set_limits(settings);
}

void Messages::set_limits(const Settings& settings) {
  const std::scoped_lock lock(mutex_);
  chunk_bytes_ = settings.message_chunk_bytes;
  kept_limit_ = settings.unexpected_bytes;
}

void Messages::send(const State& work, bool async, int to, std::uint32_t tag, const std::byte* data,
                    std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  work->begin();
  work->await(to);
  ++pending_;
  if (async) ++async_pending_;
  sends(to).push_back({work, async, tag, data, bytes});
  push(to);
}

void Messages::receive(const State& work, bool async, int from, std::uint32_t tag, std::byte* data,
                       std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  work->begin();
  work->await(from);
  ++pending_;
  if (async) ++async_pending_;
  const Receive receive{work, async, from, tag, data, bytes};
  for (auto kept = kept_.begin(); kept != kept_.end(); ++kept) {
    if (kept->claimed.work || !receive.fits(kept->from, kept->tag)) continue;
    kept->claimed = receive;
    if (kept->done < kept->bytes.size()) return;  // delivered once it is complete
    deliver(*kept, receive);
    kept_.erase(kept);
    return;
  }
  receives_.push_back(receive);
}

bool Messages::progress() {
  members_.reach_callers();
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  bool moved = false;
  for (int rank = 0; rank < members_.size(); ++rank) {
    if (rank == members_.rank()) continue;
    while (push(rank)) moved = true;
    while (pull(rank)) moved = true;
  }
  members_.tell_far(LaneKind::message);
  return moved;
}

bool Messages::push(int to) {
  if (sends(to).empty()) return false;
  Send& send = sends(to).front();
  const auto written =
      members_.writer(to, LaneKind::message)
          .write({send.tag, send.bytes}, send.data + send.done, send.bytes - send.done, chunk_bytes_);
  if (!written) return false;
  send.begun = true;
  send.done += *written;
  if (send.done < send.bytes) return true;
  const Send done = send;
  sends(to).pop_front();
  --pending_;
  if (done.async) --async_pending_;
  done.work->end({});
  return true;
}

bool Messages::pull(int from) {
  if (!members_.has_reader(from)) return false;
  LaneReader& lane = members_.reader(from, LaneKind::message);
  const Front* const front = lane.next();
  if (front == nullptr) return false;
  Arriving& now = arriving(from);
  if (!now.active && !begin(from, *front)) return false;
  const std::size_t length = std::min(front->bytes.size(), now.bytes - now.done);
  std::byte* const to = now.kept != nullptr ? now.kept->bytes.data() : now.receive.data;
  if (!now.unwanted && length != 0) std::memcpy(to + now.done, front->bytes.data(), length);
  lane.take(length);
  now.done += length;
  if (now.kept != nullptr) now.kept->done = now.done;
  if (now.done == now.bytes) finish(from);
  return true;
}

/// Decides where a message goes. False: nowhere yet, so its sender waits.
bool Messages::begin(int from, const Front& front) {
  const auto bytes = static_cast<std::size_t>(front.message_bytes);
  const auto wanted =
      std::ranges::find_if(receives_, [&](const Receive& r) { return r.fits(from, front.tag); });
  if (wanted == receives_.end()) {
    const std::size_t room = kept_limit_ > kept_bytes_ ? kept_limit_ - kept_bytes_ : 0;
    if (room < bytes_beside_kept || bytes > room - bytes_beside_kept) return false;
    kept_bytes_ += bytes + bytes_beside_kept;
    kept_.push_back({from, front.tag, std::vector<std::byte>(bytes), 0, {}});
    arriving(from) = {true, bytes, 0, {}, &kept_.back(), false};
    return true;
  }
  const Receive receive = std::move(*wanted);
  receives_.erase(wanted);
  const bool fits = receive.bytes == bytes;
  arriving(from) = {true, bytes, 0, receive, nullptr, !fits};
  return true;
}

void Messages::finish(int from) {
  const Arriving done = arriving(from);
  arriving(from) = {};
  if (done.kept == nullptr) {
    Result<void> result;
    if (done.unwanted) result = wrong_length(from, done.bytes, done.receive.bytes);
    return end(done.receive, from, std::move(result));
  }
  if (!done.kept->claimed.work) return;
  const Receive receive = done.kept->claimed;
  deliver(*done.kept, receive);
  kept_.remove_if([&](const Kept& kept) { return &kept == done.kept; });
}

void Messages::deliver(Kept& kept, const Receive& receive) {
  kept_bytes_ -= kept.bytes.size() + bytes_beside_kept;
  if (kept.bytes.size() != receive.bytes)
    return end(receive, kept.from, wrong_length(kept.from, kept.bytes.size(), receive.bytes));
  if (receive.bytes != 0) std::memcpy(receive.data, kept.bytes.data(), receive.bytes);
  end(receive, kept.from, {});
}

void Messages::end(const Receive& receive, int from, Result<void> result) {
  --pending_;
  if (receive.async) --async_pending_;
  receive.work->set_source(from);
  receive.work->end(std::move(result));
}

std::vector<Messages::Stuck> Messages::stuck() {
  std::vector<Stuck> found;
  const std::scoped_lock lock(mutex_);
  const auto look = [&](const State& work, int peer, bool begun) {
    const std::span<const int> ranks(&peer, peer < 0 ? 0 : 1);
    if (work->call().deadline.expired())
      found.push_back({work, late(work->call(), ranks), begun});
    else if (peer >= 0 && !members_.alive(peer))
      found.push_back({work, gone(ranks), begun});
  };
  for (int rank = 0; rank < members_.size(); ++rank) {
    for (const Send& send : sends(rank)) look(send.work, rank, send.begun);
    if (arriving(rank).receive.work) look(arriving(rank).receive.work, rank, true);
  }
  for (const Receive& receive : receives_) {
    const std::size_t before = found.size();
    look(receive.work, receive.from, false);
    if (found.size() != before) found.back().error.message += other_tags(receive);
  }
  for (const Kept& kept : kept_)
    if (kept.claimed.work) look(kept.claimed.work, kept.from, true);
  return found;
}

std::string Messages::other_tags(const Receive& receive) const {
  constexpr std::size_t most = 4;
  std::set<std::uint32_t> tags;
  for (const Kept& kept : kept_)
    if (kept.claimed.work == nullptr && (receive.from == any_source || receive.from == kept.from))
      tags.insert(kept.tag);
  if (tags.empty()) return {};
  const bool are_more = tags.size() > most;
  while (tags.size() > most) tags.erase(std::prev(tags.end()));
  return fmt::format("; this recv has tag {}, and messages have come with tag {}{}: give both the same",
                     receive.tag, fmt::join(tags, ", "), are_more ? " and others" : "");
}

bool Messages::drop(const State& work, const Error& error) {
  const std::scoped_lock lock(mutex_);
  for (auto& waiting : sends_) {
    const auto found = std::ranges::find(waiting, work, &Send::work);
    if (found == waiting.end() || found->begun) continue;
    --pending_;
    if (found->async) --async_pending_;
    waiting.erase(found);
    work->end(error);
    return true;
  }
  const auto found = std::ranges::find(receives_, work, &Receive::work);
  if (found == receives_.end()) return false;
  const Receive receive = std::move(*found);
  receives_.erase(found);
  end(receive, -1, error);
  return true;
}

void Messages::end_all(const Error& error) {
  const std::scoped_lock lock(mutex_);
  for (auto& waiting : sends_) {
    for (const Send& send : waiting) send.work->end(error);
    waiting.clear();
  }
  for (const Receive& receive : receives_) receive.work->end(error);
  receives_.clear();
  for (const Kept& kept : kept_)
    if (kept.claimed.work) kept.claimed.work->end(error);
  kept_.clear();
  for (Arriving& now : arriving_) {
    if (now.receive.work) now.receive.work->end(error);
    now = {};
  }
  pending_ = async_pending_ = 0;
}

}  // namespace headrace::collectives
