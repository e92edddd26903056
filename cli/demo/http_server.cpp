// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/http_server.hpp"

#include "cli/demo/http_socket.hpp"
#include "cli/errors.hpp"

#include <headrace/version.hpp>

#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/serializer.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <atomic>
#include <list>
#include <new>
#include <optional>
#include <thread>

namespace headrace::cli::demo {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using ErrorCode = boost::system::error_code;

constexpr const char* server_name = "headrace/" HEADRACE_VERSION;
constexpr std::chrono::milliseconds last_words{1000};

// --- one request's answer

class Reply final : public HttpReply {
 public:
  Reply(HttpSocket& socket, unsigned version, bool keep_alive)
      : socket_(socket), version_(version), keep_alive_(keep_alive) {}

  using HttpReply::send;
  void send(unsigned status, const std::string& json, const std::string& allow) override {
    http::response<http::string_body> response(static_cast<http::status>(status), version_);
    response.set(http::field::server, server_name);
    response.set(http::field::content_type, "application/json");
    if (!allow.empty()) response.set(http::field::allow, allow);
    response.keep_alive(keep_alive_);
    response.body() = json;
    response.prepare_payload();
    begun_ = true;
    ErrorCode error;
    http::write(socket_, response, error);
    lost_ = lost_ || error;
  }

  bool send_event(std::string_view data) override {
    if (!begun_) begin_events();
    const std::string event = fmt::format("data: {}\n\n", data);
    write_part(event);
    return !lost_;
  }

  [[nodiscard]] bool begun() const override { return begun_; }
  bool client_gone() override { return lost_ || socket_.peer_gone(); }
  bool stopping() override { return socket_.stopping(); }

  /// Ends a stream; whether the connection can take another request.
  bool finish() {
    if (chunked_ && !lost_) {
      ErrorCode error;
      asio::write(socket_, http::make_chunk_last(), error);
      lost_ = lost_ || error;
    }
    return begun_ && keep_alive_ && !lost_;
  }

 private:
  void begin_events() {
    begun_ = true;
    chunked_ = version_ >= 11;  // before that a body without a length ends with the connection
    keep_alive_ = keep_alive_ && chunked_;
    http::response<http::empty_body> response(http::status::ok, version_);
    response.set(http::field::server, server_name);
    response.set(http::field::content_type, "text/event-stream; charset=utf-8");
    response.set(http::field::cache_control, "no-cache");
    response.keep_alive(keep_alive_);
    response.chunked(chunked_);
    http::response_serializer<http::empty_body> serializer(response);
    ErrorCode error;
    http::write_header(socket_, serializer, error);
    lost_ = lost_ || error;
  }

  void write_part(const std::string& bytes) {
    if (lost_) return;
    ErrorCode error;
    if (chunked_)
      asio::write(socket_, http::make_chunk(asio::buffer(bytes)), error);
    else
      asio::write(socket_, asio::buffer(bytes), error);
    lost_ = lost_ || error;
  }

  HttpSocket& socket_;
  const unsigned version_;
  bool keep_alive_;
  bool begun_ = false, chunked_ = false, lost_ = false;
};

/// What a request that could not be read is answered; nothing where nobody waits for an answer.
std::optional<HttpError> reading_error(const ErrorCode& error, const HttpLimits& limits) {
  if (error == http::error::body_limit)
    return HttpError{413, fmt::format("the request's body is longer than {} bytes", limits.body_bytes), "",
                     "too_large"};
  if (error == http::error::header_limit)
    return HttpError{431, fmt::format("the request's header is longer than {} bytes", limits.header_bytes),
                     "", "too_large"};
  if (error == beast::error::timeout)
    return HttpError{408,
                     fmt::format("the request was not there within {} s",
                                 std::chrono::duration<double>(limits.request).count()),
                     "", "timed_out"};
  const ErrorCode of_http = http::make_error_code(http::error::end_of_stream);
  if (error.category() != of_http.category() || error == of_http || error == http::error::partial_message)
    return {};
  return HttpError{400, fmt::format("this is no HTTP request that can be understood: {}", error.message()),
                   "", "invalid_http"};
}

// --- one connection

class Connection {
 public:
  Connection(HttpSocket socket, const HttpLimits& limits, const HttpHandler& handler)
      : socket_(std::move(socket)), limits_(limits), handler_(handler) {}

  void run() {
    while (serve_one()) {
    }
    socket_.close_gently(last_words);
  }

  /// Without reading anything.
  void refuse(const HttpError& error) {
    Reply(socket_, 11, false).send(error);
    socket_.close_gently(std::chrono::milliseconds(0));
  }

 private:
  /// Whether there may be another request.
  bool serve_one() {
    socket_.expires_after(limits_.idle);
    if (buffer_.size() == 0 && !socket_.await_input()) return false;
    socket_.expires_after(limits_.request);
    http::request_parser<http::string_body> parser;
    parser.header_limit(limits_.header_bytes);
    parser.body_limit(limits_.body_bytes);
    if (const ErrorCode error = read(parser)) {
      if (const auto answer = reading_error(error, limits_)) Reply(socket_, 11, false).send(*answer);
      return false;
    }
    // A client that asks for the head alone would take a body for the next answer.
    const auto request = parser.release();
    Reply reply(socket_, request.version(), request.keep_alive() && request.method() != http::verb::head);
    handle(request, reply);
    return reply.finish();
  }

  ErrorCode read(http::request_parser<http::string_body>& parser) {
    ErrorCode error;
    http::read_header(socket_, buffer_, parser, error);
    if (error) return error;
    if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      http::response<http::empty_body> go_on(http::status::continue_, parser.get().version());
      http::write(socket_, go_on, error);
      if (error) return error;
    }
    http::read(socket_, buffer_, parser, error);
    return error;
  }

  /// No request ends the process, whatever happens to it.
  void handle(const http::request<http::string_body>& request, Reply& reply) {
    std::string problem;
    try {
      const std::string target(request.target());
      return handler_(
          {std::string(request.method_string()), target.substr(0, target.find('?')), request.body()}, reply);
    } catch (const std::bad_alloc&) {
      problem = "there is no memory for this request: try again later";
    } catch (const std::exception& error) {
      problem = fmt::format("this request failed: {}", error.what());
    }
    if (!reply.begun()) reply.send({503, problem, "", ""});
  }

  HttpSocket socket_;
  const HttpLimits& limits_;
  const HttpHandler& handler_;
  beast::flat_buffer buffer_;
};

/// The threads of the connections. Those that have ended are joined when the next one comes.
class Threads {
 public:
  ~Threads() {
    for (Entry& entry : entries_) entry.thread.join();
  }

  [[nodiscard]] std::size_t running() {
    entries_.remove_if([](Entry& entry) {
      if (!entry.ended) return false;
      entry.thread.join();
      return true;
    });
    return entries_.size();
  }

  ///   errors  throws std::system_error when there is no thread to be had
  void start(std::function<void()> work) {
    Entry& entry = entries_.emplace_back();
    try {
      entry.thread = std::thread([&entry, work = std::move(work)] {
        work();
        entry.ended = true;
      });
    } catch (...) {
      entries_.pop_back();
      throw;
    }
  }

 private:
  struct Entry {
    std::thread thread;
    std::atomic<bool> ended = false;
  };
  std::list<Entry> entries_;
};

// --- the port

std::string address_of(int socket) {
  ::sockaddr_storage storage{};
  ::socklen_t length = sizeof storage;
  auto* const address = reinterpret_cast<::sockaddr*>(&storage);
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  ::getsockname(socket, address, &length);
  ::getnameinfo(address, length, host.data(), host.size(), port.data(), port.size(),
                NI_NUMERICHOST | NI_NUMERICSERV);
  const std::string_view name(host.data());
  return storage.ss_family == AF_INET6 ? fmt::format("[{}]:{}", name, port.data())
                                       : fmt::format("{}:{}", name, port.data());
}

/// Takes the address; errno says why not.
FileDescriptor take_port(const ::addrinfo& address) {
  FileDescriptor socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;  // connections of an earlier life that are still in TIME_WAIT do not hold the port
  if (socket && ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
      ::bind(socket.get(), address.ai_addr, address.ai_addrlen) == 0)
    return socket;
  return {};
}

Error port_error(const std::string& host, std::uint16_t port, int number) {
  const std::string what = fmt::format("listen at {}, port {}: {}", host, port, system_text(number));
  if (number == EADDRINUSE)
    return fail(Code::invalid_argument,
                "{}: another program has it. Choose another port, or --serve 0 for one that is free", what);
  if (number == EACCES)
    return fail(Code::invalid_argument,
                "{}: ports below 1024 are for root. Choose a higher one, or --serve 0 for one that is free",
                what);
  if (number == EADDRNOTAVAIL)
    return fail(Code::invalid_argument, "{}: --host is to be an address of this machine", what);
  return fail(Code::invalid_argument, "{}", what);
}

}  // namespace

Result<HttpServer> HttpServer::open(const std::string& host, std::uint16_t port, const HttpLimits& limits) {
  ::addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  ::addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); code != 0)
    return fail(Code::invalid_argument, "there is no address of the name \"{}\" to listen at: {}", host,
                ::gai_strerror(code));
  const std::unique_ptr<::addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  for (const ::addrinfo* address = found; address != nullptr; address = address->ai_next) {
    FileDescriptor socket = take_port(*address);
    if (!socket) continue;
    std::string name = address_of(socket.get());
    return HttpServer(std::move(socket), std::move(name), limits);
  }
  return port_error(host, port, errno);
}

Result<void> HttpServer::listen() {
  if (::listen(socket_.get(), SOMAXCONN) == 0) return {};
  return fail(Code::invalid_argument, "listen at {}: {}", address_, system_text());
}

Result<void> HttpServer::run(const HttpHandler& handler, int stop) {
  Threads threads;
  std::array<::pollfd, 2> looks{{{socket_.get(), POLLIN, 0}, {stop, POLLIN, 0}}};
  while (true) {
    if (::poll(looks.data(), looks.size(), -1) < 0 && errno != EINTR)
      return fail(Code::backend_failed, "wait for clients: {}", system_text());
    if (looks[1].revents != 0) return {};
    FileDescriptor socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      // A client that left again is nobody's trouble; without descriptors the others must end first.
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      continue;
    }
    const int yes = 1;  // a token is a small packet, and is to leave at once
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    auto connection =
        std::make_shared<Connection>(HttpSocket(std::move(socket), stop, limits_.write), limits_, handler);
    try {
      if (threads.running() >= limits_.connections) throw std::system_error(EAGAIN, std::generic_category());
      threads.start([connection] { connection->run(); });
    } catch (const std::system_error&) {
      connection->refuse({503,
                          fmt::format("there are {} connections already: try again later", threads.running()),
                          "", "overloaded"});
    }
  }
}

}  // namespace headrace::cli::demo
