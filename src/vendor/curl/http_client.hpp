// SPDX-License-Identifier: Apache-2.0
// Asking a service over HTTP: one question with its answer, or an answer that goes on until somebody stops
// it.
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

/// A POST. The body goes out as application/json.
struct HttpRequest {
  std::string url;
  std::string body;
  std::vector<std::string> headers = {};  ///< "Authorization: token"
};

struct HttpResponse {
  long status = 0;  ///< 200, 404, ...
  std::string body;
};

/// Thread-safe; calls do not wait for one another.
class HttpClient {
 public:
  virtual ~HttpClient() = default;

  /// Sends the request and waits for the whole answer, whatever its status.
  ///   errors   peer_lost (nothing was sent: no such host, refused, no connection in time; another endpoint
  ///   may be
  ///            asked), backend_failed (broke after it was sent), timed_out, canceled, exhausted (a longer
  ///            answer than allowed), invalid_argument (URL or certificates)
  [[nodiscard]] virtual Result<HttpResponse> post(const HttpRequest& request, Deadline deadline,
                                                  std::stop_token stop = {}) = 0;

  /// Sends the request and hands over the answer's bytes as they come, on the caller's thread, until the
  /// server ends it. `on_bytes` gets pieces as the network cut them; it must not throw.
  ///   errors   canceled (`stop` was asked for; within a moment, whatever the server does), backend_failed
  ///   also for any
  ///            status but 200, with the start of the answer in the sentence; the others as in post
  [[nodiscard]] virtual Result<void> stream(const HttpRequest& request,
                                            const std::function<void(std::string_view bytes)>& on_bytes,
                                            std::stop_token stop) = 0;
};

struct HttpClientOptions {
  std::string ca_file = {};               ///< PEM; empty: the system's certificates
  std::string certificate_file = {};      ///< PEM, for servers that ask who we are; with key_file
  std::string key_file = {};              ///< PEM
  std::optional<std::string> proxy = {};  ///< none: no proxy, not even the environment's
  /// For the connection with its TLS handshake, reading the certificates included.
  std::chrono::milliseconds connect_timeout{5000};
  std::size_t most_response_bytes = std::size_t{64} << 20;
};

/// A client on libcurl, which is loaded here. Keeps connections open between calls.
///   errors   not_supported (libcurl is missing), backend_failed
[[nodiscard]] Result<std::unique_ptr<HttpClient>> open_http_client(HttpClientOptions options = {});

}  // namespace headrace
