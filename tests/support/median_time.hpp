// SPDX-License-Identifier: Apache-2.0
// How long one of many calls takes, for tests of the growth of a cost.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace headrace::test {

/// The median over `calls` calls of `call(i)`, in nanoseconds; 1 at least.
template <class Call>
[[nodiscard]] double median_ns(std::size_t calls, Call&& call) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  for (std::size_t i = 0; i < calls; ++i) {
    const auto begin = Clock::now();
    call(i);
    times.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
  }
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(calls / 2));
  return std::max(times[calls / 2], 1.0);
}

}  // namespace headrace::test
