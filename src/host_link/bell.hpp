// SPDX-License-Identifier: Apache-2.0
// Wakes a thread of another process that waits in epoll: one end is rung, the other becomes readable.
//
// It is a pair of sockets and no eventfd. Both processes share the flags of an eventfd, so a peer that clears
// O_NONBLOCK and fills the counter would stop our next write, which comes under a lock. A socket is told with
// each call not to wait. What a bell holds is bounded: the waiter drains it before the bound
// (MessagePipe::arm).
#pragma once

#include "base/unique_fd.hpp"

#include <cstdint>

namespace headrace::host_link {

/// Rings that an undrained bell holds for certain; later ones may go nowhere.
inline constexpr std::uint32_t bell_rings = 64;

struct BellPair {
  UniqueFd waits;  ///< readable once it has rung; for epoll, edge-triggered
  UniqueFd rings;
  [[nodiscard]] static Result<BellPair> create();
};

/// Rings. Any thread. It never waits and raises no signal; the peer cannot change that at its end.
void ring_bell(const UniqueFd& rings) noexcept;
/// Takes the rings out. Never waits. Returns whether there were any.
bool drain_bell(const UniqueFd& waits) noexcept;
/// Checks an end that came from a peer.
///   errors  corrupt (it is no end of a bell)
[[nodiscard]] Result<void> check_bell(const UniqueFd& end);

}  // namespace headrace::host_link
