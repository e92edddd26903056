// SPDX-License-Identifier: Apache-2.0
// Messages as operations of two ranks: what the host, the kernel and the reference share.
#pragma once

#include "kernels/collectives/box.cuh"

namespace headrace::kernels::collectives {

inline constexpr unsigned most_channels = HEADRACE_COLLECTIVES_MOST_CHANNELS;
inline constexpr unsigned most_messages = HEADRACE_COLLECTIVES_MOST_MESSAGES;

/// The argument of the kernel of messages. Each channel has a row of gridDim.x blocks, in which its messages
/// go one after the other; gridDim.y counts channels.
struct MessagesLaunch {
  Shape shape;  ///< of the ends
  uint32_t rank;
  uint32_t blocks, block_slots;
  uint32_t channel_count;
  uint64_t own_box, abort, status, timeout_ns;
  headrace_collectives_channel_v1 channels[most_channels];
  headrace_collectives_message_v1 messages[most_messages];
};

/// Makes a message of a channel the launch of its two ranks; all of `launch` is 0.
HEADRACE_BOTH_SIDES void make_launch(const MessagesLaunch& args, unsigned of_channel, unsigned number,
                                     Launch& launch) {
  const headrace_collectives_channel_v1& channel = args.channels[of_channel];
  const headrace_collectives_message_v1& message = args.messages[channel.first_message + number];
  const unsigned self = channel.receives != 0 ? 1 : 0, other = 1 - self;
  launch.shape = args.shape;
  launch.rank = self;
  launch.blocks = args.blocks;
  launch.boxes[self] = channel.own_end;
  launch.boxes[other] = channel.peer_end;
  (self == 0 ? launch.sends : launch.receives)[other] = {message.address, message.bytes};
  launch.failed_box = args.own_box;
  launch.abort = args.abort;
  launch.status = args.status;
  launch.timeout_ns = args.timeout_ns;
  launch.chunk_bytes = args.shape.chunk_bytes;
  launch.chunks = static_cast<uint32_t>((message.bytes + launch.chunk_bytes - 1) / launch.chunk_bytes);
  launch.block_slots = args.block_slots;
  launch.is_message = 1;
  launch.numbers[self] = args.rank;
  launch.numbers[other] = channel.peer;
}

/// The bytes of the message that a launch is.
HEADRACE_BOTH_SIDES uint64_t bytes_of_message(const Launch& launch) {
  return launch.rank == 0 ? launch.sends[1].bytes : launch.receives[0].bytes;
}

/// Whether this rank sends all chunks before it knows how many bytes the other one expects: there are slots
/// for all of them.
HEADRACE_BOTH_SIDES bool sends_ahead(const Launch& launch) {
  return launch.rank == 0 && launch.chunks <= launch.blocks * launch.block_slots;
}

/// Where a rank tells the other one, in that one's box, how long its message is.
HEADRACE_BOTH_SIDES uint64_t length_place(uint64_t box, uint64_t epoch, unsigned of_rank) {
  return box + Header::places_at + ((epoch & 1) * most_ranks + of_rank) * sizeof(Places);
}

}  // namespace headrace::kernels::collectives
