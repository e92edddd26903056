// SPDX-License-Identifier: Apache-2.0
// Sums of rows have the same bits with each set of instructions, and are those of plain steps.
#include "moe/sums.hpp"

#include "moe/cast.hpp"
#include "moe/float8_blocks.hpp"
#include "ranks.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace::moe {
namespace {

/// A row of a sum, as bytes and as numbers.
struct SumTerm {
  Bytes bytes;
  std::vector<float> values;
  float weight = 1;
  bool has_blocks = false;
};

SumTerm random_term(Random& random, DType dtype, std::size_t elements, bool has_blocks) {
  SumTerm term;
  term.has_blocks = has_blocks;
  term.bytes = random_rows(random, dtype, static_cast<std::int64_t>(elements));
  for (std::size_t i = 0; i < elements; ++i)
    term.values.push_back(moe_reference::load(dtype, term.bytes.data() + i * element_bytes(dtype)));
  if (!has_blocks) {
    term.weight = static_cast<float>(below(random, 7)) / 4;
    return term;
  }
  term.bytes.assign(float8_partial_bytes(elements), std::byte{0});
  std::byte* const scales = term.bytes.data() + round_up(elements, 16);
  store_blocks(term.values, term.bytes.data(), scales);
  load_blocks(term.values, term.bytes.data(), scales);
  return term;
}

class Sums : public testing::TestWithParam<DType> {
 protected:
  static constexpr std::size_t elements = 432;  // three blocks and a short one
  [[nodiscard]] Bytes made(Instructions instructions, bool to_blocks) const {
    RowSum sum(elements, GetParam(), instructions);
    for (const SumTerm& term : terms_)
      term.has_blocks ? sum.add_blocks(term.bytes.data()) : sum.add(term.bytes.data(), term.weight);
    Bytes row(to_blocks ? float8_partial_bytes(elements) : elements * element_bytes(GetParam()));
    to_blocks ? sum.store_blocks(row.data()) : sum.store(row.data());
    return row;
  }
  [[nodiscard]] std::vector<float> expected() const {
    std::vector<float> sums;
    for (std::size_t i = 0; i < elements; ++i) {
      moe_reference::Sum sum;
      for (const SumTerm& term : terms_) sum.add(term.weight, term.values[i]);
      sums.push_back(sum.value());
    }
    return sums;
  }
  std::vector<SumTerm> terms_;
};

TEST_P(Sums, have_the_bits_of_plain_steps_with_all_instructions) {
  Random random(7);
  const DType dtype = GetParam();
  for (int count = 0; count <= moe_most_top_k + 3; count += 5) {
    terms_.clear();
    for (int i = 0; i < count; ++i)
      terms_.push_back(random_term(random, dtype, elements, below(random, 3) == 0));
    Bytes row(elements * element_bytes(dtype)), blocks(float8_partial_bytes(elements));
    const std::vector<float> sums = expected();
    for (std::size_t i = 0; i < elements; ++i)
      moe_reference::store(dtype, row.data() + i * element_bytes(dtype), sums[i]);
    store_blocks(sums, blocks.data(), blocks.data() + round_up(elements, 16));
    for (auto instructions = Instructions::plain; instructions <= best_instructions();
         instructions = static_cast<Instructions>(static_cast<int>(instructions) + 1)) {
      EXPECT_TRUE(made(instructions, false) == row) << count << " terms";
      EXPECT_TRUE(made(instructions, true) == blocks) << count << " terms";
    }
  }
}

TEST_P(Sums, may_be_stored_in_the_place_of_a_term) {
  Random random(8);
  terms_ = {random_term(random, GetParam(), elements, false),
            random_term(random, GetParam(), elements, false)};
  const Bytes expected = made(Instructions::plain, false);
  RowSum sum(elements, GetParam());
  Bytes row = terms_[1].bytes;
  sum.add(terms_[0].bytes.data(), terms_[0].weight);
  sum.add(row.data(), terms_[1].weight);
  sum.store(row.data());
  EXPECT_TRUE(row == expected);
}

INSTANTIATE_TEST_SUITE_P(MoE, Sums, testing::Values(DType::float32, DType::float16, DType::bfloat16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

}  // namespace
}  // namespace headrace::moe
