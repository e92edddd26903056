// SPDX-License-Identifier: Apache-2.0
// The peer process of a benchmark: this program again, controlled over a socket pair.
#pragma once

#include "cli/common/errors.hpp"
#include "cli/common/file_descriptor.hpp"

#include <nlohmann/json.hpp>

#include <sys/types.h>

#include <string>

namespace headrace::cli {

using Json = nlohmann::ordered_json;

/// Sends and receives a frame over a stream socket: u32 length, then a map in msgpack.
///   errors  peer_lost (the other end closed), timed_out (nothing came for 60 s), corrupt
Result<void> send_frame(int fd, const Json& message);
Result<Json> receive_frame(int fd);

class PeerProcess {
 public:
  /// Forks and executes this program with `bench peer`. It ends with the thread that calls this.
  static Result<PeerProcess> start();
  ~PeerProcess();  ///< closes the socket, on which the peer ends; kills it after 5 s
  PeerProcess(PeerProcess&& other) noexcept = default;
  PeerProcess& operator=(PeerProcess&&) = delete;

  /// Sends a message and waits for the answer.
  ///   errors  the peer's error, with its code; peer_lost (it ended; the text says how)
  Result<Json> call(const Json& message);
  /// The two halves of `call`, for work that both processes do at once.
  Result<void> send(const Json& message);
  Result<Json> receive();

  [[nodiscard]] pid_t id() const { return child_.id; }
  /// The eventfds of the bare round trip: to the peer, and back.
  [[nodiscard]] int ping_fd() const { return ping_.get(); }
  [[nodiscard]] int pong_fd() const { return pong_.get(); }

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

/// The main function of the peer process: answers messages on `control_fd` until it closes. Errors are
/// answers too.
Result<void> run_bench_peer(int control_fd, int ping_fd, int pong_fd);

}  // namespace headrace::cli
