// SPDX-License-Identifier: Apache-2.0
// One loop for every operation and type, compiled for several sets of instructions. This file alone is
// compiled with -O3, and without fused multiply-add: ranks on different CPUs must get the same bits.
#include "collectives/reduction.hpp"

#include "base/errors.hpp"
#include "base/small_float.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace headrace::collectives {
namespace {

/// float32, float64 and integers: computed in their own type.
template <class T>
struct Plain {
  using Stored = T;
  using Wide = T;
  [[gnu::always_inline]] static T load(T stored) noexcept { return stored; }
  [[gnu::always_inline]] static T store(T value) noexcept { return value; }
};

struct Bool {
  using Stored = std::uint8_t;
  using Wide = std::uint8_t;
  [[gnu::always_inline]] static Wide load(Stored stored) noexcept { return stored != 0 ? 1 : 0; }
  [[gnu::always_inline]] static Stored store(Wide value) noexcept { return value; }
};

template <class T>
struct Complex {
  T real, imaginary;
};

template <class T>
using Modular = std::conditional_t<sizeof(T) < 4, std::uint32_t, T>;

// Integers are unsigned here: sums and products wrap around, and small ones are not promoted to int.
template <class T>
[[gnu::always_inline]] inline T add(T a, T b) noexcept {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(Modular<T>{a} + Modular<T>{b});
  else
    return a + b;
}
template <class T>
[[gnu::always_inline]] inline T multiply(T a, T b) noexcept {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(Modular<T>{a} * Modular<T>{b});
  else
    return a * b;
}
template <class T>
[[gnu::always_inline]] inline Complex<T> add(Complex<T> a, Complex<T> b) noexcept {
  return {a.real + b.real, a.imaginary + b.imaginary};
}
template <class T>
[[gnu::always_inline]] inline Complex<T> multiply(Complex<T> a, Complex<T> b) noexcept {
  return {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
}
template <class T>
[[gnu::always_inline]] inline T times(T a, double by) noexcept {
  return a * static_cast<T>(by);
}
template <class T>
[[gnu::always_inline]] inline Complex<T> times(Complex<T> a, double by) noexcept {
  return {a.real * static_cast<T>(by), a.imaginary * static_cast<T>(by)};
}
template <class T>
[[gnu::always_inline]] inline T divided(T a, double by) noexcept {
  return a / static_cast<T>(by);
}
template <class T>
[[gnu::always_inline]] inline Complex<T> divided(Complex<T> a, double by) noexcept {
  return {a.real / static_cast<T>(by), a.imaginary / static_cast<T>(by)};
}

struct Sum {
  template <class T>
  [[gnu::always_inline]] static T apply(T a, T b) noexcept {
    return add(a, b);
  }
};
struct Product {
  template <class T>
  [[gnu::always_inline]] static T apply(T a, T b) noexcept {
    return multiply(a, b);
  }
};
template <class T>
[[gnu::always_inline]] inline bool is_nan(T a) noexcept {
  return a != a;  // NOLINT(misc-redundant-expression): a NaN is not itself
}
// A NaN on either side is the result.
struct Min {
  template <class T>
  [[gnu::always_inline]] static T apply(T a, T b) noexcept {
    return a < b || is_nan(a) ? a : b;
  }
};
struct Max {
  template <class T>
  [[gnu::always_inline]] static T apply(T a, T b) noexcept {
    return a > b || is_nan(a) ? a : b;
  }
};
struct And {
  template <class T>
  [[gnu::always_inline]] static T apply(T a, T b) noexcept {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  [[gnu::always_inline]] static T apply(T a, T b) noexcept {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  [[gnu::always_inline]] static T apply(T a, T b) noexcept {
    return static_cast<T>(a ^ b);
  }
};

template <class T>
[[gnu::always_inline]] inline T element(const std::byte* bytes, std::size_t i) noexcept {
  T value;
  std::memcpy(&value, bytes + i * sizeof value, sizeof value);
  return value;
}
template <class T>
[[gnu::always_inline]] inline void put_element(std::byte* bytes, std::size_t i, T value) noexcept {
  std::memcpy(bytes + i * sizeof value, &value, sizeof value);
}

/// A block of results stays in the first-level cache while the inputs pass.
constexpr std::size_t block_bytes = 4096;

template <class Format, class Op>
[[gnu::always_inline]] inline void loop(std::byte* output, const std::byte* const* inputs,
                                        std::size_t input_count, std::size_t count, const Scaling& scaling) {
  using Stored = typename Format::Stored;
  using Wide = typename Format::Wide;
  constexpr bool scales = std::is_same_v<Op, Sum> && !std::is_integral_v<Wide>;
  constexpr std::size_t block = block_bytes / sizeof(Wide);
  std::array<Wide, block> sum;
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t n = count - begin < block ? count - begin : block;
    const auto input = [&](std::size_t k) { return inputs[k] + begin * sizeof(Stored); };
    bool scaled = false;
    if constexpr (scales) scaled = scaling.factor != 1;
    if (!scaled) {
      for (std::size_t i = 0; i < n; ++i) sum[i] = Format::load(element<Stored>(input(0), i));
      for (std::size_t k = 1; k < input_count; ++k) {
        const std::byte* const next = input(k);
        for (std::size_t i = 0; i < n; ++i)
          sum[i] = Op::apply(sum[i], Format::load(element<Stored>(next, i)));
      }
    }
    if constexpr (scales) {
      for (std::size_t k = 0; scaled && k < input_count; ++k) {
        for (std::size_t i = 0; i < n; ++i) {
          const Wide product = times(Format::load(element<Stored>(input(k), i)), scaling.factor);
          sum[i] = k == 0 ? product : add(sum[i], product);
        }
      }
      if (scaling.divisor != 1)
        for (std::size_t i = 0; i < n; ++i) sum[i] = divided(sum[i], scaling.divisor);
    }
    std::byte* const to = output + begin * sizeof(Stored);
    for (std::size_t i = 0; i < n; ++i) put_element<Stored>(to, i, Format::store(sum[i]));
  }
}

template <class Format, class Op>
void plain_loop(std::byte* output, const std::byte* const* inputs, std::size_t input_count, std::size_t count,
                const Scaling& scaling) {
  loop<Format, Op>(output, inputs, input_count, count, scaling);
}

#if defined(__x86_64__)
template <class Format, class Op>
__attribute__((target("avx2"))) void avx2_loop(std::byte* output, const std::byte* const* inputs,
                                               std::size_t input_count, std::size_t count,
                                               const Scaling& scaling) {
  loop<Format, Op>(output, inputs, input_count, count, scaling);
}
template <class Format, class Op>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) void avx512_loop(std::byte* output,
                                                                               const std::byte* const* inputs,
                                                                               std::size_t input_count,
                                                                               std::size_t count,
                                                                               const Scaling& scaling) {
  loop<Format, Op>(output, inputs, input_count, count, scaling);
}
#endif

template <class Format, class Op>
Reduction::Loop choose(Instructions instructions) {
#if defined(__x86_64__)
  // Of integers and complex numbers the memory is the limit already with AVX2.
  constexpr bool worth_avx512 = std::is_floating_point_v<typename Format::Wide>;
  if constexpr (worth_avx512)
    if (instructions == Instructions::avx512) return avx512_loop<Format, Op>;
  if (instructions != Instructions::plain) return avx2_loop<Format, Op>;
#else
  static_cast<void>(instructions);
#endif
  return plain_loop<Format, Op>;
}

using Kind = ReduceOp::Kind;

template <class Format>
Reduction::Loop number_loop(Kind kind, Instructions instructions) {
  switch (kind) {
    case Kind::sum:
    case Kind::avg:
    case Kind::premul_sum:
      return choose<Format, Sum>(instructions);
    case Kind::product:
      return choose<Format, Product>(instructions);
    case Kind::min:
      return choose<Format, Min>(instructions);
    case Kind::max:
      return choose<Format, Max>(instructions);
    default:
      return nullptr;
  }
}

template <class T>
struct ComplexFormat {
  using Stored = Complex<T>;
  using Wide = Complex<T>;
  [[gnu::always_inline]] static Wide load(Stored stored) noexcept { return stored; }
  [[gnu::always_inline]] static Stored store(Wide value) noexcept { return value; }
};

template <class T>
Reduction::Loop complex_loop(Kind kind, Instructions instructions) {
  if (kind == Kind::sum || kind == Kind::avg || kind == Kind::premul_sum)
    return choose<ComplexFormat<T>, Sum>(instructions);
  return kind == Kind::product ? choose<ComplexFormat<T>, Product>(instructions) : nullptr;
}

template <class T>
Reduction::Loop integer_loop(Kind kind, Instructions instructions) {
  using Unsigned = Plain<std::make_unsigned_t<T>>;  // the same bits for both
  switch (kind) {
    case Kind::sum:
    case Kind::avg:
    case Kind::premul_sum:
      return choose<Unsigned, Sum>(instructions);
    case Kind::product:
      return choose<Unsigned, Product>(instructions);
    case Kind::min:
      return choose<Plain<T>, Min>(instructions);
    case Kind::max:
      return choose<Plain<T>, Max>(instructions);
    case Kind::band:
      return choose<Unsigned, And>(instructions);
    case Kind::bor:
      return choose<Unsigned, Or>(instructions);
    case Kind::bxor:
      return choose<Unsigned, Xor>(instructions);
  }
  return nullptr;
}

Reduction::Loop bool_loop(Kind kind, Instructions instructions) {
  switch (kind) {
    case Kind::sum:
    case Kind::max:
    case Kind::bor:
      return choose<Bool, Or>(instructions);
    case Kind::product:
    case Kind::min:
    case Kind::band:
      return choose<Bool, And>(instructions);
    case Kind::bxor:
      return choose<Bool, Xor>(instructions);
    default:
      return nullptr;
  }
}

template <class T>
void finish_integers(std::byte* output, std::size_t count, const Scaling& scaling) {
  using Unsigned = std::make_unsigned_t<T>;
  const auto factor = static_cast<Unsigned>(static_cast<std::int64_t>(scaling.factor));
  const auto divisor = static_cast<std::int64_t>(scaling.divisor);
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<T>(multiply(element<Unsigned>(output, i), factor));
    if constexpr (std::is_signed_v<T>)
      put_element<T>(output, i, static_cast<T>(static_cast<std::int64_t>(value) / divisor));
    else
      put_element<T>(output, i, static_cast<T>(value / static_cast<std::uint64_t>(divisor)));
  }
}

struct Functions {
  Reduction::Loop loop = nullptr;
  Reduction::Finish finish = nullptr;
};

template <class T>
Functions integer_functions(Kind kind, Instructions instructions) {
  const bool scaled = kind == Kind::avg || kind == Kind::premul_sum;
  return {integer_loop<T>(kind, instructions), scaled ? finish_integers<T> : nullptr};
}

Functions functions_of(Kind kind, DType dtype, Instructions instructions) {
  switch (dtype) {
    case DType::float32:
      return {number_loop<Plain<float>>(kind, instructions)};
    case DType::float64:
      return {number_loop<Plain<double>>(kind, instructions)};
    case DType::float16:
      return {number_loop<Float16>(kind, instructions)};
    case DType::bfloat16:
      return {number_loop<BFloat16>(kind, instructions)};
    case DType::float8_e4m3fn:
      return {number_loop<Float8E4M3>(kind, instructions)};
    case DType::float8_e5m2:
      return {number_loop<Float8E5M2>(kind, instructions)};
    case DType::complex64:
      return {complex_loop<float>(kind, instructions)};
    case DType::complex128:
      return {complex_loop<double>(kind, instructions)};
    case DType::boolean:
      return {bool_loop(kind, instructions)};
    case DType::int8:
      return integer_functions<std::int8_t>(kind, instructions);
    case DType::int16:
      return integer_functions<std::int16_t>(kind, instructions);
    case DType::int32:
      return integer_functions<std::int32_t>(kind, instructions);
    case DType::int64:
      return integer_functions<std::int64_t>(kind, instructions);
    case DType::uint8:
      return integer_functions<std::uint8_t>(kind, instructions);
    case DType::uint16:
      return integer_functions<std::uint16_t>(kind, instructions);
    case DType::uint32:
      return integer_functions<std::uint32_t>(kind, instructions);
    case DType::uint64:
      return integer_functions<std::uint64_t>(kind, instructions);
  }
  return {};
}

}  // namespace

Result<Reduction> Reduction::find(ReduceOp op, DType dtype, int ranks, Instructions instructions) {
  Reduction found;
  found.width_ = element_bytes(dtype);
  if (op.kind == Kind::premul_sum) found.scaling_.factor = op.factor;
  if (op.kind == Kind::avg) found.scaling_.divisor = ranks;
  const Functions functions = functions_of(op.kind, dtype, instructions);
  if (functions.loop == nullptr) {
    return make_error(Code::invalid_argument,
                      "{} has no meaning for {}: bit operations are for integers and bool, order is not for "
                      "complex numbers, scaling is not for bool",
                      reduce_op_name(op.kind), dtype_name(dtype));
  }
  constexpr double whole_limit = 9007199254740992.0;  // 2^53
  const bool whole = op.factor == std::trunc(op.factor) && std::abs(op.factor) <= whole_limit;
  if (functions.finish != nullptr && op.kind == Kind::premul_sum && !whole) {
    return make_error(Code::invalid_argument, "premul_sum of {} needs a whole factor, not {}",
                      dtype_name(dtype), op.factor);
  }
  found.loop_ = functions.loop;
  found.finish_ = functions.finish;
  return found;
}

}  // namespace headrace::collectives
