// SPDX-License-Identifier: Apache-2.0
// All immediates that a fabric counts: those that are expected, and what came unexpected.
#pragma once

#include "base/errors.hpp"
#include "fabric/expectation.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace headrace::fabric {

/// Thread-safe.
class Expectations : public std::enable_shared_from_this<Expectations> {
 public:
  /// Different immediates that are kept while nobody expects them.
  static constexpr std::size_t most_unexpected = 16384;

  Expectations(std::shared_ptr<Callbacks> callbacks, std::shared_ptr<const ForkGuard> fork,
               std::shared_ptr<FlagMaker> flags = std::make_shared<FlagMaker>())
      : callbacks_(std::move(callbacks)), fork_(std::move(fork)), flags_(std::move(flags)) {}

  /// From a worker. The bytes can be read.
  void arrived(Immediate immediate, std::uint64_t amount);

  ///   errors  invalid_argument
  Result<std::shared_ptr<Expectation>> expect(Immediate immediate, std::uint64_t each);
  void on_unexpected(std::function<void(Immediate, std::uint64_t)> told);

  /// Of barriers. Its immediates are not expected, and not told as unexpected ones.
  static constexpr std::uint32_t barrier_scope = std::uint32_t{1} << 31;
  /// Calls `taken` once, on this thread or a worker's, when that many have come; they are used up. Takes of
  /// one immediate are served in their order.
  ///   immediate  of a scope with the bit `barrier_scope`
  ///   errors     invalid_argument (closed)
  Result<std::uint64_t> take(Immediate immediate, std::uint64_t amount, std::function<void()> taken);
  /// Nothing is used up if it was not served.
  void give_up(std::uint64_t take);

  [[nodiscard]] std::uint64_t arrivals() const { return arrivals_; }
  [[nodiscard]] std::uint64_t lost() const { return lost_; }
  /// Ends all expectations.
  void close();

 private:
  struct Take {
    std::uint64_t id;
    std::uint64_t amount;
    std::function<void()> taken;
  };
  struct Entry {
    std::shared_ptr<Expectation> expectation;
    std::uint64_t kept = 0;  // of an immediate that nobody expects
    std::deque<Take> takes;

    [[nodiscard]] bool empty() const { return expectation == nullptr && kept == 0 && takes.empty(); }
  };
  using Entries = std::unordered_map<std::uint64_t, Entry>;
  static std::uint64_t packed(Immediate at) { return std::uint64_t{at.scope} << 32 | at.value; }
  static Immediate unpacked(std::uint64_t key) {
    return {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)};
  }
  std::uint64_t remove(const std::shared_ptr<Expectation>& expectation);
  std::vector<std::function<void()>> serve(Entries::iterator at);
  [[nodiscard]] std::size_t& without_expectation(std::uint64_t key);
  void tell_unexpected();
  void tell_soon(std::unique_lock<std::mutex>& lock);

  const std::shared_ptr<Callbacks> callbacks_;
  const std::shared_ptr<const ForkGuard> fork_;
  const std::shared_ptr<FlagMaker> flags_;
  std::atomic<std::uint64_t> arrivals_ = 0, lost_ = 0;

  std::mutex mutex_;
  Entries entries_;
  std::size_t unexpected_ = 0, barriers_ = 0;  // entries without an expectation
  std::uint64_t next_take_ = 1;
  bool closed_ = false;
  bool telling_ = false;
  std::shared_ptr<const std::function<void(Immediate, std::uint64_t)>> told_;
};

}  // namespace headrace::fabric
