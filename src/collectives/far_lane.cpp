// SPDX-License-Identifier: Apache-2.0
#include "collectives/far_lane.hpp"

#include "base/clock.hpp"
#include "base/errors.hpp"

#include <algorithm>

namespace headrace::collectives {
namespace {

constexpr std::uint64_t look_interval_ns = 20'000'000;
constexpr std::size_t most_line_bytes = sizeof(Line) - sizeof(std::uint64_t);

/// A line without its flag.
std::string_view line_body(const Line& line) {
  return {reinterpret_cast<const char*>(&line) + sizeof line.ready, most_line_bytes};
}

void raise(std::atomic<std::uint64_t>& word, std::uint64_t to) {
  // Notifications may arrive in another order than they were sent.
  if (word.load(std::memory_order_relaxed) < to) word.store(to, std::memory_order_release);
}

}  // namespace

std::string mail(const FarAddress& to, MailHead head, std::string_view body) {
  head.from = static_cast<std::uint32_t>(to.my_rank);
  std::string bytes(reinterpret_cast<const char*>(&to.mailbox), sizeof to.mailbox);
  bytes.append(reinterpret_cast<const char*>(&head), sizeof head).append(body);
  return bytes;
}

bool PostedLane::send(const Line& line, std::uint64_t number, std::size_t bytes_at) {
  settled();
  std::string notification = mail(to_, {MailKind::line, kind_, 0, 0, number, 0}, line_body(line));
  if (line.length <= inline_bytes) return accepted(station_->agent().notify(to_.agent, notification));
  const UniformPages local{copy_region_, copy_at_ + bytes_at, line.length, line.length, 1};
  const UniformPages remote{to_.box, there_at_ + bytes_at, line.length, line.length, 1};
  PostOptions options;
  options.notification = std::move(notification);
  auto write = station_->agent().post(Op::write, to_.agent, local, remote, options);
  if (!write) return accepted(std::move(write).error());
  writes_.push_back(std::move(*write));
  return true;
}

bool PostedLane::tell_taken(std::uint64_t lines, std::uint64_t bytes) {
  const MailHead head{MailKind::taken, kind_, 0, 0, lines, bytes};
  return accepted(station_->agent().notify(to_.agent, mail(to_, head, {})));
}

bool PostedLane::accepted(const Result<void>& result) {
  if (!result && result.code() != Code::would_block) failed_ = true;
  return result.ok();
}

bool PostedLane::settled() {
  while (!writes_.empty()) {
    const RequestState state = writes_.front().state();
    if (state == RequestState::posted || state == RequestState::canceling) return false;
    if (state != RequestState::done) failed_ = true;
    writes_.pop_front();
  }
  return true;
}

FarPeer::FarPeer(std::shared_ptr<Station> station, FarAddress address, OwnAddress own)
    : station_(std::move(station)), address_(std::move(address)), own_(std::move(own)) {}

Result<std::unique_ptr<FarPeer>> FarPeer::open(const std::shared_ptr<Station>& station, FarAddress address,
                                               OwnAddress own, const BoxLayout& layout) {
  std::unique_ptr<FarPeer> peer(new FarPeer(station, std::move(address), std::move(own)));
  BoxLayout alone = layout;
  alone.ranks = 1;
  HEADRACE_TRY(region, station->agent().allocate(alone.bytes()));
  peer->region_ = std::move(region);
  peer->copy_ = Box(peer->region_.bytes(), alone);
  for (const LaneKind kind : {LaneKind::collective, LaneKind::message}) {
    peer->lanes_[static_cast<std::size_t>(kind)] = std::make_unique<PostedLane>(
        station, peer->address_, kind, peer->region_.id, alone.lane_at(0, kind) + alone.bytes_at(),
        layout.lane_at(peer->address_.my_rank, kind) + layout.bytes_at());
  }
  return peer;
}

FarPeer::~FarPeer() {
  for (auto& lane : lanes_) lane.reset();  // ends its writes
  // A rank that is stopped does not answer; then the region stays until the agent ends.
  static_cast<void>(station_->agent().deregister(region_.id, std::chrono::seconds(1)));
}

void FarPeer::say_farewell(Code code, std::string_view text, std::uint32_t who) {
  const MailHead head{MailKind::farewell, LaneKind::collective, 0, 0, static_cast<std::uint64_t>(code), who};
  const std::string bytes = mail(address_, head, text.substr(0, Farewell::most_text_bytes));
  // A rank that takes no mail any more learns of the end by the loss of its peer.
  static_cast<void>(station_->agent().notify(address_.agent, bytes));
}

bool FarPeer::say(MailKind kind) {
  const MailHead head{kind, LaneKind::collective, 0, 0, 0, 0};
  return station_->agent().notify(address_.agent, mail(address_, head, {})).ok();
}

void FarPeer::say_leaving() {
  if (!told_) told_ = say(MailKind::leaving);
}

void FarPeer::answer_leaving() {
  leaves_ = true;
  static_cast<void>(say(MailKind::all_here));
}

void FarPeer::taken(LaneKind kind, std::uint64_t lines, std::uint64_t bytes) const {
  Taken& taken = *copy_.lane(0, kind).taken;
  raise(taken.bytes, bytes);
  raise(taken.lines, lines);
}

bool FarPeer::alive() {
  if (leaves_) return false;  // its last words came behind all else
  const std::uint64_t now = now_ns();
  if (lost_ || lanes_[0]->failed() || lanes_[1]->failed()) return !ask_for_all();
  std::uint64_t due = look_again_ns_.load(std::memory_order_relaxed);
  if (now < due || !look_again_ns_.compare_exchange_strong(due, now + look_interval_ns)) return true;
  const std::vector<PeerInfo> peers = station_->agent().peers();
  const auto found = std::ranges::find(peers, address_.agent, &PeerInfo::name);
  lost_ = found == peers.end() || found->lost;
  return true;  // the next look says so
}

/// What the rank sent before it died may still wait for the agent's callback thread. Mail to ourselves comes
/// there after it.
bool FarPeer::ask_for_all() {
  if (!asked_) {
    const FarAddress to{own_.agent, own_.mailbox, {}, own_.peer};
    const MailHead head{MailKind::all_came, LaneKind::collective, 0, 0, 0, 0};
    asked_ = station_->agent().notify(to.agent, mail(to, head, {})).ok();
  }
  return all_came_;
}

}  // namespace headrace::collectives
