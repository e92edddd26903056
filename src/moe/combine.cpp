// SPDX-License-Identifier: Apache-2.0
// Both halves of a combine: partials go back to the slots that the records had, and become sums.
#include "base/errors.hpp"
#include "moe/drive.hpp"
#include "moe/rank.hpp"
#include "moe/strides.hpp"

#include <cstddef>
#include <cstring>

namespace headrace::moe {

Result<void> Rank::combine_send(const MoEResults& results, Routing& routing) {
  HEADRACE_TRY_VOID(not_left_out());
  HEADRACE_TRY_VOID(may_send(combines_, "combine"));
  HEADRACE_TRY_VOID(check_results(results, routing));
  begin(Operation::combine, ++combines_.sent);
  routing.combine_sent = running_.epoch;
  wait_for_room(active_, offsetof(PeerWords, combine_taken));
  for (std::uint32_t i = 1; i <= layout_.ranks; ++i) {
    const std::uint32_t source = (rank_ + i) % layout_.ranks;
    is_active(source) ? send_partials(results, routing, source) : send_missing(source);
  }
  return end();
}

Result<void> Rank::check_results(const MoEResults& results, const Routing& routing) const {
  if (!routing.filled || routing.dispatch_sent != 0)
    return make_error(Code::invalid_argument,
                      "the routing has no dispatch that was received: dispatch with it first");
  if (routing.combine_sent != 0)
    return make_error(Code::invalid_argument, "the routing is in use by combine {}: receive that first",
                      routing.combine_sent);
  if (results.rows == nullptr && config_.output_rows() != 0)
    return make_error(Code::invalid_argument, "no rows of results are given, expected {} rows of {} bytes",
                      config_.output_rows(), config_.combine_row_bytes());
  return check_stride("row_stride", results.row_stride, config_.combine_row_bytes());
}

/// Into the windows of all ranks that hold the source's tokens.
void Rank::send_partials(const MoEResults& results, const Routing& routing, std::uint32_t source) {
  const std::int64_t stride = stride_or(results.row_stride, config_.combine_row_bytes());
  const std::uint64_t records = routing.records(source);
  RowSum sum(sum_row_, config_.combine_dtype);
  for (std::uint64_t slot = 0; slot < records; ++slot) {
    sum.begin();
    for (const PlacedEntry& entry : routing.placed(source, slot)) {
      if (entry.row == no_row) continue;
      const bool weighs = results.weighted && config_.layout != MoELayout::by_rank;
      sum.add(row_at(results.rows, stride, entry.row), weighs ? entry.weight : 1);
    }
    const std::uint64_t place = layout_.group_slot(source % spread_.group_size, slot);
    const bool ends_chunk = slot + 1 == records || (slot + 1) % chunk_slots == 0;
    for_members(source, [&](const Window& to) {
      sum.store(to.at(layout_.partial_at(running_.epoch, rank_, place)));
      if (ends_chunk)
        to.tell(layout_.partial_flag_at(running_.epoch, rank_, chunk_of(place)), running_.epoch);
    });
  }
}

/// The other members of its group do not wait for partials of records that never came.
void Rank::send_missing(std::uint32_t source) {
  const std::uint32_t member = source % spread_.group_size;
  for_members(source, [&](const Window& to) {
    for (std::uint64_t slot = 0; slot < layout_.slots; slot += chunk_slots) {
      const std::uint64_t chunk = chunk_of(layout_.group_slot(member, slot));
      to.tell(layout_.partial_flag_at(running_.epoch, rank_, chunk), running_.epoch | missing_bit);
    }
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
  HEADRACE_TRY_VOID(not_left_out());
  HEADRACE_TRY_VOID(may_receive(combines_, routing.combine_sent, "combine"));
  HEADRACE_TRY_VOID(check_sums(sums, routing));
  begin(Operation::combine, ++combines_.received);
  for (std::uint32_t member = 0; member < spread_.group_size; ++member) {
    const TokenRange range = tokens_of_member(routing.tokens(), spread_.group_size, member);
    for (std::uint64_t token = range.begin; token < range.end; ++token)
      receive_sum(sums, routing, token, member);
  }
  tell_taken(offsetof(PeerWords, combine_taken));
  routing.combine_sent = 0;
  return end();
}

Result<void> Rank::check_sums(const MoESums& sums, const Routing& routing) const {
  if (sums.rows == nullptr && routing.tokens() != 0)
    return make_error(Code::invalid_argument, "no memory for sums is given, expected {} rows of {} bytes",
                      routing.tokens(), config_.combine_row_bytes());
  return check_stride("row_stride", sums.row_stride, config_.combine_row_bytes());
}

void Rank::receive_sum(const MoESums& sums, const Routing& routing, std::uint64_t token,
                       std::uint32_t member) {
  RowSum sum(sum_row_, config_.combine_dtype);
  for (const Visit& visit : routing.visits(token))
    if (const std::byte* const row = wait_for_partial(visit.rank, layout_.group_slot(member, visit.slot)))
      sum.add(row);
  const auto row_bytes = static_cast<std::size_t>(config_.combine_row_bytes());
  for (const void* const bias : sums.biases)
    if (bias != nullptr) sum.add(static_cast<const std::byte*>(bias) + token * row_bytes);
  const std::size_t stride = sums.row_stride == 0 ? row_bytes : static_cast<std::size_t>(sums.row_stride);
  std::byte* const out = static_cast<std::byte*>(sums.rows) + token * stride;
  if (sums.accumulate) sum.add(out);
  sum.store(out);
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
  if (!is_active(target) || !has_come(own().load(flag_at), epoch)) return nullptr;
  return own().at(layout_.partial_at(epoch, target, group_slot));
}

}  // namespace headrace::moe
