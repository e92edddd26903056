// SPDX-License-Identifier: Apache-2.0
#include "moe/rank.hpp"

#include "base/errors.hpp"
#include "moe/config.hpp"
#include "moe/drive.hpp"

#include <algorithm>
#include <cstddef>
#include <thread>
#include <utility>

namespace headrace {

std::string MoEFailure::text() const {
  const std::string in = fmt::format("in {} {}", operation, number);
  if (code == Code::canceled)
    return fmt::format("rank {} has left rank {} out, as rank {} sees {}", peer, waiter, waiter, in);
  if (code == Code::corrupt)
    return fmt::format("rank {} got {} from rank {} {} that cannot be: {} where fewer than {} was expected",
                       waiter, awaited, peer, in, seen, expected);
  if (code == Code::peer_lost)
    return fmt::format("rank {} is gone: rank {} waited for its {} {} (expected {}, seen {})", peer, waiter,
                       awaited, in, expected, seen);
  return fmt::format("rank {} waited for {} of rank {} {}: expected {}, seen {}", waiter, awaited, peer, in,
                     expected, seen);
}

namespace moe {
namespace {

std::uint32_t spins_for(int ranks) {
  const unsigned cores = std::thread::hardware_concurrency();
  return static_cast<unsigned>(ranks) <= cores ? Waiter::many_spins : Waiter::few_spins;
}

std::string_view name_of(Operation operation) {
  return operation == Operation::dispatch ? "dispatch" : "combine";
}

}  // namespace

Rank::Rank(const MoEConfig& config, const std::vector<std::byte*>& windows, std::function<bool(int)> lost)
    : config_(config),
      layout_(window_layout(config)),
      spread_(spread_of(config)),
      rank_(static_cast<std::uint32_t>(config.rank)),
      spins_(spins_for(config.ranks)),
      lost_(std::move(lost)),
      active_(mask_of_all(layout_.ranks)),
      card_counts_(static_cast<std::size_t>(config.ranks * config.local_experts())),
      before_(card_counts_.size()),
      first_rows_(static_cast<std::size_t>(std::max(config.ranks, config.local_experts())) + 1),
      totals_(static_cast<std::size_t>(config.local_experts())),
      next_chunk_(static_cast<std::size_t>(config.ranks)),
      sum_row_(static_cast<std::size_t>(config.hidden)),
      block_row_(sum_row_.size()),
      token_row_(static_cast<std::size_t>(config.row_bytes())),
      token_scales_(static_cast<std::size_t>(config.scale_bytes)) {
  for (std::byte* const memory : windows) windows_.emplace_back(memory, layout_);
}

Result<void> Rank::dispatch(const MoETokens& tokens, const MoERows& out, Routing& routing) {
  HEADRACE_TRY_VOID(not_left_out());
  HEADRACE_TRY_VOID(none_under_way(dispatches_, "dispatch"));
  HEADRACE_TRY_VOID(check_rows(out));
  Result<void> sent = dispatch_send(tokens, routing);
  if (dispatches_.sent == dispatches_.received) return sent;  // refused
  Result<void> received = dispatch_receive(out, routing);
  return sent ? received : sent;
}

Result<void> Rank::combine(const MoEResults& results, const MoESums& sums, Routing& routing) {
  HEADRACE_TRY_VOID(not_left_out());
  HEADRACE_TRY_VOID(none_under_way(combines_, "combine"));
  HEADRACE_TRY_VOID(check_sums(sums, routing));
  Result<void> sent = combine_send(results, routing);
  if (combines_.sent == combines_.received) return sent;
  Result<void> received = combine_receive(sums, routing);
  return sent ? received : sent;
}

Result<void> Rank::not_left_out() const {
  if (!canceled_) return {};
  return make_error(Code::canceled, "{}: open a new MoE on all ranks", canceled_->text());
}

Result<void> Rank::none_under_way(const Count& count, std::string_view operation) const {
  if (count.sent == count.received) return {};
  return make_error(Code::invalid_argument, "{} {} is under way: receive it before a whole {}", operation,
                    count.received + 1, operation);
}

Result<void> Rank::may_send(const Count& count, std::string_view operation) const {
  if (may_begin(count.sent, count.received)) return {};
  return make_error(Code::invalid_argument,
                    "{} {} cannot begin: {} are under way, the most that a window holds. Receive {} {} first",
                    operation, count.sent + 1, halves, operation, count.received + 1);
}

Result<void> Rank::may_receive(const Count& count, std::uint64_t awaited, std::string_view operation) const {
  if (count.sent == count.received)
    return make_error(Code::invalid_argument, "no {} is under way: send one first", operation);
  const std::uint64_t next = count.received + 1;
  if (awaited == next) return {};
  return make_error(
      Code::invalid_argument,
      "the routing is not that of {} {}, which is received next: give the one that it was sent with",
      operation, next);
}

Result<void> Rank::end() {
  if (running_.error) return *std::exchange(running_.error, std::nullopt);
  return {};
}

Mask Rank::check_waiting(Mask ranks, const Awaited& awaited, Deadline limit) {
  const bool late = limit.expired();
  for (Mask rest = ranks; rest != 0; rest &= rest - 1) {
    const auto peer = static_cast<std::uint32_t>(std::countr_zero(rest));
    Code code = Code::ok;
    if (late) code = Code::timed_out;
    if (peer != rank_ && lost_(static_cast<int>(peer))) code = Code::peer_lost;
    if (own().load(layout_.words_at(peer) + offsetof(PeerWords, left_out)) != 0) code = Code::canceled;
    if (code == Code::ok) continue;
    const std::uint64_t seen = own().load(awaited.offset(peer));
    // What came meanwhile counts: the rank may have sent it before it died.
    if (awaited.is_there(seen)) continue;
    leave_out(peer, code, awaited.what, awaited.expected, seen);
    ranks &= ~bit_of(peer);
  }
  return ranks;
}

void Rank::leave_out(std::uint32_t peer, Code code, std::string_view what, std::uint64_t expected,
                     std::uint64_t seen) {
  const MoEFailure failure{code,
                           static_cast<int>(rank_),
                           static_cast<int>(peer),
                           name_of(running_.operation),
                           running_.epoch,
                           what,
                           expected,
                           seen};
  if (!running_.error) running_.error = Error{code, failure.text()};
  failure_ = failure;
  if (code == Code::canceled && !canceled_) canceled_ = failure;
  set_active(active_ & ~bit_of(peer));
}

void Rank::set_active(Mask ranks) {
  for (Mask gone = active_ & ~ranks; gone != 0; gone &= gone - 1) {
    const auto peer = static_cast<std::uint32_t>(std::countr_zero(gone));
    windows_[peer].tell(layout_.words_at(rank_) + offsetof(PeerWords, left_out), 1);
  }
  active_ = ranks;
}

void Rank::wait_for_room(Mask ranks, std::size_t taken) {
  const Awaited awaited{"room", running_.epoch - std::min(running_.epoch, halves),
                        [&](std::uint32_t peer) { return layout_.words_at(peer) + taken; },
                        [&](std::uint64_t seen) { return may_write(seen, running_.epoch); }};
  drive(ranks, awaited, [&](std::uint32_t peer) {
    return awaited.is_there(own().load(awaited.offset(peer))) ? Step::done : Step::waits;
  });
}

void Rank::tell_taken(std::size_t taken) {
  for (Mask rest = active_; rest != 0; rest &= rest - 1) {
    const auto peer = static_cast<std::uint32_t>(std::countr_zero(rest));
    windows_[peer].tell(layout_.words_at(rank_) + taken, running_.epoch);
  }
}

}  // namespace moe
}  // namespace headrace
