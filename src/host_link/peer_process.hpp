// SPDX-License-Identifier: Apache-2.0
// The process behind a link, as the kernel noted it at the socket, and whether it lives.
#pragma once

#include "base/unix_socket.hpp"

#include <atomic>
#include <cstdint>
#include <string>

namespace headrace::host_link {

class PeerProcess {
 public:
  /// The process at the other end of the socket, as the kernel noted it.
  [[nodiscard]] static Result<PeerProcess> of(const UnixSocket& socket);

  PeerProcess(PeerProcess&& other) noexcept
      : credentials_(other.credentials_),
        pidfd_(std::move(other.pidfd_)),
        seen_alive_ns_(other.seen_alive_ns_.load()) {}

  /// Its number in our PID namespace; 0 where it has none.
  [[nodiscard]] pid_t pid() const { return credentials_.pid; }
  /// "process 1234", or that it is of another PID namespace.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] uid_t uid() const { return credentials_.uid; }
  /// The very process that asks. The kernel translates the number into our namespace, so a process of another
  /// one that is numbered like us is not taken for us.
  [[nodiscard]] bool is_this_one() const;
  /// Readable once the process has ended; -1 where the kernel has no pidfd.
  [[nodiscard]] int pidfd() const { return pidfd_.get(); }

  /// The process has ended, or is past the point of no return on its way there.
  [[nodiscard]] bool dying() const;
  /// To be asked before something is done to the process by its number: true unless it has ended. Its number
  /// could then be another process's, and a write would land in a stranger. Looks at most once a millisecond:
  /// numbers are not reused that fast.
  [[nodiscard]] bool still_there() const;

 private:
  PeerProcess() = default;
  PeerCredentials credentials_;
  UniqueFd pidfd_;
  mutable std::atomic<std::uint64_t> seen_alive_ns_{0};
};

}  // namespace headrace::host_link
