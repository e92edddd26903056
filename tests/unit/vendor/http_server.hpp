// SPDX-License-Identifier: Apache-2.0
// A small server on the loopback address that plays what a client must handle: chunks, silence, refusals and
// TLS.
#pragma once

#include "base/tcp_address.hpp"
#include "base/unique_fd.hpp"

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace headrace::test {

/// The bytes of one connection, plain or over TLS.
class Connection {
 public:
  explicit Connection(int fd) : fd_(fd) {}
  virtual ~Connection() = default;
  virtual ssize_t read(char* buffer, std::size_t size) { return ::recv(fd_, buffer, size, 0); }
  virtual ssize_t write(std::string_view text) { return ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }

  /// Blocks until the client has closed its side.
  void wait_for_hang_up() {
    char byte = 0;
    while (read(&byte, 1) > 0) {
    }
  }

 protected:
  const int fd_;
};

class HttpServer {
 public:
  struct Request {
    std::string head;  ///< request line and headers
    std::string body;
  };
  /// Answers one request; returns whether the connection stays open for the next.
  using Handler = std::function<bool(const Request& request, Connection& connection)>;
  using Wrap = std::function<std::unique_ptr<Connection>(int fd)>;

  explicit HttpServer(
      Handler handler, Wrap wrap = [](int fd) { return std::make_unique<Connection>(fd); })
      : handler_(std::move(handler)), wrap_(std::move(wrap)) {
    const auto address = TcpAddress{"127.0.0.1", 0}.resolve(TcpAddress::Use::listen).value().at(0);
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::bind(listener_.get(), address.get(), address.length) != 0 || ::listen(listener_.get(), 16) != 0)
      std::abort();
    port_ = SocketAddress::local_of(listener_.get())->port();
    acceptor_ = std::thread([this] { accept(); });
  }

  ~HttpServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    for (auto& client : clients_) ::shutdown(client.fd.get(), SHUT_RDWR);
    for (auto& client : clients_) client.thread.join();
  }

  [[nodiscard]] std::string url(std::string_view path, std::string_view scheme = "http") const {
    return fmt::format("{}://127.0.0.1:{}{}", scheme, port_, path);
  }
  [[nodiscard]] std::size_t connections() const {
    const std::scoped_lock lock(mutex_);
    return clients_.size();
  }

  static std::string response(int status, std::string_view body) {
    return fmt::format("HTTP/1.1 {} Text\r\nContent-Length: {}\r\n\r\n{}", status, body.size(), body);
  }
  static constexpr std::string_view chunked_head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  static std::string chunk(std::string_view bytes) {
    return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
  }

 private:
  struct Client {
    UniqueFd fd;
    std::thread thread;
  };

  void accept() {
    for (;;) {
      UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd) return;
      const std::scoped_lock lock(mutex_);
      Client& client = clients_.emplace_back();
      client.fd = std::move(fd);
      client.thread = std::thread([this, number = client.fd.get()] { serve(number); });
    }
  }

  void serve(int fd) {
    if (const auto connection = wrap_(fd)) {
      Request request;
      while (read_request(*connection, request) && handler_(request, *connection)) {
      }
    }
    ::shutdown(fd, SHUT_RDWR);
  }

  static bool read_request(Connection& connection, Request& request) {
    std::string all;
    std::size_t head_end = std::string::npos;
    std::size_t body_length = 0;
    while (head_end == std::string::npos || all.size() < head_end + 4 + body_length) {
      char buffer[4096];
      const ssize_t got = connection.read(buffer, sizeof buffer);
      if (got <= 0) return false;
      all.append(buffer, static_cast<std::size_t>(got));
      if (head_end != std::string::npos) continue;
      head_end = all.find("\r\n\r\n");
      if (const auto at = all.find("Content-Length: "); head_end != std::string::npos && at < head_end) {
        body_length = std::stoul(all.substr(at + 16));
      }
    }
    request = {all.substr(0, head_end), all.substr(head_end + 4)};
    return true;
  }

  Handler handler_;
  Wrap wrap_;
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::thread acceptor_;
  mutable std::mutex mutex_;
  std::list<Client> clients_;
};

}  // namespace headrace::test
