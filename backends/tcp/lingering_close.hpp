// SPDX-License-Identifier: Apache-2.0
// Closing a socket so that the last words arrive: a plain close while the peer's bytes lie unread makes the
// kernel send a reset, which may overtake what we said.
#pragma once

#include "base/unique_fd.hpp"

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace headrace::tcp {

struct Context;
class IoThread;

/// A peer that takes nothing for so long is not waited for.
inline constexpr std::uint64_t farewell_patience_ns = 1'000'000'000;

/// The sockets of links that still say their last words.
class Farewells {
 public:
  /// One of them, until the pointer goes. This object outlives it.
  [[nodiscard]] std::shared_ptr<const void> begin();
  /// Returns when there is none, or after a little more than the patience.
  void wait();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned under_way_ = 0;
};

struct LastWords {
  std::string bytes = {};
  std::uint64_t until_ns = 0;  ///< then the socket is closed, whatever the peer has taken
};

/// Sends the last words, says that nothing more will come, throws away what the peer still sends, and closes
/// at its end or when the time is over. Then `held` is let go.
void close_lingering(IoThread& thread, UniqueFd fd, const Context& context, std::shared_ptr<const void> held,
                     LastWords words);

}  // namespace headrace::tcp
