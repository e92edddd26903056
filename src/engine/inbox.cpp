// SPDX-License-Identifier: Apache-2.0
#include "engine/inbox.hpp"

namespace headrace::engine {
namespace {

// A message comes twice only when a request went over to its next path after the first had delivered: a
// request of the last moments. This many requests are far more than can be in flight over a failing path.
constexpr std::size_t remembered_requests = 16384;  // of each life

bool fits(const Notification& n, const NotificationFilter& filter) {
  return (filter.peer.empty() || n.peer == filter.peer) && n.payload.starts_with(filter.prefix);
}

}  // namespace

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

bool Inbox::put(const MessageKey& key, Notification notification) {
  const std::lock_guard lock(mutex_);
  if (messages_.size() >= capacity_ ||
      (!messages_.empty() && bytes_ + notification.payload.size() > capacity_bytes_))
    return false;
  if (seen(key)) return true;
  bytes_ += notification.payload.size();
  messages_.push_back(std::move(notification));
  waiting_.store(messages_.size(), std::memory_order_release);
  if (bell_) bell_->signal();
  return true;
}

void Inbox::quiet_if_empty() {
  waiting_.store(messages_.size(), std::memory_order_release);
  if (bell_ && messages_.empty()) bell_->drain();
}

std::vector<Notification> Inbox::take(const NotificationFilter& filter) {
  std::vector<Notification> taken;
  if (empty()) return taken;
  const std::lock_guard lock(mutex_);
  std::deque<Notification> kept;
  for (Notification& n : messages_) {
    if (fits(n, filter)) {
      bytes_ -= n.payload.size();
      taken.push_back(std::move(n));
    } else {
      kept.push_back(std::move(n));
    }
  }
  messages_ = std::move(kept);
  quiet_if_empty();
  return taken;
}

std::optional<Notification> Inbox::take_one(const NotificationFilter& filter) {
  if (empty()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  for (auto at = messages_.begin(); at != messages_.end(); ++at) {
    if (!fits(*at, filter)) continue;
    Notification taken = std::move(*at);
    bytes_ -= taken.payload.size();
    messages_.erase(at);
    quiet_if_empty();
    return taken;
  }
  return std::nullopt;
}

Result<int> Inbox::descriptor() {
  const std::lock_guard lock(mutex_);
  if (!bell_) {
    auto bell = EventFd::create();
    if (!bell) return std::move(bell).error();
    bell_.emplace(std::move(*bell));
    if (!messages_.empty()) bell_->signal();
  }
  return bell_->fd();
}

}  // namespace headrace::engine
