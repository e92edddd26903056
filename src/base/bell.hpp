// SPDX-License-Identifier: Apache-2.0
// Where the threads of a rank sleep while they wait for other ranks: a word in its box, which these ring.
#pragma once

#include "base/futex.hpp"

#include <atomic>
#include <cstdint>

namespace headrace {

/// A waiter arms the bell, looks once more for what it waits for, and sleeps. A writer stores that, and
/// rings. What is waited for is stored and loaded with sequential consistency, as the word is, so that either
/// the waiter sees the store or the writer sees the bell armed. Any process may write the word: it decides
/// nothing but how long a thread sleeps, which is bounded.
class Bell {
 public:
  Bell() = default;  ///< nobody sleeps at it
  explicit Bell(std::atomic<std::uint32_t>& word) : word_(&word) {}

  [[nodiscard]] bool exists() const { return word_ != nullptr; }
  void arm() const { word_->store(1, std::memory_order_seq_cst); }
  /// Sleeps until it rings. Returns at once if it has since it was armed.
  void sleep(Deadline until) const { static_cast<void>(futex_wait(*word_, 1, until, FutexScope::shared)); }
  /// Costs a load if nobody sleeps.
  void ring() const {
    if (word_ == nullptr || word_->load(std::memory_order_seq_cst) == 0) return;
    word_->store(0, std::memory_order_seq_cst);
    futex_wake(*word_, futex_all, FutexScope::shared);
  }

 private:
  std::atomic<std::uint32_t>* word_ = nullptr;
};

}  // namespace headrace
