// SPDX-License-Identifier: Apache-2.0
// A kernel that stays on the GPU and looks at a ring of small jobs in host memory: what a launch costs is
// paid once for many of them.
//
// One warp, the look-out, reads the first words of the next job: a read over PCIe of 32 bytes brings a job of
// one run. If that is one page, the look-out moves it; else the movers do, which wait at a barrier and cost
// nothing. Several reads in flight at once, by one warp or by four in turns, took one to three microseconds
// longer (bench/notes/gpu.md).
#pragma once

#include "kernels/common/done.cuh"
#include "kernels/common/warp_copy.cuh"

#include <headrace/plugin/kernels/courier_v1.h>

#include <stddef.h>

namespace headrace::kernels::courier {

constexpr unsigned mover_threads = 512;
constexpr unsigned mover_warps = mover_threads / warp_lanes;
constexpr unsigned courier_threads = mover_threads + warp_lanes;  // movers first
constexpr unsigned lone_most_bytes = page_unroll * row_bytes;     // of a job that its finder carries alone
static_assert(HEADRACE_COURIER_WORDS == warp_lanes, "a word a lane");
static_assert(HEADRACE_COURIER_HEAD_WORDS == 4 && HEADRACE_COURIER_WORDS % 4 == 0, "a sector of memory");

/// A job has ended, whose bytes come before.
__device__ __forceinline__ void tell_finished(const headrace_courier_launch_v1& args, unsigned job) {
  release(args.told + offsetof(headrace_courier_told_v1, finished), args.first + job);
}

/// When a launch leaves. The GPU's clock is slow to read, so only every so many looks.
class Stay {
 public:
  static constexpr unsigned looks_between = 16;

  __device__ explicit Stay(const headrace_courier_launch_v1& args)
      : args_(args), began_(clock_ns()), since_(began_), waits_for_(args.first) {}
  /// Before a look for job `number`. For its first job a launch looks once at least, so that none is in vain.
  __device__ bool is_over(unsigned long long number) {
    if (looks_++ % looks_between != looks_between - 1) return false;
    const unsigned long long now = clock_ns();
    if (number != waits_for_) waits_for_ = number, since_ = now;
    return now - began_ >= args_.stay_ns || now - since_ > args_.idle_ns;
  }

 private:
  const headrace_courier_launch_v1& args_;
  const unsigned long long began_;
  unsigned long long since_;      // the clock's last look before which a job had come
  unsigned long long waits_for_;  // the job after that
  unsigned looks_ = 0;
};

template <int Unroll, unsigned PieceBytes>
__device__ __forceinline__ void deal_job(const unsigned long long* words) {
  unsigned turn = 0;
  for (unsigned i = 0; i < words[0]; ++i)
    deal_run<Unroll, PieceBytes, mover_warps>(words[1 + 3 * i], words[2 + 3 * i], words[3 + 3 * i], turn);
}

/// Jobs of one round of rows go by the row, so that all loads of a page leave at once; larger ones by the
/// tile.
__device__ __forceinline__ void move_job(const unsigned long long* words) {
  unsigned long long bytes = 0;
  for (unsigned i = 0; i < words[0]; ++i) bytes += words[3 + 3 * i];
  if (bytes <= mover_warps * row_bytes)
    deal_job<1, row_bytes>(words);
  else
    deal_job<page_unroll, page_unroll * row_bytes>(words);
}

/// What look-out and movers tell one another, in shared memory. Jobs are counted from the launch's first one.
class Board {
 public:
  __device__ void clear() { ended_ = 0; }
  /// By one thread: until all jobs before this one have been told. Pairs with `told`.
  __device__ void wait_for_turn(unsigned job) const {
    unsigned ended;
    do asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(ended) : "r"(shared(&ended_)) : "memory");
    while (ended != job);
  }
  __device__ void told(unsigned job) {
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(shared(&ended_)), "r"(job + 1) : "memory");
  }

  // For the movers: the look-out hands over, once it is the job's turn; of 0 runs: they leave.

  __device__ void hand_over(unsigned job, unsigned long long word) {
    words_[threadIdx.x % warp_lanes] = word;
    job_ = job;
    __syncwarp();  // the warp arrives as one
    asm volatile("barrier.cta.arrive 1, %0;" ::"n"(mover_threads + warp_lanes) : "memory");
  }
  __device__ const unsigned long long* take_over(unsigned& job) const {
    asm volatile("barrier.cta.sync 1, %0;" ::"n"(mover_threads + warp_lanes) : "memory");
    job = job_;
    return words_;
  }
  /// All movers' bytes are before what comes behind it.
  __device__ static void gather_movers() {
    asm volatile("barrier.cta.sync 2, %0;" ::"n"(mover_threads) : "memory");
  }

 private:
  __device__ static unsigned shared(const void* at) {
    return static_cast<unsigned>(__cvta_generic_to_shared(at));
  }
  unsigned ended_, job_;
  unsigned long long words_[HEADRACE_COURIER_WORDS];
};

/// The warp that looks.
class Lookout {
 public:
  __device__ Lookout(const headrace_courier_launch_v1& args, Board& board)
      : args_(args), board_(board), stay_(args) {}

  /// Until the launch is to leave. A look orders nothing: a warp that sees a job reads the job's memory by
  /// loads that no cache of this multiprocessor answers (Hint::strong), from addresses in these words, or
  /// reads the words again, with acquire.
  __device__ void run() {
    while (answer(look_at(word_at(lane_ % HEADRACE_COURIER_HEAD_WORDS)))) {
    }
    board_.wait_for_turn(job_);
    board_.hand_over(job_, 0);
  }

 private:
  __device__ static unsigned long long value_of(unsigned long long word) {
    return word & ((1ull << HEADRACE_COURIER_NUMBER_SHIFT) - 1);
  }
  /// 16 bits of the number: only the job before in this slot can still be there, and its number is near.
  [[nodiscard]] __device__ bool is_of_job(unsigned long long word) const {
    return word >> HEADRACE_COURIER_NUMBER_SHIFT == ((args_.first + job_) & 0xffff);
  }
  /// A word of the job.
  [[nodiscard]] __device__ uint64_t word_at(unsigned i) const {
    const uint64_t slot = (args_.first + job_) % HEADRACE_COURIER_SLOTS;
    return args_.jobs + (slot * HEADRACE_COURIER_WORDS + i) * sizeof(uint64_t);
  }

  /// What a look brought. False: the launch is to leave.
  [[nodiscard]] __device__ bool answer(unsigned long long head) {
    if (__any_sync(all_lanes, stay_.is_over(args_.first + job_))) return false;
    if (!__all_sync(all_lanes, is_of_job(head))) return true;
    const unsigned long long runs = __shfl_sync(all_lanes, value_of(head), 0),
                             source = __shfl_sync(all_lanes, value_of(head), 1),
                             target = __shfl_sync(all_lanes, value_of(head), 2),
                             bytes = __shfl_sync(all_lanes, value_of(head), 3);
    if (runs == 0) return false;
    const bool is_aligned = ((source | target | bytes) & (vector_bytes - 1)) == 0;
    if (runs == 1 && bytes <= lone_most_bytes && is_aligned)
      carry(source, target, bytes);
    else
      pass_on(static_cast<unsigned>(runs));
    ++job_;
    return true;
  }

  __device__ void carry(unsigned long long source, unsigned long long target, unsigned long long bytes) {
    move_vectors<page_unroll, Hint::strong>(reinterpret_cast<const uint4*>(source),
                                            reinterpret_cast<uint4*>(target), bytes / vector_bytes, lane_);
    __syncwarp();  // all lanes' bytes come before what lane 0 tells
    if (lane_ == 0) {
      board_.wait_for_turn(job_);
      tell_finished(args_, job_);
      board_.told(job_);
    }
    __syncwarp();
  }

  /// Hands over what comes after the look that found the job: words of a job of as many runs, 65536 jobs
  /// ago, would bear the same number.
  __device__ void pass_on(unsigned runs) {
    unsigned long long word;
    __threadfence_system();  // with the look, what an acquire is
    __syncwarp();
    // Pairs with the release of word 0 by the job's writer: the bytes that were written before it are seen,
    // and nothing that was cached for an earlier job.
    do word = acquire(word_at(lane_));
    while (!__all_sync(all_lanes, lane_ > 3 * runs || is_of_job(word)));
    board_.wait_for_turn(job_);
    board_.hand_over(job_, value_of(word));
  }

  const headrace_courier_launch_v1& args_;
  Board& board_;
  Stay stay_;
  unsigned job_ = 0;  // the next
  const unsigned lane_ = threadIdx.x % warp_lanes;
};

/// What the movers do until they are to go.
__device__ __forceinline__ void move_jobs(const headrace_courier_launch_v1& args, Board& board) {
  for (unsigned job;;) {
    const unsigned long long* const words = board.take_over(job);
    if (words[0] == 0) return;
    move_job(words);
    Board::gather_movers();
    if (threadIdx.x == 0) {
      tell_finished(args, job);
      board.told(job);
    }
    __syncwarp();
  }
}

}  // namespace headrace::kernels::courier
