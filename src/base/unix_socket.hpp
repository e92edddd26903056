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

/// The process at the other end, as the kernel recorded it when the connection was made.
struct PeerCredentials {
  pid_t pid = 0;  ///< 0 if the peer is in a process namespace that is invisible here
  uid_t uid = 0;
  gid_t gid = 0;
};

/// One connection. A message arrives complete or not at all, in order. No call blocks.
class UnixSocket {
 public:
  static constexpr std::size_t max_descriptors = 16;  ///< in one message

  /// Connects to the listener at `path`.
  ///   errors   not_found (no socket there), peer_lost (its listener is gone), would_block (its backlog is
  ///            full: retry), invalid_argument (path too long)
  [[nodiscard]] static Result<UnixSocket> connect(const std::string& path);

  /// Takes ownership of a connected SOCK_SEQPACKET socket, for example one end of a socketpair, and makes it
  /// non-blocking.
  [[nodiscard]] static Result<UnixSocket> adopt(UniqueFd fd);

  /// Sends one message, with duplicates of `descriptors` for the receiver.
  ///   shapes   1 byte or more, at most 16 descriptors
  ///   errors   would_block (the peer is slow: wait for EPOLLOUT), peer_lost, invalid_argument, exhausted
  ///            (the message is larger than the socket's buffer)
  [[nodiscard]] Result<void> send(std::span<const std::byte> message, std::span<const int> descriptors = {});

  struct Received {
    std::size_t bytes = 0;
    std::vector<UniqueFd> descriptors;  ///< close-on-exec
  };
  /// Receives one message into `buffer`.
  ///   errors   would_block (none there: wait for EPOLLIN), peer_lost (closed), corrupt (larger than the
  ///            buffer, or with more than 16 descriptors), exhausted (with more than this process may open).
  ///            After the last two the message is lost, and descriptors that arrived are closed
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

/// A listening socket and its file. The destructor removes both.
///
/// A killed process leaves its socket file. A lock on "<path>.lock" tells whether the file is stale: the
/// kernel drops the lock when its holder ends. The holder of the lock owns the path and may remove the file
/// there.
class UnixListener {
 public:
  /// Listens at `path`; the file gets `mode`.
  ///   errors   invalid_argument (path too long, held by a living listener, or not a socket), and the
  ///            system's
  [[nodiscard]] static Result<UnixListener> listen(const std::string& path, mode_t mode = 0600);

  UnixListener(UnixListener&&) noexcept = default;
  UnixListener& operator=(UnixListener&& other) noexcept;
  ~UnixListener();

  /// Accepts the next waiting connection.
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
  pid_t made_in_ = 0;  // a forked child's copy must not remove the parent's files
};

/// The directory for this user's sockets: `configured` (option runtime_dir), else <xdg_runtime_dir>/headrace
/// if <xdg_runtime_dir> exists, else /tmp/headrace-<uid>. Created with mode 0700 if missing; its parent is
/// not created.
///   errors   invalid_argument (it belongs to another user, group or others have access, or it is no
///            directory), and the system's
[[nodiscard]] Result<std::string> runtime_dir(std::string_view configured,
                                              const std::optional<std::string>& xdg_runtime_dir);

}  // namespace headrace
