// SPDX-License-Identifier: Apache-2.0
// The calls of an agent's caller. After `shut` none begins, and those that run return soon: so the agent may
// be closed at any time, from any thread.
#pragma once

#include <headrace/result.hpp>

#include "base/errors.hpp"
#include "base/fork_guard.hpp"
#include "engine/gate.hpp"

#include <string>
#include <utility>

namespace headrace::engine {

class CallGate {
 public:
  explicit CallGate(std::string agent_name) : agent_name_(std::move(agent_name)) {}

  /// invalid_argument if the agent is closed, or the process has forked since it was opened.
  [[nodiscard]] Result<void> usable() const {
    if (forked())
      return make_error(
          Code::invalid_argument,
          "agent {} was opened before this process was forked: open one of its own in the child",
          agent_name_);
    if (closed()) return make_error(Code::invalid_argument, "agent {} is closed: open another", agent_name_);
    return {};
  }
  /// The same without a sentence.
  [[nodiscard]] Status status() const noexcept {
    return forked() || closed() ? Status{Code::invalid_argument} : Status{};
  }
  [[nodiscard]] bool closed() const noexcept { return gate_.closed(); }
  /// Whether this is a forked child's copy: it asks nothing of backends, whose sockets and memory are the
  /// parent's.
  [[nodiscard]] bool forked() const noexcept { return fork_guard_.forked(); }
  /// The error of a call that waited when the agent was closed.
  [[nodiscard]] Error closed_meanwhile() const {
    return make_error(Code::canceled, "agent {} was closed while this call waited", agent_name_);
  }

  /// Returns whether this call closed it; then calls that wait look at `closed` and return.
  bool shut() noexcept { return gate_.shut(); }
  [[nodiscard]] bool empty() const noexcept { return gate_.empty(); }
  Gate& gate() noexcept { return gate_; }

 private:
  const std::string agent_name_;
  const ForkGuard fork_guard_;
  Gate gate_;
};

/// One call, for its scope. It may use backends if it was admitted.
class Call {
 public:
  explicit Call(CallGate& gate) noexcept : gate_(gate), pass_(gate.gate()) {}
  [[nodiscard]] Result<void> admitted() const {
    return pass_ && !gate_.forked() ? Result<void>() : gate_.usable();
  }

 private:
  const CallGate& gate_;
  const GatePass pass_;
};

}  // namespace headrace::engine
