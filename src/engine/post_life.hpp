// SPDX-License-Identifier: Apache-2.0
// The number of a request's present or last post, and the state of the request, in one word: an expiry or a
// cancel of post n cannot meet post n + 1.
#pragma once

#include <headrace/request.hpp>

#include <atomic>
#include <cstdint>

namespace headrace::engine {

/// Whether no post is under way; a captured request has none.
[[nodiscard]] inline bool has_ended(RequestState state) {
  return state != RequestState::posted && state != RequestState::canceling;
}

[[nodiscard]] inline bool may_post(RequestState state) {
  return has_ended(state) && state != RequestState::captured;
}

/// The state of a request whose post ended with this status.
[[nodiscard]] inline RequestState state_after(Status status) {
  if (status.ok()) return RequestState::done;
  return status.code == Code::canceled ? RequestState::canceled : RequestState::failed;
}

class PostLife {
 public:
  struct Now {
    std::uint64_t post = 0;  ///< 0: never posted
    RequestState state = RequestState::prepared;
  };

  [[nodiscard]] Now now() const { return unpacked(word_.load()); }
  [[nodiscard]] RequestState state() const { return unpacked(word_.load(std::memory_order_acquire)).state; }
  [[nodiscard]] std::uint64_t post() const { return word_.load(std::memory_order_relaxed) >> state_bits; }
  [[nodiscard]] bool ended() const { return has_ended(state()); }

  /// A new post begins, unless one is under way. `before`: the state until now.
  [[nodiscard]] bool begin(RequestState& before) {
    std::uint64_t word = word_.load();
    for (;;) {
      const Now now = unpacked(word);
      before = now.state;
      if (!may_post(now.state)) return false;
      if (word_.compare_exchange_weak(word, packed({now.post + 1, RequestState::posted}))) return true;
    }
  }
  /// Of the present post, if it is in state `from`.
  [[nodiscard]] bool change(std::uint64_t post, RequestState from, RequestState to) {
    std::uint64_t expected = packed({post, from});
    return word_.compare_exchange_strong(expected, packed({post, to}));
  }
  /// By the thread that ends the present post, or takes it back.
  void set(RequestState to) { word_.store(packed({post(), to})); }

 private:
  static constexpr int state_bits = 8;
  static constexpr std::uint64_t packed(Now now) {
    return now.post << state_bits | static_cast<std::uint64_t>(now.state);
  }
  static constexpr Now unpacked(std::uint64_t word) {
    return {word >> state_bits, static_cast<RequestState>(word & ((1U << state_bits) - 1))};
  }

  std::atomic<std::uint64_t> word_{packed({})};
};

/// Of several numbers that threads store, the highest stays.
inline void raise(std::atomic<std::uint64_t>& highest, std::uint64_t number) {
  std::uint64_t before = highest.load();
  while (before < number && !highest.compare_exchange_weak(before, number)) {
  }
}

}  // namespace headrace::engine
