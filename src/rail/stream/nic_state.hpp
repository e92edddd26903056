// SPDX-License-Identifier: Apache-2.0
// What the peers of one NIC share.
#pragma once

#include "base/epoll.hpp"
#include "rail/stream/memories.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace headrace::rail::stream {

inline constexpr std::uint32_t max_posts = 256;  // to one peer

struct Receive {
  LocalRange room;
  std::uint64_t token = 0;
};

/// But for the memories, used by the thread that polls alone.
struct NicState {
  explicit NicState(Epoll watched) : epoll(std::move(watched)) {}

  Memories memories;
  Epoll epoll;
  std::uint64_t life = 0;
  std::deque<Receive> receives;
  std::deque<Event> events;  // that `poll` has not given yet
};

}  // namespace headrace::rail::stream
