// SPDX-License-Identifier: Apache-2.0
#include "engine/revocation.hpp"

#include "base/errors.hpp"
#include "engine/request_core.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

namespace headrace::engine {
namespace {

constexpr auto ask_again_after =
    std::chrono::milliseconds(1);  // until a link with a full queue is asked again

bool uses_ours(const InFlight& flights, std::span<const IdRange> ranges) {
  return std::ranges::any_of(flights.all(), [&](const auto& core) {
    const RequestPlan& plan = core->plan();
    return plan.local->touches(ranges) || (!plan.remote->life && plan.remote->touches(ranges));
  });
}

bool uses_peers(const PeerLife& life, std::span<const IdRange> ranges) {
  return std::ranges::any_of(life.all_links(), [&](const auto& link) {
    return std::ranges::any_of(link->in_flight().all(),
                               [&](const auto& core) { return core->plan().remote->touches(ranges); });
  });
}

Status tell(Link& link, std::string_view message) {
  const GatePass pass(link.gate());
  return pass && link.state() != LinkState::lost ? link.send(HEADRACE_CHANNEL_AGENT, message)
                                                 : Status{Code::peer_lost};
}

}  // namespace

// ------------------------------------------------------------------ regions of ours

bool Revocation::in_use(std::span<const IdRange> ranges) const {
  return uses_ours(own_, ranges) || std::ranges::any_of(links_.all(), [&](const auto& link) {
           return uses_ours(link->in_flight(), ranges);
         });
}

/// The rounds end after `give_back`: a peer that connects between the last answer and that moment is asked,
/// too, and what it has posted has ended when this returns.
Result<void> Revocation::ask_peers(std::span<const IdRange> ranges, std::uint64_t version, Deadline deadline,
                                   const std::function<void()>& give_back) {
  const auto sequences = begin_rounds(ranges, version);
  ask();
  auto outcome =
      wait_for_answers(sequences, deadline, "the regions stay registered; try again, or forget the peer");
  if (outcome) {
    give_back();
    outcome =
        wait_for_answers(sequences, deadline,
                         "it connected while the regions were being deregistered. They are so now, but it "
                         "may still use their memory: leave that in place until the peer is gone");
  }
  end_rounds(sequences);
  return outcome;
}

Result<void> Revocation::wait_for_answers(const std::vector<std::uint64_t>& sequences, Deadline deadline,
                                          std::string_view if_silent) const {
  if (!progress_.wait([&] { return calls_.closed() || all_answered(sequences); }, deadline))
    return make_error(Code::timed_out, "no answer from {}: {}", fmt::join(silent(sequences), ", "),
                      if_silent);
  if (calls_.closed()) return calls_.closed_meanwhile();
  return {};
}

/// A link that is made from now on finds the rounds; the others are in the table.
std::vector<std::uint64_t> Revocation::begin_rounds(std::span<const IdRange> ranges, std::uint64_t version) {
  std::vector<std::uint64_t> sequences;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t at = 0; at < ranges.size(); at += wire::revoke_ranges) {
      const auto part = ranges.subspan(at, std::min(wire::revoke_ranges, ranges.size() - at));
      const std::uint64_t sequence = next_round_++;
      rounds_[sequence].message =
          *wire::encode(wire::AgentMessage{wire::Revoke{sequence, version, {part.begin(), part.end()}}});
      sequences.push_back(sequence);
    }
  }
  for (const auto& link : links_.all())
    if (link->state() != LinkState::lost) (void)add(link);
  return sequences;
}

/// Returns whether there is something to ask over it.
bool Revocation::add(const std::shared_ptr<Link>& link) {
  if (!link->backend().can(HEADRACE_NOTIFY)) return false;
  const std::lock_guard lock(mutex_);
  for (auto& [sequence, round] : rounds_) round.waiting.try_emplace(link->token(), Question{link});
  return !rounds_.empty();
}

void Revocation::link_added(const std::shared_ptr<Link>& link) {
  if (add(link)) progress_.defer([this] { ask(); });
}

/// Sends the questions that have not been sent. A link that is going has no peer left to ask.
void Revocation::ask() {
  bool full = false;
  for (const Unsent& question : take_unsent()) {
    const Status sent = tell(*question.link, question.message);
    if (sent.ok()) continue;
    const std::lock_guard lock(mutex_);
    const auto round = rounds_.find(question.sequence);
    if (round == rounds_.end()) continue;
    const auto asked = round->second.waiting.find(question.link->token());
    if (asked == round->second.waiting.end()) continue;
    if (sent.code != Code::would_block) {
      round->second.waiting.erase(asked);
    } else {
      asked->second.sent = false;
      full = true;
    }
  }
  if (full) progress_.after(ask_again_after, [this] { ask(); });
  progress_.event();
}

/// They count as sent from here on.
std::vector<Revocation::Unsent> Revocation::take_unsent() {
  std::vector<Unsent> unsent;
  const std::lock_guard lock(mutex_);
  for (auto& [sequence, round] : rounds_)
    for (auto& [token, question] : round.waiting)
      if (!std::exchange(question.sent, true)) unsent.push_back({question.link, sequence, round.message});
  return unsent;
}

void Revocation::answered(const Link& link, std::uint64_t sequence) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto round = rounds_.find(sequence); round != rounds_.end())
      round->second.waiting.erase(link.token());
  }
  progress_.event();
}

bool Revocation::all_answered(const std::vector<std::uint64_t>& sequences) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(sequences, [&](std::uint64_t s) { return rounds_.at(s).waiting.empty(); });
}

/// The names of the peers that have not answered.
std::set<std::string> Revocation::silent(const std::vector<std::uint64_t>& sequences) const {
  std::set<std::string> names;
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t sequence : sequences)
    for (const auto& [token, question] : rounds_.at(sequence).waiting)
      if (const auto life = question.link->life()) names.insert(life->name);
  return names;
}

void Revocation::end_rounds(const std::vector<std::uint64_t>& sequences) {
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t sequence : sequences) rounds_.erase(sequence);
}

// ------------------------------------------------------------------ regions of peers

void Revocation::asked(const std::shared_ptr<Link>& link, wire::Revoke question) {
  const auto life = link->life();
  if (!life) return;
  question.ranges = in_order(std::move(question.ranges));
  {
    const std::unique_lock lock(life->mutex);
    life->revoked.add(question.ranges, question.version);
    life->regions.erase(question.ranges);
  }
  life->epoch.fetch_add(1);
  mappings_.revoked(*life, question.ranges);
  if (link->state() == LinkState::lost) return;  // nobody takes an answer
  if (keep(std::make_shared<const Pending>(Pending{link, life, std::move(question)}))) return answer();
  counters_.links_flooded.add();
  const std::string why = fmt::format(
      "it has more than {} questions to revoke regions, or more than {} ranges in them, that wait for our "
      "answer",
      most_pending, most_pending_ranges);
  log_.warn("closing the link to peer {} over {}: {}", life->name, link->backend().name(), why);
  links_.lose(link, {Code::exhausted}, why);
}

/// False: as much of its link waits as may.
bool Revocation::keep(const std::shared_ptr<const Pending>& pending) {
  const std::lock_guard lock(mutex_);
  Load& load = load_[pending->link.get()];
  ++load.questions;
  load.ranges += pending->question.ranges.size();
  pending_.push_back(pending);
  pending_count_.store(pending_.size());
  return load.questions <= most_pending && load.ranges <= most_pending_ranges;
}

/// One thread answers at a time. A thread that comes meanwhile makes it look once more: what has ended for
/// the newcomer may have been in flight when the other looked.
void Revocation::answer() {
  {
    const std::lock_guard lock(mutex_);
    if (waits_for_room_) return;
    look_again_ = true;
    if (std::exchange(answering_, true)) return;
  }
  std::set<const Link*> full;
  for (;;) {
    std::vector<std::shared_ptr<const Pending>> pending;
    {
      const std::lock_guard lock(mutex_);
      answering_ = std::exchange(look_again_, false);
      if (!answering_) break;
      pending = pending_;
    }
    std::set<const Pending*> answered;
    for (const auto& one : pending) {
      if (full.contains(one->link.get()) || uses_peers(*one->life, one->question.ranges)) continue;
      if (answer_one(*one).code == Code::would_block)
        full.insert(one->link.get());
      else
        answered.insert(one.get());
    }
    drop(answered);
  }
  if (!full.empty()) answer_later();
}

/// One timer for all, and no look before it: a peer that takes no answers may have thousands to come.
void Revocation::answer_later() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(waits_for_room_, true)) return;
  }
  progress_.after(ask_again_after, [this] {
    {
      const std::lock_guard lock(mutex_);
      waits_for_room_ = false;
    }
    answer();
  });
}

/// No post uses the regions any more.
Status Revocation::answer_one(const Pending& pending) const {
  for (const auto& link : pending.life->all_links())
    if (const GatePass pass(link->gate()); pass) link->unload(pending.question.ranges);
  return tell(*pending.link, *wire::encode(wire::AgentMessage{wire::Revoked{pending.question.sequence}}));
}

void Revocation::drop(const std::set<const Pending*>& answered) {
  if (answered.empty()) return;
  const std::lock_guard lock(mutex_);
  std::erase_if(pending_, [&](const auto& one) {
    if (!answered.contains(one.get())) return false;
    const auto load = load_.find(one->link.get());
    load->second.ranges -= one->question.ranges.size();
    if (--load->second.questions == 0) load_.erase(load);
    return true;
  });
  pending_count_.store(pending_.size());
}

/// A peer that is gone neither answers nor waits for an answer.
void Revocation::link_gone(const std::shared_ptr<Link>& link) {
  const std::lock_guard lock(mutex_);
  for (auto& [sequence, round] : rounds_) round.waiting.erase(link->token());
  std::erase_if(pending_, [&](const auto& one) { return one->link == link; });
  load_.erase(link.get());
  pending_count_.store(pending_.size());
}

}  // namespace headrace::engine
