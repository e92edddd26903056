// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 by Boost.Asio and Boost.Beast. Both are header-only: no library of theirs is needed at run time.
//
// Each connection has a thread, on which a handler may block. Socket operations run on the thread that calls
// `run`. Made for tens of clients that wait for text, not for thousands.
#pragma once

#include "cli/demo/http_error.hpp"

#include <headrace/result.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace headrace::cli::demo {

struct HttpRequest {
  std::string method;  ///< GET for a HEAD request too: the server drops the body of the response
  std::string path;    ///< without the query, and without scheme and host if the client sent them
  std::string body;
};

/// The response to one request: whole, or as a stream of server-sent events.
///   threads  only the thread that handles the request
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  /// Sends the whole response. `allow`: the methods that the path takes, for status 405.
  virtual void send(unsigned status, const std::string& json, const std::string& allow = {}) = 0;
  void send(const HttpError& error) { send(error.status, error_body(error)); }

  /// Sends an event; the first one begins the stream. False if the client is gone.
  [[nodiscard]] virtual bool send_event(std::string_view data) = 0;
  /// Whether anything has been sent.
  [[nodiscard]] virtual bool begun() const = 0;
  /// Whether the client has left. A client that has closed its sending direction gets bytes from time to time
  /// to find out. An HTTP/1.0 client gets none before its response, and counts as present until then.
  [[nodiscard]] virtual bool client_gone() = 0;
  /// Whether the server is about to end.
  [[nodiscard]] virtual bool stopping() = 0;
};

using HttpHandler = std::function<void(const HttpRequest&, HttpReply&)>;

struct HttpLimits {
  std::uint32_t header_bytes = 16 * 1024;
  std::uint64_t body_bytes = 1024 * 1024;
  std::size_t connections = 256;
  std::chrono::milliseconds idle{60'000};     ///< until a connection's next request begins
  std::chrono::milliseconds request{30'000};  ///< from the first byte of a request to its last
  std::chrono::milliseconds write{30'000};    ///< until the client has received an event or a whole response
};

class HttpServer {
 public:
  /// Binds the port. No request is answered before `run`.
  ///   port    0 picks a free one
  ///   errors  invalid_argument (host unknown or not of this machine, port in use or not allowed)
  static Result<HttpServer> open(const std::string& host, std::uint16_t port, const HttpLimits& limits = {});
  HttpServer(HttpServer&&) noexcept;
  ~HttpServer();

  /// As clients write it: "127.0.0.1:8000", "[::1]:8000".
  [[nodiscard]] const std::string& address() const { return address_; }
  /// Begins to accept connections; `run` answers them.
  Result<void> listen();
  /// Answers requests until `stop` is readable, then ends all connections.
  ///   handler  called by many threads at once
  ///   errors   exhausted (the system has no free descriptor)
  Result<void> run(const HttpHandler& handler, int stop);

 private:
  struct Port;
  HttpServer(std::unique_ptr<Port> port, const HttpLimits& limits);

  std::unique_ptr<Port> port_;
  std::string address_;
  HttpLimits limits_;
};

}  // namespace headrace::cli::demo
