// SPDX-License-Identifier: Apache-2.0
#include "engine/inbox.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace headrace::engine {
namespace {

// A message comes twice only when a request went over to its next path after the first had delivered: a
// request of the last moments. This many requests are far more than can be in flight over a failing path.
constexpr std::size_t remembered_requests = 16384;  // of each life

bool takes_all(const NotificationFilter& filter) { return filter.peer.empty() && filter.prefix.empty(); }

bool fits(const Notification& n, const NotificationFilter& filter) {
  return (filter.peer.empty() || n.peer == filter.peer) && n.payload.starts_with(filter.prefix);
}

wire::Credit share_in(const InboxLimits& limits, std::size_t shares) {
  return {std::max<std::uint64_t>(wire::first_credit.messages, limits.messages / shares),
          std::max<std::uint64_t>(wire::first_credit.bytes, limits.bytes / shares)};
}

/// A peer that keeps to its credit can exceed it by the posts that it cancels just as their messages arrive.
std::uint64_t flood(std::uint64_t share) { return share + share / 4; }

/// What the sender may be told that it may send from now on: as much as has come, so that the whole share is
/// for those that use it.
std::uint64_t left_of(std::uint64_t share, std::uint64_t waiting, std::uint64_t came, std::uint64_t first) {
  return std::min(share - std::min(waiting, share), std::max(came, first));
}

/// Whether the sender has less than half of that.
bool runs_low(std::uint64_t told, std::uint64_t came, std::uint64_t could_have) {
  return could_have > 0 && (told <= came || 2 * (told - came) < could_have);
}

/// Whether it has at least half of the most that `left_of` can say: then nothing else has to be looked at.
bool has_plenty(std::uint64_t told, std::uint64_t came, std::uint64_t first) {
  return told > came && 2 * (told - came) >= std::max(came, first);
}

}  // namespace

// ------------------------------------------------------------------ duplicates

bool Inbox::seen(const MessageKey& key) {
  if (key.request == 0) return false;
  Seen& of_life = seen_[key.life];
  const auto [at, fresh] = of_life.last_post.try_emplace(key.request, key.post);
  if (!fresh) {
    if (key.post <= at->second) return true;
    at->second = key.post;
    return false;
  }
  of_life.requests.push_back(key.request);
  if (of_life.requests.size() > remembered_requests) {
    of_life.last_post.erase(of_life.requests.front());
    of_life.requests.pop_front();
  }
  return false;
}

void Inbox::forget(std::uint64_t life) {
  const std::lock_guard lock(mutex_);
  seen_.erase(life);
}

// ------------------------------------------------------------------ shares

Inbox::Inbox(InboxLimits limits)
    : limits_(limits), largest_share_(share_in(limits, 1)), room_of_one_(largest_share_) {}

Inbox::Share& Inbox::share_of(std::uint64_t link, const std::string& peer) {
  if (latest_share_ != nullptr && latest_share_->link == link) return *latest_share_;
  const auto [at, fresh] = shares_.try_emplace(link);
  Share& share = at->second;
  latest_share_ = &share;
  if (fresh) {
    Peer& of_name = peers_.try_emplace(peer).first->second;
    of_name.name = peer;
    ++of_name.links;
    share.link = link;
    share.peer = &of_name;
    divide();
  }
  return share;
}

void Inbox::divide() { room_of_one_ = share_in(limits_, std::max<std::size_t>(shares_.size(), 1)); }

/// What to tell the peer of a link that is not gone, or null.
const wire::Credit* Inbox::due(Share& share) const {
  if (share.link == self || share.gone) return nullptr;
  const wire::Credit& came = share.came;
  if (has_plenty(share.told.messages, came.messages, wire::first_credit.messages) &&
      has_plenty(share.told.bytes, came.bytes, wire::first_credit.bytes))
    return nullptr;
  const wire::Credit left{
      left_of(room_of_one_.messages, share.waiting.messages, came.messages, wire::first_credit.messages),
      left_of(room_of_one_.bytes, share.waiting.bytes, came.bytes, wire::first_credit.bytes)};
  if (!runs_low(share.told.messages, came.messages, left.messages) &&
      !runs_low(share.told.bytes, came.bytes, left.bytes))
    return nullptr;
  const wire::Credit before = share.told;
  share.told = {std::max(before.messages, came.messages + left.messages),
                std::max(before.bytes, came.bytes + left.bytes)};
  return share.told == before ? nullptr : &share.told;
}

void Inbox::drop_if_done(Share& share) {
  if (!share.gone || share.waiting.messages > 0) return;
  Peer& peer = *share.peer;
  latest_share_ = nullptr;
  shares_.erase(share.link);
  divide();
  if (--peer.links == 0) peers_.erase(std::string(peer.name));
}

void Inbox::link_gone(std::uint64_t link) {
  const std::lock_guard lock(mutex_);
  const auto share = shares_.find(link);
  if (share == shares_.end()) return;
  share->second.gone = true;
  drop_if_done(share->second);
}

bool Inbox::has_room() const {
  const std::lock_guard lock(mutex_);
  return messages_.size() < limits_.messages && bytes_ < limits_.bytes;
}

// ------------------------------------------------------------------ coming

Inbox::Receipt Inbox::put(std::uint64_t link, const MessageKey& key, std::size_t bytes,
                          Notification notification) {
  const std::lock_guard lock(mutex_);
  Share& share = share_of(link, notification.peer);
  if (link != self && is_flood(share, bytes)) return {true, std::nullopt};
  share.came.messages += 1;
  share.came.bytes += bytes;
  if (!seen(key)) keep(share, bytes, std::move(notification));
  return receipt_of(share);
}

/// Too much of one peer; or of all together, if this link is beyond its credit. A peer that keeps to its
/// credit can be a little beyond, so that alone is no flood.
bool Inbox::is_flood(const Share& share, std::size_t bytes) const {
  const wire::Credit& waiting = share.peer->waiting_in_all;
  if (waiting.messages >= flood(largest_share_.messages) ||
      waiting.bytes + bytes > flood(largest_share_.bytes))
    return true;
  const bool beyond =
      share.came.messages >= share.told.messages || share.came.bytes + bytes > share.told.bytes;
  return beyond && (messages_.size() >= flood(shares_.size() * room_of_one_.messages) ||
                    bytes_ + bytes > flood(shares_.size() * room_of_one_.bytes));
}

Inbox::Receipt Inbox::put_nothing(std::uint64_t link, const std::string& peer, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  Share& share = share_of(link, peer);
  share.came.messages += 1;
  share.came.bytes += bytes;
  return receipt_of(share);
}

Inbox::Receipt Inbox::receipt_of(Share& share) const {
  Receipt receipt;
  if (const auto* const told = due(share)) receipt.due = Due{share.link, *told};
  return receipt;
}

void Inbox::keep(Share& share, std::size_t bytes, Notification notification) {
  if (spare_.empty())
    messages_.emplace_back();
  else
    messages_.splice(messages_.end(), spare_, spare_.begin());
  Entry& entry = messages_.back();
  entry.notification = std::move(notification);
  entry.payload = entry.notification.payload;
  entry.number = next_number_++;
  entry.share = &share;
  entry.bytes = bytes;
  entry.place = std::prev(messages_.end());
  share.waiting.messages += 1;
  share.waiting.bytes += bytes;
  share.peer->waiting_in_all.messages += 1;
  share.peer->waiting_in_all.bytes += bytes;
  bytes_ += bytes;
  entry.indexed = false;
  if (++fresh_ > most_fresh) index_all();
  count_waiting();
  ring(entry.notification);
}

// ------------------------------------------------------------------ taking

/// The newest messages are not in the index until somebody asks by a filter, or there are many of them: one
/// who takes all needs no index.
void Inbox::index_all() {
  for (auto at = messages_.rbegin(); at != messages_.rend() && !at->indexed; ++at) {
    at->indexed = true;
    at->share->peer->waiting.add(*at);
  }
  fresh_ = 0;
}

Inbox::Entry* Inbox::oldest(const NotificationFilter& filter) {
  if (takes_all(filter)) return messages_.empty() ? nullptr : &messages_.front();
  index_all();
  if (!filter.peer.empty()) {
    const auto peer = peers_.find(filter.peer);
    return peer == peers_.end() ? nullptr : static_cast<Entry*>(peer->second.waiting.oldest(filter.prefix));
  }
  PayloadIndex::Entry* oldest = nullptr;
  for (const auto& [name, peer] : peers_) {
    PayloadIndex::Entry* const of_peer = peer.waiting.oldest(filter.prefix);
    if (of_peer != nullptr && (oldest == nullptr || of_peer->number < oldest->number)) oldest = of_peer;
  }
  return static_cast<Entry*>(oldest);
}

/// Oldest first, out of the index.
std::vector<Inbox::Entry*> Inbox::all(const NotificationFilter& filter) {
  std::vector<Entry*> found;
  index_all();
  const auto take_from = [&](Peer& peer) {
    while (auto* const at = peer.waiting.oldest(filter.prefix)) {
      Entry& entry = *static_cast<Entry*>(at);
      peer.waiting.remove(entry);
      entry.indexed = false;
      found.push_back(&entry);
    }
  };
  if (filter.peer.empty())
    for (auto& [name, peer] : peers_) take_from(peer);
  else if (const auto peer = peers_.find(filter.peer); peer != peers_.end())
    take_from(peer->second);
  std::ranges::sort(found, {}, [](const Entry* entry) { return entry->number; });
  return found;
}

/// Its share still has to settle.
Notification Inbox::move_out(Entry& entry) {
  if (entry.indexed) entry.share->peer->waiting.remove(entry);
  entry.share->waiting.messages -= 1;
  entry.share->waiting.bytes -= entry.bytes;
  entry.share->peer->waiting_in_all.messages -= 1;
  entry.share->peer->waiting_in_all.bytes -= entry.bytes;
  bytes_ -= entry.bytes;
  Notification notification = std::move(entry.notification);
  if (spare_.size() < most_spare)
    spare_.splice(spare_.begin(), messages_, entry.place);
  else
    messages_.erase(entry.place);
  return notification;
}

/// After messages of this link were taken.
const wire::Credit* Inbox::settle(Share& share) {
  const auto* const told = due(share);
  drop_if_done(share);
  return told;
}

Inbox::Taken Inbox::take(const NotificationFilter& filter) {
  if (empty()) return {};
  const std::lock_guard lock(mutex_);
  Taken taken = takes_all(filter) ? take_all() : take_fitting(filter);
  quiet_if_empty();
  return taken;
}

Inbox::Taken Inbox::take_all() {
  Taken taken;
  if (messages_.empty()) return taken;
  if (messages_.front().indexed)
    for (auto& [name, peer] : peers_) peer.waiting.clear();
  taken.notifications.reserve(messages_.size());
  while (!messages_.empty()) {
    Entry& entry = messages_.front();
    Share& share = *entry.share;
    entry.indexed = false;
    taken.notifications.push_back(move_out(entry));
    if (!messages_.empty() && messages_.front().share == &share) continue;
    const std::uint64_t link = share.link;
    if (const auto* const told = settle(share)) taken.dues.push_back({link, *told});
  }
  return taken;
}

Inbox::Taken Inbox::take_fitting(const NotificationFilter& filter) {
  Taken taken;
  std::set<Share*> shares;
  const std::vector<Entry*> found = all(filter);
  taken.notifications.reserve(found.size());
  for (Entry* const entry : found) {
    shares.insert(entry->share);
    taken.notifications.push_back(move_out(*entry));
  }
  for (Share* const share : shares) {
    const std::uint64_t link = share->link;
    if (const auto* const told = settle(*share)) taken.dues.push_back({link, *told});
  }
  return taken;
}

std::optional<Inbox::Due> Inbox::take_one(const NotificationFilter& filter,
                                          std::optional<Notification>& taken) {
  if (empty()) return {};
  const std::lock_guard lock(mutex_);
  Entry* const entry = oldest(filter);
  if (entry == nullptr) return {};
  Share& share = *entry->share;
  taken.emplace(move_out(*entry));
  const std::uint64_t link = share.link;
  const auto* const told = settle(share);
  quiet_if_empty();
  if (told == nullptr) return {};
  return Due{link, *told};
}

// ------------------------------------------------------------------ descriptors

void Inbox::count_waiting() { waiting_.store(messages_.size(), std::memory_order_release); }

void Inbox::quiet_if_empty() {
  count_waiting();
  if (bell_ && messages_.empty() && !closed_) bell_->drain();
}

void Inbox::ring(const Notification& notification) {
  if (bell_) bell_->signal();
  std::erase_if(watches_, [&](const auto& weak) {
    const auto watch = weak.lock();
    if (watch && fits(notification, watch->filter)) watch->bell.signal();
    return watch == nullptr;
  });
}

Result<int> Inbox::descriptor() {
  const std::lock_guard lock(mutex_);
  if (!bell_) {
    auto bell = EventFd::create();
    if (!bell) return std::move(bell).error();
    bell_.emplace(std::move(*bell));
    if (!messages_.empty() || closed_) bell_->signal();
  }
  return bell_->fd();
}

Result<std::shared_ptr<const Inbox::Watch>> Inbox::watch(NotificationFilter filter) {
  HEADRACE_TRY(bell, EventFd::create());
  auto watch = std::make_shared<const Watch>(std::move(filter), std::move(bell));
  const std::lock_guard lock(mutex_);
  if (oldest(watch->filter) != nullptr) watch->bell.signal();
  if (watches_.size() == watches_.capacity()) {
    std::erase_if(watches_, [](const auto& weak) { return weak.expired(); });
    watches_.reserve(2 * watches_.size() + 8);  // the next look comes after as many new ones as there are
  }
  watches_.push_back(watch);
  return watch;
}

void Inbox::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  if (bell_) bell_->signal();
  for (const auto& weak : watches_)
    if (const auto watch = weak.lock()) watch->bell.signal();
}

}  // namespace headrace::engine
