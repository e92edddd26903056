// SPDX-License-Identifier: Apache-2.0
// A pipe through which pages of memory go into a socket by reference.
#pragma once

#include "backends/tcp/socket_calls.hpp"
#include "base/unique_fd.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace headrace::tcp {

class PagePipe {
 public:
  /// Null where the system gives no pipe that is long enough to be worth it (its pages for one user are
  /// limited).
  [[nodiscard]] static std::unique_ptr<PagePipe> open();

  /// Bytes that are in it.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  /// Takes what fits of the pieces, from the first on. Bytes, or -1 and errno.
  ssize_t take(SocketCalls& calls, std::span<const iovec> pieces);
  /// Gives what the socket takes. `more`: the rest of the batch follows. Bytes, or -1 and errno.
  ssize_t give(SocketCalls& calls, int fd, bool more);
  /// Copies what is in it, and empties it.
  [[nodiscard]] std::string drain();

 private:
  PagePipe(UniqueFd in, UniqueFd out) : in_(std::move(in)), out_(std::move(out)) {}

  UniqueFd in_, out_;
  std::uint64_t bytes_ = 0;
};

}  // namespace headrace::tcp
