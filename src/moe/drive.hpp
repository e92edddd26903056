// SPDX-License-Identifier: Apache-2.0
// The loop in which a rank waits for others.
#pragma once

#include "base/waiter.hpp"
#include "moe/rank.hpp"

#include <bit>
#include <optional>

namespace headrace::moe {

template <class Take>
void Rank::drive(Mask ranks, const Awaited& awaited, const Take& take) {
  Waiter waiter(spins_, own().bell());
  std::optional<Deadline> limit;  // read from the clock only when nothing moves
  while (ranks != 0) {
    bool moved = false;
    for (Mask rest = ranks; rest != 0; rest &= rest - 1) {
      const auto rank = static_cast<std::uint32_t>(std::countr_zero(rest));
      const Step step = is_active(rank) ? take(rank) : Step::done;
      moved = moved || step != Step::waits;
      if (step == Step::done) ranks &= ~bit_of(rank);
    }
    if (moved) {
      waiter.moved();
      limit.reset();
      continue;
    }
    if (!limit) limit = Deadline::after(config_.wait_limit);
    static_cast<void>(waiter.pause([&]() -> Result<void> {
      ranks = check_waiting(ranks, awaited, *limit);
      return {};
    }));
  }
}

}  // namespace headrace::moe
