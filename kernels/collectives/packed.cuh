// SPDX-License-Identifier: Apache-2.0
// Parts that travel as packets, each with its operation's number: no rank waits for more than the data
// itself. A thread sends all words of its places before it waits for the first one. It reads every word of a
// place before it writes that place of the output, so input and output may be the same memory.
//
// The time of a small operation is that of the instructions of one thread, so offsets in a box have 32 bits,
// and what they have in common is computed once.
#pragma once

#include "kernels/collectives/memory.cuh"
#include "kernels/collectives/sums.cuh"
#include "kernels/collectives/turn.cuh"

namespace headrace::kernels::collectives {

/// A place of `Words` words is what a thread works on. `at`: its offset in a part.
template <int Words>
class Packets {
 public:
  static constexpr unsigned place_bytes = Words * packet_bytes;

  /// Reads the words of this thread's first place, which travel while the thread learns the operation's
  /// number.
  __device__ explicit Packets(const Launch& args) : args_(args) { read(args_.own, first_place(), first_); }

  __device__ void begin(const Turn& turn) {
    epoch_ = turn.epoch();
    half_ = args_.packets_at +
            static_cast<unsigned>(epoch_ & 1) * args_.shape.ranks * args_.shape.bytes_of_packets();
  }

  /// Calls `run(at)` for this thread's places of the first `bytes` bytes of a part. False: one has failed.
  template <class Run>
  [[nodiscard]] __device__ static bool each_place(uint64_t bytes, const Run& run) {
    for (unsigned at = first_place(); at < static_cast<unsigned>(bytes);
         at += gridDim.x * blockDim.x * place_bytes)
      if (!run(at)) return false;
    return true;
  }

  __device__ void send(unsigned at) const {
    const unsigned place =
        half_ + args_.rank * args_.shape.bytes_of_packets() + at * (sizeof(Packet) / packet_bytes);
    uint64_t words[Words];
    if (args_.one_source != 0) {
      read_own(at, words);
#pragma unroll 4
      for (unsigned to = 0; to < args_.shape.ranks; ++to)
        if (to != args_.rank) store(args_.boxes[to] + place, words);
      return;
    }
#pragma unroll 1
    for (unsigned to = 0; to < args_.shape.ranks; ++to) {
      if (to == args_.rank || at >= args_.sends[to].bytes) continue;
      read(args_.sends[to], at, words);
      store(args_.boxes[to] + place, words);
    }
  }

  /// Calls `take(rank, words)` for each rank of which `comes(rank)` is true, in their order.
  template <class Comes, class Take>
  [[nodiscard]] __device__ bool receive(Turn& turn, unsigned at, const Comes& comes, const Take& take) const {
    const uint64_t place = turn.own_box() + (half_ + at * (sizeof(Packet) / packet_bytes));
    uint64_t own[Words];
    read_own(at, own);
    for (unsigned first = 0; first < args_.shape.ranks; first += batch) {
      Packet held[batch][Words];
#pragma unroll
      for (unsigned i = 0; i < batch; ++i) {
        const unsigned rank = first + i;
        const bool is_here = rank >= args_.shape.ranks || rank == args_.rank || !comes(rank);
#pragma unroll
        for (int w = 0; w < Words; ++w) held[i][w] = {own[w], is_here ? epoch_ : 0};
      }
      while (const unsigned missing = look(place + first * args_.shape.bytes_of_packets(), held))
        if (turn.gives_up(first + __ffs(static_cast<int>(missing)) - 1)) return false;
#pragma unroll
      for (unsigned i = 0; i < batch; ++i) {
        if (first + i >= args_.shape.ranks || !comes(first + i)) continue;
        uint64_t words[Words];
#pragma unroll
        for (int w = 0; w < Words; ++w) words[w] = held[i][w].data;
        take(first + i, words);
      }
    }
    return true;
  }

 private:
  static constexpr unsigned batch = 4;  // ranks whose packets are looked at together

  __device__ static void read(const Part& part, unsigned at, uint64_t* words) {
#pragma unroll
    for (int w = 0; w < Words; ++w) words[w] = read_word(part, at + w * packet_bytes);
  }
  __device__ void store(uint64_t place, const uint64_t* words) const {
#pragma unroll
    for (int w = 0; w < Words; ++w) store_packet(place + w * sizeof(Packet), {words[w], epoch_});
  }
  __device__ void read_own(unsigned at, uint64_t* words) const {
    if (at != first_place()) return read(args_.own, at, words);
#pragma unroll
    for (int w = 0; w < Words; ++w) words[w] = first_[w];
  }
  [[nodiscard]] __device__ static unsigned first_place() {
    return (blockIdx.x * blockDim.x + threadIdx.x) * place_bytes;
  }
  /// Looks at the packets that have not come. `place`: of the first rank of the batch. Returns a bit for each
  /// rank that is still missing.
  [[nodiscard]] __device__ unsigned look(uint64_t place, Packet (&held)[batch][Words]) const {
#pragma unroll
    for (unsigned i = 0; i < batch; ++i)
#pragma unroll
      for (int w = 0; w < Words; ++w)
        if (held[i][w].epoch != epoch_)
          held[i][w] = load_packet(place + (i * args_.shape.bytes_of_packets() + w * sizeof(Packet)));
    unsigned missing = 0;
#pragma unroll
    for (unsigned i = 0; i < batch; ++i)
#pragma unroll
      for (int w = 0; w < Words; ++w) missing |= held[i][w].epoch != epoch_ ? 1u << i : 0;
    return missing;
  }

  const Launch& args_;
  uint64_t first_[Words];
  uint64_t epoch_ = 0;
  unsigned half_ = 0;  // the offset of the packets of this operation
};

/// Sends this rank's parts, then calls `take(at)` for each place of the first `bytes` bytes of what comes.
template <int Words, class Take>
__device__ __forceinline__ void run_packed(const Launch& args, uint64_t bytes, const Take& take) {
  Packets<Words> packets(args);
  Turn turn(args);
  bool is_good = turn.begin();
  packets.begin(turn);
  is_good = is_good && packets.each_place(args.longest_sent, [&](unsigned at) {
    packets.send(at);
    return true;
  });
  is_good = is_good && packets.each_place(bytes, [&](unsigned at) { return take(packets, turn, at); });
  turn.end(is_good);
}

/// Every rank's parts go to their ranks, which keep them.
__device__ __forceinline__ void exchange_packed(const Launch& args) {
  run_packed<1>(args, args.longest_received, [&](const Packets<1>& packets, Turn& turn, unsigned at) {
    return packets.receive(
        turn, at, [&](unsigned rank) { return at < args.receives[rank].bytes; },
        [&](unsigned rank, const uint64_t* words) { write_word(args.receives[rank], at, words[0]); });
  });
}

/// Every rank's parts go to their ranks, which reduce them.
template <class Sum>
__device__ __forceinline__ void reduce_packed(const Launch& args) {
  using Places = Packets<Sum::words>;
  run_packed<Sum::words>(args, args.result.bytes, [&](const Places& packets, Turn& turn, unsigned at) {
    Sum sum(args);
    const bool came = packets.receive(
        turn, at, [](unsigned) { return true; },
        [&](unsigned rank, const uint64_t* words) { sum.put(rank, words); });
    if (!came) return false;
    uint64_t words[Sum::words];
    sum.result(words);
#pragma unroll
    for (int w = 0; w < Sum::words; ++w) write_word(args.result, at + w * packet_bytes, words[w]);
    return true;
  });
}

}  // namespace headrace::kernels::collectives
