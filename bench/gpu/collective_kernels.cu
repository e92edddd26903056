// SPDX-License-Identifier: Apache-2.0
// The barest kernels that do what those of kernels/collectives do: what bench/gpu/collectives.cpp holds them
// against. They wait for nothing but the data, look at no abort word and no deadline, and share nothing with
// kernels/, so that a mistake there is not the ceiling's too.

namespace {

using Address = unsigned long long;

constexpr unsigned most_ranks = 16;

struct Boxes {
  Address of[most_ranks];
};

__device__ __forceinline__ void store_flagged(Address to, uint2 data, unsigned flag) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(data.x), "r"(flag),
               "r"(data.y), "r"(flag)
               : "memory");
}
__device__ __forceinline__ uint4 load_flagged(Address from) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ unsigned rounded(float a, float b) {
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
  return both;
}

/// all_reduce of bfloat16: eight bytes and twice their flag in each store. `count`: of eight bytes. Each
/// block counts operations for itself, so all launches have the same number of blocks.
template <unsigned Ranks>
__device__ __forceinline__ void one_shot(const Boxes& boxes, const uint2* input, uint2* output,
                                         unsigned count, unsigned most, unsigned rank, unsigned* counters) {
  const unsigned epoch = counters[blockIdx.x] + 1;
  const Address half = static_cast<Address>(epoch & 1) * Ranks * most * 16;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const uint2 own = input[i];
#pragma unroll
    for (unsigned p = 1; p < Ranks; ++p)
      store_flagged(boxes.of[(rank + p) % Ranks] + half + (static_cast<Address>(rank) * most + i) * 16, own,
                    epoch);
    float sum[4] = {low(own.x), high(own.x), low(own.y), high(own.y)};
#pragma unroll
    for (unsigned p = 1; p < Ranks; ++p) {
      const Address from = boxes.of[rank] + half + (static_cast<Address>((rank + p) % Ranks) * most + i) * 16;
      uint4 v;
      do v = load_flagged(from);
      while (v.y != epoch || v.w != epoch);
      sum[0] += low(v.x), sum[1] += high(v.x), sum[2] += low(v.z), sum[3] += high(v.z);
    }
    output[i] = make_uint2(rounded(sum[0], sum[1]), rounded(sum[2], sum[3]));
  }
  __syncthreads();
  if (threadIdx.x == 0) counters[blockIdx.x] = epoch;
}

/// So many vectors, each by one thread of the block.
__device__ __forceinline__ void copy(const uint4* from, uint4* to, unsigned vectors) {
  constexpr unsigned unroll = 4;
  uint4 held[unroll];
  for (unsigned i = threadIdx.x; i < vectors; i += unroll * blockDim.x) {
#pragma unroll
    for (unsigned k = 0; k < unroll; ++k)
      if (i + k * blockDim.x < vectors) held[k] = from[i + k * blockDim.x];
#pragma unroll
    for (unsigned k = 0; k < unroll; ++k)
      if (i + k * blockDim.x < vectors) to[i + k * blockDim.x] = held[k];
  }
}

}  // namespace

#define BARE_ONE_SHOT(ranks)                                                                               \
  extern "C" __global__ void __launch_bounds__(512)                                                        \
      bare_one_shot_##ranks(Boxes boxes, const uint2* input, uint2* output, unsigned count, unsigned most, \
                            unsigned rank, unsigned* counters) {                                           \
    one_shot<ranks>(boxes, input, output, count, most, rank, counters);                                    \
  }
BARE_ONE_SHOT(2)
BARE_ONE_SHOT(3)
BARE_ONE_SHOT(4)
#undef BARE_ONE_SHOT

// The bytes of a two-shot all_reduce of `share` vectors a rank, chunk by chunk, and no wait: to the boxes of
// the others, from the own box to the output and to the boxes of the others, from there to the output. What
// it reads may be old, so its output is not a sum.
extern "C" __global__ void __launch_bounds__(512)
    bare_two_shot_moves(Boxes boxes, const uint4* input, uint4* output, unsigned long long share,
                        unsigned chunk, unsigned slots, unsigned rank, unsigned ranks) {
  const auto slot = [&](unsigned box, unsigned way, unsigned from, unsigned number) {
    return reinterpret_cast<uint4*>(boxes.of[box]) +
           ((static_cast<unsigned long long>(way) * ranks + from) * slots + number) * chunk;
  };
  unsigned turn = 0;
  for (unsigned long long at = static_cast<unsigned long long>(blockIdx.x) * chunk; at < share;
       at += static_cast<unsigned long long>(gridDim.x) * chunk, ++turn) {
    const unsigned vectors = share - at < chunk ? static_cast<unsigned>(share - at) : chunk;
    const unsigned per_block = slots / gridDim.x, number = blockIdx.x * per_block + turn % per_block;
    for (unsigned p = 1; p < ranks; ++p) {
      const unsigned to = (rank + p) % ranks;
      copy(input + to * share + at, slot(to, 0, rank, number), vectors);
    }
    for (unsigned i = threadIdx.x; i < vectors; i += blockDim.x) {
      uint4 sum = input[rank * share + at + i];
      for (unsigned p = 1; p < ranks; ++p) {
        const uint4 v = slot(rank, 0, (rank + p) % ranks, number)[i];
        sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w;
      }
      output[rank * share + at + i] = sum;
      for (unsigned p = 1; p < ranks; ++p) slot((rank + p) % ranks, 1, rank, number)[i] = sum;
    }
    for (unsigned p = 1; p < ranks; ++p) {
      const unsigned from = (rank + p) % ranks;
      copy(slot(rank, 1, from, number), output + from * share + at, vectors);
    }
  }
}
