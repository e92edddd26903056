// SPDX-License-Identifier: Apache-2.0
#include "engine/link.hpp"

namespace headrace::engine {

bool Link::set_connection(void* connection) {
  connection_.store(connection);
  if (!gate_.closed()) {
    const std::lock_guard lock(mutex_);
    return said_ready_ && become_ready();
  }
  gate_.close();  // again, for its wait: a call that came in before may be using the connection
  if (void* const left = connection_.exchange(nullptr); left != nullptr) backend_.disconnect(left);
  return false;
}

bool Link::set_ready() {
  const std::lock_guard lock(mutex_);
  said_ready_ = true;
  return connection() != nullptr && become_ready();
}

/// `mutex_` is held.
bool Link::become_ready() {
  auto connecting = LinkState::connecting;
  return state_.compare_exchange_strong(connecting, LinkState::ready);
}

void Link::set_lost(Status status, std::string_view why) {
  {
    const std::lock_guard lock(mutex_);
    if (state_.load() == LinkState::lost) return;
    lost_status_ = status;
    lost_text_ = why;
  }
  state_.store(LinkState::lost, std::memory_order_release);
}

Status Link::lost_status() const {
  const std::lock_guard lock(mutex_);
  return lost_status_;
}

std::string Link::lost_text() const {
  const std::lock_guard lock(mutex_);
  return lost_text_;
}

Code Link::lost_code() const {
  return lost_status().code == Code::exhausted ? Code::exhausted : Code::peer_lost;
}

Status Link::send(std::uint32_t channel, std::string_view message) {
  const bool user = channel == HEADRACE_CHANNEL_USER;
  if (user && !credit_.take(message.size())) return {Code::would_block};
  Status sent;
  switch (queue_.add(channel, message)) {
    case LinkQueue::Answer::waits:
      return {};
    case LinkQueue::Answer::full:
      sent = {Code::would_block};
      break;
    case LinkQueue::Answer::pass:
      sent = backend_.notify(connection(), channel, message);
      break;
  }
  if (user && !sent.ok()) credit_.give_back(message.size());
  return sent;
}

Status Link::send_waited(LinkQueue::Message& message) {
  if (!message.has_credit && !credit_.take(message.bytes.size())) return {Code::would_block};
  message.has_credit = true;
  const Status sent = backend_.notify(connection(), message.channel, message.bytes);
  const bool goes_elsewhere = !sent.ok() && sent.code != Code::would_block;
  if (goes_elsewhere && message.channel == HEADRACE_CHANNEL_USER) credit_.give_back(message.bytes.size());
  return sent;
}

bool Link::messages_have_left() {
  if (state() == LinkState::lost) return true;
  if (!queue_.messages_have_left()) return false;
  if (state() != LinkState::ready) return true;
  const GatePass pass(gate_);
  return !pass || backend_.unsent(connection()) == 0;
}

Result<void*> Link::load(std::uint32_t region_id, const headrace_remote_region_v1& region) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = remotes_.find(region_id); at != remotes_.end()) return at->second;
  }
  auto loaded = backend_.load_remote(connection(), region);
  if (!loaded) return loaded;
  void* extra = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto [at, fresh] = remotes_.try_emplace(region_id, *loaded);
    if (!fresh) extra = std::exchange(*loaded, at->second);  // another thread was quicker
  }
  if (extra != nullptr) backend_.unload(extra);
  return loaded;
}

void Link::unload(std::span<const IdRange> ranges) {
  const std::unique_lock nobody_prepares(handles_mutex_);
  std::vector<void*> dropped;
  {
    const std::lock_guard lock(mutex_);
    dropped = take_out(remotes_, ranges);
  }
  for (void* const remote : dropped) backend_.unload(remote);
}

void Link::close() {
  gate_.close();
  const std::lock_guard one_at_a_time(closing_);  // posts use what is unloaded until `disconnect` returns
  if (void* const connection = connection_.exchange(nullptr); connection != nullptr)
    backend_.disconnect(connection);
  std::unordered_map<std::uint32_t, void*> remotes;
  {
    const std::lock_guard lock(mutex_);
    remotes.swap(remotes_);
  }
  for (const auto& [id, remote] : remotes) backend_.unload(remote);
}

}  // namespace headrace::engine
