// SPDX-License-Identifier: Apache-2.0
#include "collectives/members.hpp"

#include "base/errors.hpp"
#include "base/random.hpp"
#include "collectives/missing_ranks.hpp"
#include "collectives/work_state.hpp"

#include <algorithm>

namespace headrace::collectives {

Members::Members(std::shared_ptr<Station> station, int rank, int size, std::string box_name,
                 const Settings& settings)
    : station_(std::move(station)),
      rank_(rank),
      size_(size),
      box_name_(std::move(box_name)),
      check_(settings.check),
      lazy_(settings.lazy),
      mailbox_(random_u64()),
      peers_(static_cast<std::size_t>(size)) {
  station_->enter();
}

Result<std::unique_ptr<Members>> Members::open(std::shared_ptr<Station> station, int rank, int size,
                                               const std::string& box_name, const Settings& settings) {
  std::unique_ptr<Members> members(new Members(std::move(station), rank, size, box_name, settings));
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
                      lazy_,
                      {station_->agent().name(), std::move(metadata)}};
  return card.encode();
}

Result<void> Members::meet(const std::vector<std::string>& cards) {
  for (int peer = 0; peer < size_; ++peer) {
    HEADRACE_TRY(card, RankCard::decode(cards[static_cast<std::size_t>(peer)]));
    HEADRACE_TRY_VOID(compare(peer, card));
    if (peer == 0) id_ = card.mailbox;
    Peer& other = at(peer);
    other.mailbox = card.mailbox;
    other.box_id = RegionId{card.box};
    if (peer != rank_) HEADRACE_TRY_VOID(station_->agent().import_metadata(card.seat.metadata));
    other.seat = std::move(card.seat);
  }
  return {};
}

Result<void> Members::reach(int peer, Deadline deadline) {
  if (is_reached(peer)) return {};
  Peer& to = at(peer);
  const std::scoped_lock lock(to.reaching);
  if (to.tie == Tie::whole) return {};
  if (to.tie == Tie::lost) return gone({&peer, 1});
  if (auto connected = connect_to(peer, deadline); !connected)
    return std::move(connected).error().within(fmt::format("connect to rank {}", peer));
  to.tie.store(Tie::whole, std::memory_order_release);
  return {};
}

Result<void> Members::reach_all(Deadline deadline) {
  for (int peer = 0; peer < size_; ++peer) HEADRACE_TRY_VOID(reach(peer, deadline));
  return {};
}

void Members::reach_callers() {
  if (!lazy_) return;
  constexpr auto limit = std::chrono::milliseconds(100);  // one that is late is tried again
  for (int peer = 0; peer < size_; ++peer) {
    Peer& from = at(peer);
    if (peer == rank_ || from.tie.load(std::memory_order_acquire) != Tie::none) continue;
    if (box_.reached(peer).load(std::memory_order_seq_cst) == 0) continue;
    const std::unique_lock lock(from.reaching, std::try_to_lock);  // another thread is enough
    if (!lock.owns_lock() || from.tie != Tie::none) continue;
    const Result<void> connected = connect_to(peer, Deadline::after(limit));
    if (connected.code() == Code::timed_out) continue;
    if (!connected) make_lanes(from, peer);
    from.tie.store(connected ? Tie::whole : Tie::lost, std::memory_order_release);
  }
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
  const auto text = [](bool on) { return on ? "on" : "off"; };
  if (card.check != check_) {
    return make_error(
        Code::invalid_argument,
        "rank {} has check {}, rank {} has it {}: give all ranks the same hint check, or the same "
        "HEADRACE_CHECK",
        rank_, text(check_), peer, text(card.check));
  }
  if (card.lazy != lazy_) {
    return make_error(
        Code::invalid_argument,
        "rank {} has lazy {}, rank {} has it {}: give all ranks the same hint lazy, or the same "
        "backend",
        rank_, text(lazy_), peer, text(card.lazy));
  }
  return {};
}

Result<void> Members::connect_to(int peer, Deadline deadline) {
  Agent& agent = station_->agent();
  Peer& to = at(peer);
  const Timeout left = time_left(deadline);
  auto mapping = agent.map(to.seat.agent, to.box_id, left);
  if (!mapping && mapping.code() != Code::not_supported) return std::move(mapping).error();
  if (mapping) {
    if (mapping->bytes().size() < box_.layout().bytes())
      return make_error(Code::corrupt, "its box has {} bytes, {} were expected", mapping->bytes().size(),
                        box_.layout().bytes());
    to.box = Box(mapping->bytes(), box_.layout());
    to.mapping = std::move(*mapping);
  } else {
    if (!to.far) {  // an earlier attempt may have made it
      HEADRACE_TRY(far, FarPeer::open(station_, {to.seat.agent, to.mailbox, to.box_id, rank_},
                                      {agent.name(), mailbox_, peer}, box_.layout()));
      to.far = std::move(far);
      to.listener.store(to.far.get(), std::memory_order_release);
    }
    HEADRACE_TRY_VOID(agent.connect(to.seat.agent, left));
  }
  if (lazy_) HEADRACE_TRY_VOID(greet(to, peer));
  make_lanes(to, peer);
  return {};
}

/// Either this rank sees the end here, or the other one sees that it is reached and says it.
Result<void> Members::greet(Peer& to, int peer) {
  if (to.far) {
    if (to.far->say_reached()) return {};
    return make_error(Code::timed_out, "its inbox is full");
  }
  to.box.reached(rank_).store(1, std::memory_order_seq_cst);
  to.bell().ring();
  if (to.box.ended().load(std::memory_order_seq_cst) == 0) return {};
  const Error why = to.box.first_farewell();
  box_.say_farewell(peer, why.code, why.message, Farewell::by_opening);
  return {};
}

/// To a rank that could not be reached there is no way, and none is used.
void Members::make_lanes(Peer& to, int peer) {
  for (const LaneKind kind : {LaneKind::collective, LaneKind::message}) {
    FarLane* const far = to.far ? &to.far->lane(kind) : nullptr;
    if (far != nullptr || to.mapping)
      to.writers[index(kind)] =
          LaneWriter(to.far ? to.far->copy(kind) : to.box.lane(rank_, kind), far, to.bell());
    to.readers[index(kind)] = LaneReader(box_.lane(peer, kind), far, to.bell());
  }
}

/// To a far rank that this one may not have reached.
void Members::send_mail(int peer, MailHead head, std::string_view body) {
  const FarAddress to{at(peer).seat.agent, at(peer).mailbox, at(peer).box_id, rank_};
  static_cast<void>(station_->agent().notify(to.agent, mail(to, head, body)));
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
    box_.say_farewell(from, static_cast<Code>(head.lines), bytes,
                      head.bytes == Farewell::by_open ? Farewell::by_open : Farewell::by_opening);
  } else if (head.kind == MailKind::taken) {
    if (const FarPeer* const far = at(from).listener.load(std::memory_order_acquire))
      far->taken(head.lane, head.lines, head.bytes);
  } else if (head.kind == MailKind::all_came || head.kind == MailKind::leaving ||
             head.kind == MailKind::all_here) {
    FarPeer* const far = at(from).listener.load(std::memory_order_acquire);
    if (far == nullptr && head.kind == MailKind::leaving)  // what it sent is here
      return send_mail(from, {MailKind::all_here, LaneKind::collective, 0, 0, 0, 0}, {});
    if (far == nullptr) return;
    if (head.kind == MailKind::all_came) far->all_came();
    if (head.kind == MailKind::leaving) far->answer_leaving();
    if (head.kind == MailKind::all_here) far->all_here();
  } else if (head.kind == MailKind::reached) {
    box_.reached(from).store(1, std::memory_order_seq_cst);
    if (!ended()) return box_.bell().ring();
    const Error why = box_.first_farewell();
    send_mail(from,
              {MailKind::farewell, LaneKind::collective, 0, 0, static_cast<std::uint64_t>(why.code), who()},
              why.message);
  } else if (bytes.size() == sizeof(Line) - sizeof(std::uint64_t) && head.lines != 0) {
    const LaneMemory lane = box_.lane(from, head.lane);
    Line& line = lane.lines[(head.lines - 1) % lane.line_count];
    std::memcpy(reinterpret_cast<std::byte*>(&line) + sizeof line.ready, bytes.data(), bytes.size());
    line.ready.store(head.lines, std::memory_order_seq_cst);
  }
  box_.bell().ring();
}

bool Members::any_far() {
  bool any = false;
  for_far([&](const Peer&) { any = true; });
  return any;
}

void Members::tell_far(LaneKind kind) {
  for_far([&](Peer& peer) { peer.readers[index(kind)].tell_far(); });
}

bool Members::settled(LaneKind kind) {
  bool all = true;
  for_far([&](const Peer& peer) {
    if (!peer.far->lane(kind).settled()) all = false;
  });
  return all;
}

bool Members::far_ranks_have_all() {
  if (!settled(LaneKind::collective) || !settled(LaneKind::message)) return false;
  bool all = true;
  for_far([&](const Peer& peer) {
    peer.far->say_leaving();
    if (!peer.far->has_all()) all = false;
  });
  return all;
}

bool Members::alive(int peer) {
  Peer& to = at(peer);
  const Tie tie = to.tie.load(std::memory_order_acquire);
  if (tie != Tie::whole) return tie == Tie::none;
  return to.mapping ? to.mapping->alive() : to.far->alive();
}

void Members::say_farewell(Code code, std::string_view text) {
  std::vector<bool> told(static_cast<std::size_t>(size_));
  const auto tell = [&] {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_ || !is_reached(peer) || told[static_cast<std::size_t>(peer)]) continue;
      Peer& to = at(peer);
      if (to.mapping) to.box.say_farewell(rank_, code, text, who());
      if (to.far) to.far->say_farewell(code, text, who());
      told[static_cast<std::size_t>(peer)] = true;
    }
  };
  tell();
  if (!lazy_) return;
  box_.say_farewell(rank_, code, text, who());  // for ranks that connect later
  reach_callers();
  tell();
}

}  // namespace headrace::collectives
