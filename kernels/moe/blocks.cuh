// SPDX-License-Identifier: Apache-2.0
// Rows as float8_e4m3fn in blocks of 128 elements, each with a scale: src/moe/cast.hpp has the rule. The
// lanes that have the vectors of a block lie side by side in a warp.
#pragma once

#include "kernels/moe/rows.cuh"

namespace headrace::kernels::moe {

using headrace::moe::block_elements;

__device__ __forceinline__ float magnitude_of(float value) { return float_of(bits_of(value) & 0x7fffffff); }
/// A NaN is none.
__device__ __forceinline__ float larger_of(float a, float b) { return b > a ? b : a; }

/// Of the lanes of a block.
template <unsigned Lanes>
__device__ __forceinline__ float largest_of_block(float largest) {
#pragma unroll
  for (unsigned step = Lanes / 2; step != 0; step /= 2)
    largest = larger_of(largest, __shfl_xor_sync(all_lanes, largest, step));
  return largest;
}

/// The scale of a block, as it is stored, and what its elements are multiplied with.
struct StoredScale {
  uint32_t stored;  ///< a float's bits, or a byte
  float inverse;
};
__device__ __forceinline__ StoredScale stored_scale(float largest, uint32_t cast) {
  const headrace::moe::BlockScale of = headrace::moe::block_scale(largest);
  if (cast != HEADRACE_MOE_CAST_UE8M0) return {bits_of(of.scale), of.inverse};
  const uint8_t power = headrace::moe::ue8m0_of(of.scale);
  return {power, headrace::moe::scale_of_ue8m0(power).inverse};
}

/// Scales of ue8m0 fill words: the bytes behind the last one are zeros.
__device__ __forceinline__ void store_scale(uint64_t scales, uint32_t block, uint32_t blocks, uint32_t stored,
                                            uint32_t cast) {
  if (cast != HEADRACE_MOE_CAST_UE8M0) {
    *at<uint32_t>(scales + block * sizeof(float)) = stored;
    return;
  }
  *at<uint8_t>(scales + block) = static_cast<uint8_t>(stored);
  if (block + 1 != blocks) return;
  for (uint32_t behind = blocks; behind % 4 != 0; ++behind) *at<uint8_t>(scales + behind) = 0;
}

/// Blocks of a row of bfloat16 to the same blocks of the rows of a list, whose scales are `scales_behind`
/// bytes behind their begin.
__device__ __forceinline__ void cast_to_all(uint64_t from, uint32_t elements, uint32_t cast, uint64_t to,
                                            uint64_t scales_behind, unsigned count, Share blocks) {
  constexpr unsigned unroll = 2, lanes = block_elements / BFloat16::elements;
  const uint64_t vectors = elements / BFloat16::elements, end = blocks.end * lanes;
  const auto all_blocks = static_cast<uint32_t>(headrace::moe::blocks_of(elements));
  for (LaneVectors<unroll> mine({blocks.begin * lanes, end < vectors ? end : vectors}); mine.has_tile();
       mine.next()) {
    Vector held[unroll];
    uint64_t cast_elements[unroll];
    uint32_t scales[unroll];
#pragma unroll
    for (unsigned u = 0; u < unroll; ++u) held[u] = mine.has(u) ? load(from + mine.offset(u)) : Vector{};
#pragma unroll
    for (unsigned u = 0; u < unroll; ++u) {
      float largest = 0, value[BFloat16::elements];
#pragma unroll
      for (unsigned e = 0; e < BFloat16::elements; ++e) {
        value[e] = BFloat16::element(held[u], e);
        largest = larger_of(largest, magnitude_of(value[e]));
      }
      const StoredScale scale = stored_scale(largest_of_block<lanes>(largest), cast);
      scales[u] = scale.stored;
#pragma unroll
      for (unsigned e = 0; e < BFloat16::elements; ++e) value[e] = product(value[e], scale.inverse);
      cast_elements[u] = four_float8(value[0], value[1], value[2], value[3]) |
                         uint64_t{four_float8(value[4], value[5], value[6], value[7])} << 32;
    }
    for (unsigned i = 0; i < count; ++i) {
      const uint64_t target = __shfl_sync(all_lanes, to, i);
      if (target == 0) continue;
#pragma unroll
      for (unsigned u = 0; u < unroll; ++u) {
        if (!mine.has(u)) continue;
        *at<uint64_t>(target + mine.index(u) * BFloat16::elements) = cast_elements[u];
        if (lane() % lanes == 0)
          store_scale(target + scales_behind, static_cast<uint32_t>(mine.index(u) / lanes), all_blocks,
                      scales[u], cast);
      }
    }
  }
}

/// A row of blocks as float32. A vector is as many elements as one of the type has.
template <class Type>
struct BlockRow {
  struct Held {
    uint32_t words[Type::elements / 4];
    float scale;
  };
  static __device__ __forceinline__ Held load(uint64_t row, uint64_t index, uint64_t scales_behind) {
    Held held;
    const uint64_t element = index * Type::elements;
#pragma unroll
    for (unsigned w = 0; w < Type::elements / 4; ++w)
      held.words[w] = *at<const uint32_t>(row + element + w * 4);
    held.scale = *at<const float>(row + scales_behind + element / block_elements * sizeof(float));
    return held;
  }
  static __device__ __forceinline__ float element(const Held& held, unsigned e) {
    return product(from_float8(held.words[e / 4], e % 4), held.scale);
  }
};

/// Tiles of sums as blocks, as store_sums. The tiles of a share begin at a block.
template <class Type, unsigned Vectors, class Targets>
__device__ __forceinline__ void store_blocks(const VectorSums<Type, Vectors>& sums,
                                             const LaneVectors<Vectors>& mine, uint64_t scales_behind,
                                             const Targets& targets) {
  constexpr unsigned lanes = block_elements / Type::elements, words = Type::elements / 4;
  uint32_t made[Vectors][words];
  float scales[Vectors];
#pragma unroll
  for (unsigned u = 0; u < Vectors; ++u) {
    float largest = 0;
#pragma unroll
    for (unsigned e = 0; e < Type::elements; ++e)
      if (mine.has(u)) largest = larger_of(largest, magnitude_of(sums.value(u, e)));
    const headrace::moe::BlockScale scale = headrace::moe::block_scale(largest_of_block<lanes>(largest));
    scales[u] = scale.scale;
    const auto value = [&](unsigned e) { return product(sums.value(u, e), scale.inverse); };
#pragma unroll
    for (unsigned w = 0; w < words; ++w)
      made[u][w] = four_float8(value(w * 4), value(w * 4 + 1), value(w * 4 + 2), value(w * 4 + 3));
  }
  targets([&](uint64_t to) {
#pragma unroll
    for (unsigned u = 0; u < Vectors; ++u) {
      if (!mine.has(u)) continue;
#pragma unroll
      for (unsigned w = 0; w < words; ++w)
        *at<uint32_t>(to + mine.index(u) * Type::elements + w * 4) = made[u][w];
      if (lane() % lanes == 0)
        *at<float>(to + scales_behind + mine.index(u) / lanes * sizeof(float)) = scales[u];
    }
  });
}

}  // namespace headrace::kernels::moe
