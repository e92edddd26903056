// SPDX-License-Identifier: Apache-2.0
// Shapes of the page kernel that the probe compares: threads a block, vectors a lane, what caches are told,
// and the bulk copy engine of sm_90 instead of loads and stores.
#include "kernels/common/done.cuh"
#include "kernels/common/pages.cuh"

#include <headrace/plugin/kernels/gather_scatter_v1.h>

using namespace headrace::kernels;

#define PROBE_SHAPE(threads, unroll, hint)                                                       \
  extern "C" __global__ void __launch_bounds__(threads)                                          \
      probe_##threads##_##unroll##_##hint(const __grid_constant__ headrace_move_pages_v1 args) { \
    move_aligned_pages<unroll, Hint::hint, ToldPages>(args);                                     \
    tell_done(args.done);                                                                        \
  }

PROBE_SHAPE(256, 8, no_allocate)
PROBE_SHAPE(256, 16, no_allocate)
PROBE_SHAPE(512, 4, no_allocate)
PROBE_SHAPE(512, 8, no_allocate)
PROBE_SHAPE(512, 16, no_allocate)
PROBE_SHAPE(1024, 4, no_allocate)
PROBE_SHAPE(1024, 8, no_allocate)
PROBE_SHAPE(512, 8, plain)
PROBE_SHAPE(512, 8, streaming)

// What a launch takes until the host sees its word, by what the kernel does before: a fence, a release,
// nothing; and one small run moved by so many threads.
#define PROBE_TELL(threads, how, ...)                                                   \
  extern "C" __global__ void __launch_bounds__(threads)                                 \
      probe_tell_##threads##_##how(const __grid_constant__ headrace_move_few_v1 args) { \
    if (args.count != 0 && threadIdx.x < args.lengths[0] / vector_bytes) {              \
      const auto* const from = reinterpret_cast<const uint4*>(args.sources[0]);         \
      auto* const to = reinterpret_cast<uint4*>(args.targets[0]);                       \
      uint4 held[256 / threads];                                                        \
      each<256 / threads>([&]<int i>() { held[i] = from[threadIdx.x + i * threads]; }); \
      each<256 / threads>([&]<int i>() { to[threadIdx.x + i * threads] = held[i]; });   \
    }                                                                                   \
    if (threads > 32) __syncthreads();                                                  \
    if (threadIdx.x == 0) {                                                             \
      __VA_ARGS__;                                                                      \
    }                                                                                   \
  }
#define PROBE_PLAIN \
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(args.done.word), "l"(args.done.value) : "memory")
#define PROBE_RELEASE \
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(args.done.word), "l"(args.done.value) : "memory")
PROBE_TELL(32, plain, PROBE_PLAIN)
PROBE_TELL(32, release, PROBE_RELEASE)
PROBE_TELL(128, release, PROBE_RELEASE)
PROBE_TELL(256, plain, PROBE_PLAIN)
PROBE_TELL(256, release, PROBE_RELEASE)
PROBE_TELL(256, fence, __threadfence_system(); PROBE_PLAIN)

// The least that a kernel which stays can take for a page: one thread looks at a word of host memory, the
// block moves, one thread tells. Jobs 1 to done.value; their number is looked for at done.state, a word of
// host memory. Without a job for a second it leaves.
extern "C" __global__ void __launch_bounds__(256)
    probe_resident(const __grid_constant__ headrace_move_few_v1 args) {
  constexpr unsigned long long longest_ns = 1'000'000'000;
  __shared__ bool goes_on;
  for (unsigned long long job = 1; job <= args.done.value; ++job) {
    if (threadIdx.x == 0) {
      unsigned long long now, until, seen = 0;
      asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
      until = now + longest_ns;
      for (unsigned looks = 1; seen < job && now < until; ++looks) {
        asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(args.done.state) : "memory");
        if (looks % 16 == 0) asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
      }
      goes_on = seen >= job;
    }
    __syncthreads();
    if (!goes_on) return;
    if (threadIdx.x < args.lengths[0] / vector_bytes)
      store<0, page_hint>(reinterpret_cast<uint4*>(args.targets[0]) + threadIdx.x,
                          load<0, page_hint>(reinterpret_cast<const uint4*>(args.sources[0]) + threadIdx.x));
    __syncthreads();
    if (threadIdx.x == 0)
      asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(args.done.word), "l"(job) : "memory");
  }
}

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)

namespace {

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void bulk_load(void* to, unsigned long long from, unsigned bytes,
                                          unsigned long long* barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

__device__ __forceinline__ void bulk_store(unsigned long long to, const void* from, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

__device__ __forceinline__ void wait_phase(unsigned long long* barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra.uni "
      "over;\nbra.uni again;\nover:\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

/// Lane 0 of each warp keeps a ring of chunks in shared memory full of loads on their way, and sends on what
/// has come.
template <int Warps, int Stages, unsigned ChunkBytes>
__device__ __forceinline__ void bulk_pages(const headrace_move_pages_v1& args) {
  extern __shared__ __align__(128) unsigned char space[];
  const WarpPlace warp;
  const unsigned own = threadIdx.x / warp_lanes;
  if (warp.lane != 0) return;
  unsigned char* const ring = space + own * Stages * ChunkBytes;
  auto* const barriers =
      reinterpret_cast<unsigned long long*>(space + Warps * Stages * ChunkBytes) + own * Stages;
  for (int i = 0; i < Stages; ++i)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barriers + i)) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");

  const unsigned long long page_bytes = args.source.columns.page_bytes;
  const unsigned tiles = static_cast<unsigned>((page_bytes + ChunkBytes - 1) / ChunkBytes);
  TileWalk loads(warp, tiles), stores(warp, tiles);
  const auto length = [&](const TileWalk& at) {
    const unsigned long long left = page_bytes - static_cast<unsigned long long>(at.tile) * ChunkBytes;
    return left < ChunkBytes ? static_cast<unsigned>(left) : ChunkBytes;
  };
  const auto issue = [&](int stage) {
    if (loads.page >= args.count) return;
    bulk_load(
        ring + stage * ChunkBytes,
        page_address(args.source, loads.page) + static_cast<unsigned long long>(loads.tile) * ChunkBytes,
        length(loads), barriers + stage);
    loads.next();
  };
  for (int i = 0; i < Stages; ++i) issue(i);
  int stage = 0;
  unsigned parity = 0;
  bool first = true;
  for (; stores.page < args.count; stores.next()) {
    wait_phase(barriers + stage, parity);
    bulk_store(
        page_address(args.target, stores.page) + static_cast<unsigned long long>(stores.tile) * ChunkBytes,
        ring + stage * ChunkBytes, length(stores));
    // All stores but the last have been read from shared memory: the chunk before this one is free again.
    asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
    if (!first) issue(stage == 0 ? Stages - 1 : stage - 1);
    first = false;
    if (++stage == Stages) stage = 0, parity ^= 1;
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace

#define PROBE_BULK(warps, stages, chunk)                                                             \
  extern "C" __global__ void __launch_bounds__(warps * 32)                                           \
      probe_bulk_##warps##_##stages##_##chunk(const __grid_constant__ headrace_move_pages_v1 args) { \
    bulk_pages<warps, stages, chunk>(args);                                                          \
    tell_done(args.done);                                                                            \
  }

PROBE_BULK(1, 24, 4096)
PROBE_BULK(4, 12, 4096)
PROBE_BULK(8, 6, 4096)
PROBE_BULK(4, 6, 8192)
PROBE_BULK(4, 24, 2048)
#endif
