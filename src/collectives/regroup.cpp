// SPDX-License-Identifier: Apache-2.0
// Communicators of the backend `host` that are made without a meeting place: of ranks that survived, or of
// ranks that the caller has brought together.
#include "base/errors.hpp"
#include "base/hash.hpp"
#include "base/names.hpp"
#include "base/random.hpp"
#include "collectives/algorithms.hpp"
#include "collectives/assembly.hpp"
#include "collectives/host_comm.hpp"
#include "collectives/split.hpp"

#include <fmt/ranges.h>

#include <algorithm>

namespace headrace::collectives {
namespace {

std::uint64_t hash_text(std::string_view text) { return hash64(std::as_bytes(std::span(text))); }

Result<std::vector<Seat>> seats_of(std::span<const std::string> handles) {
  std::vector<Seat> seats;
  for (const std::string& handle : handles) {
    auto seat = Seat::decode(handle);
    if (!seat || seat->agent.empty() || seat->metadata.empty())
      return make_error(Code::invalid_argument, "handle {} is none that init_handle returned", seats.size());
    const auto same = std::ranges::find(seats, seat->agent, &Seat::agent);
    if (same != seats.end())
      return make_error(Code::invalid_argument, "handles {} and {} are of the same rank",
                        same - seats.begin(), seats.size());
    seats.push_back(std::move(*seat));
  }
  return seats;
}

}  // namespace

Seat HostComm::own_seat(std::string metadata) const {
  return {members_->station()->agent().name(), std::move(metadata)};
}

Result<std::string> HostComm::init_handle() {
  if (forked()) return why_not_in_child();
  HEADRACE_TRY_VOID(still_open());
  HEADRACE_TRY(metadata, members_->station()->agent().export_metadata());
  return own_seat(std::move(metadata)).encode();
}

Result<std::shared_ptr<Comm::Core>> HostComm::reconfigure(const std::string& uuid,
                                                          std::span<const std::string> handles,
                                                          const SplitOptions& changes) {
  if (forked()) return why_not_in_child();
  HEADRACE_TRY(seats, seats_of(handles));
  if (std::ranges::find(seats, members_->station()->agent().name(), &Seat::agent) == seats.end()) {
    return make_error(Code::invalid_argument,
                      "the handle of this rank is not among the {} handles: give those of all ranks, in the "
                      "same order on each",
                      seats.size());
  }
  std::vector<int> ranks(seats.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank] = static_cast<int>(rank);
  std::string key = uuid;  // ranks with other handles do not meet
  for (const Seat& seat : seats) key.append("/").append(seat.agent);
  return assemble(hash_text(key), seats, std::move(ranks), changes);
}

Result<std::shared_ptr<Comm::Core>> HostComm::shrink(std::span<const int> excluded,
                                                     const SplitOptions& changes) {
  if (forked()) return why_not_in_child();
  HEADRACE_TRY(group, ranks_left(excluded, rank(), size()));
  std::vector<Seat> seats;
  for (const int rank : group) seats.push_back(rank == this->rank() ? own_seat({}) : members_->seat(rank));
  HEADRACE_TRY_VOID(still_open());
  const std::string left = fmt::format("{}", fmt::join(group, ", "));
  abort(fmt::format("it goes on with ranks {} alone", left));
  const std::string key = fmt::format("{:016x} shrinks to {}", members_->id(), left);
  return assemble(hash_text(key), seats, first_ranks(group), changes);
}

Result<std::shared_ptr<Comm::Core>> HostComm::assemble(std::uint64_t key, const std::vector<Seat>& seats,
                                                       std::vector<int> ranks, const SplitOptions& changes) {
  HEADRACE_TRY_VOID(still_open());
  const std::shared_ptr<Station>& station = members_->station();
  const auto mine = std::ranges::find(seats, station->agent().name(), &Seat::agent) - seats.begin();
  const CommOptions options = options_of_split(ranks, static_cast<int>(mine), name(), changes);
  HEADRACE_TRY(settings, settings_of_split(options, changes));
  const Deadline deadline = deadline_of(options.meeting_timeout);
  const std::string box = fmt::format("{}/{:016x}", members_->box_name(), random_u64());
  HEADRACE_TRY(members, Members::open(station, options.rank, options.size, box, settings));
  HEADRACE_TRY(card, members->card());
  HEADRACE_TRY(cards, exchange_cards(*station, key, seats, static_cast<std::size_t>(mine), card, deadline,
                                     Interrupt(interrupted_)));
  return of_cards(options, std::move(settings), std::move(members), std::move(ranks), cards, deadline);
}

}  // namespace headrace::collectives
