// SPDX-License-Identifier: Apache-2.0
// Floats of 8 and 16 bits as float32 and back, without branches, so that loops over them become vector code.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace headrace {

/// Types without infinities (float8_e4m3fn) have one NaN, of all ones, and end at their largest number.
/// Rounds to nearest, ties to even, as write_element does.
template <int ExponentBits, int MantissaBits, bool HasInfinities>
struct SmallFloat {
  static constexpr int value_bits = ExponentBits + MantissaBits;
  using Stored = std::conditional_t<value_bits == 15, std::uint16_t, std::uint8_t>;
  using Wide = float;

  [[gnu::always_inline]] static float load(Stored stored) noexcept {
    const std::uint32_t magnitude = stored & ((1U << value_bits) - 1);
    const std::uint32_t sign = static_cast<std::uint32_t>(stored >> value_bits) << 31;
    const std::uint32_t shifted = magnitude << (23 - MantissaBits);
    // The product moves the exponent to float's bias; subnormals become normal on the way.
    std::uint32_t bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(shifted) * to_float_bias);
    if constexpr (HasInfinities)
      bits = magnitude >= all_exponent ? shifted | float_infinity : bits;
    else
      bits = magnitude == (1U << value_bits) - 1 ? float_nan : bits;
    return std::bit_cast<float>(bits | sign);
  }

  [[gnu::always_inline]] static Stored store(float value) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7fffffff;
    const std::uint32_t sign = (bits >> 31) << value_bits;
    constexpr std::uint32_t half_less_one = (1U << (22 - MantissaBits)) - 1;
    const std::uint32_t odd = (magnitude >> (23 - MantissaBits)) & 1;
    const std::uint32_t normal =
        (magnitude + half_less_one + odd - ((127U - bias) << 23)) >> (23 - MantissaBits);
    // A float whose last bit has the value of a subnormal's last bit: the addition rounds.
    constexpr std::uint32_t rounder = static_cast<std::uint32_t>(127 + 24 - bias - MantissaBits) << 23;
    const std::uint32_t subnormal =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(rounder)) -
        rounder;
    constexpr std::uint32_t smallest_normal = (128U - bias) << 23;
    std::uint32_t result = magnitude < smallest_normal ? subnormal : normal;
    result = result < too_large ? result : too_large;
    result = magnitude > float_infinity ? nan : result;
    return static_cast<Stored>(result | sign);
  }

 private:
  static constexpr int bias = (1 << (ExponentBits - 1)) - 1;
  static constexpr std::uint32_t all_exponent = ((1U << ExponentBits) - 1) << MantissaBits;
  static constexpr std::uint32_t all_mantissa = (1U << MantissaBits) - 1;
  static constexpr std::uint32_t too_large = HasInfinities ? all_exponent : all_exponent | (all_mantissa - 1);
  static constexpr std::uint32_t nan =
      all_exponent | (HasInfinities ? 1U << (MantissaBits - 1) : all_mantissa);
  static constexpr std::uint32_t float_infinity = 0x7f800000;
  static constexpr std::uint32_t float_nan = 0x7fc00000;
  static constexpr float to_float_bias = std::bit_cast<float>(static_cast<std::uint32_t>(254 - bias) << 23);
};

using Float16 = SmallFloat<5, 10, true>;
using Float8E4M3 = SmallFloat<4, 3, false>;
using Float8E5M2 = SmallFloat<5, 2, true>;

/// The upper half of a float32.
struct BFloat16 {
  using Stored = std::uint16_t;
  using Wide = float;
  [[gnu::always_inline]] static float load(Stored stored) noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(stored) << 16);
  }
  [[gnu::always_inline]] static Stored store(float value) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    return static_cast<Stored>(is_nan ? (bits >> 16) | 0x40 : rounded);
  }
};

}  // namespace headrace
