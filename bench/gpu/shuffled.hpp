// SPDX-License-Identifier: Apache-2.0
// Which pages a program of bench/gpu moves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

/// `count` of the numbers below `of`, each once, in random order.
inline std::vector<std::uint32_t> shuffled(std::mt19937& random, std::size_t count, std::size_t of) {
  std::vector<std::uint32_t> numbers(of);
  std::iota(numbers.begin(), numbers.end(), 0u);
  std::ranges::shuffle(numbers, random);
  numbers.resize(count);
  return numbers;
}
