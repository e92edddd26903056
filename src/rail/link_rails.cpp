// SPDX-License-Identifier: Apache-2.0
// The life of a link's rails, and what becomes of their pieces: docs/decisions/0016, section 4.
#include "rail/link.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace headrace::rail {

using Life = Rail::Life;

// ------------------------------------------------------------------ connecting

void Link::connect(std::uint64_t now_ns) {
  born_ns_ = now_ns;
  for (Rail& rail : rails_) add_peer(rail, now_ns);
  look_for_rails(now_ns);
}

void Link::add_peer(Rail& rail, std::uint64_t now_ns) {
  const RailHello hello{
      setup_.engine,  setup_.id, rail.index, setup_.rails, static_cast<std::uint32_t>(nics_.size()),
      rail.epoch + 1, rail.nic};
  const auto added = nics_[rail.nic]->provider().add_peer(setup_.addresses[rail.peer_nic], encode(hello));
  rail.since_ns = now_ns;
  if (!added) {
    rail.why = added.error().message;
    return;
  }
  ++rail.epoch;
  rail.peer = *added;
  rail.peers_number.reset();
  rail.life = Life::connecting;
}

bool Link::joined(const RailHello& hello, std::uint32_t nic, PeerId peer, std::uint64_t now_ns) {
  Rail& rail = rails_[hello.rail];
  const bool free = rail.life == Life::unused || rail.life == Life::fenced;
  if (lost_ || ends() || hello.rails != setup_.rails || hello.nics != setup_.peer_nics || !free ||
      hello.epoch <= rail.epoch)
    return false;
  if (born_ns_ == 0) born_ns_ = now_ns;
  rail.epoch = hello.epoch;
  rail.nic = nic;
  rail.peer_nic = hello.nic;
  rail.peer = peer;
  rail.peers_number.reset();
  comes_to_life(rail, now_ns);
  return true;
}

void Link::comes_to_life(Rail& rail, std::uint64_t now_ns) {
  rail.life = Life::live;
  rail.since_ns = now_ns;
  rail.heartbeat.emplace(options_.heartbeat, options_.silent_after);
  rail.heartbeat->heard_at(now_ns);
}

Rail* Link::rail_of(std::uint32_t nic, PeerId peer) {
  const auto at = std::find_if(rails_.begin(), rails_.end(), [&](const Rail& rail) {
    return rail.nic == nic && rail.peer == peer && rail.life != Life::unused && !rail.down();
  });
  return at == rails_.end() ? nullptr : &*at;
}

std::size_t Link::live_rails() const {
  return static_cast<std::size_t>(
      std::count_if(rails_.begin(), rails_.end(), [](const Rail& rail) { return rail.life == Life::live; }));
}

// ------------------------------------------------------------------ events

void Link::take(Rail& rail, const Event& event, std::uint64_t now_ns) {
  switch (event.kind) {
    case Event::Kind::ready:
      if (rail.life == Life::connecting) comes_to_life(rail, now_ns);
      break;
    case Event::Kind::ended:
      ended(rail, event, now_ns);
      break;
    case Event::Kind::marked:
      if (rail.heartbeat) rail.heartbeat->heard_at(now_ns);
      check(arrivals_.marked(event.mark), now_ns);
      count_arrivals();
      break;
    case Event::Kind::lost:
      dies(rail, event.text, now_ns);
      break;
    case Event::Kind::dropped:
      dropped(rail, now_ns);
      break;
    default:
      break;
  }
}

void Link::message(Rail& rail, std::string_view bytes, std::uint64_t now_ns) {
  if (rail.heartbeat) rail.heartbeat->heard_at(now_ns);
  auto message = read_link_message(bytes);
  if (!message)
    return check(std::move(message.error()).within(fmt::format("over rail {}", rail.index)), now_ns);
  if (const auto* announced = std::get_if<Announcement>(&*message)) {
    check(arrivals_.announced(*announced), now_ns);
    count_arrivals();
  } else if (const auto* counted = std::get_if<CountedBelow>(&*message)) {
    numbers_.counted_below(counted->below);
    give_numbers();
  } else if (const auto* down = std::get_if<RailDown>(&*message)) {
    heard_down(*down, now_ns);
  } else if (auto* offer = std::get_if<Offer>(&*message)) {
    check(deliveries_.offered(std::move(*offer)), now_ns);
  } else if (const auto* withdraw = std::get_if<Withdraw>(&*message)) {
    check(deliveries_.withdrawn(withdraw->id), now_ns);
  } else if (const auto* done = std::get_if<Done>(&*message)) {
    check(sends_.done(*done), now_ns);
  }
}

/// A peer that lies loses the link: all rails.
void Link::check(const Result<void>& result, std::uint64_t now_ns) {
  if (!result) end_with(result.error(), now_ns);
}

void Link::end_with(Error why, std::uint64_t now_ns) {
  if (lost_ || ends()) return;
  lost_code_ = why.code;
  ends_why_ = std::move(why.message);
  for (Rail& rail : rails_) dies(rail, ends_why_, now_ns);
}

void Link::close(const std::string& why, std::uint64_t now_ns) { end_with({Code::peer_lost, why}, now_ns); }

void Link::count_arrivals() {
  while (const auto next = arrivals_.next())
    if (next->amount > 0) events_.counted(*this, {next->scope, next->immediate, next->amount});
  if (arrivals_.counted_below() - told_below_ < number_window / 4) return;
  told_below_ = arrivals_.counted_below();
  say(CountedBelow{told_below_});
}

void Link::nic_is_down(std::uint32_t nic, const std::string& why, std::uint64_t now_ns) {
  for (Rail& rail : rails_)
    if (rail.nic == nic) dies(rail, why, now_ns);
}

// ------------------------------------------------------------------ a rail dies

void Link::dies(Rail& rail, const std::string& why, std::uint64_t now_ns) {
  if (!rail.usable()) return;
  rail.life = Life::dropping;
  rail.since_ns = now_ns;
  rail.why = why;
  rail.next_number = numbers_.next();
  nics_[rail.nic]->provider().drop_peer(rail.peer);
}

void Link::dropped(Rail& rail, std::uint64_t now_ns) {
  if (rail.life != Life::dropping) return;
  rail.life = Life::dropped;
  rail.since_ns = now_ns;
  settle_below_ = std::max(settle_below_, rail.next_number);
  if (rail.peers_number) {
    arrivals_.settle_below(*rail.peers_number);
  } else {
    arrivals_.hold();
  }
  // What was told over this rail may be lost with it.
  for (const Rail& each : rails_)
    if (each.down()) tell_down(each);
  settle();
  sends_.say_again(outgoing_);
  if (rail.peers_number) fence(rail, now_ns);
  look_for_rails(now_ns);
}

void Link::tell_down(const Rail& rail) {
  if (rail.epoch == 0) return;
  outgoing_.push_front(encode(RailDown{rail.index, rail.epoch, rail.next_number, arrivals_.counted()}));
}

void Link::settle() {
  for (const Announcement& announcement : numbers_.to_settle(settle_below_)) say(announcement);
}

void Link::heard_down(const RailDown& down, std::uint64_t now_ns) {
  if (down.rail >= rails_.size()) return;
  numbers_.take(down.counted);
  give_numbers();
  Rail& rail = rails_[down.rail];
  if (down.epoch < rail.epoch || (down.epoch == rail.epoch && rail.peers_number)) return;
  const bool unheard = !rail.peers_number;
  rail.peers_number = down.next;
  if (rail.usable()) dies(rail, "the peer has dropped the rail", now_ns);
  if (unheard && rail.life == Life::dropped) {
    arrivals_.release();
    arrivals_.settle_below(down.next);
    arrivals_.look_again();
    count_arrivals();
    fence(rail, now_ns);
  }
  // The peer tried to connect, and we have not heard of it: we have never used this epoch.
  if (down.epoch > rail.epoch && (rail.life == Life::fenced || rail.life == Life::unused)) {
    rail.epoch = down.epoch;
    rail.next_number = numbers_.next();
    arrivals_.settle_below(down.next);
    rail.life = Life::fenced;
    tell_down(rail);
  }
}

/// No late byte comes over the rail any more, to either side: others do what it has not done.
void Link::fence(Rail& rail, std::uint64_t now_ns) {
  rail.life = Life::fenced;
  rail.since_ns = now_ns;
  const auto unfinished = std::exchange(rail.unfinished, {});
  for (const Piece& piece : unfinished) {
    const bool counted = piece.request->number_ != 0 && numbers_.counted(piece.request->number_);
    if (counted || piece.chunk.bytes == 0 || !piece.request->status_.ok()) {
      piece_ended(piece, {}, rail);
    } else {
      repeats_.push_back(piece);
    }
  }
}

// ------------------------------------------------------------------ time, and the end

void Link::look_at_time(std::uint64_t now_ns) {
  if (!lie_.empty()) check(make_error(Code::corrupt, "{}", std::exchange(lie_, {})), now_ns);
  const auto timeout = static_cast<std::uint64_t>(options_.rail_timeout.count());
  for (Rail& rail : rails_) {
    if (!rail.usable()) continue;
    std::uint64_t since = rail.waits_since_ns(now_ns);
    if (rail.life == Life::connecting) since = rail.since_ns;
    if (now_ns - since > timeout)
      dies(rail, fmt::format("nothing ended on it for {} ms", timeout / 1'000'000), now_ns);
    if (rail.life == Life::live && nics_[rail.nic]->provider().heard_from(rail.peer))
      rail.heartbeat->heard_at(now_ns);
    if (rail.life == Life::live) look_at_heartbeat(rail, now_ns);
  }
  look_at_cancels(now_ns);
  try_again(now_ns);
  look_for_rails(now_ns);
}

void Link::look_at_heartbeat(Rail& rail, std::uint64_t now_ns) {
  if (now_ns < rail.heartbeat->due_ns()) return;
  // Others carry what this one cannot. The last one may be up again before silence ends it.
  if (const Health health = nics_[rail.nic]->provider().health(); !health.up && live_rails() > 1)
    return dies(rail, health.why, now_ns);
  const auto beat = rail.heartbeat->beat(now_ns);
  if (beat == transport::Heartbeat::Beat::lost)
    dies(rail, fmt::format("nothing came over it for {} ms", rail.heartbeat->silence().count()), now_ns);
  if (beat == transport::Heartbeat::Beat::ping && post_message(rail, encode(Beat{}), now_ns))
    rail.flights.rbegin()->second.is_beat = true;
}

void Link::ask(std::uint64_t now_ns) {
  const auto seldom = static_cast<std::uint64_t>(options_.heartbeat.count()) / 4;
  for (Rail& rail : rails_) {
    const bool lately = rail.asked_ns != 0 && now_ns - rail.asked_ns < seldom;
    if (rail.life != Life::live || lately) continue;
    rail.asked_ns = now_ns;
    if (post_message(rail, encode(Beat{}), now_ns)) rail.flights.rbegin()->second.is_beat = true;
  }
}

void Link::was_away(std::uint64_t now_ns, std::uint64_t for_ns) {
  for (Rail& rail : rails_) {
    rail.progress_ns = std::min(now_ns, rail.progress_ns + for_ns);
    for (auto& [token, flight] : rail.flights) flight.posted_ns = std::min(now_ns, flight.posted_ns + for_ns);
    if (rail.life == Life::connecting) rail.since_ns = std::min(now_ns, rail.since_ns + for_ns);
    if (rail.heartbeat) rail.heartbeat->heard_at(now_ns);
  }
}

std::uint64_t Link::next_ns(std::uint64_t now_ns) const {
  if (lost_) return UINT64_MAX;
  const auto in_ns = [](std::chrono::nanoseconds time) { return static_cast<std::uint64_t>(time.count()); };
  std::uint64_t next = UINT64_MAX;
  const auto at = [&](std::uint64_t ns) { next = std::min(next, ns + 1); };
  for (const Rail& rail : rails_) {
    if (const std::uint64_t since = rail.waits_since_ns(0); since != 0)
      at(since + in_ns(options_.rail_timeout));
    if (rail.life == Life::live) at(rail.heartbeat->due_ns());
    if (rail.life == Life::connecting) at(std::max(rail.since_ns, born_ns_) + in_ns(options_.rail_timeout));
    // Of one that was never connected nothing is due later.
    if (rail.life == Life::unused && born_ns_ + in_ns(options_.rail_timeout) >= now_ns)
      at(born_ns_ + in_ns(options_.rail_timeout));
    if (rail.life == Life::fenced && !setup_.addresses.empty())
      at(rail.since_ns + in_ns(options_.retry_after));
  }
  if (!canceling_.empty() || sends_.is_canceling()) at(now_ns + in_ns(options_.cancel_timeout) / 2);
  // What is overdue waits for a NIC: its health is looked at now and then.
  return std::max(next, now_ns + 10'000'000);
}

/// A NIC takes nothing back: the rails that keep pieces of a canceled request for too long are dropped.
void Link::look_at_cancels(std::uint64_t now_ns) {
  const auto timeout = static_cast<std::uint64_t>(options_.cancel_timeout.count());
  for (const auto& [request, since_ns] : canceling_) {
    if (now_ns - since_ns <= timeout) continue;
    for (Rail& rail : rails_) {
      const bool keeps = std::any_of(rail.flights.begin(), rail.flights.end(), [&](const auto& flight) {
        return flight.second.piece.request == request;
      });
      if (keeps) dies(rail, "a canceled request did not end on it", now_ns);
    }
  }
  if (!sends_.is_overdue(now_ns, timeout)) return;
  for (Rail& rail : rails_) dies(rail, "the peer did not give a canceled message back", now_ns);
}

void Link::try_again(std::uint64_t now_ns) {
  if (ends()) return;
  const auto retry = static_cast<std::uint64_t>(options_.retry_after.count());
  for (Rail& rail : rails_) {
    const bool due = rail.life == Life::fenced && now_ns - rail.since_ns >= retry;
    if (due && !setup_.addresses.empty() && nics_[rail.nic]->provider().health().up) add_peer(rail, now_ns);
  }
}

/// A link without a rail is lost. Rails that the peer is to connect may take their time.
void Link::look_for_rails(std::uint64_t now_ns) {
  const bool young = now_ns - born_ns_ <= static_cast<std::uint64_t>(options_.rail_timeout.count());
  for (const Rail& rail : rails_) {
    if (rail.usable() || rail.life == Life::dropping) return;
    if (rail.life == Life::unused && setup_.addresses.empty() && young && !ends()) return;
  }
  lose(reasons());
}

/// Of a link that is lost: of each rail, or of the link as a whole.
std::string Link::reasons() const {
  if (ends()) return ends_why_;
  std::string all;
  for (const Rail& rail : rails_)
    all += fmt::format("{}{} to its NIC {}: {}", all.empty() ? "" : "; ",
                       nics_[rail.nic]->provider().info().name, rail.peer_nic,
                       rail.why.empty() ? "it was never connected" : rail.why);
  return fmt::format("no rail to {} is left: {}", peer_name(), all);
}

std::string Link::peer_name() const {
  return setup_.addresses.empty() ? fmt::format("engine {:016x}", setup_.engine) : setup_.addresses.front();
}

void Link::lose(const std::string& why) {
  if (std::exchange(lost_, true)) return;
  uncut_.clear();
  without_number_.clear();
  repeats_.clear();
  canceling_.clear();
  outgoing_.clear();
  for (Rail& rail : rails_) rail.unfinished.clear();
  const auto requests = std::exchange(posted_, {});
  partials_ = 0;
  for (const auto& [post, request] : requests) {
    request->posted_ = false;
    fail(*request, {lost_code_}, why);
    tell_end(*request, request->status_);
  }
  sends_.lose({lost_code_}, why);
  tell_sent();
  deliveries_.lose({lost_code_});
  events_.lost(*this, why);
}

}  // namespace headrace::rail
