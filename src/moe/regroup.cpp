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
  std::vector<PeerWindow> before;
  before.swap(windows_);
  for (std::byte* const memory : windows) windows_.emplace_back(Window(memory, layout_), rank_);
  for (std::uint32_t rank = 0; rank < layout_.ranks; ++rank)  // of those that leave
    if (!windows_[rank].exists()) windows_[rank] = before[rank];
  home_ = static_cast<std::uint32_t>(std::countr_zero(members));
  if (Result<void> met = meet(members, deadline); !met) {
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

void Rank::ask(Mask members, std::uint64_t number) const {
  for_ranks(members, [&](std::uint32_t peer) {
    windows_[peer].tell_word(offsetof(PeerWords, left_out), 0);
    windows_[peer].tell_word(offsetof(PeerWords, dispatches), dispatches_.sent);
    windows_[peer].tell_word(offsetof(PeerWords, combines), combines_.sent);
  });
  for_ranks(members,
            [&](std::uint32_t peer) { windows_[peer].tell_word(offsetof(PeerWords, asks), number); });
}

bool Rank::answer(Mask members, std::uint64_t bits) {
  bool any = false;
  for_ranks(members, [&](std::uint32_t peer) {
    const std::uint64_t number = own().load(layout_.words_at(peer) + offsetof(PeerWords, asks));
    if (number == 0 || number == answered_[peer]) return;
    answered_[peer] = number;
    windows_[peer].tell_word(offsetof(PeerWords, answers), number | bits);
    any = true;
  });
  return any;
}

Result<void> Rank::check_meeting(Mask missing, Deadline deadline) {
  if (interrupted()) return make_error(Code::canceled, "rank {} was interrupted by its caller", rank_);
  Mask lost = 0;
  std::string reasons;
  for_ranks(missing & ~bit_of(rank_), [&](std::uint32_t peer) {
    if (lost_(static_cast<int>(peer))) lost |= bit_of(peer);
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
    if (windows_[gone].exists()) windows_[gone].tell_left_out();
  });
  for_ranks(members, [&](std::uint32_t peer) {
    windows_[peer].tell_dispatch_taken(dispatches);
    windows_[peer].tell_combine_taken(combines);
  });
  active_ = members_ = members;
  running_ = {};
  failure_.reset(), given_up_.reset();
  ++group_;
}

}  // namespace headrace::moe
