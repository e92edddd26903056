// SPDX-License-Identifier: Apache-2.0
// One launch as one operation: its number, its waits, and its end.
//
// Words in boxes are written with release and read with acquire at system scope: a rank that sees a word sees
// what was done before it, on another GPU too. A packet orders nothing and needs no order: its data and its
// number are one access of 16 bytes.
#pragma once

#include "kernels/collectives/box.cuh"
#include "kernels/common/words.cuh"

namespace headrace::kernels::collectives {

__device__ __forceinline__ Packet load_packet(uint64_t address) {
  Packet packet;
  asm volatile(
      "{\n.reg .b128 whole;\n"
      "ld.relaxed.sys.global.b128 whole, [%2];\n"
      "mov.b128 {%0, %1}, whole;\n}"
      : "=l"(packet.data), "=l"(packet.epoch)
      : "l"(address)
      : "memory");
  return packet;
}
/// What its writer did before it wrote the packet with release can then be seen.
__device__ __forceinline__ Packet acquire_packet(uint64_t address) {
  Packet packet;
  asm volatile(
      "{\n.reg .b128 whole;\n"
      "ld.acquire.sys.global.b128 whole, [%2];\n"
      "mov.b128 {%0, %1}, whole;\n}"
      : "=l"(packet.data), "=l"(packet.epoch)
      : "l"(address)
      : "memory");
  return packet;
}
__device__ __forceinline__ void store_packet(uint64_t address, Packet packet) {
  asm volatile(
      "{\n.reg .b128 whole;\n"
      "mov.b128 whole, {%1, %2};\n"
      "st.relaxed.sys.global.b128 [%0], whole;\n}" ::"l"(address),
      "l"(packet.data), "l"(packet.epoch)
      : "memory");
}

/// The ranks after this one, so that not all turn to the same one first.
__device__ __forceinline__ unsigned rank_after(const Launch& args, unsigned i) {
  const unsigned rank = args.rank + i;
  return rank < args.shape.ranks ? rank : rank - args.shape.ranks;
}

/// The place in a box of the last operation that a rank has begun.
__device__ __forceinline__ unsigned begun_place(unsigned rank) {
  return Header::begun_at + rank * static_cast<unsigned>(sizeof(uint64_t));
}

/// Reports why a launch ends early, if no other thread of its rank has.
static __device__ __noinline__ void report(const Launch& args, uint64_t epoch, uint64_t reason, unsigned peer,
                                           uint64_t seen) {
  auto* const failed = reinterpret_cast<unsigned long long*>(args.failed_box + Header::failed_at);
  if (atomicCAS(failed, 0ull, 1ull) != 0) return;
  auto* const status = reinterpret_cast<volatile headrace_collectives_status_v1*>(args.status);
  status->rank = args.number_of(args.rank);
  status->peer = args.number_of(peer);
  status->epoch = epoch;
  status->seen = seen;
  release(args.status, args.named(reason));
}

/// The rare look of a thread that waits since `since_ns` (0: this is its first). Returns since when it waits;
/// 0: it shall wait no longer.
static __device__ __noinline__ uint64_t still_waits(const Launch& args, uint64_t epoch, uint64_t since_ns,
                                                    unsigned peer) {
  const uint64_t now = clock_ns();
  if (since_ns == 0) since_ns = now;
  uint64_t reason = 0;
  if (args.timeout_ns != 0 && now - since_ns >= args.timeout_ns) reason = HEADRACE_COLLECTIVES_TIMED_OUT;
  if (args.abort != 0 && look_at(args.abort) != 0) reason = HEADRACE_COLLECTIVES_ABORTED;
  if (reason != 0) report(args, epoch, reason, peer, look_at(args.boxes[args.rank] + begun_place(peer)));
  // Another thread of this rank may have given up.
  const bool is_over = reason != 0 || look_at(args.failed_box + Header::failed_at) != 0;
  return is_over ? 0 : since_ns;
}

class Turn {
 public:
  __device__ explicit Turn(const Launch& args) : args_(args) {
    uint64_t arrived;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(arrived), "=l"(failed_)
                 : "l"(box(args.rank))
                 : "memory");
    epoch_ = arrived / arrivals + 1;
  }

  [[nodiscard]] __device__ uint64_t epoch() const { return epoch_; }
  [[nodiscard]] __device__ uint64_t box(unsigned rank) const { return args_.boxes[rank]; }
  [[nodiscard]] __device__ uint64_t own_box() const { return box(args_.rank); }

  /// By all threads. Tells all ranks that this one has begun, so has ended what was before; `tell(rank)`
  /// tells them more. False: a launch before this one has ended early.
  template <class Tell>
  [[nodiscard]] __device__ bool begin(const Tell& tell) {
    if (failed_ != 0) return false;
    if (meets_rank()) tell(lane()), tell_begun(lane());
    if (is_own_lane()) before_ = take_own_begun();
    return true;
  }
  [[nodiscard]] __device__ bool begin() {
    return begin([](unsigned) {});
  }

  /// Whether no launch before this one has ended early.
  [[nodiscard]] __device__ bool may_go_on() const { return failed_ == 0; }
  /// By all threads: waits until all ranks have begun. False: the launch ends early.
  [[nodiscard]] __device__ bool meet() {
    bool is_good = true;
    if (meets_rank())
      while (is_good && acquire(begun(args_.rank, lane())) < epoch_) is_good = !gives_up(lane());
    return is_good;
  }

  /// Between two looks at a word that rank `peer` is to write. True: the launch ends early.
  [[nodiscard]] __device__ bool gives_up(unsigned peer) {
    if (++looks_ % looks_between != 0) return false;
    if (overlaps()) report_overlap();
    waits_since_ns_ = still_waits(args_, epoch_, waits_since_ns_, peer);
    return waits_since_ns_ == 0;
  }

  /// By all threads of every block, last: the block's part of the operation has ended. No rank ends an
  /// operation before all have begun it, so have taken the packets of the one before: the next operation uses
  /// that half. A thread that has given up is not `good`.
  __device__ void end(bool is_good) {
    if (overlaps()) report_overlap();
    if (is_good) static_cast<void>(meet());
    __syncthreads();  // all threads have read the number of ended operations
    if (threadIdx.x != 0) return;
    const uint64_t others = gridDim.x - 1;
    const uint64_t share = blockIdx.x == 0 ? arrivals - others : 1;
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(own_box()), "l"(share) : "memory");
  }
  /// By all threads, behind `end`, where the launch goes on with another operation: waits until all of its
  /// blocks have ended this one. All do, also early.
  __device__ void wait_for_blocks() const {
    if (threadIdx.x == 0) {
      uint64_t arrived = 0;
      while (arrived / arrivals < epoch_)
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(arrived) : "l"(own_box()) : "memory");
      __threadfence();  // what the other blocks have read comes before what this one tells next
    }
    __syncthreads();
  }

 private:
  // A look costs a read over PCIe.
  static constexpr unsigned looks_between = 256;

  [[nodiscard]] __device__ static unsigned lane() { return threadIdx.x % 32; }
  /// Whether this thread is the one that meets the rank of its lane: those of one warp do, the last one of
  /// block 0, which has the least to do.
  [[nodiscard]] __device__ bool meets_rank() const {
    return is_meeting_warp() && lane() < args_.shape.ranks && lane() != args_.rank;
  }
  [[nodiscard]] __device__ bool is_own_lane() const { return is_meeting_warp() && lane() == args_.rank; }
  [[nodiscard]] __device__ static bool is_meeting_warp() {
    return blockIdx.x == 0 && threadIdx.x / 32 == blockDim.x / 32 - 1;
  }
  /// The last operation that this rank has begun. The answer is used late, so nothing waits for it here.
  [[nodiscard]] __device__ uint64_t take_own_begun() const {
    uint64_t before;
    asm volatile("atom.relaxed.gpu.global.exch.b64 %0, [%1], %2;"
                 : "=l"(before)
                 : "l"(begun(args_.rank, args_.rank)), "l"(epoch_)
                 : "memory");
    return before;
  }
  /// Whether another launch of this rank runs: two have the same number, and one would take what is for the
  /// other.
  [[nodiscard]] __device__ bool overlaps() const { return before_ >= epoch_; }
  __device__ void report_overlap() const {
    report(args_, epoch_, HEADRACE_COLLECTIVES_OVERLAPS, args_.rank, before_);
  }
  [[nodiscard]] __device__ uint64_t begun(unsigned in_box_of, unsigned rank) const {
    return box(in_box_of) + begun_place(rank);
  }
  /// The launches before this one have ended, and with them their reads: no order is needed for a rank to
  /// write there. A barrier also shows it what was written before.
  __device__ void tell_begun(unsigned rank) const {
    const uint64_t word = begun(rank, args_.rank);
    if (args_.is_barrier != 0)
      release(word, epoch_);
    else
      store_relaxed(word, epoch_);
  }

  const Launch& args_;
  uint64_t epoch_;
  uint64_t failed_;
  uint64_t before_ = 0;  // of one thread: what this rank had begun before
  uint64_t waits_since_ns_ = 0;
  unsigned looks_ = 0;
};

}  // namespace headrace::kernels::collectives
