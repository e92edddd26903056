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
#include "kernels/common/warp_copy.cuh"

namespace headrace::kernels::collectives {

/// Bytes between the words of a thread's place: none between them, or so many that each access of a warp
/// touches one run of bytes.
constexpr unsigned adjacent = packet_bytes, by_warp = warp_lanes * packet_bytes;

/// A place of `Words` words is what a thread works on. `at`: the offset of the first one in a part.
template <int Words, unsigned Apart = adjacent>
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
    const unsigned place = own_place(at);
    uint64_t words[Words];
    if (args_.one_source != 0) {
      read_own(at, words);
      return store_at_all(place, words, left(args_.own.bytes, at));
    }
#pragma unroll 1
    for (unsigned to = 0; to < args_.shape.ranks; ++to) {
      if (to == args_.rank || at >= args_.sends[to].bytes) continue;
      read(args_.sends[to], at, words);
      store(args_.boxes[to] + place, words, left(args_.sends[to].bytes, at));
    }
  }

  /// Sends this place of the result of a share to all ranks.
  __device__ void send_result(unsigned at, const uint64_t* words) const {
    store_at_all(own_place(at) + args_.shape.results_at(), words, left(args_.result.bytes, at));
  }

  /// Calls `take(rank, words)` for each rank whose part, of `bytes_of(rank)` bytes, has this place, in their
  /// order.
  template <class BytesOf, class Take>
  [[nodiscard]] __device__ bool receive(Turn& turn, unsigned at, const BytesOf& bytes_of,
                                        const Take& take) const {
    uint64_t own[Words];
    read_own(at, own);
    return receive_at(turn, place_of(at), at, own, bytes_of, take);
  }
  /// The same for results, of which none comes from this rank itself.
  template <class BytesOf, class Take>
  [[nodiscard]] __device__ bool receive_results(Turn& turn, unsigned at, const BytesOf& bytes_of,
                                                const Take& take) const {
    return receive_at(turn, place_of(at) + args_.shape.results_at(), at, first_, bytes_of, take);
  }

  __device__ static void write(const Part& part, unsigned at, const uint64_t* words) {
#pragma unroll
    for (int w = 0; w < Words; ++w) write_word(part, at + w * Apart, words[w]);
  }

 private:
  static constexpr unsigned batch = 4;  // ranks whose packets are looked at together
  static constexpr unsigned packet_step = Apart * (sizeof(Packet) / packet_bytes);

  /// `offset`: of the packets of rank 0. `own`: the words of this rank.
  template <class BytesOf, class Take>
  [[nodiscard]] __device__ bool receive_at(Turn& turn, unsigned offset, unsigned at, const uint64_t* own,
                                           const BytesOf& bytes_of, const Take& take) const {
    const uint64_t place = turn.own_box() + offset;
    for (unsigned first = 0; first < args_.shape.ranks; first += batch) {
      Packet held[batch][Words];
#pragma unroll
      for (unsigned i = 0; i < batch; ++i) {
        const unsigned rank = first + i;
        const bool comes = rank < args_.shape.ranks && rank != args_.rank && at < bytes_of(rank);
        const unsigned bytes = comes ? left(bytes_of(rank), at) : 0;
#pragma unroll
        for (int w = 0; w < Words; ++w) held[i][w] = {own[w], w * Apart < bytes ? 0 : epoch_};
      }
      while (const unsigned missing = look(place + first * args_.shape.bytes_of_packets(), held))
        if (turn.gives_up(first + __ffs(static_cast<int>(missing)) - 1)) return false;
#pragma unroll
      for (unsigned i = 0; i < batch; ++i) {
        if (first + i >= args_.shape.ranks || at >= bytes_of(first + i)) continue;
        uint64_t words[Words];
#pragma unroll
        for (int w = 0; w < Words; ++w) words[w] = held[i][w].data;
        take(first + i, words);
      }
    }
    return true;
  }

  /// The offset of the packets of rank 0 for this place, and of this rank's.
  [[nodiscard]] __device__ unsigned place_of(unsigned at) const {
    return half_ + at * (sizeof(Packet) / packet_bytes);
  }
  [[nodiscard]] __device__ unsigned own_place(unsigned at) const {
    return place_of(at) + args_.rank * args_.shape.bytes_of_packets();
  }
  /// What is left of a part from a place in it on; no place has as much as 32 bits can count.
  [[nodiscard]] __device__ static unsigned left(uint64_t bytes, unsigned at) {
    return static_cast<unsigned>(bytes) - at;
  }
  __device__ void store_at_all(unsigned offset, const uint64_t* words, unsigned bytes) const {
#pragma unroll 4
    for (unsigned to = 0; to < args_.shape.ranks; ++to)
      if (to != args_.rank) store(args_.boxes[to] + offset, words, bytes);
  }

  __device__ static void read(const Part& part, unsigned at, uint64_t* words) {
#pragma unroll
    for (int w = 0; w < Words; ++w) words[w] = read_word(part, at + w * Apart);
  }
  /// Those words that are not behind the part's end.
  __device__ void store(uint64_t place, const uint64_t* words, unsigned bytes) const {
#pragma unroll
    for (int w = 0; w < Words; ++w)
      if (w == 0 || w * Apart < bytes) store_packet(place + w * packet_step, {words[w], epoch_});
  }
  __device__ void read_own(unsigned at, uint64_t* words) const {
    if (at != first_place()) return read(args_.own, at, words);
#pragma unroll
    for (int w = 0; w < Words; ++w) words[w] = first_[w];
  }
  [[nodiscard]] __device__ static unsigned first_place() {
    const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    if constexpr (Apart == adjacent) return thread * place_bytes;
    return thread / warp_lanes * warp_lanes * place_bytes + thread % warp_lanes * packet_bytes;
  }
  /// Looks at the packets that have not come. `place`: of the first rank of the batch. Returns a bit for each
  /// rank that is still missing.
  [[nodiscard]] __device__ unsigned look(uint64_t place, Packet (&held)[batch][Words]) const {
#pragma unroll
    for (unsigned i = 0; i < batch; ++i)
#pragma unroll
      for (int w = 0; w < Words; ++w)
        if (held[i][w].epoch != epoch_)
          held[i][w] = load_packet(place + (i * args_.shape.bytes_of_packets() + w * packet_step));
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

/// Sends this rank's parts, then does `work(packets, turn)`. False: it has given up.
template <class Places, class Work>
__device__ __forceinline__ void run_packed(const Launch& args, const Work& work) {
  Places packets(args);
  Turn turn(args);
  bool is_good = turn.begin();
  packets.begin(turn);
  is_good = is_good && packets.each_place(args.longest_sent, [&](unsigned at) {
    packets.send(at);
    return true;
  });
  turn.end(is_good && work(packets, turn));
}

/// Every rank's parts go to their ranks, which keep them.
__device__ __forceinline__ void exchange_packed(const Launch& args) {
  run_packed<Packets<1>>(args, [&](const Packets<1>& packets, Turn& turn) {
    return packets.each_place(args.longest_received, [&](unsigned at) {
      return packets.receive(
          turn, at, [&](unsigned rank) { return args.receives[rank].bytes; },
          [&](unsigned rank, const uint64_t* words) { write_word(args.receives[rank], at, words[0]); });
    });
  });
}

/// Reduces what the ranks have sent of this rank's result. `then(at, words)` gets each place of it.
template <class Sum, int Words, unsigned Apart, class Then>
[[nodiscard]] __device__ __forceinline__ bool reduce_places(const Launch& args,
                                                            const Packets<Words, Apart>& packets, Turn& turn,
                                                            const Then& then) {
  return packets.each_place(args.result.bytes, [&](unsigned at) {
    Sum sum(args);
    const bool came = packets.receive(
        turn, at, [&](unsigned) { return args.result.bytes; },
        [&](unsigned rank, const uint64_t* words) { sum.put(rank, words); });
    if (!came) return false;
    uint64_t words[Words];
    sum.result(words);
    packets.write(args.result, at, words);
    then(at, words);
    return true;
  });
}

/// Every rank's parts go to their ranks, which reduce them.
template <class Sum, unsigned Apart = adjacent>
__device__ __forceinline__ void reduce_packed(const Launch& args) {
  using Places = Packets<Sum::words, Apart>;
  run_packed<Places>(args, [&](const Places& packets, Turn& turn) {
    return reduce_places<Sum>(args, packets, turn, [](unsigned, const uint64_t*) {});
  });
}

/// An all_reduce in two steps: each rank reduces a share, and sends the result to all. A thread sends all its
/// places of its share's result before it waits for the first one of another rank.
template <class Sum, unsigned Apart>
__device__ __forceinline__ void all_reduce_packed(const Launch& args) {
  using Places = Packets<Sum::words, Apart>;
  run_packed<Places>(args, [&](const Places& packets, Turn& turn) {
    const bool is_sent = reduce_places<Sum>(
        args, packets, turn, [&](unsigned at, const uint64_t* words) { packets.send_result(at, words); });
    return is_sent && packets.each_place(args.longest_received, [&](unsigned at) {
      return packets.receive_results(
          turn, at, [&](unsigned rank) { return rank == args.rank ? 0 : args.receives[rank].bytes; },
          [&](unsigned rank, const uint64_t* words) { packets.write(args.receives[rank], at, words); });
    });
  });
}

}  // namespace headrace::kernels::collectives
