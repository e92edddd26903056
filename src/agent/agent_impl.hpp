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
  ~Impl() {
    exchange.reset();  // first, because it answers with the engine's regions
    engine->close();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::shared_ptr<engine::Engine> engine;
  std::unique_ptr<BackendSet> set;
  std::unique_ptr<Exchange> exchange;
};

}  // namespace headrace
