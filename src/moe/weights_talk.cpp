// SPDX-License-Identifier: Apache-2.0
#include "moe/weights_talk.hpp"

#include "base/errors.hpp"
#include "base/hash.hpp"
#include "base/names.hpp"
#include "base/random.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

namespace headrace::moe {
namespace {

/// After so long without a message a rank looks whether its peer is gone, and whether it is interrupted.
constexpr std::chrono::nanoseconds look_after = std::chrono::milliseconds(50);

std::string prefix_of_talk(const MoEConfig& config, std::string_view name) {
  std::string key = config.name;
  key.append(1, '\0').append(name);
  return fmt::format("headrace.moe.weights {:016x} ", hash64(std::as_bytes(std::span(key))));
}

}  // namespace

WeightsTalk::WeightsTalk(Agent& agent, const MoEConfig& config, std::vector<std::string> agents,
                         std::string_view name)
    : agent_(agent),
      config_(config),
      prefix_(prefix_of_talk(config, name)),
      hello_prefix_(prefix_ + "hello ") {
  for (std::string& of : agents)
    peers_.push_back({.agent = std::move(of), .card = {}, .counts = {}, .ends = {}});
}

std::string WeightsTalk::rank_text(std::uint32_t rank) const {
  return fmt::format("rank {} (agent {})", rank, name_text(peers_[rank].agent));
}

std::string WeightsTalk::inbox_prefix(std::uint64_t life) const {
  return fmt::format("{}{:016x} ", prefix_, life);
}

/// A rank that has all answers stays until it has answered all.
Result<void> WeightsTalk::meet(WeightsCard card, Mask members, Deadline deadline) {
  own_ = std::move(card);
  own_.life = random_u64();
  own_prefix_ = inbox_prefix(own_.life);
  members &= ~bit_of(static_cast<std::uint32_t>(config_.rank));
  const std::string hello = hello_prefix_ + encode(own_);
  for (Mask rest = members; rest != 0; rest &= rest - 1)
    HEADRACE_TRY_VOID(notify(static_cast<std::uint32_t>(std::countr_zero(rest)), hello, deadline));
  for (Mask rest = members; rest != 0; rest &= rest - 1) {
    const auto rank = static_cast<std::uint32_t>(std::countr_zero(rest));
    const auto has_met = [&] { return peers_[rank].has_greeted && peers_[rank].has_answered; };
    while (!has_met()) {
      HEADRACE_TRY_VOID(take_one(members, deadline));
      if (!has_met()) HEADRACE_TRY_VOID(check_waiting(rank, "a greeting", deadline));
    }
  }
  return {};
}

Result<void> WeightsTalk::send(std::uint32_t rank, std::string_view message, Deadline deadline) {
  return notify(rank, inbox_prefix(card_of(rank).life).append(message), deadline);
}

template <class Message>
std::optional<Message> WeightsTalk::take(std::vector<Message>& messages, std::uint64_t call) {
  std::erase_if(messages, [&](const Message& message) { return message.call < call; });
  const auto found = std::ranges::find(messages, call, &Message::call);
  if (found == messages.end()) return std::nullopt;
  std::optional<Message> taken = std::move(*found);
  messages.erase(found);
  return taken;
}

template <class Message>
Result<Message> WeightsTalk::wait(std::uint32_t rank, std::vector<Message> Peer::*messages,
                                  std::uint64_t call, std::string_view awaited, Deadline deadline) {
  for (bool has_waited = false;; has_waited = true) {
    HEADRACE_TRY_VOID(check_not_failed(rank, call));
    if (auto message = take(peers_[rank].*messages, call)) return *std::move(message);
    if (has_waited) HEADRACE_TRY_VOID(check_waiting(rank, awaited, deadline));
    HEADRACE_TRY_VOID(take_one(0, deadline));
  }
}

Result<WeightsCounts> WeightsTalk::wait_counts(std::uint32_t rank, std::uint64_t call, Deadline deadline) {
  return wait(rank, &Peer::counts, call, "the counts", deadline);
}

Result<WeightsEnd> WeightsTalk::wait_end(std::uint32_t rank, std::uint64_t call, Deadline deadline) {
  return wait(rank, &Peer::ends, call, "the end of the call", deadline);
}

Result<void> WeightsTalk::check_not_failed(std::uint32_t rank, std::uint64_t call) const {
  for (const WeightsEnd& end : peers_[rank].ends)
    if (end.call == call && end.plan == 0)
      return make_error(end.code, "{} has ended call {} with an error: {}", rank_text(rank), call,
                        printable(end.text));
  return {};
}

Result<void> WeightsTalk::take_one(Mask members, Deadline deadline) {
  const std::chrono::nanoseconds remaining(static_cast<std::int64_t>(
      std::min(deadline.remaining_ns(), static_cast<std::uint64_t>(look_after.count()))));
  auto taken = agent_.wait_notification(remaining, {.peer = {}, .prefix = prefix_});
  if (!taken && taken.code() == Code::timed_out) return {};
  if (!taken) return std::move(taken).error();
  const auto from = std::ranges::find(peers_, taken->peer, &Peer::agent);
  if (from == peers_.end()) return {};
  const auto rank = static_cast<std::uint32_t>(from - peers_.begin());
  const std::string_view payload = taken->payload;
  Result<void> done;
  if (payload.starts_with(hello_prefix_) && (members & bit_of(rank)) != 0)
    done = greeted(rank, payload.substr(hello_prefix_.size()), deadline);
  else if (payload.starts_with(own_prefix_))  // else to an earlier object
    done = keep(*from, payload.substr(own_prefix_.size()));
  if (done) return {};
  return std::move(done).error().within("from " + rank_text(rank));
}

Result<void> WeightsTalk::keep(Peer& from, std::string_view message) const {
  HEADRACE_TRY(kind, weights_kind(message));
  if (kind == WeightsKind::counts) {
    HEADRACE_TRY(counts, decode_weights_counts(message));
    from.counts.push_back(std::move(counts));
  } else if (kind == WeightsKind::end) {
    HEADRACE_TRY(end, decode_weights_end(message));
    from.ends.push_back(std::move(end));
  } else {
    HEADRACE_TRY(card, decode_weights_card(message));
    from.card = std::move(card);
    from.has_answered = true;
  }
  return {};
}

Result<void> WeightsTalk::greeted(std::uint32_t rank, std::string_view bytes, Deadline deadline) {
  HEADRACE_TRY(card, decode_weights_card(bytes));
  const std::uint64_t life = card.life;
  peers_[rank].card = std::move(card);
  peers_[rank].has_greeted = true;
  return notify(rank, inbox_prefix(life).append(encode(own_)), deadline);
}

Result<void> WeightsTalk::notify(std::uint32_t rank, const std::string& payload, Deadline deadline) {
  constexpr auto pause = std::chrono::milliseconds(1);
  while (true) {
    auto sent = agent_.notify(peers_[rank].agent, payload);
    if (sent) return {};
    if (sent.code() != Code::would_block) return std::move(sent).error().within(rank_text(rank));
    HEADRACE_TRY_VOID(check_waiting(rank, "room for a message", deadline));
    std::this_thread::sleep_for(pause);
  }
}

bool WeightsTalk::is_lost(std::uint32_t rank) const {
  const std::vector<PeerInfo> peers = agent_.peers();
  const auto found = std::ranges::find(peers, peers_[rank].agent, &PeerInfo::name);
  return found == peers.end() || found->lost;
}

Result<void> WeightsTalk::check_waiting(std::uint32_t rank, std::string_view awaited,
                                        Deadline deadline) const {
  if (config_.interrupted && config_.interrupted())
    return make_error(Code::canceled, "it was interrupted by its caller");
  if (is_lost(rank))
    return make_error(Code::peer_lost, "{} is gone: rank {} waited for {} of it", rank_text(rank),
                      config_.rank, awaited);
  if (deadline.expired())
    return make_error(Code::timed_out, "rank {} waited for {} of {} in vain: have all ranks made this call?",
                      config_.rank, awaited, rank_text(rank));
  return {};
}

}  // namespace headrace::moe
