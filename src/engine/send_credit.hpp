// SPDX-License-Identifier: Apache-2.0
// What may be sent over a link to the peer's inbox: notifications, alone or with a post. The peer says how
// much it has room for in all (wire::Credit), so that it never has to drop one.
#pragma once

#include "wire/agent_message.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace headrace::engine {

/// Thread-safe.
class SendCredit {
 public:
  /// Takes the room of one message. False: there is none now, or another thread holds some for a moment.
  [[nodiscard]] bool take(std::size_t bytes) {
    const std::uint64_t messages = messages_.fetch_add(1, std::memory_order_relaxed) + 1;
    const std::uint64_t all_bytes = bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (messages <= most_messages_.load(std::memory_order_relaxed) &&
        all_bytes <= most_bytes_.load(std::memory_order_relaxed))
      return true;
    give_back(bytes);
    return false;
  }
  /// The message was not sent.
  void give_back(std::size_t bytes) {
    messages_.fetch_sub(1, std::memory_order_relaxed);
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  }
  void raise(const wire::Credit& credit) {
    raise(most_messages_, credit.messages);
    raise(most_bytes_, credit.bytes);
  }

 private:
  static void raise(std::atomic<std::uint64_t>& most, std::uint64_t to) {
    std::uint64_t now = most.load(std::memory_order_relaxed);
    while (now < to && !most.compare_exchange_weak(now, to, std::memory_order_relaxed)) {
    }
  }

  std::atomic<std::uint64_t> messages_{0}, bytes_{0};  ///< sent
  std::atomic<std::uint64_t> most_messages_{wire::first_credit.messages};
  std::atomic<std::uint64_t> most_bytes_{wire::first_credit.bytes};
};

}  // namespace headrace::engine
