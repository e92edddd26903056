// SPDX-License-Identifier: Apache-2.0
// System calls on sockets from a script, for tests of what stands on them.
#pragma once

#include "backends/tcp/socket_calls.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <string>

namespace headrace::test {

class ScriptedSockets final : public tcp::SocketCalls {
 public:
  /// What one call answers: at most so many bytes, or an errno.
  struct Step {
    std::size_t bytes = SIZE_MAX;
    int error = 0;
  };
  std::deque<Step> steps;  ///< one a call; without any left calls take everything
  std::string sent;        ///< what was sent, in order
  std::string to_receive;  ///< what there is to receive; at its end EAGAIN
  int calls = 0;

  ssize_t sendmsg(int, const msghdr* message, bool) override {
    const Step step = next();
    if (step.error != 0) return errno = step.error, -1;
    std::size_t left = step.bytes, taken = 0;
    for (std::size_t i = 0; i < message->msg_iovlen && left > 0; ++i) {
      const std::size_t n = std::min(left, message->msg_iov[i].iov_len);
      sent.append(static_cast<const char*>(message->msg_iov[i].iov_base), n);
      left -= n;
      taken += n;
    }
    return static_cast<ssize_t>(taken);
  }
  ssize_t recvmsg(int, msghdr* message) override {
    const Step step = next();
    if (step.error != 0) return errno = step.error, -1;
    if (to_receive.empty()) return errno = EAGAIN, -1;
    std::size_t left = step.bytes, taken = 0;
    for (std::size_t i = 0; i < message->msg_iovlen && left > 0 && !to_receive.empty(); ++i) {
      const std::size_t n = std::min({left, message->msg_iov[i].iov_len, to_receive.size()});
      to_receive.copy(static_cast<char*>(message->msg_iov[i].iov_base), n);
      to_receive.erase(0, n);
      left -= n;
      taken += n;
    }
    return static_cast<ssize_t>(taken);
  }
  int connect(int, const sockaddr*, socklen_t) override { return errno = next().error, errno == 0 ? 0 : -1; }
  int accept(int, sockaddr*, socklen_t*) override { return errno = EAGAIN, -1; }

 private:
  Step next() {
    ++calls;
    if (steps.empty()) return {};
    const Step step = steps.front();
    steps.pop_front();
    return step;
  }
};

}  // namespace headrace::test
