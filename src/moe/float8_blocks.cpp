// SPDX-License-Identifier: Apache-2.0
#include "moe/float8_blocks.hpp"

#include "base/instructions.hpp"

#include <cstring>

namespace headrace::moe {
namespace {

struct StoreBlocks {
  [[gnu::always_inline]] static void run(const float* values, std::size_t elements, std::byte* row,
                                         std::byte* scales) noexcept {
    for (std::size_t begin = 0; begin < elements; begin += block_elements, scales += sizeof(float)) {
      const std::size_t count = block_length(elements, begin);
      const BlockScale of = block_scale(largest_of(values + begin, count));
      store_block(values + begin, count, of.inverse, row + begin);
      std::memcpy(scales, &of.scale, sizeof of.scale);
    }
  }
};

struct LoadBlocks {
  [[gnu::always_inline]] static void run(float* values, std::size_t elements, const std::byte* row,
                                         const std::byte* scales) noexcept {
    for (std::size_t begin = 0; begin < elements; begin += block_elements, scales += sizeof(float)) {
      float scale = 0;
      std::memcpy(&scale, scales, sizeof scale);
      for (std::size_t i = begin; i < begin + block_length(elements, begin); ++i)
        values[i] = Float8E4M3::load(static_cast<std::uint8_t>(row[i])) * scale;
    }
  }
};

struct CastRow {
  [[gnu::always_inline]] static void run(const std::byte* bfloat16, std::size_t elements, bool in_powers,
                                         std::byte* row, std::byte* scales) noexcept {
    for (std::size_t begin = 0, number = 0; begin < elements; begin += block_elements, ++number) {
      const std::size_t count = block_length(elements, begin);
      float block[block_elements];
      for (std::size_t i = 0; i < count; ++i) {
        std::uint16_t stored = 0;  // rows of the caller may lie anywhere
        std::memcpy(&stored, bfloat16 + (begin + i) * sizeof stored, sizeof stored);
        block[i] = BFloat16::load(stored);
      }
      BlockScale of = block_scale(largest_of(block, count));
      if (in_powers) {
        const std::uint8_t power = ue8m0_of(of.scale);
        scales[number] = static_cast<std::byte>(power);
        of = scale_of_ue8m0(power);
      } else {
        std::memcpy(scales + number * sizeof of.scale, &of.scale, sizeof of.scale);
      }
      store_block(block, count, of.inverse, row + begin);
    }
  }
};

}  // namespace

void store_blocks(std::span<const float> values, std::byte* row, std::byte* scales) {
  run_with<StoreBlocks>(best_instructions(), values.data(), values.size(), row, scales);
}

void load_blocks(std::span<float> values, const std::byte* row, const std::byte* scales) {
  run_with<LoadBlocks>(best_instructions(), values.data(), values.size(), row, scales);
}

void cast_row(const std::byte* bfloat16, std::size_t elements, MoECast cast, std::byte* row,
              std::byte* scales) {
  const bool in_powers = cast == MoECast::ue8m0;
  if (in_powers) std::memset(scales, 0, ue8m0_scale_bytes(elements));
  run_with<CastRow>(best_instructions(), bfloat16, elements, in_powers, row, scales);
}

}  // namespace headrace::moe
