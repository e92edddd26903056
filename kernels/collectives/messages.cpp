// SPDX-License-Identifier: Apache-2.0
// Messages that go at once, as the argument of their kernel.
#include "kernels/collectives/collectives.hpp"
#include "kernels/collectives/element.cuh"

#include <algorithm>
#include <bit>
#include <span>

namespace headrace::kernels::collectives {
namespace {

bool is_box(std::uint64_t address) { return address != 0 && address % unit_bytes == 0; }

bool has_possible_counts(const headrace_collectives_messages_v1& args, const Shape& shape) {
  return args.channel_count != 0 && args.channel_count <= most_channels && args.message_count != 0 &&
         args.message_count <= most_messages && args.blocks != 0 && args.blocks <= shape.slots / 2;
}

bool is_possible(const headrace_collectives_channel_v1& channel, std::uint32_t message_count) {
  return is_box(channel.own_end) && is_box(channel.peer_end) && channel.first_message <= message_count &&
         channel.message_count <= message_count - channel.first_message;
}

}  // namespace

std::optional<MessagesLaunch> messages_of(const headrace_collectives_messages_v1& args) {
  const std::optional<Shape> shape = shape_of(args.box);
  if (!shape || shape->ranks != 2 || args.status == 0 || !is_box(args.own_box) ||
      !has_possible_counts(args, *shape))
    return {};
  const std::span channels(args.channels, args.channel_count);
  const std::span messages(args.messages, args.message_count);
  const auto is_good_channel = [&](const auto& channel) { return is_possible(channel, args.message_count); };
  const auto is_good_message = [&](const auto& message) {
    return message.bytes / shape->chunk_bytes < most_chunks;
  };
  if (!std::ranges::all_of(channels, is_good_channel) || !std::ranges::all_of(messages, is_good_message))
    return {};
  MessagesLaunch launch{};
  launch.shape = *shape;
  launch.rank = args.rank;
  launch.blocks = args.blocks;
  launch.block_slots = std::bit_floor(shape->slots / args.blocks);
  launch.channel_count = args.channel_count;
  launch.own_box = args.own_box;
  launch.abort = args.abort;
  launch.status = args.status;
  launch.timeout_ns = args.timeout_ns < 0 ? 0 : std::max<std::uint64_t>(1, args.timeout_ns);
  std::ranges::copy(channels, launch.channels);
  std::ranges::copy(messages, launch.messages);
  return launch;
}

}  // namespace headrace::kernels::collectives
