// SPDX-License-Identifier: Apache-2.0
#include "moe/network.hpp"

#include "base/errors.hpp"
#include "moe/config.hpp"
#include "moe/peer_window.hpp"
#include "moe/votes.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <utility>

namespace headrace::moe {
namespace {

constexpr std::uint32_t bits_of_half = 32;
/// As many as a fabric keeps that nobody takes. Ranks that keep to the protocol send fewer at a time.
constexpr std::size_t most_held = 16384;
/// Of meetings, that come at once; others wait.
constexpr std::size_t message_buffers = 16;

template <class Each>
void for_each_rank(Mask ranks, const Each& each) {
  for (; ranks != 0; ranks &= ranks - 1) each(static_cast<std::uint32_t>(std::countr_zero(ranks)));
}

}  // namespace

Network::Network(const MoEConfig& config, Fabric fabric, Window own)
    : nodes_(Nodes::of(config)),
      layout_(window_layout(config)),
      relay_(RelayLayout::of(nodes_, layout_)),
      rank_(static_cast<std::uint32_t>(config.rank)),
      limit_(config.wait_limit),
      fabric_(std::move(fabric)),
      own_(own),
      far_(layout_.ranks) {}

Result<std::unique_ptr<Network>> Network::open(const MoEConfig& config, std::span<std::byte> window,
                                               const FabricOptions& options) {
  HEADRACE_TRY(fabric, Fabric::open(options));
  std::unique_ptr<Network> made(
      new Network(config, std::move(fabric), Window(window.data(), window_layout(config))));
  HEADRACE_TRY(memory,
               made->fabric_.register_memory({.address = window.data(), .length_bytes = window.size()},
                                             FabricAccess::writable));
  made->memory_ = std::move(memory);
  HEADRACE_TRY_VOID(made->fabric_.receive_all(
      message_buffers, sizeof(MeetingMessage),
      [network = made.get()](std::span<const std::byte> bytes) { network->take_meeting(bytes); }));
  return made;
}

Network::~Network() {
  constexpr std::chrono::nanoseconds longest = std::chrono::seconds(5);
  const Deadline deadline = Deadline::after(std::min(limit_, longest));
  for (const auto& far : far_)
    if (far != nullptr) far->drain(deadline);
  fabric_.close();
}

Result<void> Network::add(std::uint32_t peer, std::string_view way) {
  const std::size_t end = std::min(way.find('\n'), way.size());
  HEADRACE_TRY(address, FabricAddress::from_text(way.substr(0, end)));
  HEADRACE_TRY(window, FabricDescriptor::from_bytes(way.substr(std::min(end + 1, way.size()))));
  if (far(peer) != nullptr && far(peer)->window() == window && !far(peer)->broken()) return {};
  if (window.length_bytes() < relay_.bytes())
    return make_error(Code::corrupt, "its window has {} bytes, expected {}", window.length_bytes(),
                      relay_.bytes());
  HEADRACE_TRY(owner, fabric_.connect(address));
  HEADRACE_TRY(made, FarWindow::make(fabric_, {layout_, relay_, rank_, nodes_.node_of(rank_), limit_,
                                               std::move(window), std::move(owner)}));
  const std::scoped_lock lock(taking_);
  replaced_.push_back(std::exchange(far_[peer], std::move(made)));
  return {};
}

Result<void> Network::reach(std::uint32_t peer, Deadline deadline, const std::function<bool()>& interrupted) {
  auto reached = far_[peer]->reach(deadline, interrupted);
  if (reached || reached.code() == Code::canceled) return reached;
  std::string cards;
  for (const FabricGroup& group : fabric_.groups())
    for (const FabricNic& nic : group.nics) cards += (cards.empty() ? "" : ", ") + nic.name;
  return std::move(reached).error().within(
      fmt::format("there is no way to it over the network cards of this rank ({})", cards));
}

void Network::start(const Group& group) {
  {
    const std::scoped_lock lock(taking_);
    group_ = group;
    voted_out_ = mask_of_all(layout_.ranks) & ~group.members;
    is_at(Operation::dispatch, group.dispatches);
    is_at(Operation::combine, group.combines);
    meets_ = false;
    for (const Signal& signal : std::exchange(held_, {})) take_now(signal);
  }
  replaced_.clear();
  listen();
}

Result<void> Network::begin_meeting(Mask members, Deadline deadline) {
  {
    const std::scoped_lock lock(taking_);
    meets_ = true;
    held_.clear();
  }
  listen();
  for (Mask rest = members; rest != 0; rest &= rest - 1) {
    const auto peer = static_cast<std::uint32_t>(std::countr_zero(rest));
    if (far(peer) == nullptr || far(peer)->clear(deadline)) continue;
    return make_error(
        deadline.expired() ? Code::timed_out : Code::peer_lost,
        "rank {} regroups with rank {}, to which it has not brought all that it had sent before", rank_,
        peer);
  }
  return {};
}

void Network::listen() {
  if (std::exchange(listens_, true)) return;
  fabric_.on_unexpected([this](Immediate immediate, std::uint64_t) { take(Signal::of(immediate)); });
}

// ------------------------------------------------------------------ what comes

/// What cannot be is not taken: any process that has the descriptor may send it.
void Network::take(const Signal& signal) {
  const bool is_far = signal.rank < layout_.ranks && !nodes_.are_near(signal.rank, rank_);
  if (signal.kind >= Signal::Kind::end || !is_far) return;
  const std::scoped_lock lock(taking_);
  if (!meets_ || is_of_now(signal)) return take_now(signal);
  if (held_.size() < most_held) held_.push_back(signal);
}

bool Network::is_of_now(const Signal& signal) const {
  switch (signal.kind) {
    case Signal::Kind::list:
    case Signal::Kind::probe:
      return true;
    case Signal::Kind::left_out:
    case Signal::Kind::vote:
    case Signal::Kind::answer:
    case Signal::Kind::votes_low:
    case Signal::Kind::votes_high:
      return (group_.members & bit_of(signal.rank)) != 0 && OfGroup::is_of(signal.payload, group_.dispatches);
    default:
      return !meets_;
  }
}

void Network::take_now(const Signal& signal) {
  if (!is_of_now(signal)) return;
  switch (signal.kind) {
    case Signal::Kind::list:
      return take_word(signal.rank, offsetof(PeerWords, agents), signal.payload);
    case Signal::Kind::left_out:
    case Signal::Kind::vote:
    case Signal::Kind::answer:
    case Signal::Kind::votes_low:
    case Signal::Kind::votes_high:
      return take_of_group(signal);
    case Signal::Kind::probe:
      if (far(signal.rank) == nullptr) return;
      return signal_votes(*far(signal.rank),
                          group_.votes ? group_.votes->load(WindowLayout::voted_out_at) : voted_out_.load());
    default:
      return take_chunks(signal);
  }
}

void Network::take_of_group(const Signal& signal) {
  const std::uint32_t bits = OfGroup::bits_of(signal.payload);
  switch (signal.kind) {
    case Signal::Kind::left_out:
      take_votes(bit_of(rank_));
      return take_word(signal.rank, offsetof(PeerWords, left_out), 1);
    case Signal::Kind::vote:
      return take_vote(signal.rank, Vote::of(bits));
    case Signal::Kind::answer:
      return take_answer(Vote::of(bits));
    case Signal::Kind::votes_low:
      return take_votes(bits);
    default:
      return take_votes(Mask{bits} << bits_of_half);
  }
}

/// The words that a rank of this node would have stored.
void Network::take_meeting(std::span<const std::byte> bytes) {
  MeetingMessage message;
  if (bytes.size() != sizeof message) return;
  std::memcpy(&message, bytes.data(), sizeof message);
  if (message.rank >= layout_.ranks) return;
  const auto peer = static_cast<std::uint32_t>(message.rank);
  if (!nodes_.are_near(peer, rank_)) PeerWindow(own_, peer).tell_meeting(message.meeting);
}

void Network::take_chunks(const Signal& signal) {
  const bool is_combine = signal.kind == Signal::Kind::partials || signal.kind == Signal::Kind::missing ||
                          signal.kind == Signal::Kind::combine_taken;
  const Chunks chunks = Chunks::of(signal.payload, near_[is_combine ? 1 : 0]);
  if (chunks.epoch <= (is_combine ? group_.combines : group_.dispatches)) return;  // of an earlier group
  switch (signal.kind) {
    case Signal::Kind::card:
      return own_.tell(layout_.card_at(chunks.epoch, signal.rank) + offsetof(CardHead, epoch), chunks.epoch);
    case Signal::Kind::dispatch_taken:
      return take_word(signal.rank, offsetof(PeerWords, dispatch_taken), chunks.epoch);
    case Signal::Kind::combine_taken:
      return take_word(signal.rank, offsetof(PeerWords, combine_taken), chunks.epoch);
    case Signal::Kind::relay_card:
      return take_relay_card(signal, chunks);
    default:
      return take_flags(signal, chunks);
  }
}

void Network::take_relay_card(const Signal& signal, const Chunks& chunks) {
  if (!may_relay(signal.rank)) return;
  const std::uint64_t card = relay_.card_at(chunks.epoch, nodes_.node_of(signal.rank));
  const std::uint64_t records = RelayCount::records_of(chunks);
  std::memcpy(own_.at(card + offsetof(CardHead, records)), &records, sizeof records);
  own_.tell(card + offsetof(CardHead, epoch), chunks.epoch);
}

void Network::take_flags(const Signal& signal, const Chunks& chunks) {
  const bool is_partial = signal.kind == Signal::Kind::partials || signal.kind == Signal::Kind::missing;
  const bool is_relay = signal.kind == Signal::Kind::relay_records;
  if (chunks.first + chunks.count > chunks_of(is_partial ? layout_.group_slots() : layout_.slots)) return;
  if (is_relay && !may_relay(signal.rank)) return;
  std::uint64_t at = layout_.chunk_flag_at(chunks.epoch, signal.rank, chunks.first);
  if (is_partial) at = layout_.partial_flag_at(chunks.epoch, signal.rank, chunks.first);
  if (is_relay) at = relay_.flag_at(chunks.epoch, nodes_.node_of(signal.rank), chunks.first);
  const std::uint64_t bit = signal.kind == Signal::Kind::missing ? missing_bit : 0;
  for (std::uint64_t i = 0; i < chunks.count; ++i)
    own_.tell(at + i * sizeof(std::uint64_t), chunks.epoch | bit);
}

/// Signals come in any order, and of these words the highest value counts.
void Network::take_word(std::uint32_t peer, std::size_t word, std::uint64_t value) {
  const std::uint64_t at = layout_.words_at(peer) + word;
  const bool is_list = word == offsetof(PeerWords, agents);
  if (is_list || own_.load(at) < value) own_.tell(at, value);
}

// ------------------------------------------------------------------ votes

void Network::take_votes(Mask out) {
  voted_out_ |= out;
  own_.bell().ring();
}

/// A rank of the node that has the votes changes them for the voter, and tells all what they are then.
void Network::take_vote(std::uint32_t voter, Vote vote) {
  if (!group_.votes || vote.against >= layout_.ranks || far(voter) == nullptr) return;
  const Mask out = group_.votes->vote(voter, bit_of(vote.against));
  vote.counted = (out & bit_of(voter)) == 0 || vote.against == voter;
  far(voter)->signal(Signal::Kind::answer, OfGroup{group_.dispatches, vote.bits()}.payload());
  tell_votes(out);
  own_.bell().ring();
}

void Network::tell_votes(Mask out) {
  for_each_rank(group_.members, [&](std::uint32_t peer) {
    if (far(peer) != nullptr) signal_votes(*far(peer), out);
  });
}

/// Two signals, or fewer: those that say something.
void Network::signal_votes(FarWindow& to, Mask out) const {
  const auto low = static_cast<std::uint32_t>(out), high = static_cast<std::uint32_t>(out >> bits_of_half);
  if (low != 0) to.signal(Signal::Kind::votes_low, OfGroup{group_.dispatches, low}.payload());
  if (high != 0) to.signal(Signal::Kind::votes_high, OfGroup{group_.dispatches, high}.payload());
}

void Network::tell_left_out(std::uint32_t peer) {
  far(peer)->signal(Signal::Kind::left_out, OfGroup{group_.dispatches}.payload());
}

void Network::take_answer(Vote vote) {
  const std::scoped_lock lock(mutex_);
  if (vote.number != (votes_ & 0xffff)) return;  // of an earlier vote
  answer_ = vote;
  answered_.notify_all();
}

Network::Counted Network::vote_out(Mask ranks) {
  Counted counted = Counted::yes;
  for (; ranks != 0 && counted == Counted::yes; ranks &= ranks - 1)
    counted = vote(static_cast<std::uint32_t>(std::countr_zero(ranks)));
  return counted;
}

Network::Counted Network::vote(std::uint32_t against) {
  constexpr auto look = std::chrono::milliseconds(20);
  const Mask asked = deciders();
  const Deadline deadline = Deadline::after(limit_);
  std::unique_lock lock(mutex_);
  answer_.reset();
  const Vote vote{++votes_, against};
  lock.unlock();
  const std::uint64_t payload = OfGroup{group_.dispatches, vote.bits()}.payload();
  for_each_rank(asked, [&](std::uint32_t peer) { far(peer)->signal(Signal::Kind::vote, payload); });
  lock.lock();
  while (!answer_ && !deadline.expired()) {
    answered_.wait_for(lock, look);
    bool any = false;
    for_each_rank(asked, [&](std::uint32_t peer) { any = any || !far(peer)->broken(); });
    if (!any) break;
  }
  if (!answer_) return Counted::unanswered;
  take_votes(answer_->counted ? bit_of(against) : bit_of(rank_));
  return answer_->counted ? Counted::yes : Counted::voter_is_out;
}

void Network::probe(Mask ranks) {
  if (!next_probe_.is_due(now_ns())) return;
  if (votes_are_far()) ranks |= deciders();
  for_each_rank(ranks, [&](std::uint32_t peer) {
    if (far(peer) != nullptr) far(peer)->signal(Signal::Kind::probe);
  });
}

}  // namespace headrace::moe
