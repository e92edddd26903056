// SPDX-License-Identifier: Apache-2.0
// Calls that go in and out of an object that will be closed: after `close` no call is inside and none gets
// in.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace headrace::engine {

class Gate {
 public:
  /// False once closed. Pair with leave().
  [[nodiscard]] bool enter() noexcept {
    if ((state_.fetch_add(1) & closed_bit) == 0) return true;
    state_.fetch_sub(1);
    return false;
  }
  void leave() noexcept { state_.fetch_sub(1); }
  /// Refuses further calls and returns whether it was open. Those inside may still run.
  bool shut() noexcept { return (state_.fetch_or(closed_bit) & closed_bit) == 0; }
  /// Whether no call is inside.
  [[nodiscard]] bool empty() const noexcept { return (state_.load() & ~closed_bit) == 0; }
  /// Refuses further calls and waits for those inside; they are inside a backend's call, which never waits
  /// for a peer. Must not be called from inside.
  void close() noexcept {
    (void)shut();
    while (!empty()) std::this_thread::yield();
  }
  [[nodiscard]] bool closed() const noexcept { return (state_.load() & closed_bit) != 0; }

 private:
  static constexpr std::uint64_t closed_bit = std::uint64_t{1} << 63;
  std::atomic<std::uint64_t> state_{0};
};

/// Inside a gate for a scope; `if (!pass) ...` when it was closed.
class GatePass {
 public:
  explicit GatePass(Gate& gate) noexcept : gate_(gate.enter() ? &gate : nullptr) {}
  ~GatePass() {
    if (gate_ != nullptr) gate_->leave();
  }
  GatePass(const GatePass&) = delete;
  GatePass& operator=(const GatePass&) = delete;
  explicit operator bool() const noexcept { return gate_ != nullptr; }

 private:
  Gate* gate_;
};

}  // namespace headrace::engine
