// SPDX-License-Identifier: Apache-2.0
// What a link posts: pieces of requests, spread over its rails, and its own messages.
#include "rail/link.hpp"

#include <algorithm>

namespace headrace::rail {

void Link::pump(std::uint64_t now_ns) {
  if (lost_) return;
  look_at_time(now_ns);
  if (lost_) return;
  sends_.offer(outgoing_);
  deliveries_.answer(outgoing_);
  if (outgoing_.size() > options_.most_waiting_messages)
    return end_with(
        make_error(Code::peer_lost, "the peer takes no messages, and {} wait for it", outgoing_.size()),
        now_ns);
  tell_sent();
  near_ = std::any_of(rails_.begin(), rails_.end(), [&](const Rail& rail) {
    return rail.life == Rail::Life::live && nics_[rail.nic]->provider().info().near;
  });
  for (Rail& rail : rails_) rail.full = false;
  send_messages(now_ns);
  repeat(now_ns);
  send_pieces(now_ns);
  end_unreachable(now_ns);
  send_messages(now_ns);
}

// ------------------------------------------------------------------ which rail

/// Its NICs, here and there, have all memory of the request.
bool Link::reaches(const Rail& rail, const Request& request) const {
  if (!request.partial_) return true;
  const headrace_side_v1 &local = *request.args.local, &remote = *request.args.remote;
  for (std::uint64_t i = 0; i < local.region_count; ++i)
    if (static_cast<const LocalRegion*>(local.regions[i])->keys[rail.nic] == no_key) return false;
  for (std::uint64_t i = 0; i < remote.region_count; ++i) {
    const auto& keys = static_cast<const RemoteRegion*>(remote.regions[i])->keys;
    if (rail.peer_nic < keys.size() && keys[rail.peer_nic] == no_key) return false;
  }
  return true;
}

/// It lives, reaches the memory, and is of this host if there is such a one.
bool Link::carries(const Rail& rail, const Request& request) const {
  if (rail.life != Rail::Life::live || !reaches(rail, request)) return false;
  if (!near_ || nics_[rail.nic]->provider().info().near) return true;
  return request.partial_ && std::none_of(rails_.begin(), rails_.end(), [&](const Rail& each) {
           return each.life == Rail::Life::live && nics_[each.nic]->provider().info().near &&
                  reaches(each, request);
         });
}

/// Whether a rail that reaches its memory lives, or may live again.
bool Link::may_reach(const Request& request, std::uint64_t now_ns) const {
  const bool young = now_ns - born_ns_ <= static_cast<std::uint64_t>(options_.rail_timeout.count());
  return std::any_of(rails_.begin(), rails_.end(), [&](const Rail& rail) {
    if (rail.life == Rail::Life::unused) return setup_.addresses.empty() && young;
    return reaches(rail, request);
  });
}

namespace {

constexpr const char* no_nic_reaches = "no network card that is connected reaches memory of both sides";

}  // namespace

/// A piece of a rail that died, whose memory the others do not reach.
void Link::piece_unreachable(const Piece& piece) {
  --piece.request->unended_;
  stop_cutting(*piece.request, {Code::not_supported}, no_nic_reaches);
  finish_if_done(*piece.request);
}

/// Requests whose memory no rail reaches would wait for ever.
void Link::end_unreachable(std::uint64_t now_ns) {
  if (partials_ == 0) return;
  std::vector<Request*> ended;
  for (const auto& [post, request] : posted_)
    if (request->partial_ && !request->cut_all_ && !may_reach(*request, now_ns)) ended.push_back(request);
  for (Request* const request : ended) {
    std::erase(without_number_, request);
    stop_cutting(*request, {Code::not_supported}, no_nic_reaches);
    finish_if_done(*request);
  }
}

bool Link::has_room(const Rail& rail) const {
  return rail.life == Rail::Life::live && !rail.full && rail.bytes < options_.rail_bytes;
}

Rail* Link::freest(const Request& request) {
  Rail* best = nullptr;
  double least = 0;
  for (Rail& rail : rails_) {
    if (!carries(rail, request) || !has_room(rail)) continue;
    const auto speed = std::max<std::uint64_t>(nics_[rail.nic]->provider().info().bits_per_second, 1);
    const double busy = static_cast<double>(rail.bytes + options_.chunk_bytes) / static_cast<double>(speed);
    if (best != nullptr && busy >= least) continue;
    best = &rail;
    least = busy;
  }
  return best;
}

/// Waits for the next living rail if it is full.
Rail* Link::next_in_turn(const Request& request) {
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    Rail& rail = rails_[(turn_ + i) % rails_.size()];
    if (!carries(rail, request)) continue;
    if (!has_room(rail)) return nullptr;
    turn_ = (rail.index + 1) % static_cast<std::uint32_t>(rails_.size());
    return &rail;
  }
  return nullptr;
}

Rail* Link::pick(const Request& request) {
  if (request.plan_.spread == Spread::in_turn) return next_in_turn(request);
  if (request.plan_.spread == Spread::pinned && !(near_ && request.plan_.near_first)) {
    bool comes = false;  // it has not been tried yet: what is pinned to it waits
    for (Rail& rail : rails_) {
      if (rail.nic != request.plan_.pinned_nic || !reaches(rail, request)) continue;
      if (rail.life == Rail::Life::live) return has_room(rail) ? &rail : nullptr;
      comes = comes || (rail.life == Rail::Life::connecting && rail.epoch <= 1);
    }
    if (comes) return nullptr;
  }
  return freest(request);
}

// ------------------------------------------------------------------ pieces

namespace {

// Of one pass, in moves: then events, beats and other links have their turn.
constexpr std::size_t moves_at_once = 16 * 1024;

}  // namespace

void Link::send_pieces(std::uint64_t now_ns) {
  std::size_t moves = 0;
  // Ends when no request finds a rail: each takes one chunk at a time, so that none waits for all of another.
  for (std::size_t refused = 0; refused < uncut_.size();) {
    Request& request = *uncut_.front();
    Rail* const rail = pick(request);
    if (rail != nullptr && cut(request, *rail, now_ns)) {
      refused = 0;
      moves += moves_.size();
      if (moves >= moves_at_once && !rail->flights.empty()) return;  // the end of one is the next pass
      continue;
    }
    if (rail != nullptr) rail->full = true;
    uncut_.pop_front();
    uncut_.push_back(&request);
    ++refused;
  }
}

void Link::repeat(std::uint64_t now_ns) {
  while (!repeats_.empty()) {
    const Piece piece = repeats_.front();
    Rail* const rail = freest(*piece.request);
    if (rail == nullptr && may_reach(*piece.request, now_ns)) return;
    if (rail == nullptr) {
      repeats_.pop_front();
      piece_unreachable(piece);
      continue;
    }
    const Status posted = post_piece(*rail, piece, std::nullopt, now_ns);
    if (posted.code == Code::would_block || posted.code == Code::peer_lost) {
      rail->full = true;
      continue;
    }
    repeats_.pop_front();
    if (!posted.ok()) piece_ended(piece, posted, *rail);
  }
}

Result<void> Link::fill_moves(Rail& rail, const Piece& piece) {
  moves_.clear();
  if (piece.chunk.bytes == 0) return {};
  PageCursor cursor(piece.request->args, piece.chunk.from, piece.chunk.to);
  for (PageRun run; cursor.next(run);) {
    const auto& local = *static_cast<const LocalRegion*>(run.local_region);
    auto& remote = *static_cast<RemoteRegion*>(run.remote_region);
    if (rail.peer_nic >= remote.keys.size())
      return make_error(Code::invalid_argument, "a descriptor lists {} NICs, and the peer has {}",
                        remote.keys.size(), setup_.peer_nics);
    remote.loaded.resize(rails_.size());
    auto& loaded = remote.loaded[rail.index];
    if (loaded.epoch != rail.epoch) {
      HEADRACE_TRY(id, nics_[rail.nic]->provider().load_memory(rail.peer, remote.keys[rail.peer_nic]));
      loaded = {rail.epoch, id};
    }
    moves_.push_back({local.ids[rail.nic], loaded.id, run.local_offset, run.remote_offset, run.bytes});
  }
  return {};
}

void Link::unload(RemoteRegion& region) {
  for (std::size_t i = 0; i < region.loaded.size(); ++i) {
    const Rail& rail = rails_[i];
    const RemoteRegion::Loaded& loaded = region.loaded[i];
    if (loaded.epoch != 0 && loaded.epoch == rail.epoch && rail.usable())
      nics_[rail.nic]->provider().unload_memory(rail.peer, loaded.id);
  }
  region.loaded.clear();
}

Status Link::post_piece(Rail& rail, const Piece& piece, std::optional<std::uint32_t> mark,
                        std::uint64_t now_ns) {
  if (const auto filled = fill_moves(rail, piece); !filled)
    return {filled.code() == Code::not_found ? Code::peer_lost : filled.code()};
  Provider& provider = nics_[rail.nic]->provider();
  const std::uint64_t token = next_token_++;
  const Status posted = piece.request->is_write() ? provider.post_write({rail.peer, moves_, mark, token})
                                                  : provider.post_read({rail.peer, moves_, token});
  if (!posted.ok()) return posted;
  rail.flights.emplace(token, Flight{piece, {}, 0, now_ns});
  rail.bytes += piece.chunk.bytes;
  return {};
}

// ------------------------------------------------------------------ messages

void Link::send_messages(std::uint64_t now_ns) {
  for (Rail& rail : rails_)
    while (rail.life == Rail::Life::live && !outgoing_.empty() &&
           post_message(rail, outgoing_.front(), now_ns))
      outgoing_.pop_front();
}

bool Link::post_message(Rail& rail, const std::string& bytes, std::uint64_t now_ns) {
  Nic& nic = *nics_[rail.nic];
  const auto slot = nic.take_slot(rail.slots);
  if (!slot) return false;
  const std::uint64_t token = next_token_++;
  if (!nic.provider().post_message(rail.peer, nic.put(*slot, bytes), token).ok()) {
    nic.give_back(*slot);
    return false;
  }
  rail.flights.emplace(token, Flight{{}, bytes, *slot, now_ns});
  ++rail.slots;
  rail.heartbeat->spoke_at(now_ns);
  return true;
}

// ------------------------------------------------------------------ ends

void Link::ended(Rail& rail, const Event& event, std::uint64_t now_ns) {
  auto flight = rail.flights.extract(event.token);
  if (flight.empty()) return;
  if (event.status.ok() && !flight.mapped().is_beat) rail.progress_ns = now_ns;
  const Piece& piece = flight.mapped().piece;
  rail.bytes -= piece.chunk.bytes;
  const bool rail_failed = !event.status.ok() && event.status.code != Code::not_found;
  if (piece.request == nullptr) {
    nics_[rail.nic]->give_back(flight.mapped().slot);
    --rail.slots;
    if (!event.status.ok() && !flight.mapped().is_beat)
      outgoing_.push_front(std::move(flight.mapped().message));
  } else if (rail_failed) {
    rail.unfinished.push_back(piece);
  } else {
    piece_ended(piece, event.status, rail);
  }
  if (rail_failed) dies(rail, "a post has failed", now_ns);
}

}  // namespace headrace::rail
