// SPDX-License-Identifier: Apache-2.0
// The system calls that decide how a connection behaves, behind a seam: tests put in scripts and faults.
#pragma once

#include "memory/peer_memory_access.hpp"

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>

namespace headrace::tcp {

/// Each answers as the system call of its name: -1 and errno. Thread-safe. Descriptors are non-blocking.
class SocketCalls {
 public:
  virtual ~SocketCalls() = default;
  /// Never raises SIGPIPE. `more`: the rest follows at once, so that the kernel waits for it.
  virtual ssize_t sendmsg(int fd, const msghdr* message, bool more) = 0;
  virtual ssize_t recvmsg(int fd, msghdr* message) = 0;
  virtual int connect(int fd, const sockaddr* address, socklen_t length) = 0;
  virtual int accept(int fd, sockaddr* address, socklen_t* length) = 0;  ///< non-blocking, close-on-exec
  /// A descriptor was closed: what was remembered of it is void.
  virtual void forget(int /*fd*/) {}
};

/// The system's own.
class SystemCalls final : public SocketCalls {
 public:
  ssize_t sendmsg(int fd, const msghdr* message, bool more) override {
    const PeerMemoryAccess access;
    return ::sendmsg(fd, message, MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0));
  }
  ssize_t recvmsg(int fd, msghdr* message) override {
    const PeerMemoryAccess access;
    return ::recvmsg(fd, message, MSG_DONTWAIT);
  }
  int connect(int fd, const sockaddr* address, socklen_t length) override {
    return ::connect(fd, address, length);
  }
  int accept(int fd, sockaddr* address, socklen_t* length) override {
    return ::accept4(fd, address, length, SOCK_NONBLOCK | SOCK_CLOEXEC);
  }
};

}  // namespace headrace::tcp
