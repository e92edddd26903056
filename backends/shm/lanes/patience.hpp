// SPDX-License-Identifier: Apache-2.0
// How one side of a lane waits for the other: it spins, then yields the core, then sleeps.
#pragma once

#include <cstdint>

namespace headrace::shm {

class Patience {
 public:
  void wait() noexcept;
  /// Since it first yielded the core.
  [[nodiscard]] std::uint64_t waited_ns() const noexcept;
  [[nodiscard]] bool is_long() const noexcept { return rounds_ > spins; }

 private:
  static constexpr std::uint32_t spins = 400;
  static constexpr std::uint64_t yield_ns = 200'000;
  static constexpr std::uint64_t sleep_ns = 50'000;

  std::uint32_t rounds_ = 0;
  std::uint64_t since_ns_ = 0;
};

}  // namespace headrace::shm
