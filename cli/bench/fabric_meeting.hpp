// SPDX-License-Identifier: Apache-2.0
// How the two processes of `headrace bench fabric` meet: the server listens at a TCP port, and the client
// gives it orders there. What is measured does not pass this socket.
#pragma once

#include "cli/bench/peer_process.hpp"
#include "cli/common/errors.hpp"
#include "cli/common/file_descriptor.hpp"

#include <string>

namespace headrace::cli {

/// The port of a server.
class FabricMeeting {
 public:
  ///   address  "host:port", "[IPv6]:port"; port 0: a free one
  ///   errors   invalid_argument (no such text), not_found (no such host), those of the system
  [[nodiscard]] static Result<FabricMeeting> listen(const std::string& address);
  /// What a client types.
  [[nodiscard]] const std::string& address() const { return address_; }
  struct Client {
    FileDescriptor socket;
    std::string from;  ///< its host
  };
  /// Waits for the next one.
  [[nodiscard]] Result<Client> accept() const;

 private:
  FabricMeeting(FileDescriptor socket, std::string address)
      : socket_(std::move(socket)), address_(std::move(address)) {}
  FileDescriptor socket_;
  std::string address_;
};

/// Connects to a server.
///   errors  invalid_argument, not_found, timed_out, peer_lost (nobody listens there)
[[nodiscard]] Result<FileDescriptor> meet_fabric_server(const std::string& address);

/// Sends what this side tells of itself, and returns what the other side does. Both call it first.
///   other   for errors: "the server at 192.0.2.1:4711"
///   errors  not_supported (another version of Headrace), corrupt (another program), timed_out, peer_lost
[[nodiscard]] Result<Json> greet_fabric_side(int socket, Json told, const std::string& other);

}  // namespace headrace::cli
