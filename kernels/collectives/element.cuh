// SPDX-License-Identifier: Apache-2.0
// Elements of any type, and how those of several ranks become one: the arithmetic that kernels and the CPU
// reference share. Backend `host` computes the same (src/collectives/reduction.cpp), and the tests of both
// compare them. No operation is fused with another: that would give other bits.
#pragma once

#include "kernels/collectives/box.cuh"

namespace headrace::kernels::collectives {

// ------------------------------------------------------------------ arithmetic without fused multiply-add

#if defined(__CUDA_ARCH__)
__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float multiply(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float divide(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ double add(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ double multiply(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ double divide(double a, double b) { return __ddiv_rn(a, b); }
#else
HEADRACE_BOTH_SIDES float add(float a, float b) { return a + b; }
HEADRACE_BOTH_SIDES float multiply(float a, float b) { return a * b; }
HEADRACE_BOTH_SIDES float divide(float a, float b) { return a / b; }
HEADRACE_BOTH_SIDES double add(double a, double b) { return a + b; }
HEADRACE_BOTH_SIDES double multiply(double a, double b) { return a * b; }
HEADRACE_BOTH_SIDES double divide(double a, double b) { return a / b; }
#endif

template <class T>
struct Complex {
  T real, imaginary;
};
template <class T>
HEADRACE_BOTH_SIDES Complex<T> add(Complex<T> a, Complex<T> b) {
  return {add(a.real, b.real), add(a.imaginary, b.imaginary)};
}
template <class T>
HEADRACE_BOTH_SIDES Complex<T> multiply(Complex<T> a, Complex<T> b) {
  return {add(multiply(a.real, b.real), -multiply(a.imaginary, b.imaginary)),
          add(multiply(a.real, b.imaginary), multiply(a.imaginary, b.real))};
}

template <class T>
HEADRACE_BOTH_SIDES T scaled(T a, double by) {
  return multiply(a, static_cast<T>(by));
}
template <class T>
HEADRACE_BOTH_SIDES Complex<T> scaled(Complex<T> a, double by) {
  return {scaled(a.real, by), scaled(a.imaginary, by)};
}
template <class T>
HEADRACE_BOTH_SIDES T divided(T a, double by) {
  return divide(a, static_cast<T>(by));
}
template <class T>
HEADRACE_BOTH_SIDES Complex<T> divided(Complex<T> a, double by) {
  return {divided(a.real, by), divided(a.imaginary, by)};
}

// ------------------------------------------------------------------ floats of 8 and 16 bits

HEADRACE_BOTH_SIDES float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }
HEADRACE_BOTH_SIDES uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }

/// A type without infinities has one NaN, of all ones, and ends at its largest number.
struct SmallFloat {
  unsigned exponent_bits, mantissa_bits;
  bool has_infinities;

  [[nodiscard]] HEADRACE_BOTH_SIDES float load(uint32_t stored) const {
    const uint32_t magnitude = stored & ((1u << value_bits()) - 1);
    const uint32_t sign = stored >> value_bits() << 31;
    const uint32_t shifted = magnitude << (23 - mantissa_bits);
    // The product moves the exponent to float's bias; subnormals become normal on the way.
    uint32_t bits = bits_of(multiply(float_of(shifted), float_of((254 - bias()) << 23)));
    if (has_infinities && magnitude >= all_exponent()) bits = shifted | 0x7f800000;
    if (!has_infinities && magnitude == (1u << value_bits()) - 1) bits = 0x7fc00000;
    return float_of(bits | sign);
  }
  /// Rounds to nearest, ties to even.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t store(float value) const {
    const uint32_t magnitude = bits_of(value) & 0x7fffffff;
    const uint32_t sign = bits_of(value) >> 31 << value_bits();
    if (magnitude > 0x7f800000) return nan() | sign;
    uint32_t result;
    if (magnitude < (128 - bias()) << 23) {
      // A float whose last bit has the value of a subnormal's last bit: the addition rounds.
      const uint32_t rounder = (127 + 24 - bias() - mantissa_bits) << 23;
      result = bits_of(add(float_of(magnitude), float_of(rounder))) - rounder;
    } else {
      const uint32_t half_less_one = (1u << (22 - mantissa_bits)) - 1;
      const uint32_t odd = (magnitude >> (23 - mantissa_bits)) & 1;
      result = (magnitude + half_less_one + odd - ((127 - bias()) << 23)) >> (23 - mantissa_bits);
    }
    return (result < too_large() ? result : too_large()) | sign;
  }

 private:
  [[nodiscard]] HEADRACE_BOTH_SIDES unsigned value_bits() const { return exponent_bits + mantissa_bits; }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t bias() const { return (1u << (exponent_bits - 1)) - 1; }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t all_exponent() const {
    return ((1u << exponent_bits) - 1) << mantissa_bits;
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t too_large() const {
    return all_exponent() | (has_infinities ? 0 : (1u << mantissa_bits) - 2);
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t nan() const {
    return all_exponent() | (has_infinities ? 1u << (mantissa_bits - 1) : (1u << mantissa_bits) - 1);
  }
};

// ------------------------------------------------------------------ types

/// The raw bits of an element; `high` is of elements of 16 bytes.
struct Raw {
  uint64_t low, high;
};

HEADRACE_BOTH_SIDES unsigned width_of(int32_t dtype) {
  switch (dtype) {
    case HEADRACE_FLOAT32:
    case HEADRACE_INT32:
    case HEADRACE_UINT32:
      return 4;
    case HEADRACE_FLOAT64:
    case HEADRACE_INT64:
    case HEADRACE_UINT64:
    case HEADRACE_COMPLEX64:
      return 8;
    case HEADRACE_FLOAT16:
    case HEADRACE_BFLOAT16:
    case HEADRACE_INT16:
    case HEADRACE_UINT16:
      return 2;
    case HEADRACE_INT8:
    case HEADRACE_UINT8:
    case HEADRACE_BOOLEAN:
    case HEADRACE_FLOAT8_E4M3FN:
    case HEADRACE_FLOAT8_E5M2:
      return 1;
    case HEADRACE_COMPLEX128:
      return 16;
    default:
      return 0;
  }
}

HEADRACE_BOTH_SIDES bool is_signed(int32_t dtype) {
  return dtype == HEADRACE_INT8 || dtype == HEADRACE_INT16 || dtype == HEADRACE_INT32 ||
         dtype == HEADRACE_INT64;
}

/// The floats that are computed as float32.
struct Real {
  using Wide = float;
  int32_t dtype;

  [[nodiscard]] HEADRACE_BOTH_SIDES float load(Raw raw) const {
    const auto bits = static_cast<uint32_t>(raw.low);
    if (dtype == HEADRACE_FLOAT32) return float_of(bits);
    if (dtype == HEADRACE_BFLOAT16) return float_of(bits << 16);
    return small().load(bits);
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES Raw store(float value) const {
    const uint32_t bits = bits_of(value);
    if (dtype == HEADRACE_FLOAT32) return {bits, 0};
    if (dtype != HEADRACE_BFLOAT16) return {small().store(value), 0};
    if ((bits & 0x7fffffff) > 0x7f800000) return {bits >> 16 | 0x40, 0};
    return {(bits + 0x7fff + (bits >> 16 & 1)) >> 16, 0};
  }

 private:
  [[nodiscard]] HEADRACE_BOTH_SIDES SmallFloat small() const {
    if (dtype == HEADRACE_FLOAT16) return {5, 10, true};
    if (dtype == HEADRACE_FLOAT8_E5M2) return {5, 2, true};
    return {4, 3, false};
  }
};

struct Double {
  using Wide = double;
  [[nodiscard]] HEADRACE_BOTH_SIDES double load(Raw raw) const { return __builtin_bit_cast(double, raw.low); }
  [[nodiscard]] HEADRACE_BOTH_SIDES Raw store(double value) const {
    return {__builtin_bit_cast(uint64_t, value), 0};
  }
};

struct Complex64 {
  using Wide = Complex<float>;
  [[nodiscard]] HEADRACE_BOTH_SIDES Wide load(Raw raw) const {
    return {float_of(static_cast<uint32_t>(raw.low)), float_of(static_cast<uint32_t>(raw.low >> 32))};
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES Raw store(Wide value) const {
    return {bits_of(value.real) | static_cast<uint64_t>(bits_of(value.imaginary)) << 32, 0};
  }
};

struct Complex128 {
  using Wide = Complex<double>;
  [[nodiscard]] HEADRACE_BOTH_SIDES Wide load(Raw raw) const {
    return {__builtin_bit_cast(double, raw.low), __builtin_bit_cast(double, raw.high)};
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES Raw store(Wide value) const {
    return {__builtin_bit_cast(uint64_t, value.real), __builtin_bit_cast(uint64_t, value.imaginary)};
  }
};

/// An integer of any width in 64 bits: what is above its width does not matter to sums and products.
HEADRACE_BOTH_SIDES uint64_t extended(uint64_t bits, int32_t dtype) {
  const unsigned unused = 64 - 8 * width_of(dtype);
  if (is_signed(dtype)) return static_cast<uint64_t>(static_cast<int64_t>(bits << unused) >> unused);
  return bits << unused >> unused;
}

// ------------------------------------------------------------------ reductions

template <class T>
HEADRACE_BOTH_SIDES bool is_nan(T a) {
  return a != a;  // NOLINT(misc-redundant-expression): a NaN is not itself
}

// A NaN on either side is the result of min and max.
template <class T>
HEADRACE_BOTH_SIDES T combined(int32_t kind, T a, T b) {
  if (kind == HEADRACE_COMM_PRODUCT) return multiply(a, b);
  if (kind == HEADRACE_COMM_MIN) return a < b || is_nan(a) ? a : b;
  if (kind == HEADRACE_COMM_MAX) return a > b || is_nan(a) ? a : b;
  return add(a, b);
}
template <class T>
HEADRACE_BOTH_SIDES Complex<T> combined(int32_t kind, Complex<T> a, Complex<T> b) {
  return kind == HEADRACE_COMM_PRODUCT ? multiply(a, b) : add(a, b);
}

HEADRACE_BOTH_SIDES uint64_t combined_integers(int32_t kind, bool with_sign, uint64_t a, uint64_t b) {
  const bool less = with_sign ? static_cast<int64_t>(a) < static_cast<int64_t>(b) : a < b;
  switch (kind) {
    case HEADRACE_COMM_PRODUCT:
      return a * b;
    case HEADRACE_COMM_MIN:
      return less ? a : b;
    case HEADRACE_COMM_MAX:
      return less ? b : a;
    case HEADRACE_COMM_BAND:
      return a & b;
    case HEADRACE_COMM_BOR:
      return a | b;
    case HEADRACE_COMM_BXOR:
      return a ^ b;
    default:
      return a + b;
  }
}

/// `element(rank)` is the element of a rank; the first `ranks` become one in their order.
template <class Format, class Element>
HEADRACE_BOTH_SIDES Raw fold(const Format& format, const Reduction& how, unsigned ranks,
                             const Element& element) {
  const auto scaled_element = [&](unsigned rank) {
    const auto value = format.load(element(rank));
    return how.factor != 1 ? scaled(value, how.factor) : value;
  };
  auto all = scaled_element(0);
  for (unsigned rank = 1; rank < ranks; ++rank) all = combined(how.kind, all, scaled_element(rank));
  return format.store(how.divisor != 1 ? divided(all, how.divisor) : all);
}

template <class Element>
HEADRACE_BOTH_SIDES Raw fold_integers(const Reduction& how, unsigned ranks, const Element& element) {
  uint64_t all = extended(element(0).low, how.dtype);
  for (unsigned rank = 1; rank < ranks; ++rank)
    all = combined_integers(how.kind, is_signed(how.dtype), all, extended(element(rank).low, how.dtype));
  if (how.factor != 1) all *= static_cast<uint64_t>(static_cast<int64_t>(how.factor));
  if (how.divisor != 1) {
    all = extended(all, how.dtype);
    const auto divisor = static_cast<int64_t>(how.divisor);
    all = is_signed(how.dtype) ? static_cast<uint64_t>(static_cast<int64_t>(all) / divisor)
                               : all / static_cast<uint64_t>(divisor);
  }
  return {all, 0};
}

template <class Element>
HEADRACE_BOTH_SIDES Raw fold_booleans(const Reduction& how, unsigned ranks, const Element& element) {
  const bool both =
      how.kind == HEADRACE_COMM_PRODUCT || how.kind == HEADRACE_COMM_MIN || how.kind == HEADRACE_COMM_BAND;
  const int32_t kind = both                             ? HEADRACE_COMM_BAND
                       : how.kind == HEADRACE_COMM_BXOR ? HEADRACE_COMM_BXOR
                                                        : HEADRACE_COMM_BOR;
  const auto value = [&](unsigned rank) { return static_cast<uint64_t>((element(rank).low & 0xff) != 0); };
  uint64_t all = value(0);
  for (unsigned rank = 1; rank < ranks; ++rank) all = combined_integers(kind, false, all, value(rank));
  return {all, 0};
}

template <class Element>
HEADRACE_BOTH_SIDES Raw reduced(const Reduction& how, unsigned ranks, const Element& element) {
  switch (how.dtype) {
    case HEADRACE_FLOAT32:
    case HEADRACE_FLOAT16:
    case HEADRACE_BFLOAT16:
    case HEADRACE_FLOAT8_E4M3FN:
    case HEADRACE_FLOAT8_E5M2:
      return fold(Real{how.dtype}, how, ranks, element);
    case HEADRACE_FLOAT64:
      return fold(Double{}, how, ranks, element);
    case HEADRACE_COMPLEX64:
      return fold(Complex64{}, how, ranks, element);
    case HEADRACE_COMPLEX128:
      return fold(Complex128{}, how, ranks, element);
    case HEADRACE_BOOLEAN:
      return fold_booleans(how, ranks, element);
    default:
      return fold_integers(how, ranks, element);
  }
}

/// 16 bytes of each rank, which are whole elements.
struct Unit {
  uint64_t words[2];
};
inline constexpr unsigned unit_bytes = sizeof(Unit);

HEADRACE_BOTH_SIDES Unit reduced_units(const Reduction& how, unsigned ranks, const Unit* units) {
  const unsigned width = width_of(how.dtype);
  if (width == unit_bytes) {
    const Raw raw = reduced(how, ranks, [&](unsigned rank) {
      return Raw{units[rank].words[0], units[rank].words[1]};
    });
    return {{raw.low, raw.high}};
  }
  const uint64_t mask = width == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * width)) - 1;
  Unit result{};
  for (unsigned i = 0; i < unit_bytes / width; ++i) {
    const unsigned word = i * width / 8, shift = i * width % 8 * 8;
    const Raw raw = reduced(how, ranks, [&](unsigned rank) {
      return Raw{units[rank].words[word] >> shift & mask, 0};
    });
    result.words[word] |= (raw.low & mask) << shift;
  }
  return result;
}

}  // namespace headrace::kernels::collectives
