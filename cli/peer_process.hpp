// SPDX-License-Identifier: Apache-2.0
// The other process of a benchmark: this program again, told over a socket pair what to do.
#pragma once

#include "cli/errors.hpp"
#include "cli/file_descriptor.hpp"

#include <nlohmann/json.hpp>

#include <sys/types.h>

#include <string>

namespace headrace::cli {

using Json = nlohmann::ordered_json;

/// Frames of msgpack over a stream socket: u32 length, then a map.
///   errors  peer_lost (the other end closed), timed_out (nothing came for a minute), corrupt
Result<void> send_frame(int fd, const Json& message);
Result<Json> receive_frame(int fd);

/// Starts it, asks it, ends it.
class PeerProcess {
 public:
  /// Forks and executes this program with `bench peer`. It ends with the thread that calls this.
  static Result<PeerProcess> start();
  ~PeerProcess();  ///< lets it end by itself, and kills it if it does not within 5 s
  PeerProcess(PeerProcess&& other) noexcept = default;
  PeerProcess& operator=(PeerProcess&&) = delete;

  /// Sends a message and takes the answer.
  ///   errors  what the peer says, with its code; peer_lost (it ended: how)
  Result<Json> call(const Json& message);
  /// The two halves of `call`, for work that both do at once.
  Result<void> send(const Json& message);
  Result<Json> receive();

  [[nodiscard]] pid_t id() const { return child_.id; }
  [[nodiscard]] int ping_fd() const {
    return ping_.get();
  }  ///< eventfds for the bare round trip: to the peer
  [[nodiscard]] int pong_fd() const { return pong_.get(); }  ///< and back

 private:
  PeerProcess() = default;
  Error gone(Error error);

  struct Child {
    pid_t id = -1;
    Child() = default;
    Child(Child&& other) noexcept : id(std::exchange(other.id, -1)) {}
  };
  Child child_;
  FileDescriptor control_, ping_, pong_;
};

/// What the peer process runs: answers messages on `control_fd` until it closes. Its errors go over the
/// socket.
Result<void> run_bench_peer(int control_fd, int ping_fd, int pong_fd);

}  // namespace headrace::cli
