// SPDX-License-Identifier: Apache-2.0
// Messages of one launch: each is an operation of two ranks on its channel. A channel has blocks of its own.
#pragma once

#include "kernels/collectives/channel.cuh"
#include "kernels/collectives/chunks.cuh"

namespace headrace::kernels::collectives {

__device__ __forceinline__ void tell_length(const Launch& launch, const Turn& turn, unsigned rank) {
  store_packet(length_place(turn.box(rank), turn.epoch(), launch.rank),
               {bytes_of_message(launch), turn.epoch()});
}

/// By all threads: whether the other rank's message is as long. False: also if the launch ends early.
[[nodiscard]] __device__ __forceinline__ bool is_as_long(const Launch& launch, Turn& turn) {
  bool is_good = true;
  if (threadIdx.x == 0) {
    const unsigned other = 1 - launch.rank;
    const uint64_t place = length_place(turn.own_box(), turn.epoch(), other);
    Packet theirs = load_packet(place);
    while (is_good && theirs.epoch != turn.epoch()) {
      is_good = !turn.gives_up(other);
      theirs = load_packet(place);
    }
    if (is_good && theirs.data != bytes_of_message(launch)) {
      report(launch, turn.epoch(), HEADRACE_COLLECTIVES_WRONG_LENGTH, other, theirs.data);
      is_good = false;
    }
  }
  return all_good(is_good);
}

/// By all threads of a channel's blocks.
__device__ __forceinline__ void run_message(const Launch& launch, bool is_last) {
  Turn turn(launch);
  bool is_good = all_good(look_at(launch.failed_box + Header::failed_at) == 0 &&
                          turn.begin([&](unsigned rank) { tell_length(launch, turn, rank); }));
  if (is_good && !sends_ahead(launch)) is_good = is_as_long(launch, turn);
  if (is_good) is_good = ExchangeChunks()(launch, turn);
  if (is_good && sends_ahead(launch)) is_good = is_as_long(launch, turn);
  turn.end(is_good);
  if (!is_last) turn.wait_for_blocks();
}

__device__ __forceinline__ void run_messages(const MessagesLaunch& args) {
  __shared__ alignas(Launch) uint64_t words[sizeof(Launch) / sizeof(uint64_t)];
  Launch& launch = *reinterpret_cast<Launch*>(words);
  const unsigned count = args.channels[blockIdx.y].message_count;
  for (unsigned number = 0; number < count; ++number) {
    for (unsigned i = threadIdx.x; i < sizeof(Launch) / sizeof(uint64_t); i += chunk_threads) words[i] = 0;
    __syncthreads();
    if (threadIdx.x == 0) make_launch(args, blockIdx.y, number, launch);
    __syncthreads();
    run_message(launch, number + 1 == count);
  }
}

}  // namespace headrace::kernels::collectives
