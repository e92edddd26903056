// SPDX-License-Identifier: Apache-2.0
#include "host_link/bell.hpp"

#include <sys/socket.h>

#include <array>

namespace headrace::host_link {
namespace {

/// A number that the system tells of a socket; -1 if it is none.
int option_of(int fd, int option) {
  int value = -1;
  socklen_t bytes = sizeof value;
  return ::getsockopt(fd, SOL_SOCKET, option, &value, &bytes) == 0 ? value : -1;
}

}  // namespace

Result<BellPair> BellPair::create() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    return os_error(errno, "create a bell");
  return BellPair{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void ring_bell(const UniqueFd& rings) noexcept {
  const char ring = 1;
  // EAGAIN: it holds rings enough. EPIPE: the peer has gone, which its other descriptors tell.
  (void)!::send(rings.get(), &ring, sizeof ring, MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool drain_bell(const UniqueFd& waits) noexcept {
  std::array<char, 4096> rings;
  return ::recv(waits.get(), rings.data(), rings.size(), MSG_DONTWAIT) > 0;
}

Result<void> check_bell(const UniqueFd& end) {
  if (option_of(end.get(), SO_DOMAIN) == AF_UNIX && option_of(end.get(), SO_TYPE) == SOCK_STREAM) return {};
  return make_error(Code::corrupt, "a bell that came from the peer is no stream socket of this host");
}

}  // namespace headrace::host_link
