// SPDX-License-Identifier: Apache-2.0
// System calls on sockets that fail on purpose, in a way that a seed repeats: what networks and kernels do
// once a year, at every call. A plan is a text: short_reads[=N], short_writes[=N] (1 to N bytes a call),
// eagain[=PERCENT], eintr[=PERCENT], reset_after[=BYTES] (each socket, both directions together), refuse[=N]
// (first connects), seed=N.
#pragma once

#include "backends/tcp/socket_calls.hpp"

#include <headrace/result.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string_view>

namespace headrace::test {

/// What goes wrong. Everything is off at 0.
struct FaultPlan {
  std::uint64_t short_reads = 0;   ///< a receive gives 1 to so many bytes
  std::uint64_t short_writes = 0;  ///< a send takes 1 to so many bytes
  std::uint64_t eagain = 0;        ///< of 100 calls, how many say EAGAIN though they could go on
  std::uint64_t eintr = 0;         ///< of 100 calls, how many are interrupted
  std::uint64_t reset_after = 0;   ///< a socket that carried so many bytes, both ways together, is reset
  std::uint64_t refuse = 0;        ///< so many first connects are refused
  std::uint64_t seed = 1;

  /// "short_reads=100,short_writes,eagain,reset_after=1MiB": a name alone takes a middling value.
  ///   errors  invalid_argument (names what it does not know)
  [[nodiscard]] static Result<FaultPlan> parse(std::string_view text);
};

class FaultySockets final : public tcp::SocketCalls {
 public:
  FaultySockets(const FaultPlan& plan, std::unique_ptr<tcp::SocketCalls> real)
      : plan_(plan), real_(std::move(real)), random_(plan.seed) {}

  ssize_t sendmsg(int fd, const msghdr* message, bool more) override;
  ssize_t recvmsg(int fd, msghdr* message) override;
  int connect(int fd, const sockaddr* address, socklen_t length) override;
  int accept(int fd, sockaddr* address, socklen_t* length) override;
  void forget(int fd) override;

 private:
  struct Trouble {
    int error = 0;            // answer -1 with this errno
    std::uint64_t limit = 0;  // bytes that this call may carry; 0: all
  };
  Trouble draw(int fd, std::uint64_t short_limit);
  void carried(int fd, ssize_t bytes);

  const FaultPlan plan_;
  const std::unique_ptr<tcp::SocketCalls> real_;
  std::mutex mutex_;
  std::mt19937_64 random_;
  std::uint64_t refused_ = 0;
  std::map<int, std::uint64_t> carried_;  // bytes by descriptor, while there is a reset to come
};

}  // namespace headrace::test
