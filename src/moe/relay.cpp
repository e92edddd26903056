// SPDX-License-Identifier: Apache-2.0
// Rows that cross to a node once: a source sends them to the rank there that is like it, which brings them to
// the ranks of its node, as the source would.
#include "moe/drive.hpp"
#include "moe/rank.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace headrace::moe {

// ------------------------------------------------------------------ at the source

void Rank::begin_relays(const TokenRange& range, const Routing& routing) {
  for (std::uint32_t node = 0; node < relays_.size(); ++node) {
    relays_[node] = {};
    if (relay_.nodes == 0 || node == nodes_.node_of(rank_)) continue;
    const std::uint32_t relay = nodes_.like(rank_, node);
    if (relay != no_rank && is_active(relay)) relays_[node].rank = relay;
  }
  if (relay_.nodes == 0) return;
  for (std::uint64_t token = range.begin; token < range.end; ++token)
    for_relayed_nodes(routing.visits(token),
                      [&](std::uint32_t node, std::span<const Visit>) { ++relays_[node].records; });
  for (const Relay& relay : relays_)
    if (relay.rank != no_rank)
      windows_[relay.rank].far().signal(Signal::Kind::relay_card,
                                        RelayCount::payload(running_.epoch, relay.records));
}

/// Calls each(node, visits) for the nodes of visits that forward, with the visits to active ranks there.
template <class Each>
void Rank::for_relayed_nodes(std::span<const Visit> visits, const Each& each) const {
  Visit there[moe_most_top_k];
  for (std::size_t i = 0; i < visits.size();) {
    const std::uint32_t node = nodes_.node_of(visits[i].rank);
    std::size_t count = 0;
    for (; i < visits.size() && nodes_.node_of(visits[i].rank) == node; ++i)
      if (is_active(visits[i].rank)) there[count++] = visits[i];
    if (count != 0 && relays_[node].rank != no_rank) each(node, std::span<const Visit>(there, count));
  }
}

void Rank::send_relay_records(const MoETokens& tokens, std::uint64_t token, const TokenRow& row,
                              Routing& routing) {
  if (relay_.nodes == 0) return;
  const std::uint32_t own_node = nodes_.node_of(rank_);
  for_relayed_nodes(routing.visits(token), [&](std::uint32_t node, std::span<const Visit> visits) {
    Relay& relay = relays_[node];
    const std::uint64_t slot = relay.next++;
    const PeerWindow& to = windows_[relay.rank];
    write_relay_record(to.at(relay_.slot_at(running_.epoch, own_node, slot)), visits, row, tokens, token,
                       routing);
    if (relay.next == relay.records || relay.next % chunk_slots == 0)
      to.tell_relay_records(running_.epoch, slot / chunk_slots * chunk_slots, relay.next);
  });
}

void Rank::write_relay_record(std::byte* record, std::span<const Visit> visits, const TokenRow& row,
                              const MoETokens& tokens, std::uint64_t token, Routing& routing) const {
  RecordHead head{static_cast<std::uint32_t>(token), 0, {}};
  std::byte* entry_at = record + RelayLayout::entries_at();
  for (const Visit& visit : visits) {
    for (const RoutedEntry& routed : routing.entries(token)) {
      if (routed.rank != visit.rank) continue;
      const RelayEntry entry{visit.rank, visit.slot, {routed.expert, routed.order, routed.weight}};
      std::memcpy(entry_at, &entry, sizeof entry);
      entry_at += sizeof entry;
      ++head.entries;
    }
  }
  std::memcpy(record, &head, sizeof head);
  write_columns(record + relay_.row_at(), row, tokens, token);
}

// ------------------------------------------------------------------ at the rank that forwards

/// It waits for what sources send alone, so it waits in no circle.
void Rank::forward() {
  if (relay_.nodes == 0) return;
  Mask sources = 0;
  std::ranges::fill(forwarded_to_, 0);
  for (std::uint32_t node = 0; node < relay_.nodes; ++node) {
    const std::uint32_t source = nodes_.like(rank_, node);
    if (source == no_rank || source == rank_ || !is_active(source)) continue;
    sources |= bit_of(source);
    next_chunk_[source] = 0;
  }
  const auto card_of = [this](std::uint32_t source) {
    return relay_.card_at(running_.epoch, nodes_.node_of(source)) + offsetof(CardHead, epoch);
  };
  const Awaited awaited{"rows", running_.epoch,
                        [&](std::uint32_t source) {
                          if (!has_come(own().load(card_of(source)), running_.epoch)) return card_of(source);
                          return relay_.flag_at(running_.epoch, nodes_.node_of(source), next_chunk_[source]);
                        },
                        [this](std::uint64_t seen) { return has_come(seen, running_.epoch); }};
  drive(sources, awaited, [&](std::uint32_t source) {
    if (!has_come(own().load(card_of(source)), running_.epoch)) return Step::waits;
    return forward_chunk(source);
  });
}

Rank::Step Rank::forward_chunk(std::uint32_t source) {
  const std::uint32_t node = nodes_.node_of(source);
  std::uint64_t records = 0;
  std::memcpy(&records, own().at(relay_.card_at(running_.epoch, node) + offsetof(CardHead, records)),
              sizeof records);
  if (records > layout_.slots) {
    leave_out(source, Code::corrupt, "rows", layout_.slots + 1, records);
    return Step::done;
  }
  const std::uint64_t begin = next_chunk_[source] * chunk_slots;
  const std::uint64_t end = std::min(begin + chunk_slots, records);
  if (begin < end) {
    if (!has_come(own().load(relay_.flag_at(running_.epoch, node, next_chunk_[source])), running_.epoch))
      return Step::waits;
    for (std::uint64_t slot = begin; slot < end; ++slot)
      if (!forward_record(source, slot)) return Step::done;
    ++next_chunk_[source];
  }
  if (end < records) return Step::moved;
  tell_forwarded(source);
  return Step::done;
}

/// False: it cannot be, and its source is left out.
bool Rank::forward_record(std::uint32_t source, std::uint64_t slot) {
  const std::byte* const record = own().at(relay_.slot_at(running_.epoch, nodes_.node_of(source), slot));
  RecordHead head;  // read once: the memory is its writer's
  std::memcpy(&head, record, sizeof head);
  const auto refuse = [&](std::uint64_t bound, std::uint64_t seen) {
    leave_out(source, Code::corrupt, "rows", bound, seen);
    return false;
  };
  if (head.entries == 0 || head.entries > layout_.record.top_k)
    return refuse(layout_.record.top_k + 1, head.entries);
  RelayEntry entries[moe_most_top_k];
  std::memcpy(entries, record + RelayLayout::entries_at(), head.entries * sizeof(RelayEntry));
  for (const RelayEntry& entry : std::span(entries, head.entries)) {
    if (entry.rank >= layout_.ranks || !nodes_.are_near(entry.rank, rank_))
      return refuse(layout_.ranks, entry.rank);
    if (entry.slot >= layout_.slots) return refuse(layout_.slots, entry.slot);
  }
  for (std::size_t begin = 0; begin < head.entries;) {
    std::size_t end = begin + 1;
    while (end < head.entries && entries[end].rank == entries[begin].rank) ++end;
    forward_to(entries[begin].rank, source, record, std::span(entries).subspan(begin, end - begin));
    begin = end;
  }
  return true;
}

/// Slots of a target come in their order.
void Rank::forward_to(std::uint32_t target, std::uint32_t source, const std::byte* record,
                      std::span<const RelayEntry> entries) {
  if (!is_active(target)) return;
  const std::uint64_t slot = entries.front().slot;
  const Window& to = windows_[target].mapped();
  std::byte* const made = to.at(relay_.forwarded_slot_at(running_.epoch, source, slot));
  RecordHead head;
  std::memcpy(&head, record, sizeof head);
  head.entries = static_cast<std::uint32_t>(entries.size());
  std::memcpy(made, &head, sizeof head);
  std::byte* entry_at = made + layout_.record.entries_at();
  for (const RelayEntry& entry : entries) {
    std::memcpy(entry_at, &entry.entry, sizeof entry.entry);
    entry_at += sizeof entry.entry;
  }
  std::memcpy(made + layout_.record.row_at(), record + relay_.row_at(), relay_.column_bytes());
  forwarded_to_[source * nodes_.per_node + nodes_.index_of(target)] = slot + 1;
  if ((slot + 1) % chunk_slots == 0)
    to.tell(relay_.forwarded_flag_at(running_.epoch, source, chunk_of(slot)), running_.epoch);
}

/// Chunks that are not full are complete, too.
void Rank::tell_forwarded(std::uint32_t source) {
  for_ranks(nodes_.mask_of(nodes_.node_of(rank_)), [&](std::uint32_t target) {
    const std::uint64_t slots = forwarded_to_[source * nodes_.per_node + nodes_.index_of(target)];
    if (slots % chunk_slots != 0)
      windows_[target].mapped().tell(relay_.forwarded_flag_at(running_.epoch, source, chunk_of(slots - 1)),
                                     running_.epoch);
  });
}

std::uint32_t Rank::last_stop(std::uint32_t source) const {
  if (!is_forwarded(source)) return source;
  const std::uint32_t relay = nodes_.like(source, nodes_.node_of(rank_));
  return relay == no_rank || relay == rank_ ? source : relay;
}

}  // namespace headrace::moe
