// SPDX-License-Identifier: Apache-2.0
#include "cli/tensor.hpp"

#include "cli/errors.hpp"

#include <fmt/ranges.h>

#ifndef NDEBUG
// Its functions are always_inline and called through pointers, which GCC with -Og cannot inline.
#define XXH_NO_INLINE_HINTS 1
#endif
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <new>

namespace headrace::cli {
namespace {

constexpr std::array element_types{
    ElementType{"BOOL", 8, "|b1", true}, ElementType{"U8", 8, "|u1", true},
    ElementType{"I8", 8, "|i1", true},   ElementType{"U16", 16, "<u2", true},
    ElementType{"I16", 16, "<i2", true}, ElementType{"U32", 32, "<u4", true},
    ElementType{"I32", 32, "<i4", true}, ElementType{"U64", 64, "<u8", true},
    ElementType{"I64", 64, "<i8", true}, ElementType{"F16", 16, "<f2", true},
    ElementType{"F32", 32, "<f4", true}, ElementType{"F64", 64, "<f8", true},
    ElementType{"C64", 64, "<c8", true}, ElementType{"C128", 128, "<c16", false},
    ElementType{"BF16", 16, "", true},   ElementType{"F8_E4M3", 8, "", true},
    ElementType{"F8_E5M2", 8, "", true}, ElementType{"F8_E8M0", 8, "", true},
    ElementType{"F6_E2M3", 6, "", true}, ElementType{"F6_E3M2", 6, "", true},
    ElementType{"F4", 4, "", true},
};

}  // namespace

const ElementType* element_type(std::string_view name) {
  const auto* const row = std::find_if(element_types.begin(), element_types.end(),
                                       [&](const ElementType& t) { return t.name == name; });
  return row == element_types.end() ? nullptr : row;
}

const ElementType* element_type_from_npy(std::string_view descr) {
  const auto* const row = std::find_if(element_types.begin(), element_types.end(), [&](const ElementType& t) {
    return !t.npy.empty() && t.npy == descr;
  });
  return row == element_types.end() ? nullptr : row;
}

Result<std::uint64_t> tensor_bytes(const ElementType& type, std::span<const std::uint64_t> shape) {
  if (shape.size() > most_dimensions)
    return fail(Code::invalid_argument, "it has {} dimensions; the limit is {}", shape.size(),
                most_dimensions);
  // A length of 0 makes the tensor empty, even if the product of the other lengths would overflow.
  if (std::find(shape.begin(), shape.end(), 0U) != shape.end()) return std::uint64_t{0};
  std::uint64_t bits = type.bits;
  for (const std::uint64_t length : shape)
    if (__builtin_mul_overflow(bits, length, &bits))
      return fail(Code::invalid_argument, "shape [{}] is larger than any memory", fmt::join(shape, ", "));
  if (bits % 8 != 0)
    return fail(Code::invalid_argument, "shape [{}] of {} does not fill its last byte",
                fmt::join(shape, ", "), type.name);
  return bits / 8;
}

std::string shape_text(const TensorInfo& tensor) {
  return fmt::format("{} [{}]", tensor.type->name, fmt::join(tensor.shape, ", "));
}

std::uint64_t checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

namespace {

XXH3_state_t* xxh3(void* state) { return static_cast<XXH3_state_t*>(state); }

}  // namespace

RunningChecksum::RunningChecksum()
    : state_(XXH3_createState(), [](void* state) { XXH3_freeState(xxh3(state)); }) {
  if (!state_) throw std::bad_alloc();
  XXH3_64bits_reset(xxh3(state_.get()));
}

void RunningChecksum::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(xxh3(state_.get()), bytes.data(), bytes.size());
}

std::uint64_t RunningChecksum::take() {
  const std::uint64_t sum = XXH3_64bits_digest(xxh3(state_.get()));
  XXH3_64bits_reset(xxh3(state_.get()));
  return sum;
}

}  // namespace headrace::cli
