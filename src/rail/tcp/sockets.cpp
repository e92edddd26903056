// SPDX-License-Identifier: Apache-2.0
#include "rail/tcp/sockets.hpp"

#include "base/bind_error.hpp"

#include <net/if.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>

namespace headrace::rail::tcp {
namespace {

constexpr int waiting_connections = 256;

template <class T>
void set_option(int socket, int level, int name, const T& value) {
  static_cast<void>(::setsockopt(socket, level, name, &value, sizeof value));
}

Result<UniqueFd> open_bound(const SocketAddress& local) {
  UniqueFd fd(::socket(local.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return os_error(errno, "open a socket for {}", local.text());
  if (local.family() == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (::bind(fd.get(), local.get(), local.length) < 0) return bind_error(errno, local);
  return fd;
}

}  // namespace

void tune(int socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  // A path that is dead while nothing is sent: found after about 10 s.
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 4);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

std::string why_down(int socket, const std::string& interface_name) {
  ifreq request{};
  interface_name.copy(request.ifr_name, sizeof request.ifr_name - 1);
  if (::ioctl(socket, SIOCGIFFLAGS, &request) != 0)
    return fmt::format("interface {} cannot be asked: {}", interface_name, os_error_text(errno));
  const auto flags = static_cast<unsigned>(request.ifr_flags);
  if ((flags & IFF_UP) == 0) return fmt::format("interface {} is down", interface_name);
  if ((flags & IFF_RUNNING) == 0) return fmt::format("interface {} has no link", interface_name);
  return {};
}

Result<UniqueFd> listen_on(const SocketAddress& at) {
  HEADRACE_TRY(fd, open_bound(at));
  if (::listen(fd.get(), waiting_connections) < 0) return os_error(errno, "listen on {}", at.text());
  return fd;
}

Result<UniqueFd> begin_connect(const SocketAddress& local, const SocketAddress& remote) {
  SocketAddress any_port = local;
  if (local.family() == AF_INET) reinterpret_cast<sockaddr_in&>(any_port.storage).sin_port = 0;
  if (local.family() == AF_INET6) reinterpret_cast<sockaddr_in6&>(any_port.storage).sin6_port = 0;
  HEADRACE_TRY(fd, open_bound(any_port));
  tune(fd.get());
  if (::connect(fd.get(), remote.get(), remote.length) < 0 && errno != EINPROGRESS)
    return os_error(Code::peer_lost, errno, "connect from {} to {}", any_port.text(), remote.text());
  return fd;
}

Result<void> connect_result(int socket) {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) < 0) error = errno;
  if (error != 0) return os_error(Code::peer_lost, error, "connect");
  return {};
}

void reset(UniqueFd& socket) {
  const linger none{.l_onoff = 1, .l_linger = 0};
  set_option(socket.get(), SOL_SOCKET, SO_LINGER, none);
  socket.reset();
}

}  // namespace headrace::rail::tcp
