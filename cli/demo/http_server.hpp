// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 by Boost.Asio and Boost.Beast: header-only, so that nothing of them must be there at run time.
//
// A thread a connection, where a handler may block; Asio's own work is done by the one that runs the server.
// For tens of clients that wait for text, not for thousands.
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
  std::string method;  ///< of HEAD too it is GET: the answer's body is left away on its way out
  std::string path;  ///< without what follows a question mark, and without the host, where a client names it
  std::string body;
};

/// The answer to one request: whole, or as a stream of server-sent events.
///   threads  the one that handles the request
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  /// Sends everything. `allow`: with status 405, the methods that there are.
  virtual void send(unsigned status, const std::string& json, const std::string& allow = {}) = 0;
  void send(const HttpError& error) { send(error.status, error_body(error)); }

  /// Begins the stream with its first event, or goes on with it. False when the client is gone.
  [[nodiscard]] virtual bool send_event(std::string_view data) = 0;
  /// Whether anything has been sent.
  [[nodiscard]] virtual bool begun() const = 0;
  /// Nobody reads the answer any more. To a client that has closed its sending side something is sent now and
  /// then to find out; one of HTTP/1.0 gets nothing before its answer, and counts as there until then.
  [[nodiscard]] virtual bool client_gone() = 0;
  /// The server is to end.
  [[nodiscard]] virtual bool stopping() = 0;
};

using HttpHandler = std::function<void(const HttpRequest&, HttpReply&)>;

struct HttpLimits {
  std::uint32_t header_bytes = 16 * 1024;
  std::uint64_t body_bytes = 1024 * 1024;
  std::size_t connections = 256;
  std::chrono::milliseconds idle{60'000};     ///< until a connection's next request begins
  std::chrono::milliseconds request{30'000};  ///< from its first byte to its last
  std::chrono::milliseconds write{30'000};    ///< until the client has taken an event, or a whole answer
};

class HttpServer {
 public:
  /// Takes the port. Nobody is answered before `run`.
  ///   port    0 picks one
  ///   errors  invalid_argument (no such host or address here, port in use or not allowed)
  static Result<HttpServer> open(const std::string& host, std::uint16_t port, const HttpLimits& limits = {});
  HttpServer(HttpServer&&) noexcept;
  ~HttpServer();

  /// As clients write it: "127.0.0.1:8000", "[::1]:8000".
  [[nodiscard]] const std::string& address() const { return address_; }
  /// Begins to let clients in: they are answered by `run`.
  Result<void> listen();
  /// Answers until `stop` is readable; ends all connections.
  ///   handler  called by many threads at once
  ///   errors   exhausted (the system has no descriptor for it)
  Result<void> run(const HttpHandler& handler, int stop);

 private:
  struct Port;
  HttpServer(std::unique_ptr<Port> port, const HttpLimits& limits);

  std::unique_ptr<Port> port_;
  std::string address_;
  HttpLimits limits_;
};

}  // namespace headrace::cli::demo
