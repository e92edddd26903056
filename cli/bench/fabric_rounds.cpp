// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/fabric_rounds.hpp"

#include <chrono>
#include <utility>

namespace headrace::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto round_patience = std::chrono::seconds(60);

/// Asks until the answer is yes, without a pause.
template <class Ask>
bool spin_until(Ask ask, std::chrono::seconds patience) {
  constexpr unsigned asks_between_looks = 4096;
  const auto give_up = Clock::now() + patience;
  while (Clock::now() < give_up)
    for (unsigned i = 0; i < asks_between_looks; ++i)
      if (ask()) return true;
  return false;
}

}  // namespace

Status wait_fabric_round(const FabricExpectation& expected, std::uint64_t number, bool spin,
                         const std::atomic<bool>& over, std::chrono::seconds patience) {
  const auto has_come = [&] { return over || expected.rounds().load(std::memory_order_acquire) >= number; };
  if (spin && !spin_until(has_come, patience)) return {Code::timed_out};
  return expected.wait(patience);
}

Status wait_fabric_work(const FabricWork& work, bool spin) {
  if (spin)
    static_cast<void>(spin_until([&] { return work.state() != RequestState::posted; }, round_patience));
  return work.wait();
}

Error error_of_fabric_work(const FabricWork& work, Status status) {
  Error error = work.error();
  if (error.code != Code::ok) return error;
  return fail(status.code, "a post ended with {}", code_name(status.code));
}

Result<std::unique_ptr<FabricRounds>> FabricRounds::start(Fabric& fabric, const Wanted& wanted,
                                                          std::function<Result<void>()> each) {
  HEADRACE_CLI_TRY(expected, fabric.expect(wanted.immediate, wanted.arrivals));
  std::unique_ptr<FabricRounds> rounds(new FabricRounds(std::move(expected), wanted, std::move(each)));
  rounds->thread_ = std::thread([self = rounds.get()] { self->follow(); });
  return rounds;
}

FabricRounds::~FabricRounds() {
  over_ = true;
  static_cast<void>(expected_.remove());  // ends its waits
  if (thread_.joinable()) thread_.join();
}

Result<double> FabricRounds::wait() {
  if (thread_.joinable()) thread_.join();
  if (!result_) return std::move(result_).error();
  return seconds_;
}

void FabricRounds::follow() {
  for (std::uint64_t round = 1; round <= wanted_.rounds; ++round) {
    const Status status = wait_fabric_round(expected_, round, wanted_.spin, over_, round_patience);
    if (!status.ok()) {
      result_ = fail(status.code, "round {} of {} of immediate {} has not come", round, wanted_.rounds,
                     wanted_.immediate.value);
      return;
    }
    if (result_ = each_(); !result_) return;
  }
  const std::chrono::duration<double> taken = Clock::now() - begin_;
  seconds_ = taken.count() / static_cast<double>(wanted_.rounds);
}

}  // namespace headrace::cli
