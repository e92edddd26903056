// SPDX-License-Identifier: Apache-2.0
#include "engine/spin_length.hpp"

#include <gtest/gtest.h>

namespace headrace::engine {
namespace {

constexpr std::uint64_t full = 1000;

void disappoint(SpinLength& spins) {
  for (std::uint32_t i = 0; i < SpinLength::patience; ++i) {
    EXPECT_EQ(spins.next(), full) << "after " << i << " polls without result";
    spins.in_vain();
  }
}

TEST(SpinLength, most_waits_sleep_at_once_after_some_polls_without_result) {
  SpinLength spins(full);
  disappoint(spins);
  std::uint32_t looks = 0;
  for (std::uint32_t i = 0; i < 10 * SpinLength::try_every; ++i) {
    if (spins.next() == 0) continue;
    ++looks;
    spins.in_vain();
  }
  EXPECT_EQ(looks, 10U);
}

TEST(SpinLength, a_poll_that_pays_restores_the_full_spin_length) {
  SpinLength spins(full);
  disappoint(spins);
  spins.paid();
  disappoint(spins);
}

TEST(SpinLength, occasional_polls_without_result_do_not_end_the_spinning) {
  SpinLength spins(full);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(spins.next(), full);
    if (i % 2 == 0) {
      spins.in_vain();
    } else {
      spins.paid();
    }
  }
}

}  // namespace
}  // namespace headrace::engine
