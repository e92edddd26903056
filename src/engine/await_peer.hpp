// SPDX-License-Identifier: Apache-2.0
// How a call waits for the answer of a peer: until its time is over, or its caller interrupts it.
#pragma once

#include "base/errors.hpp"
#include "base/interrupt.hpp"
#include "engine/progress.hpp"

#include <functional>
#include <string_view>

namespace headrace::engine {

///   errors  timed_out, canceled (interrupted)
template <class Settled>
Result<void> await_peer(Progress& progress, std::string_view peer, const Settled& settled, Deadline deadline,
                        const std::function<bool()>& interrupted) {
  Interrupt interrupt(interrupted);
  while (!progress.wait(settled, Deadline::earliest(deadline, interrupt.next_look()))) {
    if (interrupt.asked()) return Interrupt::error().within(fmt::format("wait for peer {}", peer));
    if (deadline.expired(progress.clock()))
      return make_error(
          Code::timed_out,
          "peer {} did not answer in time: is its process alive, and can it be reached from here?", peer);
  }
  return {};
}

}  // namespace headrace::engine
