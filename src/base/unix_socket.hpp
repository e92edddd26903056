// SPDX-License-Identifier: Apache-2.0
// Messages and descriptors between processes of one host, over SOCK_SEQPACKET Unix sockets.
#pragma once

#include "base/unique_fd.hpp"

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// Who is at the other end, as the kernel noted when the connection was made.
struct PeerCredentials {
  pid_t pid = 0;  ///< 0 when the peer is in a process namespace that we cannot see into
  uid_t uid = 0;
  gid_t gid = 0;
};

/// One connection. A message arrives whole or not at all, in order. Every call returns at once.
class UnixSocket {
 public:
  static constexpr std::size_t max_descriptors = 16;  ///< in one message

  /// Connects to the listener at `path`.
  ///   errors   not_found (no socket there), peer_lost (nobody listens any more), would_block (its backlog is
  ///   full: try
  ///            again), invalid_argument (path too long)
  [[nodiscard]] static Result<UnixSocket> connect(const std::string& path);

  /// Takes over a connected SOCK_SEQPACKET socket, for example one end of a socketpair; makes it
  /// non-blocking.
  [[nodiscard]] static Result<UnixSocket> adopt(UniqueFd fd);

  /// Sends one message, with duplicates of `descriptors` for the receiver.
  ///   shapes   1 byte or more, at most 16 descriptors
  ///   errors   would_block (the peer is slow: wait for EPOLLOUT), peer_lost, invalid_argument, exhausted
  ///   (the message
  ///            is larger than the socket's buffer)
  [[nodiscard]] Result<void> send(std::span<const std::byte> message, std::span<const int> descriptors = {});

  struct Received {
    std::size_t bytes = 0;
    std::vector<UniqueFd> descriptors;  ///< close-on-exec
  };
  /// Receives one message into `buffer`.
  ///   errors   would_block (none there: wait for EPOLLIN), peer_lost (closed), corrupt (larger than the
  ///   buffer, or more
  ///            descriptors than 16 or than this process may open; those that came are closed, the message is
  ///            gone)
  [[nodiscard]] Result<Received> receive(std::span<std::byte> buffer);

  [[nodiscard]] Result<PeerCredentials> peer_credentials() const;
  /// A descriptor that becomes readable when the peer's process ends.
  ///   errors   not_supported (kernel before 5.3, or a container's filter), peer_lost (it has ended already)
  [[nodiscard]] Result<UniqueFd> peer_pidfd() const;

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

 private:
  friend class UnixListener;
  explicit UnixSocket(UniqueFd fd) noexcept : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

/// A listening socket and the file that it is reached by. Both go with it.
///
/// A process that was killed leaves its socket file behind. Whether it is stale is decided by a lock on
/// "<path>.lock", which the kernel drops with its holder: who gets the lock owns the path and may remove what
/// lies there.
class UnixListener {
 public:
  /// Listens at `path`; the file gets `mode`.
  ///   errors   invalid_argument (path too long, held by a living listener, or not a socket), and the
  ///   system's
  [[nodiscard]] static Result<UnixListener> listen(const std::string& path, mode_t mode = 0600);

  UnixListener(UnixListener&&) noexcept = default;
  UnixListener& operator=(UnixListener&& other) noexcept;
  ~UnixListener();

  /// The next waiting connection.
  ///   errors   would_block (none: wait for EPOLLIN), exhausted (no descriptors left)
  [[nodiscard]] Result<UnixSocket> accept();

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  UnixListener(UniqueFd lock, UniqueFd fd, std::string path);
  void close() noexcept;

  UniqueFd lock_;
  UniqueFd fd_;
  std::string path_;
  pid_t made_in_ = 0;  // a forked child's copy must not remove its parent's files
};

/// The directory for this user's sockets: `configured` (option runtime_dir), else <xdg_runtime_dir>/headrace
/// if that directory exists, else /tmp/headrace-<uid>. Made with mode 0700 if missing, its parent not.
///   errors   invalid_argument (it is somebody else's, open to group or world, or no directory), and the
///   system's
[[nodiscard]] Result<std::string> runtime_dir(std::string_view configured,
                                              const std::optional<std::string>& xdg_runtime_dir);

}  // namespace headrace
