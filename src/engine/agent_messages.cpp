// SPDX-License-Identifier: Apache-2.0
#include "engine/agent_messages.hpp"

namespace headrace::engine {

bool AgentMessages::add(const std::shared_ptr<Link>& link, std::string_view bytes) {
  {
    const std::lock_guard lock(mutex_);
    const auto at = waiting_.find(link->token());
    if (at != waiting_.end() &&
        (at->second.messages.size() == most_messages || at->second.bytes + bytes.size() > most_bytes))
      return false;
    OfLink& of_link = waiting_[link->token()];
    of_link.link = link;
    of_link.bytes += bytes.size();
    of_link.messages.emplace_back(bytes);
    if (std::exchange(scheduled_, true)) return true;
  }
  progress_.defer([this] { handle_some(); });
  return true;
}

/// One thread at a time: in order.
void AgentMessages::handle_some() {
  for (int handled = 0; handled < in_one_pass; ++handled) {
    const Next next = take_next();
    if (!next) return;
    handle_(next->first, next->second);
  }
  progress_.defer([this] { handle_some(); });  // in the next pass
}

/// Of the link whose turn it is. Empty: none waits, and the next one will be scheduled.
AgentMessages::Next AgentMessages::take_next() {
  const std::lock_guard lock(mutex_);
  auto turn = waiting_.upper_bound(last_);
  if (turn == waiting_.end()) turn = waiting_.begin();
  if (turn == waiting_.end()) {
    scheduled_ = false;
    return std::nullopt;
  }
  last_ = turn->first;
  OfLink& of_link = turn->second;
  Next next(std::in_place, of_link.link, std::move(of_link.messages.front()));
  of_link.messages.pop_front();
  of_link.bytes -= next->second.size();
  if (of_link.messages.empty()) waiting_.erase(turn);
  return next;
}

}  // namespace headrace::engine
