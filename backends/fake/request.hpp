// SPDX-License-Identifier: Apache-2.0
// One prepared request and its present post.
#pragma once

#include "backends/fake/faults.hpp"
#include "backends/fake/link_end.hpp"

#include <headrace/plugin/backend.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

namespace headrace::fake {

enum class RequestState : std::uint8_t {
  idle,     ///< not posted, or its last post has been completed
  waiting,  ///< posted: in a queue, or held back by a fault
  running,  ///< a thread copies
};

/// Guarded by the network's lock. While the state is `running` the thread that copies reads it without.
struct Request {
  headrace_prepare_v1 args{};
  std::shared_ptr<LinkEnd> link;  ///< null: inside this agent
  RequestState state = RequestState::idle;
  std::uint64_t token = 0;  ///< of the present post
  std::uint64_t post_number = 0;
  Mishap mishap;
  std::optional<Message> message;
  std::optional<plugin::Immediate> immediate;
  std::atomic<bool> cancel{false};
};

}  // namespace headrace::fake
