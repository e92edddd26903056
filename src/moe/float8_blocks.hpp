// SPDX-License-Identifier: Apache-2.0
// Rows as float8_e4m3fn in blocks of 128 elements, each with a scale (moe/cast.hpp has the rule). As
// sums.cpp, its source is compiled without fused steps, so all CPUs get the same bits.
#pragma once

#include "base/small_float.hpp"
#include "moe/cast.hpp"

#include <headrace/moe.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace::moe {

/// Casts a row of bfloat16.
///   scales  ue8m0: a byte for each block, up to a multiple of four; else a float for each
void cast_row(const std::byte* bfloat16, std::size_t elements, MoECast cast, std::byte* row,
              std::byte* scales);

/// Writes a row of floats as blocks with scales of float32.
void store_blocks(std::span<const float> values, std::byte* row, std::byte* scales);
/// The element of each: as it was stored, times its scale.
void load_blocks(std::span<float> values, const std::byte* row, const std::byte* scales);

// Of one block, inlined by force into loops that are compiled for several instructions.

/// The largest magnitude; a NaN is none.
[[gnu::always_inline]] inline float largest_of(const float* block, std::size_t count) noexcept {
  // Magnitudes are ordered as their bits, and a maximum of whole numbers becomes vector code.
  constexpr std::uint32_t magnitude_bits = 0x7fffffff, infinity = 0x7f800000;
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(block[i]) & magnitude_bits;
    const std::uint32_t magnitude = bits > infinity ? 0 : bits;
    largest = magnitude > largest ? magnitude : largest;
  }
  return std::bit_cast<float>(largest);
}

[[gnu::always_inline]] inline void store_block(const float* block, std::size_t count, float inverse,
                                               std::byte* row) noexcept {
  for (std::size_t i = 0; i < count; ++i)
    row[i] = static_cast<std::byte>(Float8E4M3::store(block[i] * inverse));
}

/// Elements of the block that begins there.
[[gnu::always_inline]] inline std::size_t block_length(std::size_t elements, std::size_t begin) noexcept {
  return elements - begin < block_elements ? elements - begin : block_elements;
}

}  // namespace headrace::moe
