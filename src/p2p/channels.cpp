// SPDX-License-Identifier: Apache-2.0
#include "p2p/channels.hpp"

#include <headrace/comm_call.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace headrace::p2p {
namespace {

// More blocks of a channel, and longer chunks, were not measured. The ends of all ranks stay small.
constexpr std::uint32_t most_blocks_of_channel = 8, most_slots = 2 * most_blocks_of_channel;
constexpr std::uint32_t chunk_bytes_of_all = 128 << 10, least_chunk_bytes = 16 << 10;
constexpr std::uint32_t line = 128;
constexpr std::uint32_t packed_bytes = 16;  // no message travels as packets
static_assert(HEADRACE_COLLECTIVES_MOST_CHANNELS == 2 * (HEADRACE_COLLECTIVES_MOST_RANKS - 1));

std::uint32_t wished(std::uint32_t hint, std::uint32_t most) {
  return hint != 0 ? std::min(hint, most) : most;
}

/// A channel of this rank: the other rank, and whether messages come from it.
using Key = std::pair<int, bool>;
Key key_of(const Message& message) { return {message.peer, message.is_received}; }

}  // namespace

Message message_of(const headrace_comm_call_v1& call, std::uint64_t work) {
  const bool is_received = call.operation == HEADRACE_COMM_RECV;
  const headrace_comm_elements_v1& elements = is_received ? call.outputs[0] : call.inputs[0];
  return {work,
          call.peer,
          is_received,
          reinterpret_cast<std::uint64_t>(elements.data),
          elements.count * element_bytes(static_cast<DType>(elements.dtype)),
          call.stream,
          call.async != 0,
          call.timeout_ns};
}

Channels::Channels(int rank, int size, const Settings& settings) : rank_(rank), size_(size) {
  const auto ranks = static_cast<std::uint32_t>(size);
  shape_.ranks = 2;
  shape_.packed_bytes = packed_bytes;
  const std::uint32_t share = chunk_bytes_of_all / ranks / line * line;
  shape_.chunk_bytes = wished(settings.chunk_bytes, std::max(least_chunk_bytes, share));
  shape_.slots = wished(settings.slots, most_slots);
}

std::uint64_t Channels::bytes() const { return 2 * static_cast<std::uint64_t>(size_ - 1) * end_bytes_; }

void Channels::share(std::uint32_t blocks) {
  const auto all = static_cast<std::uint32_t>(std::max(2 * (size_ - 1), 1));
  blocks_ = std::max(std::min({blocks / all, shape_.slots / 2, most_blocks_of_channel}), 1U);
  most_channels_ = std::min(blocks / blocks_, all);
}

std::vector<std::vector<Message>> Channels::launches_of(std::span<const Message> messages) const {
  const auto channel_for_all = [this](const Message& message) {
    return message.is_received ? std::pair(message.peer, rank_) : std::pair(rank_, message.peer);
  };
  std::map<Key, int> counts;
  std::vector<std::pair<int, Message>> in_order;  // with its number in its channel
  for (const Message& message : messages) in_order.emplace_back(counts[key_of(message)]++, message);
  std::ranges::stable_sort(in_order, {}, [&](const auto& numbered) {
    return std::tuple(numbered.first, channel_for_all(numbered.second));
  });
  std::vector<std::vector<Message>> launches;
  std::set<Key> channels;  // of the last launch
  for (const auto& [number, message] : in_order) {
    const bool is_full = launches.empty() || launches.back().size() == HEADRACE_COLLECTIVES_MOST_MESSAGES ||
                         (!channels.contains(key_of(message)) && channels.size() == most_channels_);
    if (is_full) {
      launches.emplace_back();
      channels.clear();
    }
    channels.insert(key_of(message));
    launches.back().push_back(message);
  }
  return launches;
}

Channels::Places Channels::places_of(std::span<const Message> messages) const {
  std::map<Key, std::vector<const Message*>> by_channel;
  for (const Message& message : messages) by_channel[key_of(message)].push_back(&message);
  Places places;
  for (const auto& [key, those] : by_channel) {
    headrace_collectives_channel_v1 channel = channel_of(*those.front());
    channel.first_message = static_cast<std::uint32_t>(places.messages.size());
    channel.message_count = static_cast<std::uint32_t>(those.size());
    places.channels.push_back(channel);
    for (const Message* message : those) places.messages.push_back({message->address, message->bytes});
  }
  return places;
}

headrace_collectives_channel_v1 Channels::channel_of(const Message& message) const {
  headrace_collectives_channel_v1 channel{};
  channel.own_end = end_at(rank_, message.peer, message.is_received);
  channel.peer_end = end_at(message.peer, rank_, !message.is_received);
  channel.peer = static_cast<std::uint32_t>(message.peer);
  channel.receives = message.is_received ? 1 : 0;
  return channel;
}

std::uint64_t Channels::end_at(int at, int with, bool is_inbound) const {
  const auto others_before = static_cast<std::uint64_t>(with < at ? with : with - 1);
  const std::uint64_t number = 2 * others_before + (is_inbound ? 1 : 0);
  return ends_[static_cast<std::size_t>(at)] + number * end_bytes_;
}

}  // namespace headrace::p2p
