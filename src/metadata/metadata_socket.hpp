// SPDX-License-Identifier: Apache-2.0
// Metadata directly between agents: one listens, others fetch its metadata or send it theirs.
#pragma once

#include "base/clock.hpp"
#include "base/log.hpp"
#include "metadata/metadata_session.hpp"

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

namespace headrace::metadata {

/// The agent that uses a metadata socket.
struct SocketIdentity {
  std::string name;
  std::uint64_t incarnation = 0;
  std::string token;  ///< option auth_token; empty: none
  wire::Hmac hmac;    ///< empty: libcrypto's, loaded if there is a token
};

/// How long a client waits: until the deadline, or until this descriptor is readable (-1: none), which
/// cancels the call.
struct Patience {
  Deadline deadline;
  int canceled = -1;
  Patience(Deadline until, int canceled_fd = -1)
      : deadline(until), canceled(canceled_fd) {}  // NOLINT: a deadline is one
};

struct MetadataServerOptions {
  std::string listen;  ///< "host:port", "[IPv6]:port", ":port" (every address); port 0: a free one
  SocketIdentity identity;
  std::chrono::nanoseconds handshake_timeout = std::chrono::seconds(5);
  std::chrono::nanoseconds timeout_per_mib = std::chrono::seconds(1);  ///< generous: slow for any network
  std::size_t most_clients = 128;                                      ///< at the same time
  std::size_t most_buffered_bytes =
      std::size_t{256} << 20;  ///< of all current requests and answers; a sent metadata has at most a quarter
  std::uint64_t reserved_descriptors = 0;  ///< a client that would leave fewer free is refused
};

/// One thread serves all clients. A client has handshake_timeout for the handshake. It has the same time plus
/// timeout_per_mib for its request, and again for reading the answer. A slower client is dropped with a
/// reset. If too many clients connect, those without a completed handshake are dropped first.
class MetadataServer {
 public:
  ///   errors  invalid_argument (address, name), not_found (no such host), exhausted, not_supported (a token
  ///           but no libcrypto), backend_failed (address in use, ...)
  [[nodiscard]] static Result<std::unique_ptr<MetadataServer>> open(MetadataServerOptions options,
                                                                    MetadataHandlers handlers,
                                                                    Logger& logger);
  /// Drops all clients. No handler runs afterwards.
  ~MetadataServer();
  MetadataServer(const MetadataServer&) = delete;
  MetadataServer& operator=(const MetadataServer&) = delete;

  /// Its address: the host as given, or an address if it was empty, and the actual port.
  [[nodiscard]] const std::string& address() const noexcept;

 private:
  class Loop;
  explicit MetadataServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

/// Fetches the metadata of the agent that listens at "host:port". `server`, if given, tells who that is.
///   blocks  until the deadline or a cancel; the system's lookup of a host name may take longer
///   errors  peer_lost (no listener, or it closed), timed_out, canceled, corrupt, invalid_argument (address,
///           token), and the errors of the agent (not_found: no such label, or `since` is too new)
[[nodiscard]] Result<std::string> fetch_from(const std::string& address, const SocketIdentity& me,
                                             const std::string& label, std::uint64_t since,
                                             const Patience& patience, wire::Hello* server = nullptr);

/// Sends metadata to the agent that listens at "host:port"; returns once it has imported it.
///   blocks, errors  as fetch_from
[[nodiscard]] Result<void> send_to(const std::string& address, const SocketIdentity& me,
                                   std::string_view metadata, const Patience& patience);

/// HMAC-SHA256 of libcrypto.
///   errors  not_supported (libcrypto is missing)
[[nodiscard]] Result<wire::Hmac> load_hmac();

}  // namespace headrace::metadata
