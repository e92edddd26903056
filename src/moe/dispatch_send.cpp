// SPDX-License-Identifier: Apache-2.0
// A source's half of a dispatch: route, cards, records.
#include "base/errors.hpp"
#include "moe/columns.hpp"
#include "moe/drive.hpp"
#include "moe/float8_blocks.hpp"
#include "moe/rank.hpp"
#include "moe/scales.hpp"
#include "moe/spread.hpp"
#include "moe/strides.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace headrace::moe {

Result<void> Rank::dispatch_send(const MoETokens& given, Routing& routing) {
  HEADRACE_TRY_VOID(not_left_out(Operation::dispatch, dispatches_.sent + 1));
  refresh(routing);
  HEADRACE_TRY_VOID(may_send(dispatches_, "dispatch"));
  MoETokens tokens = given;
  HEADRACE_TRY(count, count_of(given));
  tokens.count = count;
  HEADRACE_TRY_VOID(check_tokens(tokens, routing));
  routing.filled = false;
  if (tokens.experts != nullptr)
    HEADRACE_TRY_VOID(read_experts(tokens, routing));
  else if (tokens.weights != nullptr)
    routing.weigh(tokens.weights, static_cast<std::uint64_t>(tokens.count));
  routing.given = static_cast<std::uint64_t>(given.count);
  begin(Operation::dispatch, ++dispatches_.sent);
  routing.dispatch_sent = running_.epoch;
  routing.route(spread_, rank_, static_cast<std::uint64_t>(tokens.count), active_);
  wait_for_room(active_, offsetof(PeerWords, dispatch_taken));
  begin_relays(range_of(tokens), routing);
  send_cards(routing);
  send_records(tokens, routing);
  return end();
}

Result<std::int64_t> Rank::count_of(const MoETokens& tokens) {
  if (tokens.count_at == nullptr) return tokens.count;
  const std::int64_t count = *tokens.count_at;
  if (count >= 0 && count <= tokens.count) return count;
  return make_error(Code::invalid_argument, "count_at says {} tokens, expected 0 to the {} that are given",
                    count, tokens.count);
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
  HEADRACE_TRY_VOID(check_columns(config_, tokens));
  if (tokens.experts != nullptr) return {};
  if (!routing.filled)
    return make_error(Code::invalid_argument,
                      "no experts are given, and the routing has none: dispatch with experts first");
  if (routing.tokens() == static_cast<std::uint64_t>(tokens.count)) return {};
  return make_error(Code::invalid_argument,
                    "{} tokens are given, and the routing has {}: give as many, or experts", tokens.count,
                    routing.tokens());
}

Result<void> Rank::read_experts(const MoETokens& tokens, Routing& routing) {
  if (tokens.replicas != nullptr) HEADRACE_TRY_VOID(check_replicas(*tokens.replicas, config_.experts));
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
Result<void> Rank::read_numbers(const MoETokens& tokens, Routing& routing) {
  const auto* const numbers = static_cast<const Number*>(tokens.experts);
  const int experts = tokens.replicas == nullptr ? config_.experts : tokens.replicas->experts;
  if (tokens.replicas != nullptr) chooser_.begin(*tokens.replicas, spread_, rank_, active_);
  for (std::uint64_t token = 0; token < static_cast<std::uint64_t>(tokens.count); ++token) {
    const auto entries = routing.entries(token);
    for (std::size_t k = 0; k < entries.size(); ++k) {
      const Number number = numbers[token * entries.size() + k];
      if (number < -1 || number >= experts)
        return make_error(Code::invalid_argument,
                          "token {} names expert {} as its entry {}: expected -1 to {}", token, number, k,
                          experts - 1);
      RoutedEntry& entry = entries[k];
      entry = {};
      if (tokens.weights != nullptr) entry.weight = tokens.weights[token * entries.size() + k];
      if (number == -1) continue;
      auto place = static_cast<std::uint32_t>(number);
      if (tokens.replicas != nullptr) place = chooser_.place_of(place);
      entry.rank = rank_of_expert(spread_.first_expert.data(), layout_.ranks, place);
      entry.expert = place - spread_.first_expert[entry.rank];
    }
  }
  return {};
}

/// To all ranks, those without a record too: each of them waits for the card.
void Rank::send_cards(const Routing& routing) {
  for (std::uint32_t i = 1; i <= layout_.ranks; ++i) {
    const std::uint32_t target = (rank_ + i) % layout_.ranks;
    if (!is_active(target)) continue;
    const PeerWindow& to = windows_[target];
    const std::uint64_t card = layout_.card_at(running_.epoch, rank_);
    const std::uint64_t records = routing.records_for(target) | (is_relayed(target) ? forwarded_bit : 0);
    std::memcpy(to.at(card + offsetof(CardHead, records)), &records, sizeof records);
    std::memcpy(to.at(layout_.counts_at(running_.epoch, rank_)),
                routing.counts().data() + spread_.first_expert[target],
                experts_of(target) * sizeof(std::uint32_t));
    to.tell_card(running_.epoch);
  }
}

void Rank::send_records(const MoETokens& tokens, Routing& routing) {
  const TokenRange range = range_of(tokens);
  for (std::uint64_t token = range.begin; token < range.end; ++token) {
    const auto visits = routing.visits(token);
    if (visits.empty()) continue;
    const TokenRow row = row_of(tokens, token);
    for (const Visit& visit : visits) {
      if (!is_active(visit.rank) || is_relayed(visit.rank)) continue;
      const PeerWindow& to = windows_[visit.rank];
      write_record(to.at(layout_.slot_at(running_.epoch, rank_, visit.slot)), visit.rank, row, tokens, token,
                   routing);
      const bool is_last = visit.slot + 1 == routing.records_for(visit.rank);
      if (is_last || (visit.slot + 1) % chunk_slots == 0)
        to.tell_records(running_.epoch, visit.slot / chunk_slots * chunk_slots, visit.slot + 1);
    }
    send_relay_records(tokens, token, row, routing);
  }
  for_ranks(active_, [&](std::uint32_t target) { windows_[target].flush(); });
}

/// Cast and gathered once for all ranks to which it goes.
Rank::TokenRow Rank::row_of(const MoETokens& tokens, std::uint64_t token) {
  const bool is_cast = tokens.cast != MoECast::none;
  const std::int64_t stride = stride_or(tokens.row_stride, given_row_bytes(config_, tokens.cast));
  const std::byte* const row = row_at(tokens.rows, stride, token);
  if (is_cast) {
    cast_row(row, static_cast<std::size_t>(config_.hidden), tokens.cast, token_row_.data(),
             token_scales_.data());
    return {token_row_.data(), token_scales_.data()};
  }
  if (config_.scale_bytes == 0) return {row, nullptr};
  const ScaleLayout scales = scale_layout(config_.scale_bytes, tokens.scale_stride, tokens.scale_unit_bytes,
                                          tokens.scale_unit_stride);
  const std::byte* const first = row_at(tokens.scales, scales.stride, token);
  if (scales.is_dense()) return {row, first};
  gather_scales(token_scales_.data(), first, scales);
  return {row, token_scales_.data()};
}

void Rank::write_record(std::byte* record, std::uint32_t target, const TokenRow& row, const MoETokens& tokens,
                        std::uint64_t token, Routing& routing) const {
  const RecordLayout& layout = layout_.record;
  RecordHead head{static_cast<std::uint32_t>(token), 0, {}};
  std::byte* entry_at = record + layout.entries_at();
  for (const RoutedEntry& routed : routing.entries(token)) {
    if (routed.rank != target) continue;
    const Entry entry{routed.expert, routed.order, routed.weight};
    std::memcpy(entry_at, &entry, sizeof entry);
    entry_at += sizeof entry;
    ++head.entries;
  }
  std::memcpy(record, &head, sizeof head);
  write_columns(record + layout.row_at(), row, tokens, token);
}

void Rank::write_columns(std::byte* columns, const TokenRow& row, const MoETokens& tokens,
                         std::uint64_t token) const {
  const RecordLayout& layout = layout_.record;
  std::memcpy(columns, row.row, layout.row_bytes);
  const std::uint64_t first = layout.row_at();
  if (layout.scale_bytes != 0)
    std::memcpy(columns + (layout.scales_at() - first), row.scales, layout.scale_bytes);
  for (std::uint32_t i = 0; i < config_.payload_bytes.size(); ++i) {
    const MoETokens::Payload& payload = tokens.payloads[i];
    std::memcpy(columns + (layout.payload_at(i) - first),
                row_at(payload.rows, stride_or(payload.stride, config_.payload_bytes[i]), token),
                layout.payload_bytes[i]);
  }
}

}  // namespace headrace::moe
