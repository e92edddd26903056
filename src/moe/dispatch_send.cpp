// SPDX-License-Identifier: Apache-2.0
// A source's half of a dispatch: route, cards, records.
#include "base/errors.hpp"
#include "moe/drive.hpp"
#include "moe/rank.hpp"
#include "moe/spread.hpp"
#include "moe/strides.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace headrace::moe {

Result<void> Rank::dispatch_send(const MoETokens& tokens, Routing& routing) {
  HEADRACE_TRY_VOID(not_left_out());
  HEADRACE_TRY_VOID(may_send(dispatches_, "dispatch"));
  HEADRACE_TRY_VOID(check_tokens(tokens, routing));
  routing.filled = false;
  if (tokens.experts != nullptr) HEADRACE_TRY_VOID(read_experts(tokens, routing));
  begin(Operation::dispatch, ++dispatches_.sent);
  routing.dispatch_sent = running_.epoch;
  routing.route(spread_, rank_, static_cast<std::uint64_t>(tokens.count), active_);
  wait_for_room(active_, offsetof(PeerWords, dispatch_taken));
  send_cards(routing);
  send_records(tokens, routing);
  return end();
}

Result<void> Rank::check_tokens(const MoETokens& tokens, const Routing& routing) const {
  if (routing.dispatch_sent != 0 || routing.combine_sent != 0)
    return make_error(Code::invalid_argument,
                      "the routing is in use by {} {}: receive that first, or give another one",
                      routing.dispatch_sent != 0 ? "dispatch" : "combine",
                      std::max(routing.dispatch_sent, routing.combine_sent));
  if (tokens.count < 0 || tokens.count > config_.max_tokens)
    return make_error(Code::invalid_argument, "{} tokens are given, expected 0 to max_tokens = {}",
                      tokens.count, config_.max_tokens);
  if (tokens.count == 0) return {};
  if (tokens.rows == nullptr)
    return make_error(Code::invalid_argument, "{} tokens are given, and no rows", tokens.count);
  if ((tokens.scales == nullptr) != (config_.scale_bytes == 0))
    return make_error(Code::invalid_argument,
                      "scales are {}, and scale_bytes is {}: give scales if it is not 0",
                      tokens.scales == nullptr ? "not given" : "given", config_.scale_bytes);
  HEADRACE_TRY_VOID(check_stride("row_stride", tokens.row_stride, config_.row_bytes()));
  HEADRACE_TRY_VOID(check_stride("scale_stride", tokens.scale_stride, config_.scale_bytes));
  if (tokens.experts != nullptr) return {};
  if (!routing.filled)
    return make_error(Code::invalid_argument,
                      "no experts are given, and the routing has none: dispatch with experts first");
  if (routing.tokens() == static_cast<std::uint64_t>(tokens.count)) return {};
  return make_error(Code::invalid_argument,
                    "{} tokens are given, and the routing has {}: give as many, or experts", tokens.count,
                    routing.tokens());
}

Result<void> Rank::read_experts(const MoETokens& tokens, Routing& routing) const {
  switch (tokens.experts_dtype) {
    case DType::int64:
      return read_numbers<std::int64_t>(tokens, routing);
    case DType::int32:
    case DType::uint32:  // -1 has the same bits
      return read_numbers<std::int32_t>(tokens, routing);
    default:
      return make_error(Code::invalid_argument, "experts are {}, expected int64, int32 or uint32",
                        dtype_name(tokens.experts_dtype));
  }
}

template <class Number>
Result<void> Rank::read_numbers(const MoETokens& tokens, Routing& routing) const {
  const auto* const numbers = static_cast<const Number*>(tokens.experts);
  for (std::uint64_t token = 0; token < static_cast<std::uint64_t>(tokens.count); ++token) {
    const auto entries = routing.entries(token);
    for (std::size_t k = 0; k < entries.size(); ++k) {
      const Number number = numbers[token * entries.size() + k];
      if (number < -1 || number >= config_.experts)
        return make_error(Code::invalid_argument,
                          "token {} names expert {} as its entry {}: expected -1 to {}", token, number, k,
                          config_.experts - 1);
      RoutedEntry& entry = entries[k];
      entry = {};
      if (tokens.weights != nullptr) entry.weight = tokens.weights[token * entries.size() + k];
      if (number == -1) continue;
      entry.rank =
          rank_of_expert(spread_.first_expert.data(), layout_.ranks, static_cast<std::uint32_t>(number));
      entry.expert = static_cast<std::uint32_t>(number) - spread_.first_expert[entry.rank];
    }
  }
  return {};
}

/// To all ranks, those without a record too: each of them waits for the card.
void Rank::send_cards(const Routing& routing) {
  for (std::uint32_t i = 1; i <= layout_.ranks; ++i) {
    const std::uint32_t target = (rank_ + i) % layout_.ranks;
    if (!is_active(target)) continue;
    const Window& to = windows_[target];
    const std::uint64_t card = layout_.card_at(running_.epoch, rank_);
    const std::uint64_t records = routing.records_for(target);
    std::memcpy(to.at(card + offsetof(CardHead, records)), &records, sizeof records);
    std::memcpy(to.at(layout_.counts_at(running_.epoch, rank_)),
                routing.counts().data() + spread_.first_expert[target],
                experts_of(target) * sizeof(std::uint32_t));
    to.tell(card + offsetof(CardHead, epoch), running_.epoch);
  }
}

void Rank::send_records(const MoETokens& tokens, Routing& routing) {
  const TokenRange range = tokens_of_member(static_cast<std::uint64_t>(tokens.count), layout_.group_size,
                                            rank_ % layout_.group_size);
  for (std::uint64_t token = range.begin; token < range.end; ++token) {
    for (const Visit& visit : routing.visits(token)) {
      if (!is_active(visit.rank)) continue;
      const Window& to = windows_[visit.rank];
      write_record(to, visit.slot, visit.rank, tokens, token, routing);
      const bool is_last = visit.slot + 1 == routing.records_for(visit.rank);
      if (is_last || (visit.slot + 1) % chunk_slots == 0)
        to.tell(layout_.chunk_flag_at(running_.epoch, rank_, chunk_of(visit.slot)), running_.epoch);
    }
  }
}

void Rank::write_record(const Window& to, std::uint64_t slot, std::uint32_t target, const MoETokens& tokens,
                        std::uint64_t token, Routing& routing) const {
  std::byte* const record = to.at(layout_.slot_at(running_.epoch, rank_, slot));
  RecordHead head{static_cast<std::uint32_t>(token), 0, {}};
  std::byte* entry_at = record + layout_.record.entries_at();
  for (const RoutedEntry& routed : routing.entries(token)) {
    if (routed.rank != target) continue;
    const Entry entry{routed.expert, routed.order, routed.weight};
    std::memcpy(entry_at, &entry, sizeof entry);
    entry_at += sizeof entry;
    ++head.entries;
  }
  std::memcpy(record, &head, sizeof head);
  std::memcpy(record + layout_.record.row_at(),
              row_at(tokens.rows, stride_or(tokens.row_stride, config_.row_bytes()), token),
              layout_.record.row_bytes);
  if (config_.scale_bytes != 0)
    std::memcpy(record + layout_.record.scales_at(),
                row_at(tokens.scales, stride_or(tokens.scale_stride, config_.scale_bytes), token),
                layout_.record.scale_bytes);
}

}  // namespace headrace::moe
