// SPDX-License-Identifier: Apache-2.0
#include "moe/sums.hpp"

#include "base/small_float.hpp"
#include "moe/cast.hpp"
#include "moe/float8_blocks.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace headrace::moe {
namespace {

struct Float32 {
  using Stored = float;
  static float load(float stored) noexcept { return stored; }
  static float store(float value) noexcept { return value; }
};

template <class Type>
[[gnu::always_inline]] inline typename Type::Stored read(const std::byte* row, std::size_t i) noexcept {
  typename Type::Stored stored;  // rows of the caller may lie anywhere
  std::memcpy(&stored, row + i * sizeof stored, sizeof stored);
  return stored;
}

template <class Type>
void set_row(std::span<float> sums, const std::byte* row, float weight) noexcept {
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = weight * Type::load(read<Type>(row, i));
}

template <class Type>
void add_row(std::span<float> sums, const std::byte* row, float weight) noexcept {
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += weight * Type::load(read<Type>(row, i));
}

template <class Type>
void store_row(std::span<const float> sums, std::byte* row) noexcept {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const typename Type::Stored stored = Type::store(sums[i]);
    std::memcpy(row + i * sizeof stored, &stored, sizeof stored);
  }
}

/// Calls use(type) with the type of the elements.
template <class Use>
void with_type(DType dtype, const Use& use) {
  if (dtype == DType::float32) return use(Float32{});
  if (dtype == DType::float16) return use(Float16{});
  use(BFloat16{});
}

}  // namespace

void RowSum::add(const std::byte* row, float weight) {
  with_type(dtype_, [&](auto type) {
    using Type = decltype(type);
    empty_ ? set_row<Type>(sums_, row, weight) : add_row<Type>(sums_, row, weight);
  });
  empty_ = false;
}

void RowSum::store(std::byte* row) const {
  if (empty_) {
    std::memset(row, 0, sums_.size() * element_bytes(dtype_));
    return;
  }
  with_type(dtype_, [&](auto type) { store_row<decltype(type)>(sums_, row); });
}

void RowSum::add_blocks(const std::byte* row, std::span<float> values) {
  load_blocks(values, row, row + round_up(values.size(), 16));
  for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] = empty_ ? values[i] : sums_[i] + values[i];
  empty_ = false;
}

void RowSum::store_blocks(std::byte* row) {
  if (empty_) std::ranges::fill(sums_, 0.0F);
  moe::store_blocks(sums_, row, row + round_up(sums_.size(), 16));
}

}  // namespace headrace::moe
