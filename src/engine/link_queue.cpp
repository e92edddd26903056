// SPDX-License-Identifier: Apache-2.0
#include "engine/link_queue.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace headrace::engine {

LinkQueue::Answer LinkQueue::add(std::shared_ptr<RequestCore> post) {
  const std::lock_guard lock(mutex_);
  if (open_) return Answer::pass;
  if (posts_.size() == most_posts) return Answer::full;
  posts_.push_back(std::move(post));
  return Answer::waits;
}

bool LinkQueue::remove(const RequestCore& post) {
  const std::lock_guard lock(mutex_);
  const auto at = std::ranges::find(posts_, &post, [](const auto& waiting) { return waiting.get(); });
  if (at == posts_.end()) return false;
  posts_.erase(at);
  return true;
}

LinkQueue::Answer LinkQueue::add(std::uint32_t channel, std::string_view bytes) {
  if (messages_pass_.load(std::memory_order_acquire)) return Answer::pass;
  const std::lock_guard lock(mutex_);
  if (messages_pass_.load(std::memory_order_relaxed)) return Answer::pass;
  // A message that was put back may have made them more than the most.
  if (message_bytes_ + bytes.size() > most_message_bytes) return Answer::full;
  message_bytes_ += bytes.size();
  messages_.push_back({channel, std::string(bytes)});
  return Answer::waits;
}

bool LinkQueue::open() {
  const std::lock_guard lock(mutex_);
  open_ = true;
  if (messages_.empty()) messages_pass_.store(true, std::memory_order_release);
  return !posts_.empty() || !messages_.empty();
}

std::vector<std::shared_ptr<RequestCore>> LinkQueue::take_posts() {
  const std::lock_guard lock(mutex_);
  auto waited = std::exchange(posts_, {});
  return {std::make_move_iterator(waited.begin()), std::make_move_iterator(waited.end())};
}

std::optional<LinkQueue::Message> LinkQueue::next_message() {
  const std::lock_guard lock(mutex_);
  if (messages_.empty()) {
    messages_pass_.store(true, std::memory_order_release);
    return std::nullopt;
  }
  Message next = std::move(messages_.front());
  messages_.pop_front();
  message_bytes_ -= next.bytes.size();
  return next;
}

void LinkQueue::put_back(Message message) {
  const std::lock_guard lock(mutex_);
  message_bytes_ += message.bytes.size();
  messages_.push_front(std::move(message));
}

LinkQueue::Left LinkQueue::close() {
  const std::lock_guard lock(mutex_);
  open_ = true;
  messages_pass_.store(true, std::memory_order_release);
  message_bytes_ = 0;
  auto posts = std::exchange(posts_, {});
  auto messages = std::exchange(messages_, {});
  return {{std::make_move_iterator(posts.begin()), std::make_move_iterator(posts.end())},
          {std::make_move_iterator(messages.begin()), std::make_move_iterator(messages.end())}};
}

}  // namespace headrace::engine
