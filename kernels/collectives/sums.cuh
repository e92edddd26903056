// SPDX-License-Identifier: Apache-2.0
// What becomes of the ranks' words: `put` takes those of one rank after the other, from rank 0 on, and
// `result` gives those of the result.
#pragma once

#include "kernels/collectives/element.cuh"

namespace headrace::kernels::collectives {

/// Sums and averages of float32.
struct Float32 {
  static constexpr int per_word = 2;
  __device__ static void load(uint64_t word, float* values) {
    values[0] = float_of(static_cast<uint32_t>(word));
    values[1] = float_of(static_cast<uint32_t>(word >> 32));
  }
  __device__ static uint64_t store(const float* values) {
    return bits_of(values[0]) | static_cast<uint64_t>(bits_of(values[1])) << 32;
  }
};

/// Sums and averages of bfloat16, in float32 and rounded once.
struct BFloat16 {
  static constexpr int per_word = 4;
  __device__ static void load(uint64_t word, float* values) {
    const auto low = static_cast<uint32_t>(word), high = static_cast<uint32_t>(word >> 32);
    values[0] = float_of(low << 16);
    values[1] = float_of(low & 0xffff0000);
    values[2] = float_of(high << 16);
    values[3] = float_of(high & 0xffff0000);
  }
  __device__ static uint64_t store(const float* values) {
    return rounded(values[0], values[1]) | static_cast<uint64_t>(rounded(values[2], values[3])) << 32;
  }

 private:
  __device__ static uint32_t rounded(float low, float high) {
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
  }
};

/// `Simple`: the divisor is a power of two, so a product with its reciprocal has the same bits.
template <class Format, int Words, bool Simple>
class FloatSum {
 public:
  static constexpr int words = Words;
  __device__ explicit FloatSum(const Launch& args)
      : divisor_(Simple ? args.reduction.scale : static_cast<float>(args.reduction.divisor)) {}

  __device__ void put(unsigned rank, const uint64_t* words) {
#pragma unroll
    for (int w = 0; w < Words; ++w) {
      float values[Format::per_word];
      Format::load(words[w], values);
#pragma unroll
      for (int i = 0; i < Format::per_word; ++i) {
        float& sum = sums_[w * Format::per_word + i];
        sum = rank == 0 ? values[i] : add(sum, values[i]);
      }
    }
  }
  __device__ void result(uint64_t* words) {
#pragma unroll
    for (float& sum : sums_) sum = Simple ? multiply(sum, divisor_) : divide(sum, divisor_);
#pragma unroll
    for (int w = 0; w < Words; ++w) words[w] = Format::store(sums_ + w * Format::per_word);
  }

 private:
  float sums_[Words * Format::per_word];
  const float divisor_;
};

/// A call of its own: the code of all types and reductions is there once.
static __device__ __noinline__ Unit any_reduced(const Reduction& how, unsigned ranks, const Unit* units) {
  return reduced_units(how, ranks, units);
}

/// Any type and reduction, by the code of the CPU reference. It is slow: the words of all ranks go through
/// local memory.
class Any {
 public:
  static constexpr int words = 2;
  __device__ explicit Any(const Launch& args) : args_(args) {}

  __device__ void put(unsigned rank, const uint64_t* words) { units_[rank] = {{words[0], words[1]}}; }
  __device__ void result(uint64_t* words) {
    const Unit unit = any_reduced(args_.reduction, args_.shape.ranks, units_);
    words[0] = unit.words[0], words[1] = unit.words[1];
  }

 private:
  const Launch& args_;
  Unit units_[most_ranks];
};

}  // namespace headrace::kernels::collectives
