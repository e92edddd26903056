// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/socket_setup.hpp"

#include "base/bind_error.hpp"
#include "base/errors.hpp"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace headrace::tcp {
namespace {

constexpr int backlog = 256;

template <class T>
void set(int fd, int level, int name, const T& value) {
  (void)::setsockopt(fd, level, name, &value, sizeof value);
}

/// Before connect and listen: the window's scale is fixed then.
void set_buffers(int fd, const Settings& settings) {
  if (settings.socket_buffer_bytes == 0) return;
  const int bytes = static_cast<int>(settings.socket_buffer_bytes);
  set(fd, SOL_SOCKET, SO_SNDBUF, bytes);
  set(fd, SOL_SOCKET, SO_RCVBUF, bytes);
}

/// A path that is dead is found within the time of the heartbeat, also where no heartbeat goes.
void keep_alive(int fd, const Settings& settings) {
  const auto seconds_of = [](std::chrono::nanoseconds time) {
    constexpr std::int64_t most = 32767;  // that the kernel takes
    return static_cast<int>(
        std::clamp<std::int64_t>(std::chrono::floor<std::chrono::seconds>(time).count(), 1, most));
  };
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds_of(settings.heartbeat_interval));
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT,
      std::min(127, seconds_of(settings.heartbeat_timeout - settings.heartbeat_interval)));
}

}  // namespace

void tune(int fd, const Settings& settings) {
  keep_alive(fd, settings);
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // A kernel without it, or a container that may not choose: then the system's.
  if (!settings.congestion.empty())
    (void)::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, settings.congestion.data(),
                       static_cast<socklen_t>(settings.congestion.size()));
}

bool closed_by_peer(int fd) {
  pollfd asked{.fd = fd, .events = POLLRDHUP, .revents = 0};
  return ::poll(&asked, 1, 0) > 0;
}

void abort_connection(UniqueFd fd) {
  const linger none{.l_onoff = 1, .l_linger = 0};
  set(fd.get(), SOL_SOCKET, SO_LINGER, none);
  fd.reset();
}

Result<UniqueFd> open_socket(const SocketAddress& address, const Settings& settings) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return os_error(errno, "open a socket for {}", address.text());
  set_buffers(fd.get(), settings);
  tune(fd.get(), settings);
  return fd;
}

Result<UniqueFd> open_listener(const SocketAddress& address, const Settings& settings) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return os_error(errno, "open a socket for {}", address.text());
  set_buffers(fd.get(), settings);
  tune(fd.get(), settings);
  set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.family() == AF_INET6) set(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(fd.get(), address.get(), address.length) < 0) return bind_error(errno, address);
  if (::listen(fd.get(), backlog) < 0) return os_error(errno, "listen on {}", address.text());
  return fd;
}

}  // namespace headrace::tcp
