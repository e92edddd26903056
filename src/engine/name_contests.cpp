// SPDX-License-Identifier: Apache-2.0
#include "engine/name_contests.hpp"

#include "wire/agent_message.hpp"

#include <optional>

namespace headrace::engine {
namespace {

constexpr auto look_every = std::chrono::milliseconds(20);

/// Over every link: one may be the newcomer's own, if it knows the holder's incarnation.
void put_question(const PeerLife& holder, std::uint64_t sequence) {
  const auto question = wire::encode(wire::AgentMessage{wire::Ask{sequence}});
  for (const auto& link : holder.all_links()) {
    if (link->state() != LinkState::ready || !link->backend().can(HEADRACE_NOTIFY)) continue;
    if (const GatePass pass(link->gate()); pass) (void)link->send(HEADRACE_CHANNEL_AGENT, *question);
  }
}

}  // namespace

/// `mutex_` is held.
NameContests::Contest* NameContests::find_or_begin(const std::shared_ptr<PeerLife>& holder) {
  if (const auto at = contests_.find(holder->name); at != contests_.end()) return &at->second;
  if (contests_.size() >= most) return nullptr;
  Contest& contest = contests_[holder->name];
  contest.holder = holder;
  contest.sequence = next_sequence_++;
  contest.until_ns = progress_.deadline_in(patience).point_ns();
  progress_.defer([this, name = holder->name] { look(name); });
  return &contest;
}

std::shared_ptr<PeerLife> NameContests::join(const std::shared_ptr<PeerLife>& holder,
                                             std::uint64_t incarnation) {
  const std::lock_guard lock(mutex_);
  Contest* const contest = find_or_begin(holder);
  if (contest == nullptr) return nullptr;
  if (!contest->newcomer) {
    contest->newcomer = std::make_shared<PeerLife>(holder->name, incarnation);
    contest->newcomer->contends.store(true);
  }
  return contest->newcomer->incarnation == incarnation ? contest->newcomer : nullptr;
}

void NameContests::ask(const std::shared_ptr<PeerLife>& holder) {
  const std::lock_guard lock(mutex_);
  (void)find_or_begin(holder);
}

std::shared_ptr<PeerLife> NameContests::take(std::string_view name, std::uint64_t incarnation) {
  const std::lock_guard lock(mutex_);
  const auto at = contests_.find(name);
  if (at == contests_.end() || !at->second.newcomer || at->second.newcomer->incarnation != incarnation)
    return nullptr;
  return contests_.extract(at).mapped().newcomer;
}

void NameContests::present(const PeerLife& holder, std::uint64_t sequence) {
  {
    const std::lock_guard lock(mutex_);
    const auto at = contests_.find(holder.name);
    if (at == contests_.end() || at->second.holder.get() != &holder || at->second.sequence != sequence)
      return;
    at->second.answered = true;
  }
  progress_.defer([this, name = holder.name] { look(name); });
}

/// Asks, and decides once that can be known. On a thread that drives.
void NameContests::look(const std::string& name) {
  std::shared_ptr<PeerLife> holder;
  std::uint64_t sequence = 0;
  std::optional<Outcome> outcome;
  {
    const std::lock_guard lock(mutex_);
    const auto at = contests_.find(name);
    if (at == contests_.end()) return;
    Contest& contest = at->second;
    sequence = contest.sequence;
    holder = contest.holder;
    const bool silent = progress_.clock().now_ns() >= contest.until_ns || !holder->is_connected();
    if (contest.answered || silent) {
      outcome = Outcome{holder, contest.newcomer, contest.answered};
      contests_.erase(at);
    }
  }
  if (outcome) return decided_(*outcome);
  put_question(*holder, sequence);  // again each time: a full link may not have taken it
  progress_.after(look_every, [this, name] { look(name); });
}

bool NameContests::say_or_hold(PeerLife& life, std::size_t bytes, std::function<void()> say) {
  if (life.contends.load(std::memory_order_acquire)) {
    const std::unique_lock lock(life.mutex);
    if (life.contends.load()) {
      if (life.held.size() >= most_held_messages || life.held_bytes + bytes > most_held_bytes) return false;
      life.held.push_back(std::move(say));
      life.held_bytes += bytes;
      return true;
    }
  }
  say();
  return true;
}

void NameContests::release(PeerLife& life) {
  for (;;) {
    std::vector<std::function<void()>> held;
    {
      const std::unique_lock lock(life.mutex);
      held.swap(life.held);
      if (held.empty()) life.contends.store(false);
    }
    if (held.empty()) return;
    for (const auto& say : held) say();
  }
}

}  // namespace headrace::engine
