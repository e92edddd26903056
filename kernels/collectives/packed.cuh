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

/// A place of `Words` words, each a packet: 8 bytes and all 64 bits of the operation's number.
template <bool Simple, int Words, unsigned Apart = adjacent>
struct Plain {
  static constexpr int words = Words, packets = Words;
  static constexpr unsigned place_bytes = Words * packet_bytes;
  static constexpr unsigned packet_step = Apart * (sizeof(Packet) / packet_bytes);
  static constexpr bool is_cleared = false;

  /// Where the place of a thread of the launch begins in a part, and that place's first packet.
  __device__ static unsigned place(unsigned thread) {
    if constexpr (Apart == adjacent) return thread * place_bytes;
    return thread / warp_lanes * warp_lanes * place_bytes + thread % warp_lanes * packet_bytes;
  }
  __device__ static unsigned packet_of(unsigned at) { return at * (sizeof(Packet) / packet_bytes); }
  /// Whether a place with `bytes` bytes from its beginning to the part's end has this packet.
  __device__ static bool has(int packet, unsigned bytes) { return packet == 0 || packet * Apart < bytes; }

  __device__ static void read(const Part& part, unsigned at, uint64_t* words) {
#pragma unroll
    for (int w = 0; w < Words; ++w) words[w] = read_word<Simple>(part, at + w * Apart);
  }
  __device__ static void write(const Part& part, unsigned at, const uint64_t* words) {
#pragma unroll
    for (int w = 0; w < Words; ++w) write_word<Simple>(part, at + w * Apart, words[w]);
  }
  __device__ static void pack(const uint64_t* words, uint64_t epoch, Packet* packets) {
#pragma unroll
    for (int w = 0; w < Words; ++w) packets[w] = {words[w], epoch};
  }
  __device__ static void unpack(const Packet* packets, uint64_t* words) {
#pragma unroll
    for (int w = 0; w < Words; ++w) words[w] = packets[w].data;
  }
  __device__ static bool has_come(const Packet& packet, uint64_t epoch) { return packet.epoch == epoch; }
};

/// A place of 48 bytes in four packets: 12 bytes and 31 bits of the operation's number, below a bit that no
/// whole number has. Other operations have the same 31 bits, so what has been read is cleared: then a place
/// has what is on its way, or nothing that counts. It is written again in the operation after the next one,
/// which its writer begins when this one has ended here.
template <bool Simple>
struct Dense {
  static constexpr int words = dense_bytes / packet_bytes, packets = 4;
  static constexpr unsigned place_bytes = dense_bytes;
  static constexpr unsigned packet_step = warp_lanes * sizeof(Packet);
  static constexpr bool is_cleared = true;

  __device__ static unsigned place(unsigned thread) {
    return thread / warp_lanes * warp_lanes * place_bytes + thread % warp_lanes * unit_bytes;
  }
  __device__ static unsigned packet_of(unsigned at) {
    constexpr unsigned of_warp = warp_lanes * place_bytes;
    return at + at / of_warp * (packets * packet_step - of_warp);
  }
  __device__ static bool has(int, unsigned) { return true; }

  __device__ static void read(const Part& part, unsigned at, uint64_t* words) {
#pragma unroll
    for (int u = 0; u < units; ++u) {
      const Unit unit = read_unit<Simple>(part, at + u * unit_step);
      words[2 * u] = unit.words[0], words[2 * u + 1] = unit.words[1];
    }
  }
  __device__ static void write(const Part& part, unsigned at, const uint64_t* words) {
#pragma unroll
    for (int u = 0; u < units; ++u)
      write_unit<Simple>(part, at + u * unit_step, {{words[2 * u], words[2 * u + 1]}});
  }
  /// A packet has a word and half of another one.
  __device__ static void pack(const uint64_t* words, uint64_t epoch, Packet* packets) {
#pragma unroll
    for (int p = 0; p < 4; ++p)
      packets[p] = {words[p], (words[4 + p / 2] >> (p % 2 * 32) & 0xffffffff) | mark(epoch) << 32};
  }
  __device__ static void unpack(const Packet* packets, uint64_t* words) {
#pragma unroll
    for (int p = 0; p < 4; ++p) words[p] = packets[p].data;
#pragma unroll
    for (int w = 0; w < 2; ++w)
      words[4 + w] = (packets[2 * w].epoch & 0xffffffff) | packets[2 * w + 1].epoch << 32;
  }
  __device__ static bool has_come(const Packet& packet, uint64_t epoch) {
    return packet.epoch >> 32 == mark(epoch);
  }

 private:
  static constexpr int units = dense_bytes / unit_bytes;
  static constexpr unsigned unit_step = warp_lanes * unit_bytes;

  __device__ static uint64_t mark(uint64_t epoch) { return (epoch & 0x7fffffff) | 0x80000000; }
};

/// A place is what a thread works on. `at`: where its first byte lies in a part.
template <class Format>
class Packets {
 public:
  static constexpr int words = Format::words;

  /// Reads the words of this thread's first place, which travel while the thread learns the operation's
  /// number.
  __device__ explicit Packets(const Launch& args) : args_(args) {
    Format::read(args_.own, first_place(), first_);
  }

  __device__ void begin(const Turn& turn) {
    epoch_ = turn.epoch();
    half_ = args_.packets_at +
            static_cast<unsigned>(epoch_ & 1) * args_.shape.ranks * args_.shape.bytes_of_packets();
  }

  /// Calls `run(at)` for this thread's places of the first `bytes` bytes of a part. False: one has failed.
  template <class Run>
  [[nodiscard]] __device__ static bool each_place(uint64_t bytes, const Run& run) {
    for (unsigned at = first_place(); at < static_cast<unsigned>(bytes);
         at += gridDim.x * blockDim.x * Format::place_bytes)
      if (!run(at)) return false;
    return true;
  }

  __device__ void send(unsigned at) const {
    const unsigned place = own_place(at);
    if (args_.one_source != 0) {
      uint64_t words[Format::words];
      read_own(at, words);
      return store_at_all(place, words, left(args_.own.bytes, at));
    }
#pragma unroll 1
    for (unsigned first = 0; first < args_.shape.ranks; first += batch) {
      uint64_t held[batch][Format::words];
#pragma unroll
      for (unsigned i = 0; i < batch; ++i)
        if (has_place(first + i, at)) Format::read(args_.sends[first + i], at, held[i]);
#pragma unroll
      for (unsigned i = 0; i < batch; ++i) {
        if (!has_place(first + i, at)) continue;
        Packet packets[Format::packets];
        Format::pack(held[i], epoch_, packets);
        store(args_.boxes[first + i] + place, packets, left(args_.sends[first + i].bytes, at));
      }
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
    uint64_t own[Format::words];
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
    Format::write(part, at, words);
  }

 private:
  static constexpr unsigned batch = 4;  // ranks whose words are read, and looked at, together

  /// Whether a part goes to this rank that has this place.
  [[nodiscard]] __device__ bool has_place(unsigned to, unsigned at) const {
    return to < args_.shape.ranks && to != args_.rank && at < args_.sends[to].bytes;
  }

  /// `offset`: of the packets of rank 0. `own`: the words of this rank.
  template <class BytesOf, class Take>
  [[nodiscard]] __device__ bool receive_at(Turn& turn, unsigned offset, unsigned at, const uint64_t* own,
                                           const BytesOf& bytes_of, const Take& take) const {
    const uint64_t place = turn.own_box() + offset;
    for (unsigned first = 0; first < args_.shape.ranks; first += batch) {
      const uint64_t of_first = place + first * args_.shape.bytes_of_packets();
      Packet held[batch][Format::packets];
      unsigned bytes[batch];  // of what is to come of each rank
#pragma unroll
      for (unsigned i = 0; i < batch; ++i) {
        const unsigned rank = first + i;
        const bool comes = rank < args_.shape.ranks && rank != args_.rank && at < bytes_of(rank);
        bytes[i] = comes ? left(bytes_of(rank), at) : 0;
        Format::pack(own, epoch_, held[i]);
      }
      unsigned missing = all_of(bytes);
      while ((missing = look(of_first, missing, bytes, held)) != 0)
        if (turn.gives_up(first + __ffs(static_cast<int>(missing)) - 1)) return false;
#pragma unroll
      for (unsigned i = 0; i < batch; ++i) {
        if (first + i >= args_.shape.ranks || at >= bytes_of(first + i)) continue;
        if constexpr (Format::is_cleared)
          if (bytes[i] != 0) clear(of_first + i * args_.shape.bytes_of_packets());
        uint64_t words[Format::words];
        Format::unpack(held[i], words);
        take(first + i, words);
      }
    }
    return true;
  }

  /// The offset of the packets of rank 0 for this place, and of this rank's.
  [[nodiscard]] __device__ unsigned place_of(unsigned at) const { return half_ + Format::packet_of(at); }
  [[nodiscard]] __device__ unsigned own_place(unsigned at) const {
    return place_of(at) + args_.rank * args_.shape.bytes_of_packets();
  }
  /// What is left of a part from a place in it on; no place has as much as 32 bits can count.
  [[nodiscard]] __device__ static unsigned left(uint64_t bytes, unsigned at) {
    return static_cast<unsigned>(bytes) - at;
  }
  __device__ void store_at_all(unsigned offset, const uint64_t* words, unsigned bytes) const {
    Packet packets[Format::packets];
    Format::pack(words, epoch_, packets);
#pragma unroll 4
    for (unsigned to = 0; to < args_.shape.ranks; ++to)
      if (to != args_.rank) store(args_.boxes[to] + offset, packets, bytes);
  }

  __device__ static void store(uint64_t place, const Packet* packets, unsigned bytes) {
#pragma unroll
    for (int p = 0; p < Format::packets; ++p)
      if (Format::has(p, bytes)) store_packet(place + p * Format::packet_step, packets[p]);
  }
  __device__ void read_own(unsigned at, uint64_t* words) const {
    if (at != first_place()) return Format::read(args_.own, at, words);
#pragma unroll
    for (int w = 0; w < Format::words; ++w) words[w] = first_[w];
  }
  [[nodiscard]] __device__ static unsigned first_place() {
    return Format::place(blockIdx.x * blockDim.x + threadIdx.x);
  }
  /// A bit for each rank of which something is to come.
  [[nodiscard]] __device__ static unsigned all_of(const unsigned (&bytes)[batch]) {
    unsigned all = 0;
#pragma unroll
    for (unsigned i = 0; i < batch; ++i) all |= bytes[i] != 0 ? 1u << i : 0;
    return all;
  }
  /// Looks at the packets of the ranks that are missing. `of_first`: those of the batch's first one. Returns
  /// the ranks that still are.
  [[nodiscard]] __device__ unsigned look(uint64_t of_first, unsigned missing, const unsigned (&bytes)[batch],
                                         Packet (&held)[batch][Format::packets]) const {
#pragma unroll
    for (unsigned i = 0; i < batch; ++i) {
      if ((missing & 1u << i) == 0) continue;
      const uint64_t place = of_first + i * args_.shape.bytes_of_packets();
#pragma unroll
      for (int p = 0; p < Format::packets; ++p)
        if (Format::has(p, bytes[i])) held[i][p] = load_packet(place + p * Format::packet_step);
    }
    unsigned still = 0;
#pragma unroll
    for (unsigned i = 0; i < batch; ++i) {
      bool has_come = true;
#pragma unroll
      for (int p = 0; p < Format::packets; ++p) has_come = has_come && Format::has_come(held[i][p], epoch_);
      still |= has_come ? 0 : 1u << i;
    }
    return still;
  }
  __device__ static void clear(uint64_t place) {
#pragma unroll
    for (int p = 0; p < Format::packets; ++p) store_packet(place + p * Format::packet_step, {0, 0});
  }

  const Launch& args_;
  uint64_t first_[Format::words];
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
template <bool Simple>
__device__ __forceinline__ void exchange_packed(const Launch& args) {
  using Places = Packets<Plain<Simple, 1>>;
  run_packed<Places>(args, [&](const Places& packets, Turn& turn) {
    return packets.each_place(args.longest_received, [&](unsigned at) {
      return packets.receive(
          turn, at, [&](unsigned rank) { return args.receives[rank].bytes; },
          [&](unsigned rank, const uint64_t* words) {
            write_word<Simple>(args.receives[rank], at, words[0]);
          });
    });
  });
}

/// Reduces what the ranks have sent of this rank's result. `then(at, words)` gets each place of it.
template <class Sum, class Places, class Then>
[[nodiscard]] __device__ __forceinline__ bool reduce_places(const Launch& args, const Places& packets,
                                                            Turn& turn, const Then& then) {
  static_assert(Sum::words == Places::words);
  return packets.each_place(args.result.bytes, [&](unsigned at) {
    Sum sum(args);
    const bool came = packets.receive(
        turn, at, [&](unsigned) { return args.result.bytes; },
        [&](unsigned rank, const uint64_t* words) { sum.put(rank, words); });
    if (!came) return false;
    uint64_t words[Sum::words];
    sum.result(words);
    packets.write(args.result, at, words);
    then(at, words);
    return true;
  });
}

/// Every rank's parts go to their ranks, which reduce them.
template <class Sum, class Format>
__device__ __forceinline__ void reduce_packed(const Launch& args) {
  using Places = Packets<Format>;
  run_packed<Places>(args, [&](const Places& packets, Turn& turn) {
    return reduce_places<Sum>(args, packets, turn, [](unsigned, const uint64_t*) {});
  });
}

/// An all_reduce in two steps: each rank reduces a share, and sends the result to all. A thread sends all its
/// places of its share's result before it waits for the first one of another rank.
template <class Sum, class Format>
__device__ __forceinline__ void all_reduce_packed(const Launch& args) {
  using Places = Packets<Format>;
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
