// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/http_server.hpp"

#include "cli/common/errors.hpp"

#include <headrace/version.hpp>

#ifdef __SANITIZE_THREAD__  // ThreadSanitizer does not know fences; Asio's locks suffice
#define BOOST_ASIO_DISABLE_FENCED_BLOCK
#endif
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <new>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

namespace headrace::cli::demo {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Direction = tcp::socket::shutdown_type;

constexpr const char* server_name = "headrace/" HEADRACE_VERSION;
constexpr std::chrono::milliseconds last_words{1000};
constexpr std::chrono::milliseconds probe_every{500};

// --- responses as text

template <class Written>
std::string text_of(const Written& written) {
  std::ostringstream text;
  text << written;
  return text.str();
}

struct AnswerForm {
  unsigned version = 11;
  bool keep_alive = false;
  bool head_alone = false;  ///< a HEAD request: send the header without the body
};

std::string whole_answer(unsigned status, const std::string& json, const std::string& allow,
                         const AnswerForm& form) {
  http::response<http::string_body> response(static_cast<http::status>(status), form.version);
  response.set(http::field::server, server_name);
  response.set(http::field::content_type, "application/json");
  if (!allow.empty()) response.set(http::field::allow, allow);
  response.keep_alive(form.keep_alive);
  response.body() = json;
  response.prepare_payload();
  return form.head_alone ? text_of(response.base()) : text_of(response);
}

std::string head_of_events(unsigned version, bool keep_alive, bool chunked) {
  http::response<http::empty_body> response(http::status::ok, version);
  response.set(http::field::server, server_name);
  response.set(http::field::content_type, "text/event-stream; charset=utf-8");
  response.set(http::field::cache_control, "no-cache");
  response.keep_alive(keep_alive);
  response.chunked(chunked);
  return text_of(response.base());
}

/// The response to a request that could not be read; the connection ends after it.
std::string refusal(const HttpError& error) { return whole_answer(error.status, error_body(error), {}, {}); }

/// The error for a request that could not be read; nullopt if the client has closed the connection.
std::optional<HttpError> reading_error(const ErrorCode& error, const HttpLimits& limits) {
  if (error == beast::error::timeout)
    return HttpError{408,
                     fmt::format("the request did not arrive within {} s",
                                 std::chrono::duration<double>(limits.request).count()),
                     "", "timed_out"};
  if (error == http::error::body_limit)
    return HttpError{413, fmt::format("the request's body is longer than {} bytes", limits.body_bytes), "",
                     "too_large"};
  if (error == http::error::header_limit)
    return HttpError{431, fmt::format("the request's header is longer than {} bytes", limits.header_bytes),
                     "", "too_large"};
  const ErrorCode of_http = http::make_error_code(http::error::end_of_stream);
  if (error.category() != of_http.category() || error == of_http || error == http::error::partial_message)
    return {};
  return HttpError{400, fmt::format("this is not a valid HTTP request: {}", error.message()), "",
                   "invalid_http"};
}

// --- one connection

/// Shared by all connections.
struct Service {
  const HttpHandler& handler;
  const HttpLimits& limits;
  std::atomic<bool> stopping = false;
};

/// Serves a client on a thread of its own. All socket operations run on the server's thread: the connection's
/// thread posts them there and waits. (Rejected: asio::thread_pool. It makes its threads all at once, and the
/// one of Boost 1.74 hangs if it cannot.)
///
/// To end a wait, the socket is shut down in one direction. Unlike the canceling of an operation, this also
/// ends an operation that begins a moment later. (Rejected: the deadlines of beast::tcp_stream. They close
/// the socket, and no 408 could be sent.)
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, Service& service)
      : socket_(std::move(socket)), deadline_(socket_.get_executor()), service_(service) {}

  // --- called on the server's thread

  /// Starts to serve; `ended` is called on the server's thread. False if the system has no thread for it.
  bool start(std::function<void()> ended) {
    try {
      const auto work = asio::make_work_guard(socket_.get_executor());  // until `ended` has been posted
      thread_ = std::jthread([this, ended = std::move(ended), work] {
        while (serve_one()) {
        }
        close_gently();
        asio::post(work.get_executor(), ended);
      });
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }

  /// Sends an error without a thread, and without reading the request.
  void refuse(const HttpError& error);

  void shut(Direction direction) {
    ErrorCode ignored;
    static_cast<void>(socket_.shutdown(direction, ignored));
  }

  // --- called on the connection's thread

  /// False if the client does not receive any more.
  bool write(const std::string& bytes) {
    return !await(Clock::now() + service_.limits.write, Direction::shutdown_both,
                  [&](auto done) { asio::async_write(socket_, asio::buffer(bytes), std::move(done)); });
  }

  enum class FarSide { open, sends_no_more, gone };
  /// A client that has closed its socket and one that has only closed its sending direction look the same
  /// until something is sent: a closed socket answers with a reset.
  FarSide far_side() {
    // Asio sees a hang-up only by reading, and not if a next request has arrived before it.
    ::pollfd look{socket_.native_handle(), POLLRDHUP, 0};
    if (::poll(&look, 1, 0) <= 0) return FarSide::open;
    return (look.revents & (POLLHUP | POLLERR)) != 0 ? FarSide::gone : FarSide::sends_no_more;
  }
  [[nodiscard]] bool stopping() const { return service_.stopping; }

 private:
  using Parser = http::request_parser<http::string_body>;

  bool serve_one();
  bool await_input();
  ErrorCode read(Parser& parser);
  void close_gently();
  void shut_at(Clock::time_point deadline, Direction direction);

  /// Waits for the operation that `start` begins. `start` gets the completion handler of that operation.
  ///   errors  beast::error::timeout
  template <class Start>
  ErrorCode await(Clock::time_point deadline, Direction direction, const Start& start) {
    std::promise<ErrorCode> promise;
    auto result = promise.get_future();
    asio::post(socket_.get_executor(), [&, promise = std::move(promise)]() mutable {
      shut_at(deadline, direction);
      start([this, promise = std::move(promise)](const ErrorCode& error, auto...) mutable {
        deadline_.expires_at(Clock::time_point::max());
        promise.set_value(error && late_ ? beast::error::timeout : error);
      });
    });
    return result.get();
  }

  tcp::socket socket_;
  asio::steady_timer deadline_;
  bool late_ = false;
  Service& service_;
  beast::flat_buffer buffer_;
  std::jthread thread_;
};

/// Replaces an earlier deadline.
void Connection::shut_at(Clock::time_point deadline, Direction direction) {
  late_ = false;
  deadline_.expires_at(deadline);
  deadline_.async_wait([self = shared_from_this(), direction](const ErrorCode& canceled) {
    // A timer that had expired before it was replaced still calls its handler without an error.
    if (canceled || self->deadline_.expiry() > Clock::now()) return;
    self->late_ = true;
    self->shut(direction);
  });
}

// --- the response to one request

class Reply final : public HttpReply {
 public:
  Reply(Connection& connection, const AnswerForm& form) : connection_(connection), form_(form) {}

  using HttpReply::send;
  void send(unsigned status, const std::string& json, const std::string& allow) override {
    begun_ = true;
    write(whole_answer(status, json, allow, form_));
  }

  bool send_event(std::string_view data) override {
    if (!begun_) begin_events();
    if (form_.head_alone) return false;
    write_part(fmt::format("data: {}\n\n", data));
    return !lost_;
  }

  [[nodiscard]] bool begun() const override { return begun_; }
  bool client_gone() override {
    using FarSide = Connection::FarSide;
    const FarSide far = lost_ ? FarSide::gone : connection_.far_side();
    return far == FarSide::gone || (far == FarSide::sends_no_more && !probe());
  }
  bool stopping() override { return connection_.stopping(); }

  /// Ends a stream. Returns whether the connection can take another request.
  bool finish() {
    if (chunked_ && !form_.head_alone) write(beast::buffers_to_string(http::make_chunk_last()));
    return begun_ && form_.keep_alive && !lost_;
  }

 private:
  void begin_events() {
    begun_ = true;
    chunked_ = form_.version >= 11;  // in HTTP/1.0 a body without a length ends with the connection
    form_.keep_alive = form_.keep_alive && chunked_;
    write(head_of_events(form_.version, form_.keep_alive, chunked_));
  }

  /// Sends, every `probe_every`, bytes that every client ignores: in a stream a comment, before the response
  /// a status 100. (Rejected: status 102, which some clients take for the response.) If the client has left,
  /// its reset is seen by the next far_side(). HTTP/1.0 has no such status: its clients count as present.
  /// False if the client does not receive any more.
  bool probe() {
    if (Clock::now() < next_probe_ || (!begun_ && form_.version < 11)) return true;
    next_probe_ = Clock::now() + probe_every;
    if (begun_)
      write_part(": the text goes on\n\n");
    else
      write(text_of(http::response<http::empty_body>(http::status::continue_, form_.version)));
    return !lost_;
  }

  void write_part(const std::string& text) {
    write(chunked_ ? beast::buffers_to_string(http::make_chunk(asio::buffer(text))) : text);
  }
  void write(const std::string& bytes) { lost_ = lost_ || !connection_.write(bytes); }

  Connection& connection_;
  AnswerForm form_;
  Clock::time_point next_probe_{};
  bool begun_ = false, chunked_ = false, lost_ = false;
};

/// The path of a request's target. A client that takes this server for a proxy writes scheme and host before
/// the path.
std::string path_of(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    const std::string_view begin = target.substr(0, scheme.size());
    if (!beast::iequals({begin.data(), begin.size()}, {scheme.data(), scheme.size()})) continue;
    target.remove_prefix(scheme.size());
    target.remove_prefix(std::min(target.find_first_of("/?"), target.size()));
    break;
  }
  const std::string path(target.substr(0, target.find('?')));
  return path.empty() ? "/" : path;
}

/// Handles a request. An exception in the handler becomes a response and does not end the process.
void handle(const HttpHandler& handler, const http::request<http::string_body>& request, Reply& reply) {
  std::string problem;
  try {
    const auto method =
        request.method() == http::verb::head ? http::to_string(http::verb::get) : request.method_string();
    const auto target = request.target();
    return handler(
        {std::string(method), path_of(std::string_view(target.data(), target.size())), request.body()},
        reply);
  } catch (const std::bad_alloc&) {
    problem = "there is no memory for this request: try again later";
  } catch (const std::exception& error) {
    problem = fmt::format("this request failed: {}", error.what());
  }
  if (!reply.begun()) reply.send({503, problem, "", ""});
}

// --- a connection's steps

/// Serves one request. Returns whether another one may follow.
bool Connection::serve_one() {
  if (buffer_.size() == 0 && !await_input()) return false;
  Parser parser;
  parser.header_limit(service_.limits.header_bytes);
  parser.body_limit(service_.limits.body_bytes);
  if (const ErrorCode error = read(parser)) {
    if (const auto answer = reading_error(error, service_.limits)) write(refusal(*answer));
    return false;
  }
  const auto request = parser.release();
  Reply reply(*this, {request.version(), request.keep_alive(), request.method() == http::verb::head});
  handle(service_.handler, request, reply);
  return reply.finish();
}

bool Connection::await_input() {
  return !await(Clock::now() + service_.limits.idle, Direction::shutdown_receive,
                [&](auto done) { socket_.async_wait(tcp::socket::wait_read, std::move(done)); });
}

ErrorCode Connection::read(Parser& parser) {
  const auto deadline = Clock::now() + service_.limits.request;
  const ErrorCode error = await(deadline, Direction::shutdown_receive, [&](auto done) {
    http::async_read_header(socket_, buffer_, parser, std::move(done));
  });
  if (error) return error;
  if (beast::iequals(parser.get()[http::field::expect], "100-continue"))
    write(text_of(http::response<http::empty_body>(http::status::continue_, parser.get().version())));
  return await(deadline, Direction::shutdown_receive,
               [&](auto done) { http::async_read(socket_, buffer_, parser, std::move(done)); });
}

/// Closes the sending direction, then receives and drops the client's remaining bytes. If the socket were
/// closed at once, the system would answer those bytes with a reset, and the client could lose the end of the
/// response.
void Connection::close_gently() {
  const auto deadline = Clock::now() + last_words;
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->shut(Direction::shutdown_send); });
  ErrorCode error;
  while (!error) {
    buffer_.clear();
    error = await(deadline, Direction::shutdown_receive,
                  [&](auto done) { socket_.async_read_some(buffer_.prepare(4096), std::move(done)); });
  }
}

void Connection::refuse(const HttpError& error) {
  ErrorCode ignored;
  // The send buffer of a new socket has room for this response: the write does not block.
  asio::write(socket_, asio::buffer(refusal(error)), ignored);
  shut(Direction::shutdown_send);
  socket_.read_some(buffer_.prepare(socket_.available(ignored)), ignored);
}

// --- all connections

class Connections {
 public:
  Connections(tcp::acceptor& acceptor, Service& service)
      : acceptor_(acceptor), pause_(acceptor.get_executor()), service_(service) {}

  /// Accepts clients until the acceptor is closed.
  void accept() {
    acceptor_.async_accept([this](const ErrorCode& error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (!error) {
        admit(std::move(socket));
        return accept();
      }
      // A client that left before it was accepted needs nothing. Without free descriptors other connections
      // must end first.
      pause_.expires_after(std::chrono::milliseconds(20));
      pause_.async_wait([this](const ErrorCode&) { accept(); });
    });
  }

  void shut(Direction direction) {
    for (const auto& connection : open_) connection->shut(direction);
  }

 private:
  void admit(tcp::socket socket) {
    ErrorCode ignored;
    // A token is a small packet and shall be sent at once.
    static_cast<void>(socket.set_option(tcp::no_delay(true), ignored));
    const auto connection = std::make_shared<Connection>(std::move(socket), service_);
    const auto ended = [this, at = connection.get()] { open_.erase(at->shared_from_this()); };
    if (open_.size() < service_.limits.connections && connection->start(ended))
      open_.insert(connection);
    else
      connection->refuse({503, fmt::format("there are {} connections already: try again later", open_.size()),
                          "", "overloaded"});
  }

  tcp::acceptor& acceptor_;
  asio::steady_timer pause_;
  Service& service_;
  std::set<std::shared_ptr<Connection>> open_;
};

// --- the port

/// Binds the acceptor to the address.
ErrorCode take_port(tcp::acceptor& acceptor, const tcp::endpoint& endpoint) {
  try {
    acceptor = tcp::acceptor(acceptor.get_executor(), endpoint.protocol());
    ::fcntl(acceptor.native_handle(), F_SETFD,
            FD_CLOEXEC);  // the workers, started later, must not inherit it
    acceptor.set_option(tcp::acceptor::reuse_address(true));  // ignore TIME_WAIT of an earlier process
    acceptor.bind(endpoint);
    return {};
  } catch (const boost::system::system_error& error) {
    return error.code();
  }
}

Error port_error(const std::string& host, std::uint16_t port, const ErrorCode& error) {
  const std::string what = fmt::format("listen at {}, port {}: {}", host, port, error.message());
  if (error == asio::error::address_in_use)
    return fail(Code::invalid_argument,
                "{}: another program uses it. Choose another port, or --serve 0 for a free one", what);
  if (error == asio::error::access_denied)
    return fail(Code::invalid_argument,
                "{}: ports below 1024 are for root. Choose a higher one, or --serve 0 for a free one", what);
  if (error == boost::system::errc::address_not_available)
    return fail(Code::invalid_argument, "{}: --host must be an address of this machine", what);
  return fail(Code::invalid_argument, "{}", what);
}

}  // namespace

struct HttpServer::Port {
  asio::io_context context{1};
  tcp::acceptor acceptor{context};
};

HttpServer::HttpServer(std::unique_ptr<Port> port, const HttpLimits& limits)
    : port_(std::move(port)), address_(text_of(port_->acceptor.local_endpoint())), limits_(limits) {}
HttpServer::HttpServer(HttpServer&&) noexcept = default;
HttpServer::~HttpServer() = default;

Result<HttpServer> HttpServer::open(const std::string& host, std::uint16_t port,
                                    const HttpLimits& limits) try {
  auto opened = std::make_unique<Port>();
  ErrorCode error;
  const auto found = tcp::resolver(opened->context)
                         .resolve(host, std::to_string(port), tcp::resolver::numeric_service, error);
  if (error)
    return fail(Code::invalid_argument, "the host \"{}\" has no address to listen at: {}", host,
                error.message());
  for (const auto& entry : found) {
    error = take_port(opened->acceptor, entry.endpoint());
    if (!error) return HttpServer(std::move(opened), limits);
  }
  return port_error(host, port, error);
} catch (const boost::system::system_error& error) {
  return port_error(host, port, error.code());
}

Result<void> HttpServer::listen() {
  ErrorCode error;
  static_cast<void>(port_->acceptor.listen(tcp::acceptor::max_listen_connections, error));
  if (!error) return {};
  return fail(Code::invalid_argument, "listen at {}: {}", address_, error.message());
}

Result<void> HttpServer::run(const HttpHandler& handler, int stop) try {
  asio::io_context& context = port_->context;
  asio::posix::stream_descriptor stopped(context, ::fcntl(stop, F_DUPFD_CLOEXEC, 0));
  stopped.async_wait(asio::posix::stream_descriptor::wait_read, [&](const ErrorCode&) { context.stop(); });
  Service service{handler, limits_};
  Connections connections(port_->acceptor, service);
  connections.accept();
  context.run();

  // Responses that are being sent get `last_words` to end; no further request is read.
  service.stopping = true;
  port_->acceptor.close();
  connections.shut(Direction::shutdown_receive);
  context.restart();
  context.run_for(last_words);
  connections.shut(Direction::shutdown_both);
  context.restart();
  context.run();
  return {};
} catch (const boost::system::system_error& error) {
  return fail(Code::exhausted, "answer at {}: {}", address_, error.code().message());
}

}  // namespace headrace::cli::demo
