// SPDX-License-Identifier: Apache-2.0
// Metadata straight from agent to agent: one listens, others ask it for its metadata or give it theirs.
#pragma once

#include "base/clock.hpp"
#include "base/log.hpp"
#include "metadata/metadata_session.hpp"

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

namespace headrace::metadata {

/// Who speaks on a metadata socket.
struct SocketIdentity {
  std::string name;
  std::uint64_t incarnation = 0;
  std::string token;  ///< option auth_token; empty: none
  wire::Hmac hmac;    ///< none: libcrypto's, loaded if there is a token
};

struct MetadataServerOptions {
  std::string listen;  ///< "host:port", "[IPv6]:port", ":port" (every address); port 0: a free one
  SocketIdentity identity;
  std::chrono::nanoseconds handshake_timeout = std::chrono::seconds(5);
  std::chrono::nanoseconds timeout_per_mib = std::chrono::seconds(1);  ///< slow for any network
  std::size_t most_clients = 128;                                      ///< at once
  std::size_t most_buffered_bytes = std::size_t{2} << 30;  ///< of all requests and answers under way
};

/// One thread serves all clients. A client has the handshake_timeout for the handshake, and the same again
/// plus timeout_per_mib for its request and for taking the answer; one that is slower is dropped, with a
/// reset. Where too many come, those that have not said hello go first.
class MetadataServer {
 public:
  ///   errors  invalid_argument (address, name), not_found (no such host), exhausted, not_supported (a token,
  ///   but no
  ///           libcrypto), backend_failed (address in use, ...)
  [[nodiscard]] static Result<std::unique_ptr<MetadataServer>> open(MetadataServerOptions options,
                                                                    MetadataHandlers handlers,
                                                                    Logger& logger);
  /// Drops all clients. No handler runs afterwards.
  ~MetadataServer();
  MetadataServer(const MetadataServer&) = delete;
  MetadataServer& operator=(const MetadataServer&) = delete;

  /// Where it listens: the host as it was given, or an address if it was empty, and the port that it got.
  [[nodiscard]] const std::string& address() const noexcept;

 private:
  class Loop;
  explicit MetadataServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

/// Asks the agent that listens at "host:port" for its metadata.
///   blocks  until the deadline; a host name is looked up, which the system may take longer for
///   errors  peer_lost (nobody listens, or it closed), timed_out, corrupt, invalid_argument (address, token),
///   and whatever
///           the agent answers (not_found: no such label, or `since` is too new)
[[nodiscard]] Result<std::string> fetch_from(const std::string& address, const SocketIdentity& me,
                                             const std::string& label, std::uint64_t since,
                                             Deadline deadline);

/// Gives metadata to the agent that listens at "host:port"; returns once it has taken it in.
///   blocks, errors  as fetch_from
[[nodiscard]] Result<void> send_to(const std::string& address, const SocketIdentity& me,
                                   std::string_view metadata, Deadline deadline);

/// libcrypto's HMAC-SHA256.
///   errors  not_supported (libcrypto is missing)
[[nodiscard]] Result<wire::Hmac> load_hmac();

}  // namespace headrace::metadata
