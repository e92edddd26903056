// SPDX-License-Identifier: Apache-2.0
// One immediate that is counted in rounds.
#pragma once

#include <headrace/fabric_words.hpp>
#include <headrace/request.hpp>

#include "base/event_fd.hpp"
#include "base/fork_guard.hpp"
#include "fabric/callbacks.hpp"
#include "fabric/flags.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace headrace::fabric {

/// Thread-safe.
class Expectation : public std::enable_shared_from_this<Expectation> {
 public:
  Expectation(Immediate immediate, std::uint64_t each, std::shared_ptr<Callbacks> callbacks,
              std::shared_ptr<const ForkGuard> fork, std::shared_ptr<FlagMaker> flags)
      : immediate(immediate),
        each(each),
        callbacks_(std::move(callbacks)),
        fork_(std::move(fork)),
        flags_made_by_(std::move(flags)) {}

  // For users.
  Status wait(Timeout timeout);
  void on_reached(std::function<bool()> reached);
  Result<int> event_fd();
  [[nodiscard]] const std::atomic<std::uint64_t>& rounds() const { return rounds_; }
  Result<std::shared_ptr<const HeldFlag>> flag(const FabricFlagPlace& place);
  /// Through the table that has it; null once it has ended.
  std::function<std::uint64_t()> take_remover();
  void set_remover(std::function<std::uint64_t()> remover) { remover_ = std::move(remover); }

  // For the table.
  /// False: it has ended, and nothing was counted.
  bool arrived(std::uint64_t amount);
  /// Returns the arrivals of the round that is not full.
  std::uint64_t end();

  const Immediate immediate;
  const std::uint64_t each;

 private:
  void tell();
  void tell_soon(std::unique_lock<std::mutex>& lock);
  void raise_flags();
  friend class HeldFlag;
  void drop(const Flag& flag);

  const std::shared_ptr<Callbacks> callbacks_;
  const std::shared_ptr<const ForkGuard> fork_;
  const std::shared_ptr<FlagMaker> flags_made_by_;
  std::atomic<std::uint64_t> rounds_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::uint64_t rest_ = 0;   // arrivals of the round that is not full
  std::uint64_t taken_ = 0;  // rounds, by `wait`
  std::uint64_t told_ = 0;   // rounds, by the callback
  bool telling_ = false;     // a call of `tell` is queued or runs
  std::shared_ptr<const std::function<bool()>> reached_;
  std::optional<EventFd> bell_;
  std::function<std::uint64_t()> remover_;
  std::vector<Flag*> flags_;  // each until its last handle has gone
};

/// What all handles of a flag share; the last one ends it.
class HeldFlag {
 public:
  HeldFlag(std::shared_ptr<Expectation> expectation, std::unique_ptr<Flag> flag)
      : expectation_(std::move(expectation)), flag_(std::move(flag)) {}
  ~HeldFlag();
  HeldFlag(const HeldFlag&) = delete;
  HeldFlag& operator=(const HeldFlag&) = delete;
  [[nodiscard]] const Flag& flag() const { return *flag_; }

 private:
  const std::shared_ptr<Expectation> expectation_;
  std::unique_ptr<Flag> flag_;
};

}  // namespace headrace::fabric
