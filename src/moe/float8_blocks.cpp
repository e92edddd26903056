// SPDX-License-Identifier: Apache-2.0
#include "moe/float8_blocks.hpp"

#include "base/small_float.hpp"
#include "moe/cast.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace headrace::moe {
namespace {

float largest_of(std::span<const float> block) noexcept {
  float largest = 0;
  for (const float value : block) {
    const float magnitude = std::fabs(value);
    largest = magnitude > largest ? magnitude : largest;  // a NaN is none
  }
  return largest;
}

void store_block(std::span<const float> block, float inverse, std::byte* row) noexcept {
  for (std::size_t i = 0; i < block.size(); ++i)
    row[i] = static_cast<std::byte>(Float8E4M3::store(block[i] * inverse));
}

/// Calls each(number, its elements) for each block.
template <class Float, class Each>
void for_blocks(std::span<Float> values, const Each& each) {
  for (std::size_t begin = 0, number = 0; begin < values.size(); begin += block_elements, ++number)
    each(number, values.subspan(begin, std::min<std::size_t>(block_elements, values.size() - begin)));
}

}  // namespace

void store_blocks(std::span<const float> values, std::byte* row, std::byte* scales) {
  for_blocks(values, [&](std::size_t number, std::span<const float> block) {
    const BlockScale of = block_scale(largest_of(block));
    store_block(block, of.inverse, row + number * block_elements);
    std::memcpy(scales + number * sizeof of.scale, &of.scale, sizeof of.scale);
  });
}

void load_blocks(std::span<float> values, const std::byte* row, const std::byte* scales) {
  for_blocks(values, [&](std::size_t number, std::span<float> block) {
    float scale = 0;
    std::memcpy(&scale, scales + number * sizeof scale, sizeof scale);
    const std::byte* const stored = row + number * block_elements;
    for (std::size_t i = 0; i < block.size(); ++i)
      block[i] = Float8E4M3::load(static_cast<std::uint8_t>(stored[i])) * scale;
  });
}

void cast_row(const std::byte* bfloat16, std::span<float> values, MoECast cast, std::byte* row,
              std::byte* scales) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t stored = 0;  // rows of the caller may lie anywhere
    std::memcpy(&stored, bfloat16 + i * sizeof stored, sizeof stored);
    values[i] = BFloat16::load(stored);
  }
  if (cast == MoECast::float32) return store_blocks(values, row, scales);
  std::memset(scales, 0, ue8m0_scale_bytes(values.size()));
  for_blocks(std::span<const float>(values), [&](std::size_t number, std::span<const float> block) {
    const std::uint8_t power = ue8m0_of(block_scale(largest_of(block)).scale);
    scales[number] = static_cast<std::byte>(power);
    store_block(block, scale_of_ue8m0(power).inverse, row + number * block_elements);
  });
}

}  // namespace headrace::moe
