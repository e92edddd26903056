// SPDX-License-Identifier: Apache-2.0
// An HTTP client: one request with its answer, or a stream of bytes until the caller stops it.
#pragma once

#include "base/clock.hpp"
#include "base/errors.hpp"

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// A POST request. The body is sent as application/json.
struct HttpRequest {
  std::string url;
  std::string body;
  std::vector<std::string> headers = {};  ///< "Authorization: token"
};

struct HttpResponse {
  long status = 0;  ///< 200, 404, ...
  std::string body;
};

/// Thread-safe; calls do not wait for each other.
class HttpClient {
 public:
  virtual ~HttpClient() = default;

  /// Sends the request and waits for the whole answer, with any status.
  ///   errors   peer_lost (nothing was sent: no such host, refused, no connection in time; another endpoint
  ///            may be tried), backend_failed (broken after it was sent), timed_out, canceled, exhausted (the
  ///            answer exceeds the limit), invalid_argument (URL or certificates)
  [[nodiscard]] virtual Result<HttpResponse> post(const HttpRequest& request, Deadline deadline,
                                                  std::stop_token stop = {}) = 0;

  /// Sends the request and passes the bytes of the answer to `on_bytes` as they arrive, on the caller's
  /// thread, until the server ends the answer. The bytes come as the network delivered them; `on_bytes` must
  /// not throw.
  ///   errors   canceled (soon after `stop` was requested), backend_failed also for any status but 200, with
  ///            the start of the answer in the sentence; the others as in post
  [[nodiscard]] virtual Result<void> stream(const HttpRequest& request,
                                            const std::function<void(std::string_view bytes)>& on_bytes,
                                            std::stop_token stop) = 0;
};

struct HttpClientOptions {
  std::string ca_file = {};           ///< PEM; empty: the system's certificates
  std::string certificate_file = {};  ///< PEM, for servers that require a client certificate; with key_file
  std::string key_file = {};          ///< PEM
  std::optional<std::string> proxy = {};  ///< nullopt: no proxy, not even the environment's
  /// For the connection and its TLS handshake; includes reading the certificates.
  std::chrono::milliseconds connect_timeout{5000};
  std::size_t most_response_bytes = std::size_t{64} << 20;
};

/// Opens a client with libcurl, which is loaded here. It keeps connections open between calls.
///   errors   not_supported (libcurl is missing), backend_failed
[[nodiscard]] Result<std::unique_ptr<HttpClient>> open_http_client(HttpClientOptions options = {});

}  // namespace headrace
