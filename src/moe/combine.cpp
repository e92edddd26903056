// SPDX-License-Identifier: Apache-2.0
// Both halves of a combine: partials go back to the slots that the records had, and become sums.
#include "base/errors.hpp"
#include "moe/config.hpp"
#include "moe/drive.hpp"
#include "moe/rank.hpp"
#include "moe/strides.hpp"

#include <cstddef>
#include <cstring>

namespace headrace::moe {

Result<void> Rank::combine_send(const MoEResults& results, Routing& routing) {
  HEADRACE_TRY_VOID(not_left_out(Operation::combine, combines_.sent + 1));
  refresh(routing);
  HEADRACE_TRY_VOID(may_send(combines_, "combine"));
  HEADRACE_TRY_VOID(check_results(results, routing));
  begin(Operation::combine, ++combines_.sent);
  routing.combine_sent = running_.epoch;
  wait_for_room(active_, offsetof(PeerWords, combine_taken));
  for (std::uint32_t i = 1; i <= layout_.ranks; ++i) {
    const std::uint32_t source = (rank_ + i) % layout_.ranks;
    is_active(source) ? send_partials(results, routing, source) : send_missing(source, 0);
  }
  return end();
}

Result<void> Rank::check_routing(const Routing& routing) const {
  if (!routing.filled || routing.dispatch_sent != 0)
    return make_error(Code::invalid_argument,
                      "the routing has no dispatch that was received: dispatch with it first");
  if (routing.combine_sent == 0) return {};
  return make_error(Code::invalid_argument, "the routing is in use by combine {}: receive that first",
                    routing.combine_sent);
}

Result<void> Rank::check_results(const MoEResults& results, const Routing& routing) const {
  HEADRACE_TRY_VOID(check_routing(routing));
  if (results.in_window) {
    if (routing.memory_of == combines_.sent + 1) return {};
    return make_error(
        Code::invalid_argument,
        "in_window is given, and combine_memory was not called for this combine: call it first");
  }
  if (results.rows == nullptr && config_.output_rows() != 0)
    return make_error(Code::invalid_argument, "no rows of results are given, expected {} rows of {} bytes",
                      config_.output_rows(), config_.combine_row_bytes());
  return check_stride("row_stride", results.row_stride, config_.combine_row_bytes());
}

Result<void> Rank::combine_memory(Routing& routing, std::span<MoEWindowRows> of_ranks) {
  HEADRACE_TRY_VOID(not_left_out(Operation::combine, combines_.sent + 1));
  refresh(routing);
  HEADRACE_TRY_VOID(may_send(combines_, "combine"));
  HEADRACE_TRY_VOID(check_routing(routing));
  HEADRACE_TRY_VOID(check_window_takes_sums(config_));
  if (of_ranks.size() != layout_.ranks)
    return make_error(Code::invalid_argument, "there is room for {} ranks, expected {}", of_ranks.size(),
                      layout_.ranks);
  begin(Operation::combine, combines_.sent + 1);
  wait_for_room(active_, offsetof(PeerWords, combine_taken));
  HEADRACE_TRY_VOID(end());
  routing.memory_of = running_.epoch;
  for (std::uint32_t source = 0; source < layout_.ranks; ++source) {
    of_ranks[source] = {};
    if (!is_active(source)) continue;
    const std::uint64_t first = layout_.group_slot(source % spread_.group_size, 0);
    of_ranks[source].rows = windows_[source].at(layout_.partial_at(running_.epoch, rank_, first));
    of_ranks[source].count = static_cast<std::int64_t>(routing.written(source));
  }
  return {};
}

/// Into the windows of all ranks that hold the source's tokens.
void Rank::send_partials(const MoEResults& results, const Routing& routing, std::uint32_t source) {
  const std::uint64_t records = routing.came(source);
  const std::uint64_t written = results.in_window ? routing.written(source) : 0;
  for (std::uint64_t slot = 0; slot < records; ++slot) {
    results.in_window ? complete_in_window(source, slot, slot < written)
                      : write_partial(results, routing, source, slot);
    if (slot + 1 != records && (slot + 1) % chunk_slots != 0) continue;
    const std::uint64_t last = layout_.group_slot(source % spread_.group_size, slot);
    for_members(source, [&](const PeerWindow& to) {
      to.tell_partials(running_.epoch, last / chunk_slots * chunk_slots, last + 1);
    });
  }
  for_members(source, [](const PeerWindow& to) { to.flush(); });
  if (records != routing.records(source)) send_missing(source, records);
}

void Rank::write_partial(const MoEResults& results, const Routing& routing, std::uint32_t source,
                         std::uint64_t slot) {
  const std::int64_t stride = stride_or(results.row_stride, config_.combine_row_bytes());
  RowSum sum(static_cast<std::size_t>(config_.hidden), config_.combine_dtype);
  for (const PlacedEntry& entry : routing.placed(source, slot)) {
    if (entry.row == no_row) continue;
    const bool weighs = results.weighted && config_.layout != MoELayout::by_rank;
    sum.add(row_at(results.rows, stride, entry.row), weighs ? entry.weight : 1);
  }
  const std::uint64_t at =
      layout_.partial_at(running_.epoch, rank_, layout_.group_slot(source % spread_.group_size, slot));
  const std::byte* made = nullptr;
  for_members(source, [&](const PeerWindow& to) {
    if (made != nullptr) return static_cast<void>(std::memcpy(to.at(at), made, layout_.partial_bytes));
    config_.float8_combine ? sum.store_blocks(to.at(at)) : sum.store(to.at(at));
    made = to.at(at);
  });
}

/// The row is in the source's window: the other members of its group get a copy. One that the caller has no
/// row for is zero.
void Rank::complete_in_window(std::uint32_t source, std::uint64_t slot, bool is_written) const {
  const std::uint64_t at =
      layout_.partial_at(running_.epoch, rank_, layout_.group_slot(source % spread_.group_size, slot));
  std::byte* const from = windows_[source].at(at);
  if (!is_written) std::memset(from, 0, layout_.partial_bytes);
  for_members(source, [&](const PeerWindow& to) {
    if (to.at(at) != from) std::memcpy(to.at(at), from, layout_.partial_bytes);
  });
}

/// Nobody waits for partials of records that never came.
///   from  the first such record, of a chunk
void Rank::send_missing(std::uint32_t source, std::uint64_t from) {
  const std::uint64_t first = layout_.group_slot(source % spread_.group_size, 0);
  for_members(source, [&](const PeerWindow& to) {
    to.tell_missing(running_.epoch, first + from, first + layout_.slots);
  });
}

/// Calls each(window) for the active members of a rank's group.
template <class Each>
void Rank::for_members(std::uint32_t rank, const Each& each) const {
  const std::uint32_t first = rank / spread_.group_size * spread_.group_size;
  for (std::uint32_t member = first; member < first + spread_.group_size; ++member)
    if (is_active(member)) each(windows_[member]);
}

Result<void> Rank::combine_receive(const MoESums& sums, Routing& routing) {
  HEADRACE_TRY_VOID(not_left_out(Operation::combine, combines_.received + 1));
  refresh(routing);
  HEADRACE_TRY_VOID(may_receive(combines_, routing.combine_sent, "combine"));
  HEADRACE_TRY_VOID(check_sums(sums, routing));
  begin(Operation::combine, ++combines_.received);
  for (std::uint32_t member = 0; member < spread_.group_size; ++member) {
    const TokenRange range = tokens_of_member(routing.tokens(), spread_.group_size, member);
    for (std::uint64_t token = range.begin; token < range.end; ++token)
      receive_sum(sums, routing, token, member);
  }
  for_ranks(active_, [&](std::uint32_t target) { windows_[target].tell_combine_taken(running_.epoch); });
  routing.combine_sent = 0;
  return end();
}

Result<void> Rank::check_sums(const MoESums& sums, const Routing& routing) const {
  HEADRACE_TRY_VOID(check_row_count(sums.row_count, routing.given));
  if (sums.rows == nullptr && routing.tokens() != 0)
    return make_error(Code::invalid_argument, "no memory for sums is given, expected {} rows of {} bytes",
                      routing.tokens(), config_.combine_row_bytes());
  return check_stride("row_stride", sums.row_stride, config_.combine_row_bytes());
}

void Rank::receive_sum(const MoESums& sums, const Routing& routing, std::uint64_t token,
                       std::uint32_t member) {
  RowSum sum(static_cast<std::size_t>(config_.hidden), config_.combine_dtype);
  for (const Visit& visit : routing.visits(token))
    if (const std::byte* const row = wait_for_partial(visit.rank, layout_.group_slot(member, visit.slot)))
      config_.float8_combine ? sum.add_blocks(row) : sum.add(row);
  const auto row_bytes = static_cast<std::size_t>(config_.combine_row_bytes());
  for (const void* const bias : sums.biases)
    if (bias != nullptr) sum.add(static_cast<const std::byte*>(bias) + token * row_bytes);
  const std::size_t stride = sums.row_stride == 0 ? row_bytes : static_cast<std::size_t>(sums.row_stride);
  std::byte* const out = static_cast<std::byte*>(sums.rows) + token * stride;
  if (sums.accumulate) sum.add(out);
  sum.store(out);
}

/// A rank that forwards has died with rows of this one.
void Rank::tell_missed(std::uint32_t target) {
  if (running_.error) return;
  running_.error =
      make_error(Code::peer_lost,
                 "rank {} has not got all rows of rank {}, so combine {} misses their results: a "
                 "rank of its node, which forwards rows, is out",
                 target, rank_, running_.epoch);
}

/// Null: it does not come.
const std::byte* Rank::wait_for_partial(std::uint32_t target, std::uint64_t group_slot) {
  const std::uint64_t epoch = running_.epoch;
  const std::uint64_t flag_at = layout_.partial_flag_at(epoch, target, chunk_of(group_slot));
  const auto is_there = [epoch](std::uint64_t seen) {
    return has_come(seen, epoch) || is_missing(seen, epoch);
  };
  if (is_active(target) && !is_there(own().load(flag_at))) {
    const Awaited awaited{"sums", epoch, [flag_at](std::uint32_t) { return flag_at; }, is_there};
    drive(bit_of(target), awaited,
          [&](std::uint32_t) { return is_there(own().load(flag_at)) ? Step::done : Step::waits; });
  }
  if (!is_active(target)) return nullptr;
  if (!has_come(own().load(flag_at), epoch)) {
    const bool is_own = group_slot / layout_.slots == rank_ % spread_.group_size;
    if (is_own) tell_missed(target);
    return nullptr;
  }
  return own().at(layout_.partial_at(epoch, target, group_slot));
}

}  // namespace headrace::moe
