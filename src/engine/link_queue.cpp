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
  Lane& of_channel = lane(channel);
  if (of_channel.passes.load(std::memory_order_acquire)) return Answer::pass;
  const std::lock_guard lock(mutex_);
  if (of_channel.passes.load(std::memory_order_relaxed)) return Answer::pass;
  // A message that was put back may have made them more than the most.
  if (of_channel.bytes + bytes.size() > most_message_bytes || of_channel.without_credit != 0)
    return Answer::full;
  of_channel.bytes += bytes.size();
  of_channel.messages.push_back({channel, std::string(bytes)});
  return Answer::waits;
}

bool LinkQueue::adopt(std::vector<Message>& left) {
  const std::lock_guard lock(mutex_);
  if (closed_) return false;
  users_.passes.store(false, std::memory_order_release);
  for (Message& message : left) {
    users_.bytes += message.bytes.size();
    ++users_.without_credit;
    users_.messages.push_back({message.channel, std::move(message.bytes), false});
  }
  return true;
}

std::size_t LinkQueue::messages() const {
  const std::lock_guard lock(mutex_);
  return users_.messages.size() + agents_.messages.size();
}

bool LinkQueue::messages_have_left() const {
  const std::lock_guard lock(mutex_);
  if (!open_) return !has_messages();
  return users_.passes.load(std::memory_order_relaxed) && agents_.passes.load(std::memory_order_relaxed);
}

void LinkQueue::open() {
  const std::lock_guard lock(mutex_);
  open_ = true;
  for (Lane* const one : {&users_, &agents_})
    if (one->messages.empty()) one->passes.store(true, std::memory_order_release);
}

bool LinkQueue::begin_handing_over() {
  const std::lock_guard lock(mutex_);
  if (!open_ || handing_over_) return false;
  handing_over_ = !posts_.empty() || has_messages();
  return handing_over_;
}

bool LinkQueue::end_handing_over() {
  const std::lock_guard lock(mutex_);
  handing_over_ = has_messages();
  return !handing_over_;
}

std::vector<std::shared_ptr<RequestCore>> LinkQueue::take_posts() {
  const std::lock_guard lock(mutex_);
  auto waited = std::exchange(posts_, {});
  return {std::make_move_iterator(waited.begin()), std::make_move_iterator(waited.end())};
}

std::optional<LinkQueue::Message> LinkQueue::next_message(std::uint32_t channel) {
  const std::lock_guard lock(mutex_);
  Lane& of_channel = lane(channel);
  if (of_channel.messages.empty()) {
    of_channel.passes.store(true, std::memory_order_release);
    return std::nullopt;
  }
  Message next = std::move(of_channel.messages.front());
  of_channel.messages.pop_front();
  of_channel.bytes -= next.bytes.size();
  if (!next.has_credit) --of_channel.without_credit;
  return next;
}

void LinkQueue::put_back(Message message) {
  const std::lock_guard lock(mutex_);
  Lane& of_channel = lane(message.channel);
  of_channel.bytes += message.bytes.size();
  if (!message.has_credit) ++of_channel.without_credit;
  of_channel.messages.push_front(std::move(message));
}

LinkQueue::Left LinkQueue::close() {
  const std::lock_guard lock(mutex_);
  open_ = closed_ = true;
  auto posts = std::exchange(posts_, {});
  Left left{{std::make_move_iterator(posts.begin()), std::make_move_iterator(posts.end())}, {}};
  for (Lane* const one : {&agents_, &users_}) {
    one->passes.store(true, std::memory_order_release);
    one->bytes = one->without_credit = 0;
    std::ranges::move(std::exchange(one->messages, {}), std::back_inserter(left.messages));
  }
  return left;
}

}  // namespace headrace::engine
