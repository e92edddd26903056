// SPDX-License-Identifier: Apache-2.0
// The process behind a link: whether it lives, and whether the kernel lets us reach into its memory.
#pragma once

#include "base/unix_socket.hpp"

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace headrace::shm {

/// What an agent says of itself so that a peer can prove that attach reaches it and nobody else: an address
/// in its memory and the random number that lies there.
struct Nonce {
  std::uint64_t address = 0;
  std::uint64_t value = 0;
};

/// Lets a peer attach to us where the Yama module asks for our consent (kernel.yama.ptrace_scope = 1). Yama
/// keeps one consent a process: the first peer is named, a second one turns it into "any process of this
/// user".
void allow_attach_by(pid_t peer);

enum class Direction : std::uint8_t { from_peer, to_peer };

/// How far an attach call came.
struct AttachResult {
  std::size_t bytes = 0;
  int os_error = 0;  ///< why it stopped, 0: all was moved
};

/// The longest vector that process_vm_readv and process_vm_writev take in one call.
inline constexpr std::size_t attach_vector_limit = 1024;

/// Moves local[i] from or to remote[i]; equal counts and lengths, at most attach_vector_limit of them.
[[nodiscard]] AttachResult attach_copy(pid_t peer, Direction direction, std::span<const iovec> local,
                                       std::span<const iovec> remote, std::size_t total_bytes) noexcept;

/// Whether attach reaches the process that holds the nonce; empty if it does, else a sentence why not.
[[nodiscard]] std::string why_no_attach(pid_t peer, const Nonce& nonce);

class PeerProcess {
 public:
  /// The process at the other end of the socket, as the kernel noted it.
  [[nodiscard]] static Result<PeerProcess> of(const UnixSocket& socket);

  PeerProcess(PeerProcess&& other) noexcept
      : credentials_(other.credentials_),
        pidfd_(std::move(other.pidfd_)),
        seen_alive_ns_(other.seen_alive_ns_.load()) {}

  [[nodiscard]] pid_t pid() const { return credentials_.pid; }
  [[nodiscard]] uid_t uid() const { return credentials_.uid; }
  /// Readable once the process has ended; -1 where the kernel has no pidfd.
  [[nodiscard]] int pidfd() const { return pidfd_.get(); }

  /// The process has ended, or is past the point of no return on its way there.
  [[nodiscard]] bool dying() const;
  /// To be asked before each attach call: true unless the process has ended. Its number could then be another
  /// process's, and a write would land in a stranger. Looks at most once a millisecond: numbers are not
  /// reused that fast.
  [[nodiscard]] bool still_there() const;

 private:
  PeerProcess() = default;
  PeerCredentials credentials_;
  UniqueFd pidfd_;
  mutable std::atomic<std::uint64_t> seen_alive_ns_{0};
};

}  // namespace headrace::shm
