// SPDX-License-Identifier: Apache-2.0
// Ranks that go on with others. Each tells the others how far it has come and asks with a new number; it has
// met a rank when that has answered this number. So nothing that an earlier meeting left in a window counts.
// The rank whose window has the votes resets them when it has met all, and tells them to go on.
#include "base/errors.hpp"
#include "base/random.hpp"
#include "base/waiter.hpp"
#include "moe/rank.hpp"

#include <algorithm>
#include <cstddef>

namespace headrace::moe {
namespace {

constexpr std::uint64_t go = 1;  ///< in an answer: all have met

std::string text_of(Mask ranks) {
  std::string text = std::popcount(ranks) == 1 ? "rank" : "ranks";
  for (Mask rest = ranks; rest != 0; rest &= rest - 1)
    text += fmt::format("{} {}", rest == ranks ? "" : ",", std::countr_zero(rest));
  return text;
}

}  // namespace

Result<void> Rank::may_regroup() const {
  if (given_up_) return {};
  const bool dispatches = dispatches_.sent != dispatches_.received;
  if (!dispatches && combines_.sent == combines_.received) return {};
  const UnderWay& count = dispatches ? dispatches_ : combines_;
  return make_error(Code::invalid_argument, "{} {} is under way: receive it before ranks regroup",
                    dispatches ? "dispatch" : "combine", count.received + 1);
}

Result<void> Rank::regroup(const std::vector<std::byte*>& windows, Mask members, Deadline deadline) {
  HEADRACE_TRY_VOID(may_regroup());
  for (std::uint32_t rank = 0; rank < layout_.ranks; ++rank) {
    FarWindow* const far = network_ == nullptr ? nullptr : network_->far(rank);
    windows_[rank] =
        far != nullptr ? PeerWindow(*far, layout_, rank_) : PeerWindow(Window(windows[rank], layout_), rank_);
  }
  home_ = static_cast<std::uint32_t>(std::countr_zero(members));
  Result<void> met = network_ == nullptr ? Result<void>() : network_->begin_meeting(members, deadline);
  if (met) met = meet(members, deadline);
  if (!met) {
    given_up_ = "the ranks have not regrouped";
    active_ = bit_of(rank_);
    return met;
  }
  begin_group(members);
  return {};
}

Result<void> Rank::meet(Mask members, Deadline deadline) {
  const std::uint64_t number = (random_u64() | 2) & ~go;
  const bool is_home = rank_ == home_;
  std::ranges::fill(answered_, 0);
  ask(members, number);
  Mask missing = members;
  Waiter waiter(spins_, own().bell());
  const auto answer_of = [&](std::uint32_t peer) {
    return own().load(layout_.words_at(peer) + offsetof(PeerWords, answers));
  };
  while (missing != 0 || (!is_home && answer_of(home_) != (number | go))) {
    bool moved = answer(members);
    for_ranks(missing, [&](std::uint32_t peer) {
      if ((answer_of(peer) & ~go) != number) return;
      missing &= ~bit_of(peer);
      moved = true;
    });
    if (moved) {
      waiter.moved();
      continue;
    }
    HEADRACE_TRY_VOID(
        waiter.pause([&] { return check_meeting(missing != 0 ? missing : bit_of(home_), deadline); }));
  }
  static_cast<void>(answer(members));  // a rank asks all before it answers one: this answers the last ones
  if (!is_home) return {};
  own().tell(WindowLayout::voted_out_at, mask_of_all(layout_.ranks) & ~members);
  std::ranges::fill(answered_, 0);
  static_cast<void>(answer(members, go));
  return {};
}

/// The last answer stays: a rank may not have seen yet that it may go on.
void Rank::ask(Mask members, std::uint64_t number) {
  for_ranks(members, [&](std::uint32_t peer) {
    told_[peer] = {number, told_[peer].answers, dispatches_.sent, combines_.sent};
    windows_[peer].tell_meeting(told_[peer]);
  });
}

bool Rank::answer(Mask members, std::uint64_t bits) {
  bool any = false;
  for_ranks(members, [&](std::uint32_t peer) {
    const std::uint64_t number = own().load(layout_.words_at(peer) + offsetof(PeerWords, asks));
    if (number == 0 || number == answered_[peer]) return;
    answered_[peer] = number;
    told_[peer].answers = number | bits;
    windows_[peer].tell_meeting(told_[peer]);
    any = true;
  });
  return any;
}

Result<void> Rank::check_meeting(Mask missing, Deadline deadline) {
  if (interrupted()) return make_error(Code::canceled, "rank {} was interrupted by its caller", rank_);
  if (network_ != nullptr) network_->probe(missing);
  Mask lost = 0;
  std::string reasons;
  for_ranks(missing & ~bit_of(rank_), [&](std::uint32_t peer) {
    if (is_lost(peer)) lost |= bit_of(peer);
    if (const std::string reason = reason_of(peer); !reason.empty())
      reasons += fmt::format(". Rank {} could not join: {}", peer, reason);
  });
  if (lost != 0)
    return make_error(Code::peer_lost, "rank {} waited for {} to regroup, which is gone{}", rank_,
                      text_of(lost), reasons);
  if (!deadline.expired()) return {};
  return make_error(
      Code::timed_out,
      "rank {} waited for {} to regroup: all ranks that take part call it, with the same ranks{}", rank_,
      text_of(missing), reasons);
}

/// Numbers of operations are new on all ranks, and higher than any that a window holds.
void Rank::begin_group(Mask members) {
  std::uint64_t dispatches = 0, combines = 0;
  for_ranks(members, [&](std::uint32_t peer) {
    const std::uint64_t words = layout_.words_at(peer);
    dispatches = std::max(dispatches, own().load(words + offsetof(PeerWords, dispatches)));
    combines = std::max(combines, own().load(words + offsetof(PeerWords, combines)));
  });
  dispatches += halves, combines += halves;
  dispatches_ = {dispatches, dispatches};
  combines_ = {combines, combines};
  for_ranks(mask_of_all(layout_.ranks) & ~members, [&](std::uint32_t gone) {
    if (windows_[gone].exists()) tell_left_out(gone);
  });
  for_ranks(members, [&](std::uint32_t peer) { begin_with(peer); });
  if (network_ != nullptr) {
    std::optional<Window> votes;
    if (!windows_[home_].is_far()) votes = windows_[home_].mapped();
    network_->start({members, home_, votes, dispatches, combines});
  }
  active_ = members_ = members;
  running_ = {};
  failure_.reset(), given_up_.reset();
  ++group_;
}

/// Both have taken all up to now: a rank of this node is told, of one of another node this rank knows.
void Rank::begin_with(std::uint32_t peer) const {
  const PeerWindow to = windows_[peer].is_far() ? PeerWindow(own(), peer) : windows_[peer];
  to.tell_dispatch_taken(dispatches_.sent);
  to.tell_combine_taken(combines_.sent);
}

}  // namespace headrace::moe
