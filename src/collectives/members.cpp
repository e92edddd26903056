// SPDX-License-Identifier: Apache-2.0
#include "collectives/members.hpp"

#include "base/errors.hpp"
#include "base/random.hpp"
#include "collectives/work_state.hpp"

#include <algorithm>

namespace headrace::collectives {

Members::Members(std::shared_ptr<Station> station, int rank, int size, std::string box_name, bool check)
    : station_(std::move(station)),
      rank_(rank),
      size_(size),
      box_name_(std::move(box_name)),
      check_(check),
      mailbox_(random_u64()),
      peers_(static_cast<std::size_t>(size)) {
  station_->enter();
}

Result<std::unique_ptr<Members>> Members::open(std::shared_ptr<Station> station, int rank, int size,
                                               const std::string& box_name, const Settings& settings) {
  std::unique_ptr<Members> members(new Members(std::move(station), rank, size, box_name, settings.check));
  BoxLayout layout;
  layout.ranks = size;
  layout.lane_bytes[index(LaneKind::collective)] = settings.lane_bytes;
  layout.lane_bytes[index(LaneKind::message)] = settings.message_lane_bytes;
  AllocateOptions options;
  options.registration.name = box_name;
  Agent& agent = members->station_->agent();
  HEADRACE_TRY(region, agent.allocate(layout.bytes(), options));
  HEADRACE_TRY(memory, agent.storage(region.id));
  members->region_ = std::move(region);
  members->memory_ = std::move(memory);
  members->box_ = Box(members->region_.bytes(), layout);
  members->station_->listen(members->mailbox_,
                            [self = members.get()](std::string_view mail) { self->take_mail(mail); });
  return members;
}

Members::~Members() {
  leave();
  peers_.clear();
}

void Members::leave() {
  if (left_.exchange(true)) return;
  station_->stop_listening(mailbox_);
  // A rank that is stopped does not answer; then the box stays until the agent ends.
  if (!station_->leave())
    static_cast<void>(station_->agent().deregister(region_.id, std::chrono::seconds(1)));
}

Result<std::string> Members::card() const {
  HEADRACE_TRY(metadata, station_->agent().export_metadata());
  const BoxLayout& layout = box_.layout();
  const RankCard card{mailbox_,
                      layout.lane_bytes[0],
                      layout.lane_bytes[1],
                      region_.id.value,
                      check_,
                      {station_->agent().name(), std::move(metadata)}};
  return card.encode();
}

Result<void> Members::connect(const std::vector<std::string>& cards, Deadline deadline) {
  std::vector<RankCard> others;
  for (int peer = 0; peer < size_; ++peer) {
    HEADRACE_TRY(card, RankCard::decode(cards[static_cast<std::size_t>(peer)]));
    HEADRACE_TRY_VOID(compare(peer, card));
    if (peer == 0) id_ = card.mailbox;
    at(peer).seat = card.seat;
    others.push_back(std::move(card));
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    if (auto connected = connect_to(peer, others[static_cast<std::size_t>(peer)], deadline); !connected)
      return std::move(connected).error().within(fmt::format("connect to rank {}", peer));
  }
  return {};
}

Result<void> Members::compare(int peer, const RankCard& card) const {
  const BoxLayout& layout = box_.layout();
  if (card.lane_bytes != layout.lane_bytes[0] || card.message_lane_bytes != layout.lane_bytes[1]) {
    return make_error(Code::invalid_argument,
                      "rank {} has lane_bytes {} and message_lane_bytes {}, rank {} has {} and {}: give all "
                      "ranks the same hints",
                      rank_, layout.lane_bytes[0], layout.lane_bytes[1], peer, card.lane_bytes,
                      card.message_lane_bytes);
  }
  if (card.check != check_) {
    const auto text = [](bool on) { return on ? "on" : "off"; };
    return make_error(
        Code::invalid_argument,
        "rank {} has check {}, rank {} has it {}: give all ranks the same hint check, or the same "
        "HEADRACE_CHECK",
        rank_, text(check_), peer, text(card.check));
  }
  return {};
}

Result<void> Members::connect_to(int peer, const RankCard& card, Deadline deadline) {
  Agent& agent = station_->agent();
  Peer& to = at(peer);
  HEADRACE_TRY_VOID(agent.import_metadata(card.seat.metadata));
  const RegionId box{card.box};
  const Timeout left = time_left(deadline);
  auto mapping = agent.map(card.seat.agent, box, left);
  if (!mapping && mapping.code() != Code::not_supported) return std::move(mapping).error();
  if (mapping) {
    if (mapping->bytes().size() < box_.layout().bytes())
      return make_error(Code::corrupt, "its box has {} bytes, {} were expected", mapping->bytes().size(),
                        box_.layout().bytes());
    to.box = Box(mapping->bytes(), box_.layout());
    to.mapping = std::move(*mapping);
  } else {
    HEADRACE_TRY(far, FarPeer::open(station_, {card.seat.agent, card.mailbox, box, rank_},
                                    {agent.name(), mailbox_, peer}, box_.layout()));
    to.far = std::move(far);
    to.listener.store(to.far.get(), std::memory_order_release);
    HEADRACE_TRY_VOID(agent.connect(card.seat.agent, left));
  }
  for (const LaneKind kind : {LaneKind::collective, LaneKind::message}) {
    FarLane* const far = to.far ? &to.far->lane(kind) : nullptr;
    to.writers[index(kind)] =
        LaneWriter(to.far ? to.far->copy(kind) : to.box.lane(rank_, kind), far, to.bell());
    to.readers[index(kind)] = LaneReader(box_.lane(peer, kind), far, to.bell());
  }
  return {};
}

void Members::take_mail(std::string_view bytes) {
  MailHead head;
  if (bytes.size() < sizeof head) return;
  std::memcpy(&head, bytes.data(), sizeof head);
  bytes.remove_prefix(sizeof head);
  const auto from = static_cast<int>(head.from);
  if (head.from >= static_cast<std::uint32_t>(size_) || from == rank_ || index(head.lane) >= lane_kinds)
    return;
  if (head.kind == MailKind::farewell) {
    box_.say_farewell(from, static_cast<Code>(head.lines), bytes);
  } else if (head.kind == MailKind::taken) {
    if (const FarPeer* const far = at(from).listener.load(std::memory_order_acquire))
      far->taken(head.lane, head.lines, head.bytes);
  } else if (head.kind == MailKind::all_came || head.kind == MailKind::leaving ||
             head.kind == MailKind::all_here) {
    FarPeer* const far = at(from).listener.load(std::memory_order_acquire);
    if (far == nullptr) return;
    if (head.kind == MailKind::all_came) far->all_came();
    if (head.kind == MailKind::leaving) far->answer_leaving();
    if (head.kind == MailKind::all_here) far->all_here();
  } else if (bytes.size() == sizeof(Line) - sizeof(std::uint64_t) && head.lines != 0) {
    const LaneMemory lane = box_.lane(from, head.lane);
    Line& line = lane.lines[(head.lines - 1) % lane.line_count];
    std::memcpy(reinterpret_cast<std::byte*>(&line) + sizeof line.ready, bytes.data(), bytes.size());
    line.ready.store(head.lines, std::memory_order_seq_cst);
  }
  box_.bell().ring();
}

bool Members::any_far() const {
  return std::ranges::any_of(peers_, [](const Peer& peer) { return peer.far != nullptr; });
}

void Members::tell_far(LaneKind kind) {
  for (Peer& peer : peers_)
    if (peer.far) peer.readers[index(kind)].tell_far();
}

bool Members::settled(LaneKind kind) {
  bool all = true;
  for (Peer& peer : peers_)
    if (peer.far && !peer.far->lane(kind).settled()) all = false;
  return all;
}

bool Members::far_ranks_have_all() {
  if (!settled(LaneKind::collective) || !settled(LaneKind::message)) return false;
  bool all = true;
  for (Peer& peer : peers_) {
    if (!peer.far) continue;
    peer.far->say_leaving();
    if (!peer.far->has_all()) all = false;
  }
  return all;
}

bool Members::alive(int peer) {
  Peer& to = at(peer);
  if (to.mapping) return to.mapping->alive();
  return to.far == nullptr || to.far->alive();
}

void Members::say_farewell(Code code, std::string_view text) {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    Peer& to = at(peer);
    if (to.mapping) to.box.say_farewell(rank_, code, text);
    if (to.far) to.far->say_farewell(code, text);
  }
}

}  // namespace headrace::collectives
