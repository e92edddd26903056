// SPDX-License-Identifier: Apache-2.0
// Follows the rounds of an immediate on a thread of its own: the far end of a measurement.
#pragma once

#include <headrace/fabric.hpp>

#include "cli/common/errors.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

namespace headrace::cli {

/// Waits for the round with this number, from 1: the next one that nobody has waited for. `spin`: asks again
/// and again, and does not sleep, until there is an answer or `over` is true.
[[nodiscard]] Status wait_fabric_round(const FabricExpectation& expected, std::uint64_t number, bool spin,
                                       const std::atomic<bool>& over, std::chrono::seconds patience);
/// Waits for the end of a post. It is limited by the post's own timeout.
[[nodiscard]] Status wait_fabric_work(const FabricWork& work, bool spin);
/// The error of a post that has ended.
[[nodiscard]] Error error_of_fabric_work(const FabricWork& work, Status status);

class FabricRounds {
 public:
  struct Wanted {
    Immediate immediate;
    std::uint64_t arrivals = 1;  ///< of a round
    std::uint64_t rounds = 1;
    bool spin = false;
  };
  /// `each` is called after each round, on the thread; an error ends it.
  ///   errors  those of Fabric::expect
  [[nodiscard]] static Result<std::unique_ptr<FabricRounds>> start(Fabric& fabric, const Wanted& wanted,
                                                                   std::function<Result<void>()> each);
  /// Ends the thread.
  ~FabricRounds();
  FabricRounds(const FabricRounds&) = delete;
  FabricRounds& operator=(const FabricRounds&) = delete;

  /// Waits for all rounds. Returns the seconds of one: from the start to the last, by their number. (The
  /// thread may be told of several at once, so the time of a single one means little.)
  ///   errors  timed_out (no round in 60 s), those of `each`
  [[nodiscard]] Result<double> wait();

 private:
  FabricRounds(FabricExpectation expected, const Wanted& wanted, std::function<Result<void>()> each)
      : expected_(std::move(expected)), wanted_(wanted), each_(std::move(each)) {}
  void follow();

  const FabricExpectation expected_;
  const Wanted wanted_;
  const std::function<Result<void>()> each_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double seconds_ = 0;
  Result<void> result_;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

}  // namespace headrace::cli
