// SPDX-License-Identifier: Apache-2.0
// Rows as float8_e4m3fn in blocks of 128 elements, each with a scale (moe/cast.hpp has the rule). As
// sums.cpp, its source is compiled without fused steps, so all CPUs get the same bits.
#pragma once

#include <headrace/moe.hpp>

#include <cstddef>
#include <span>

namespace headrace::moe {

/// Casts a row of bfloat16.
///   values  as many as a row has elements; used by one cast at a time
///   scales  ue8m0: a byte for each block, up to a multiple of four; else a float for each
void cast_row(const std::byte* bfloat16, std::span<float> values, MoECast cast, std::byte* row,
              std::byte* scales);

/// Writes a row of floats as blocks with scales of float32.
void store_blocks(std::span<const float> values, std::byte* row, std::byte* scales);
/// The element of each: as it was stored, times its scale.
void load_blocks(std::span<float> values, const std::byte* row, const std::byte* scales);

}  // namespace headrace::moe
