// SPDX-License-Identifier: Apache-2.0
// The parts of an Agent: the engine, its backends, and the exchange of metadata.
#pragma once

#include <headrace/agent.hpp>

#include "agent/backend_set.hpp"
#include "agent/exchange.hpp"
#include "engine/engine.hpp"

namespace headrace {

class Agent::Impl {
 public:
  Impl(std::shared_ptr<engine::Engine> e, std::unique_ptr<BackendSet> s)
      : engine(std::move(e)), set(std::move(s)) {}
  ~Impl() { close(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// At any time, from any thread that is not inside a call. A second close returns at once.
  void close() {
    if (exchange) exchange->close();
    engine->close();
  }

  std::shared_ptr<engine::Engine> engine;
  std::unique_ptr<BackendSet> set;
  /// Destroyed after `close`: a call on the callback thread may use it, and the engine's close waits for that
  /// call.
  std::unique_ptr<Exchange> exchange;
};

}  // namespace headrace
