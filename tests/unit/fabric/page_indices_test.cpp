// SPDX-License-Identifier: Apache-2.0
#include "fabric/page_indices.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace headrace::fabric {
namespace {

constexpr std::size_t longest = 67;  // some vectors of any width, and a rest

template <class Number>
std::vector<Number> numbers_of(std::size_t count) {
  std::vector<Number> numbers(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = static_cast<Number>((i * 37 + 11) % 101);
  return numbers;
}

template <class Number>
void expect_narrowed(const std::vector<Number>& numbers, bool fits) {
  std::vector<std::uint32_t> narrowed(numbers.size());
  ASSERT_EQ(narrow(std::span<const Number>(numbers), narrowed), fits) << numbers.size();
  for (std::size_t i = 0; fits && i < numbers.size(); ++i)
    ASSERT_EQ(static_cast<Number>(narrowed[i]), numbers[i]) << i << " of " << numbers.size();
}

template <class Number>
void expect_found_at_every_place(const std::vector<Number>& that_do_not_fit, Number greatest_that_fits) {
  for (std::size_t count = 0; count <= longest; ++count) {
    const auto good = numbers_of<Number>(count);
    expect_narrowed(good, true);
    for (std::size_t at = 0; at < count; ++at) {
      auto numbers = good;
      numbers[at] = greatest_that_fits;
      expect_narrowed(numbers, true);
      for (const Number bad : that_do_not_fit) {
        numbers[at] = bad;
        expect_narrowed(numbers, false);
      }
    }
  }
}

TEST(PageIndices, of_64_bits_that_do_not_fit_are_found_at_every_place) {
  using Limits = std::numeric_limits<std::int64_t>;
  expect_found_at_every_place<std::int64_t>({-1, std::int64_t{1} << 32, Limits::min(), Limits::max()},
                                            std::numeric_limits<std::uint32_t>::max());
}

TEST(PageIndices, of_32_bits_that_are_negative_are_found_at_every_place) {
  using Limits = std::numeric_limits<std::int32_t>;
  expect_found_at_every_place<std::int32_t>({-1, Limits::min()}, Limits::max());
}

TEST(PageIndices, the_greatest_is_found_at_every_place) {
  EXPECT_EQ(greatest({}), 0U);
  for (std::size_t count = 1; count <= longest; ++count)
    for (std::size_t at = 0; at < count; ++at)
      for (const std::uint32_t most : {200U, std::numeric_limits<std::uint32_t>::max()}) {
        auto numbers = numbers_of<std::uint32_t>(count);
        numbers[at] = most;
        ASSERT_EQ(greatest(numbers), most) << at << " of " << count;
      }
}

}  // namespace
}  // namespace headrace::fabric
