// SPDX-License-Identifier: Apache-2.0
// Descriptors that links leave to the rest of the process, and a spare one: with it a listener that has no
// other tells the peer why it is refused. Without the spare, accept fails for as long as there is none, and
// the peer waits for its timeout.
#pragma once

#include "base/errors.hpp"
#include "base/unique_fd.hpp"

#include <atomic>
#include <cstdint>
#include <string>

namespace headrace {

/// How many more this process may open.
[[nodiscard]] std::uint64_t descriptors_left();

/// Of one listener, and of those who connect beside it.
///   threads  `accept` and `refill`: the listener's; the others any
class DescriptorReserve {
 public:
  /// `kept`: how many descriptors stay free.
  DescriptorReserve(std::string agent, std::uint64_t kept);

  /// Returns accept(), a Result. Without a free descriptor it is called once more in place of the spare;
  /// `check` then refuses the connection.
  template <class Accept>
  auto accept(Accept&& accept) {
    (void)refill();
    auto accepted = accept();
    if (accepted.code() != Code::exhausted || !spare_) return accepted;
    spare_.reset();
    accepted = accept();
    if (!accepted) (void)refill();
    return accepted;
  }
  /// Whether the spare is there, or there again. Without it `accept` may fail: the listener tries this first,
  /// after a pause.
  bool refill();

  /// Whether enough descriptors are free, now that a link has taken its own.
  ///   errors   exhausted: for the peer, too
  [[nodiscard]] Result<void> check() const;

  /// Counts a refusal. Returns how many there were since the last time that it returned some, or 0 if that is
  /// less than a second ago.
  std::uint64_t count_refusal(std::uint64_t now_ns);

 private:
  const std::string agent_;
  const std::uint64_t kept_;
  UniqueFd spare_;
  std::atomic<std::uint64_t> refusals_{0};
  std::atomic<std::uint64_t> logged_at_ns_{0};
};

}  // namespace headrace
