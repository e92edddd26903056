// SPDX-License-Identifier: Apache-2.0
// The barest kernels that move and add the rows that those of kernels/moe do: what bench/gpu/moe.cpp holds
// them against. They get lists of addresses, which the host has made: they make no route, wait for nothing
// and tell nothing. They share no code with kernels/, so that a mistake there is not theirs, too.

namespace {

using Address = unsigned long long;

__device__ __forceinline__ uint4 load(Address at) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at)
               : "memory");
  return v;
}
__device__ __forceinline__ void store(Address at, uint4 v) {
  asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ unsigned rounded(float a, float b) {
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
  return both;
}
__device__ __forceinline__ void add(float (&sums)[8], uint4 v, float weight, bool is_first) {
  const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float a = __fmul_rn(weight, low(words[i])), b = __fmul_rn(weight, high(words[i]));
    sums[2 * i] = is_first ? a : __fadd_rn(sums[2 * i], a);
    sums[2 * i + 1] = is_first ? b : __fadd_rn(sums[2 * i + 1], b);
  }
}

/// Rows of which each goes to several, or is the sum of several: row one[unit] has many[first[unit]] and so
/// on, up to first[unit + 1].
struct Lists {
  const Address* one;
  const unsigned* first;
  const Address* many;
  const float* weights;
  unsigned units, vectors, pieces;
};
struct Compared {
  const uint4 *a, *b;
  Address vectors;
  unsigned long long* count;
};
struct Filled {
  unsigned* words;
  Address count;
  unsigned seed;
};

/// A piece of a row for each warp.
struct Piece {
  unsigned unit, begin, end;
  __device__ Piece(unsigned i, unsigned pieces, unsigned vectors) : unit(i / pieces) {
    const unsigned piece = i % pieces;
    begin = static_cast<unsigned>(static_cast<Address>(vectors) * piece / pieces);
    end = static_cast<unsigned>(static_cast<Address>(vectors) * (piece + 1) / pieces);
  }
};

}  // namespace

/// Row one[unit] to its many.
extern "C" __global__ void __launch_bounds__(512, 1) bare_moe_copy(const __grid_constant__ Lists args) {
  constexpr unsigned unroll = 8;
  const unsigned lane = threadIdx.x % 32, warps = gridDim.x * blockDim.x / 32;
  for (unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < args.units * args.pieces; i += warps) {
    const Piece piece(i, args.pieces, args.vectors);
    const Address source = args.one[piece.unit];
    const unsigned begin = args.first[piece.unit], end = args.first[piece.unit + 1];
    for (unsigned v = piece.begin + lane; v < piece.end; v += unroll * 32) {
      uint4 held[unroll];
#pragma unroll
      for (unsigned u = 0; u < unroll; ++u)
        if (v + u * 32 < piece.end) held[u] = load(source + (v + u * 32) * 16ull);
      for (unsigned k = begin; k < end; ++k) {
        const Address target = args.many[k];
#pragma unroll
        for (unsigned u = 0; u < unroll; ++u)
          if (v + u * 32 < piece.end) store(target + (v + u * 32) * 16ull, held[u]);
      }
    }
  }
}

/// Row one[unit] is the weighted sum of its many, in bfloat16.
extern "C" __global__ void __launch_bounds__(512, 1) bare_moe_sum(const __grid_constant__ Lists args) {
  constexpr unsigned unroll = 4, batch = 2;
  const unsigned lane = threadIdx.x % 32, warps = gridDim.x * blockDim.x / 32;
  for (unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < args.units * args.pieces; i += warps) {
    const Piece piece(i, args.pieces, args.vectors);
    const Address target = args.one[piece.unit];
    const unsigned begin = args.first[piece.unit], end = args.first[piece.unit + 1];
    for (unsigned v = piece.begin + lane; v < piece.end; v += unroll * 32) {
      float sums[unroll][8] = {};
      for (unsigned k = begin; k < end; k += batch) {
        uint4 held[batch][unroll];
#pragma unroll
        for (unsigned b = 0; b < batch; ++b)
#pragma unroll
          for (unsigned u = 0; u < unroll; ++u)
            if (k + b < end && v + u * 32 < piece.end)
              held[b][u] = load(args.many[k + b] + (v + u * 32) * 16ull);
#pragma unroll
        for (unsigned b = 0; b < batch; ++b)
#pragma unroll
          for (unsigned u = 0; u < unroll; ++u)
            if (k + b < end && v + u * 32 < piece.end)
              add(sums[u], held[b][u], args.weights[k + b], k + b == begin);
      }
#pragma unroll
      for (unsigned u = 0; u < unroll; ++u)
        if (v + u * 32 < piece.end)
          store(target + (v + u * 32) * 16ull,
                make_uint4(rounded(sums[u][0], sums[u][1]), rounded(sums[u][2], sums[u][3]),
                           rounded(sums[u][4], sums[u][5]), rounded(sums[u][6], sums[u][7])));
    }
  }
}

/// Adds to `count` the words that differ.
extern "C" __global__ void bare_moe_compare(const __grid_constant__ Compared args) {
  for (Address i = static_cast<Address>(blockIdx.x) * blockDim.x + threadIdx.x; i < args.vectors;
       i += static_cast<Address>(gridDim.x) * blockDim.x) {
    const uint4 x = args.a[i], y = args.b[i];
    if (x.x != y.x || x.y != y.y || x.z != y.z || x.w != y.w) atomicAdd(args.count, 1ull);
  }
}

/// Numbers between -1 and 1 in bfloat16, other ones for each seed.
extern "C" __global__ void bare_moe_fill(const __grid_constant__ Filled args) {
  for (Address i = static_cast<Address>(blockIdx.x) * blockDim.x + threadIdx.x; i < args.count;
       i += static_cast<Address>(gridDim.x) * blockDim.x) {
    unsigned x = static_cast<unsigned>(i) * 2654435761u ^ args.seed * 40503u;
    x ^= x >> 16, x *= 2246822519u, x ^= x >> 13, x *= 3266489917u, x ^= x >> 16;
    const float a = static_cast<float>(x & 0xffff) / 32768.0f - 1,
                b = static_cast<float>(x >> 16) / 32768.0f - 1;
    args.words[i] = rounded(a, b);
  }
}
