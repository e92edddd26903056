// SPDX-License-Identifier: Apache-2.0
// A target's half of a dispatch: cards, then records as they come, each to its rows.
#include "base/errors.hpp"
#include "moe/columns.hpp"
#include "moe/drive.hpp"
#include "moe/rank.hpp"
#include "moe/rows.hpp"
#include "moe/scales.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>

namespace headrace::moe {

Result<void> Rank::dispatch_receive(const MoERows& out, Routing& routing) {
  HEADRACE_TRY_VOID(not_left_out(Operation::dispatch, dispatches_.received + 1));
  refresh(routing);
  HEADRACE_TRY_VOID(may_receive(dispatches_, routing.dispatch_sent, "dispatch"));
  HEADRACE_TRY_VOID(check_memory(config_, out));
  begin(Operation::dispatch, ++dispatches_.received);
  forward();
  take_cards(routing);
  config_.layout == MoELayout::by_rank ? lay_out_sources(routing) : lay_out();
  write_counts(out);
  take_records(out, routing);
  if (config_.zero_padding) zero_padding(out);
  for_ranks(active_, [&](std::uint32_t source) { windows_[source].tell_dispatch_taken(running_.epoch); });
  routing.dispatch_sent = 0;
  routing.filled = true;
  check_budget();
  return end();
}

void Rank::take_cards(Routing& routing) {
  std::ranges::fill(card_counts_, 0);
  forwarded_ = 0;
  for (std::uint32_t source = 0; source < layout_.ranks; ++source) routing.begin_records(source, 0);
  const Awaited awaited{"counts", running_.epoch,
                        [this](std::uint32_t source) {
                          return layout_.card_at(running_.epoch, source) + offsetof(CardHead, epoch);
                        },
                        [this](std::uint64_t seen) { return has_come(seen, running_.epoch); }};
  drive(active_, awaited, [&](std::uint32_t source) {
    if (!awaited.is_there(own().load(awaited.offset(source)))) return Step::waits;
    if (!take_card(source, routing)) std::ranges::fill(card_counts(source), 0);
    return Step::done;
  });
}

/// False: it cannot be, and its rank is left out.
bool Rank::take_card(std::uint32_t source, Routing& routing) {
  std::uint64_t records = 0;
  std::memcpy(&records, own().at(layout_.card_at(running_.epoch, source) + offsetof(CardHead, records)),
              sizeof records);
  const bool is_far = windows_[source].is_far();
  if (is_far && (records & forwarded_bit) != 0) forwarded_ |= bit_of(source);
  if (is_far) records &= ~forwarded_bit;
  if (records > layout_.slots) {
    leave_out(source, Code::corrupt, "counts", layout_.slots + 1, records);
    return false;
  }
  const auto counts = card_counts(source);
  if (counts.empty()) return true;
  std::memcpy(counts.data(), own().at(layout_.counts_at(running_.epoch, source)), counts.size_bytes());
  const std::uint64_t sum = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  if (sum > records * layout_.record.top_k) {
    leave_out(source, Code::corrupt, "counts", records * layout_.record.top_k + 1, sum);
    return false;
  }
  routing.begin_records(source, records);
  return true;
}

void Rank::lay_out() {
  const std::uint32_t experts = experts_of(rank_);
  std::uint64_t first = 0;
  for (std::uint32_t expert = 0; expert < experts; ++expert) {
    std::uint32_t total = 0;
    for (std::uint32_t source = 0; source < layout_.ranks; ++source) {
      before(source, expert) = total;
      total += card_counts(source)[expert];
    }
    totals_[expert] = total;
    first_rows_[expert] = first;
    first = config_.layout == MoELayout::batched
                ? first + static_cast<std::uint64_t>(config_.rows_of_expert())
                : next_expert_at(first, total, static_cast<std::uint64_t>(config_.row_alignment));
  }
  first_rows_[experts] = first;
}

void Rank::lay_out_sources(const Routing& routing) {
  std::uint64_t first = 0;
  for (std::uint32_t source = 0; source < layout_.ranks; ++source) {
    first_rows_[source] = first;
    first += routing.records(source);
  }
  first_rows_[layout_.ranks] = first;
  for (std::uint32_t expert = 0; expert < experts_of(rank_); ++expert) {
    totals_[expert] = 0;
    for (std::uint32_t source = 0; source < layout_.ranks; ++source)
      totals_[expert] += card_counts(source)[expert];
  }
}

void Rank::write_counts(const MoERows& out) const {
  const std::uint32_t experts = experts_of(rank_);
  const std::uint32_t firsts = config_.layout == MoELayout::by_rank ? layout_.ranks : experts;
  if (out.counts != nullptr) std::copy_n(totals_.begin(), experts, out.counts);
  if (out.first_rows != nullptr) std::copy_n(first_rows_.begin(), firsts + 1, out.first_rows);
}

void Rank::take_records(const MoERows& out, Routing& routing) {
  Mask sources = 0;
  for (std::uint32_t source = 0; source < layout_.ranks; ++source) {
    next_chunk_[source] = 0;
    if (routing.records(source) != 0 && is_active(source)) sources |= bit_of(source);
  }
  const Awaited awaited{"rows", running_.epoch,
                        [this](std::uint32_t source) {
                          return is_forwarded(source)
                                     ? relay_.forwarded_flag_at(running_.epoch, source, next_chunk_[source])
                                     : layout_.chunk_flag_at(running_.epoch, source, next_chunk_[source]);
                        },
                        [this](std::uint64_t seen) { return has_come(seen, running_.epoch); },
                        [this](std::uint32_t source) { return last_stop(source); }};
  drive(sources, awaited, [&](std::uint32_t source) {
    const std::uint64_t records = routing.records(source);
    if (!has_come(own().load(awaited.offset(source)), running_.epoch)) {
      if (is_active(last_stop(source))) return Step::waits;
      miss_records(source, routing);
      return Step::done;
    }
    const std::uint64_t begin = next_chunk_[source]++ * chunk_slots;
    const std::uint64_t end = std::min(begin + chunk_slots, records);
    for (std::uint64_t slot = begin; slot < end; ++slot)
      if (!take_record(out, source, slot, routing)) return Step::done;
    return end == records ? Step::done : Step::moved;
  });
}

/// The rank that forwards them is out.
void Rank::miss_records(std::uint32_t source, Routing& routing) {
  routing.miss_records(source, next_chunk_[source] * chunk_slots);
  if (running_.error) return;
  running_.error =
      make_error(Code::peer_lost,
                 "rank {} misses rows of rank {} in dispatch {}: they come through rank {}, which is out",
                 rank_, source, running_.epoch, last_stop(source));
}

/// False: it cannot be, and its rank is left out.
bool Rank::take_record(const MoERows& out, std::uint32_t source, std::uint64_t slot, Routing& routing) {
  const std::byte* const record =
      own().at(is_forwarded(source) ? relay_.forwarded_slot_at(running_.epoch, source, slot)
                                    : layout_.slot_at(running_.epoch, source, slot));
  // Read once: the memory is its writer's.
  RecordHead head;
  std::memcpy(&head, record, sizeof head);
  if (head.entries == 0 || head.entries > layout_.record.top_k) {
    leave_out(source, Code::corrupt, "rows", layout_.record.top_k + 1, head.entries);
    return false;
  }
  Entry entries[moe_most_top_k];
  std::memcpy(entries, record + layout_.record.entries_at(), head.entries * sizeof(Entry));
  for (const Entry& entry : std::span(entries, head.entries)) {
    const bool is_ours = entry.expert < experts_of(rank_);
    if (is_ours && entry.order < card_counts(source)[entry.expert]) continue;
    const std::uint64_t bound = is_ours ? card_counts(source)[entry.expert] : experts_of(rank_);
    leave_out(source, Code::corrupt, "rows", bound, is_ours ? entry.order : entry.expert);
    return false;
  }
  const std::span placed(entries, head.entries);
  config_.layout == MoELayout::by_rank ? place_record(out, source, slot, record, placed, routing)
                                       : place_entries(out, source, slot, record, placed, routing);
  return true;
}

void Rank::place_entries(const MoERows& out, std::uint32_t source, std::uint64_t slot,
                         const std::byte* record, std::span<const Entry> entries, Routing& routing) {
  for (const Entry& entry : entries) {
    const std::uint64_t row =
        row_of_entry(first_rows_[entry.expert], before(source, entry.expert), entry.order);
    const bool fits = row < end_of_expert(entry.expert);
    if (fits) write_row(out, row, record);
    routing.place(source, slot, {fits ? static_cast<std::uint32_t>(row) : no_row, entry.weight});
  }
}

void Rank::place_record(const MoERows& out, std::uint32_t source, std::uint64_t slot, const std::byte* record,
                        std::span<const Entry> entries, Routing& routing) {
  const std::uint64_t row = first_rows_[source] + slot;
  const bool fits = row < static_cast<std::uint64_t>(config_.output_rows());
  routing.place(source, slot, {fits ? static_cast<std::uint32_t>(row) : no_row, 1});
  if (!fits) return;
  write_row(out, row, record);
  const std::uint64_t at = row * layout_.record.top_k;
  for (std::uint32_t i = 0; i < layout_.record.top_k; ++i) {
    const bool is_entry = i < entries.size();
    if (out.experts != nullptr)
      out.experts[at + i] = is_entry ? static_cast<std::int32_t>(entries[i].expert) : -1;
    if (out.weights != nullptr) out.weights[at + i] = is_entry ? entries[i].weight : 0;
  }
}

/// The first row that an expert may not use.
std::uint64_t Rank::end_of_expert(std::uint32_t expert) const {
  return config_.layout == MoELayout::batched
             ? first_rows_[expert] + static_cast<std::uint64_t>(config_.rows_of_expert())
             : static_cast<std::uint64_t>(config_.output_rows());
}

void Rank::write_row(const MoERows& out, std::uint64_t row, const std::byte* record) const {
  const RecordLayout& layout = layout_.record;
  std::memcpy(static_cast<std::byte*>(out.rows) + row * layout.row_bytes, record + layout.row_at(),
              layout.row_bytes);
  if (layout.scale_bytes != 0) write_scales(out, row, record + layout.scales_at());
  for (std::uint32_t i = 0; i < config_.payload_bytes.size(); ++i)
    std::memcpy(static_cast<std::byte*>(out.payloads[i]) + row * layout.payload_bytes[i],
                record + layout.payload_at(i), layout.payload_bytes[i]);
}

void Rank::write_scales(const MoERows& out, std::uint64_t row, const std::byte* scales) const {
  const ScaleLayout to =
      scale_layout(config_.scale_bytes, out.scale_stride, out.scale_unit_bytes, out.scale_unit_stride);
  auto* const first = static_cast<std::byte*>(out.scales);
  if (config_.layout != MoELayout::batched || out.scale_expert_stride == 0)
    return scatter_scales(scales, first + to.stride * static_cast<std::int64_t>(row), to);
  const std::int64_t rows = config_.rows_of_expert(), number = static_cast<std::int64_t>(row);
  scatter_scales(scales, first + number / rows * out.scale_expert_stride + number % rows * to.stride, to);
}

void Rank::zero_padding(const MoERows& out) const {
  const auto rows = static_cast<std::uint64_t>(config_.output_rows());
  const auto zero = [&](void* memory, std::uint64_t begin, std::uint64_t end, std::uint64_t bytes) {
    if (begin < end && bytes != 0)
      std::memset(static_cast<std::byte*>(memory) + begin * bytes, 0, (end - begin) * bytes);
  };
  for (std::uint32_t expert = 0; expert < experts_of(rank_); ++expert) {
    const std::uint64_t begin = first_rows_[expert] + totals_[expert];
    const std::uint64_t end = std::min(first_rows_[expert + 1], rows);
    zero(out.rows, begin, end, layout_.record.row_bytes);
    for (std::uint64_t row = begin; row < end && config_.scale_bytes != 0; ++row)
      write_scales(out, row, nullptr);
    for (std::size_t i = 0; i < config_.payload_bytes.size(); ++i)
      zero(out.payloads[i], begin, end, layout_.record.payload_bytes[i]);
  }
}

void Rank::check_budget() {
  std::uint64_t needed =
      first_rows_[config_.layout == MoELayout::by_rank ? layout_.ranks : experts_of(rank_)];
  auto available = static_cast<std::uint64_t>(config_.output_rows());
  if (config_.layout == MoELayout::batched) {
    needed = totals_.empty() ? 0 : *std::ranges::max_element(totals_);
    available = static_cast<std::uint64_t>(config_.rows_of_expert());
  }
  if (needed <= available || running_.error) return;
  running_.error = make_error(
      Code::exhausted,
      "rank {} got {} rows{} in dispatch {}, and row_budget is {}: the rows beyond it were dropped", rank_,
      needed, config_.layout == MoELayout::batched ? " for one expert" : "", running_.epoch, available);
}

}  // namespace headrace::moe
