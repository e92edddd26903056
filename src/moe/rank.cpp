// SPDX-License-Identifier: Apache-2.0
#include "moe/rank.hpp"

#include "base/errors.hpp"
#include "base/names.hpp"
#include "moe/columns.hpp"
#include "moe/config.hpp"
#include "moe/drive.hpp"

#include <algorithm>
#include <cstddef>
#include <thread>
#include <utility>

namespace headrace {
namespace moe {
namespace {

constexpr std::string_view unanswered =
    "No rank of the node that counts the votes against ranks has answered";

}  // namespace
}  // namespace moe

std::string MoEFailure::text() const {
  const std::string in = fmt::format("in {} {}", operation, number);
  std::string because = reason.empty() ? "" : fmt::format(". It could not join: {}", reason);
  if (undecided) because += fmt::format(". {}: rank {} goes no further", moe::unanswered, waiter);
  if (code == Code::canceled && peer == -1)
    return fmt::format("rank {} was interrupted by its caller {}", waiter, in);
  if (code == Code::canceled)
    return fmt::format("rank {} has left rank {} out, as rank {} sees {}", peer, waiter, waiter, in);
  if (code == Code::corrupt)
    return fmt::format("rank {} got {} from rank {} {} that cannot be: {} where fewer than {} was expected",
                       waiter, awaited, peer, in, seen, expected);
  if (voted && awaited.empty())
    return fmt::format("rank {} was left out by another rank, as rank {} sees {}{}", peer, waiter, in,
                       because);
  if (voted)
    return fmt::format(
        "rank {} was left out by another rank: rank {} waited for its {} {} (expected {}, seen {}){}", peer,
        waiter, awaited, in, expected, seen, because);
  if (code == Code::peer_lost)
    return fmt::format("rank {} is gone: rank {} waited for its {} {} (expected {}, seen {}){}", peer, waiter,
                       awaited, in, expected, seen, because);
  return fmt::format("rank {} waited for {} of rank {} {}: expected {}, seen {}{}", waiter, awaited, peer, in,
                     expected, seen, because);
}

namespace moe {
namespace {

std::uint32_t spins_for(int ranks) {
  const unsigned cores = std::thread::hardware_concurrency();
  return static_cast<unsigned>(ranks) <= cores ? Waiter::many_spins : Waiter::few_spins;
}

}  // namespace

Rank::Rank(const MoEConfig& config, const std::vector<std::byte*>& windows, std::function<bool(int)> lost,
           Network* network)
    : config_(config),
      layout_(window_layout(config)),
      spread_(spread_of(config)),
      rank_(static_cast<std::uint32_t>(config.rank)),
      spins_(spins_for(config.ranks)),
      nodes_(Nodes::of(config)),
      relay_(RelayLayout::of(nodes_, layout_)),
      lost_(std::move(lost)),
      network_(network),
      active_(mask_of_all(layout_.ranks)),
      members_(active_),
      card_counts_(static_cast<std::size_t>(config.ranks * config.local_experts())),
      before_(card_counts_.size()),
      first_rows_(static_cast<std::size_t>(std::max(config.ranks, config.local_experts())) + 1),
      totals_(static_cast<std::size_t>(config.local_experts())),
      next_chunk_(static_cast<std::size_t>(config.ranks)),
      token_row_(static_cast<std::size_t>(config.row_bytes())),
      token_scales_(static_cast<std::size_t>(config.scale_bytes)),
      relays_(nodes_.count()),
      forwarded_to_(std::size_t{layout_.ranks} * nodes_.per_node),
      chooser_(config),
      answered_(static_cast<std::size_t>(config.ranks)),
      told_(answered_.size()) {
  for (std::uint32_t peer = 0; peer < layout_.ranks; ++peer) {
    FarWindow* const far = network == nullptr ? nullptr : network->far(peer);
    if (far != nullptr)
      windows_.emplace_back(*far, layout_, rank_);
    else
      windows_.emplace_back(Window(windows[peer], layout_), rank_);
  }
  if (!windows_[home_].exists()) home_ = rank_;
}

Result<void> Rank::dispatch(const MoETokens& tokens, const MoERows& out, Routing& routing) {
  HEADRACE_TRY_VOID(not_left_out(Operation::dispatch, dispatches_.sent + 1));
  HEADRACE_TRY_VOID(none_under_way(dispatches_, "dispatch"));
  HEADRACE_TRY_VOID(check_memory(config_, out));
  Result<void> sent = dispatch_send(tokens, routing);
  if (dispatches_.sent == dispatches_.received) return sent;  // refused
  Result<void> received = dispatch_receive(out, routing);
  return sent ? received : sent;
}

Result<void> Rank::combine(const MoEResults& results, const MoESums& sums, Routing& routing) {
  HEADRACE_TRY_VOID(not_left_out(Operation::combine, combines_.sent + 1));
  refresh(routing);
  HEADRACE_TRY_VOID(none_under_way(combines_, "combine"));
  HEADRACE_TRY_VOID(check_sums(sums, routing));
  Result<void> sent = combine_send(results, routing);
  if (combines_.sent == combines_.received) return sent;
  Result<void> received = combine_receive(sums, routing);
  return sent ? received : sent;
}

Result<void> Rank::not_left_out(Operation operation, std::uint64_t number) {
  if (!given_up_ && (voted_out() & bit_of(rank_)) != 0) {
    begin(operation, number);
    give_up(failure_of(Code::canceled, left_out_by().value_or(home_)));
  }
  if (!given_up_) return {};
  return make_error(Code::canceled, "{}: take it back with regroup, or open a new MoE on all ranks",
                    *given_up_);
}

void Rank::refresh(Routing& routing) const {
  if (routing.group == group_) return;
  routing.group = group_;
  routing.dispatch_sent = routing.combine_sent = routing.memory_of = 0;
  routing.filled = false;
}

Result<void> Rank::end() {
  if (running_.error) return *std::exchange(running_.error, std::nullopt);
  return {};
}

Mask Rank::check_waiting(Mask ranks, const Awaited& awaited, Deadline limit) {
  if (given_up_) return 0;
  const Mask out = voted_out();
  const auto voter = left_out_by();
  if (voter || (out & bit_of(rank_)) != 0) {
    give_up(failure_of(Code::canceled, voter.value_or(home_)));
    return 0;
  }
  if (interrupted()) {
    static_cast<void>(vote_out(bit_of(rank_)));  // nobody waits for it
    give_up(failure_of(Code::canceled, -1));
    return 0;
  }
  if (network_ != nullptr) network_->probe(ranks);
  const auto is_gone = [&](std::uint32_t peer) {
    return (out & bit_of(peer)) != 0 || (peer != rank_ && is_lost(peer));
  };
  for (Mask rest = ranks; rest != 0; rest &= rest - 1) {
    if (given_up_) return 0;
    const auto peer = static_cast<std::uint32_t>(std::countr_zero(rest));
    const std::uint32_t via = awaited.via && !is_gone(peer) ? awaited.via(peer) : peer;
    const bool lost = is_gone(via);
    // A rank that forwards may itself wait for the peer, and then leaves that out.
    const auto longer = via == peer ? std::chrono::nanoseconds(0) : config_.wait_limit;
    const bool late = limit.expired() && Deadline::after(longer, limit.point_ns()).expired();
    if (!lost && !late) continue;
    const std::uint64_t seen = own().load(awaited.offset(peer));
    // What came meanwhile counts: the rank may have sent it before it died.
    if (awaited.is_there(seen) || !is_active(via)) continue;
    const bool voted = (out & bit_of(via)) != 0;
    leave_out(via, lost ? Code::peer_lost : Code::timed_out, awaited.what, awaited.expected, seen, voted);
    ranks &= active_ & ~bit_of(via);
  }
  return ranks;
}

bool Rank::interrupted() {
  return config_.interrupted && next_question_.is_due(now_ns()) && config_.interrupted();
}

std::optional<std::uint32_t> Rank::left_out_by() const {
  for (Mask rest = members_; rest != 0; rest &= rest - 1) {
    const auto peer = static_cast<std::uint32_t>(std::countr_zero(rest));
    if (own().load(layout_.words_at(peer) + offsetof(PeerWords, left_out)) != 0) return peer;
  }
  return std::nullopt;
}

void Rank::leave_out(std::uint32_t peer, Code code, std::string_view what, std::uint64_t expected,
                     std::uint64_t seen, bool voted) {
  const Network::Counted counted = vote_out(bit_of(peer));
  if (counted == Network::Counted::voter_is_out)
    return give_up(failure_of(Code::canceled, left_out_by().value_or(home_)));
  MoEFailure failure = failure_of(code, peer);
  failure.awaited = what, failure.expected = expected, failure.seen = seen, failure.voted = voted;
  failure.reason = reason_of(peer);
  failure.undecided = counted == Network::Counted::unanswered;
  if (failure.undecided) return give_up(std::move(failure));
  if (!running_.error) running_.error = Error{code, failure.text()};
  failure_ = std::move(failure);
  go_on_with(active_ & ~bit_of(peer));
}

void Rank::give_up(MoEFailure failure) {
  given_up_ = failure.text();
  running_.error = Error{failure.code, *given_up_};
  failure_ = std::move(failure);
  active_ = bit_of(rank_);
}

std::string Rank::reason_of(std::uint32_t peer) const {
  const Window& window = windows_[peer].mapped();
  if (!window.exists() || window.load(WindowLayout::refused_at) == 0) return {};
  std::string reason(reinterpret_cast<const char*>(window.at(WindowLayout::reason_at)),
                     WindowLayout::reason_bytes);
  reason.resize(std::min(reason.find('\0'), reason.size()));
  return name_text(reason);
}

Network::Counted Rank::vote_out(Mask ranks) {
  if (windows_[home_].is_far()) return network_->vote_out(ranks);
  const Mask out = windows_[home_].mapped().vote(rank_, ranks);
  if (network_ != nullptr) network_->tell_votes(out);
  return (out & ~ranks & bit_of(rank_)) == 0 ? Network::Counted::yes : Network::Counted::voter_is_out;
}

Result<void> Rank::set_active(Mask ranks) {
  HEADRACE_TRY_VOID(not_left_out(Operation::dispatch, dispatches_.sent + 1));
  switch (vote_out(active_ & ~ranks)) {
    case Network::Counted::yes:
      break;
    case Network::Counted::voter_is_out:
      return not_left_out(Operation::dispatch, dispatches_.sent + 1);
    case Network::Counted::unanswered:
      return make_error(Code::timed_out, "{}: no rank is left out", unanswered);
  }
  go_on_with(ranks);
  return {};
}

void Rank::go_on_with(Mask ranks) {
  for_ranks(active_ & ~ranks, [&](std::uint32_t gone) { tell_left_out(gone); });
  active_ = ranks;
}

void Rank::tell_left_out(std::uint32_t peer) const {
  if (windows_[peer].is_far()) return network_->tell_left_out(peer);
  windows_[peer].tell_word(offsetof(PeerWords, left_out), 1);
}

void Rank::wait_for_room(Mask ranks, std::size_t taken) {
  const Awaited awaited{"room", running_.epoch - std::min(running_.epoch, halves),
                        [&](std::uint32_t peer) { return layout_.words_at(peer) + taken; },
                        [&](std::uint64_t seen) { return may_write(seen, running_.epoch); }};
  drive(ranks, awaited, [&](std::uint32_t peer) {
    return awaited.is_there(own().load(awaited.offset(peer))) ? Step::done : Step::waits;
  });
  wait_for_posts(ranks);
}

/// The mirror of a window is written again.
void Rank::wait_for_posts(Mask ranks) {
  const Deadline limit = Deadline::after(config_.wait_limit);
  for_ranks(ranks, [&](std::uint32_t peer) {
    if (!windows_[peer].is_far() || !is_active(peer)) return;
    if (windows_[peer].far().settle(running_.operation, running_.epoch, limit)) return;
    const std::uint64_t before = running_.epoch - std::min(running_.epoch, halves);
    leave_out(peer, limit.expired() ? Code::timed_out : Code::peer_lost, "room", before, 0);
  });
}

}  // namespace moe
}  // namespace headrace
