// SPDX-License-Identifier: Apache-2.0
#include "moe/sums.hpp"

#include "base/small_float.hpp"
#include "moe/float8_blocks.hpp"

#include <cstdint>
#include <cstring>
#include <span>

namespace headrace::moe {
namespace {

using Term = RowSum::Term;

struct Float32 {
  using Stored = float;
  [[gnu::always_inline]] static float load(float stored) noexcept { return stored; }
  [[gnu::always_inline]] static float store(float value) noexcept { return value; }
};

template <class Type>
[[gnu::always_inline]] inline float read(const std::byte* row, std::size_t i) noexcept {
  typename Type::Stored stored;  // rows of the caller may lie anywhere
  std::memcpy(&stored, row + i * sizeof stored, sizeof stored);
  return Type::load(stored);
}

/// The scales of a row in blocks lie behind it.
[[gnu::always_inline]] inline std::size_t scale_at(std::size_t elements, std::size_t begin) noexcept {
  return (elements + 15) / 16 * 16 + begin / block_elements * sizeof(float);
}

/// The elements of a block of a term, each times its weight.
template <class Type>
[[gnu::always_inline]] inline void load_term(const Term& term, std::size_t elements, std::size_t begin,
                                             std::size_t count, float* sums, bool is_first) noexcept {
  if (term.has_blocks) {
    float scale = 0;
    std::memcpy(&scale, term.row + scale_at(elements, begin), sizeof scale);
    for (std::size_t i = 0; i < count; ++i) {
      const float value = read<Float8E4M3>(term.row + begin, i) * scale;
      sums[i] = is_first ? value : sums[i] + value;
    }
    return;
  }
  const std::byte* const row = term.row + begin * sizeof(typename Type::Stored);
  const float weight = term.weight;
  if (is_first) {
    for (std::size_t i = 0; i < count; ++i) sums[i] = weight * read<Type>(row, i);
  } else {
    for (std::size_t i = 0; i < count; ++i) sums[i] += weight * read<Type>(row, i);
  }
}

/// Where a sum goes.
struct Target {
  std::byte* row;
  bool has_blocks;
};

template <class Type>
[[gnu::always_inline]] inline void store_sums(const float* sums, std::size_t elements, std::size_t begin,
                                              std::size_t count, const Target& to) noexcept {
  if (to.has_blocks) {
    const BlockScale of = block_scale(largest_of(sums, count));
    store_block(sums, count, of.inverse, to.row + begin);
    std::memcpy(to.row + scale_at(elements, begin), &of.scale, sizeof of.scale);
    return;
  }
  std::byte* const row = to.row + begin * sizeof(typename Type::Stored);
  for (std::size_t i = 0; i < count; ++i) {
    const typename Type::Stored stored = Type::store(sums[i]);
    std::memcpy(row + i * sizeof stored, &stored, sizeof stored);
  }
}

/// One block of all terms.
template <class Type>
[[gnu::always_inline]] inline void sum_block(const Term* terms, std::size_t term_count, std::size_t elements,
                                             std::size_t begin, std::size_t count,
                                             const Target& to) noexcept {
  float sums[block_elements];
  if (term_count == 0) std::memset(sums, 0, sizeof sums);
  for (std::size_t i = 0; i < term_count; ++i)
    load_term<Type>(terms[i], elements, begin, count, sums, i == 0);
  store_sums<Type>(sums, elements, begin, count, to);
}

template <class Type>
struct SumRow {
  [[gnu::always_inline]] static void run(const Term* terms, std::size_t term_count, std::size_t elements,
                                         Target to) noexcept {
    std::size_t begin = 0;
    for (; begin + block_elements <= elements; begin += block_elements)  // the length is known: faster
      sum_block<Type>(terms, term_count, elements, begin, block_elements, to);
    if (begin < elements) sum_block<Type>(terms, term_count, elements, begin, elements - begin, to);
  }
};

void sum_row(std::span<const Term> terms, std::size_t elements, DType dtype, Instructions instructions,
             Target to) {
  const auto run = [&](auto type) {
    run_with<SumRow<decltype(type)>>(instructions, terms.data(), terms.size(), elements, to);
  };
  if (dtype == DType::float32) return run(Float32{});
  if (dtype == DType::float16) return run(Float16{});
  run(BFloat16{});
}

}  // namespace

void RowSum::store(std::byte* row) const {
  sum_row(std::span(terms_).first(count_), elements_, dtype_, instructions_, {row, false});
}

void RowSum::store_blocks(std::byte* row) const {
  sum_row(std::span(terms_).first(count_), elements_, dtype_, instructions_, {row, true});
}

}  // namespace headrace::moe
