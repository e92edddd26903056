// SPDX-License-Identifier: Apache-2.0
// Scales of rows that are cast to float8_e4m3fn: one for each block of 128 elements of a row, the last of
// which may be shorter. An element is stored as float8(element * inverse), rounded to nearest, ties to even,
// and read as float(element) * scale.
#pragma once

#include "moe/layout.hpp"

#include <stdint.h>

namespace headrace::moe {

inline constexpr uint32_t block_elements = 128;
HEADRACE_BOTH_SIDES uint64_t blocks_of(uint64_t elements) {
  return (elements + block_elements - 1) / block_elements;
}

struct BlockScale {
  float scale, inverse;
};

/// Of a block whose largest magnitude is `largest`: that becomes 448, the largest float8_e4m3fn. A block of
/// zeros has a scale, too.
HEADRACE_BOTH_SIDES BlockScale block_scale(float largest) {
  constexpr float most = 448, least = 1e-4F;
  const float magnitude = largest < least ? least : largest;
  return {magnitude / most, most / magnitude};
}

/// The byte of a ue8m0 scale: the power of two, biased by 127, that is at least `scale`.
HEADRACE_BOTH_SIDES uint8_t ue8m0_of(float scale) {
  const auto bits = __builtin_bit_cast(uint32_t, scale);
  const uint32_t power = ((bits >> 23) & 0xff) + ((bits & 0x7fffff) != 0 ? 1 : 0);
  return static_cast<uint8_t>(power < 254 ? power : 254);
}
HEADRACE_BOTH_SIDES BlockScale scale_of_ue8m0(uint8_t power) {
  return {__builtin_bit_cast(float, uint32_t{power} << 23),
          __builtin_bit_cast(float, (254 - uint32_t{power}) << 23)};
}

/// A float as float8_e4m3fn: rounded to nearest, ties to even; what is too large becomes the largest.
HEADRACE_BOTH_SIDES uint8_t float8_of(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t magnitude = bits & 0x7fffffff, sign = bits >> 31 << 7;
  if (magnitude > 0x7f800000) return static_cast<uint8_t>(sign | 0x7f);
  // The smallest normal one is 2^-6. Below it the addition rounds to multiples of 2^-9.
  const uint32_t normal = (magnitude + 0x7ffff + (magnitude >> 20 & 1) - (120u << 23)) >> 20;
  const uint32_t subnormal =
      __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, magnitude) + 16384.0F) - (141u << 23);
  const uint32_t rounded = magnitude < 121u << 23 ? subnormal : normal;
  return static_cast<uint8_t>(sign | (rounded < 0x7e ? rounded : 0x7e));
}
HEADRACE_BOTH_SIDES float float_of_float8(uint8_t stored) {
  const uint32_t magnitude = stored & 0x7fu, sign = static_cast<uint32_t>(stored >> 7) << 31;
  // The product moves the exponent to float's bias.
  const float value = __builtin_bit_cast(float, magnitude << 20) * 0x1p120F;
  const uint32_t bits = magnitude == 0x7f ? 0x7fc00000 : __builtin_bit_cast(uint32_t, value);
  return __builtin_bit_cast(float, bits | sign);
}

/// Bytes of a row's scales: a float each, or a byte each in words of four.
HEADRACE_BOTH_SIDES uint64_t float_scale_bytes(uint64_t elements) { return blocks_of(elements) * 4; }
HEADRACE_BOTH_SIDES uint64_t ue8m0_scale_bytes(uint64_t elements) { return round_up(blocks_of(elements), 4); }

/// A partial that travels as float8: its elements, then a float for each block.
HEADRACE_BOTH_SIDES uint64_t float8_partial_bytes(uint64_t elements) {
  return round_up(elements, 16) + round_up(float_scale_bytes(elements), 16);
}

}  // namespace headrace::moe
