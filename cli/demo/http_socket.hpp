// SPDX-License-Identifier: Apache-2.0
// A client's socket as Beast reads and writes one, with a deadline on each wait and an event that ends it.
#pragma once

#include "cli/file_descriptor.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/system/system_error.hpp>

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>

namespace headrace::cli::demo {

/// Meets Beast's SyncStream. The errors of waits: beast::error::timeout, and operation_aborted when `stop` is
/// readable.
///   threads  one
class HttpSocket {
 public:
  using ErrorCode = boost::system::error_code;
  using Clock = std::chrono::steady_clock;

  /// The socket does not block.
  HttpSocket(FileDescriptor socket, int stop, std::chrono::milliseconds write_patience)
      : socket_(std::move(socket)), stop_(stop), write_patience_(write_patience) {}

  /// What is read must be there by then.
  void expires_after(std::chrono::milliseconds patience) { deadline_ = Clock::now() + patience; }

  template <class Buffers>
  std::size_t read_some(const Buffers& buffers, ErrorCode& error) {
    std::array<::iovec, most_parts> parts{};
    ::msghdr message = header(buffers, parts);
    return transfer(
        POLLIN, deadline_, error, [&] { return ::recvmsg(socket_.get(), &message, 0); }, true);
  }

  template <class Buffers>
  std::size_t write_some(const Buffers& buffers, ErrorCode& error) {
    std::array<::iovec, most_parts> parts{};
    ::msghdr message = header(buffers, parts);
    return transfer(
        POLLOUT, Clock::now() + write_patience_, error,
        [&] { return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL); }, false);
  }

  /// The same with exceptions: the concept wants them.
  template <class Buffers>
  std::size_t read_some(const Buffers& buffers) {
    return or_throw([&](ErrorCode& error) { return read_some(buffers, error); });
  }
  template <class Buffers>
  std::size_t write_some(const Buffers& buffers) {
    return or_throw([&](ErrorCode& error) { return write_some(buffers, error); });
  }

  /// Whether there is something to read, within the deadline.
  [[nodiscard]] bool await_input() {
    ErrorCode error;
    wait(POLLIN, deadline_, error);
    return !error;
  }
  /// The other side has closed, or at least will send nothing more: clients do that when they leave.
  [[nodiscard]] bool peer_gone() const {
    ::pollfd look{socket_.get(), POLLRDHUP, 0};
    return ::poll(&look, 1, 0) > 0;
  }
  [[nodiscard]] bool stopping() const {
    ::pollfd look{stop_, POLLIN, 0};
    return ::poll(&look, 1, 0) > 0;
  }

  /// Says that nothing more comes, and throws away what the client still sends: closed at once, the system
  /// would answer that with a reset, which can overtake our last words.
  void close_gently(std::chrono::milliseconds patience) {
    ::shutdown(socket_.get(), SHUT_WR);
    expires_after(patience);
    std::array<char, 4096> waste{};
    ErrorCode error;
    while (!error && Clock::now() < deadline_) (void)read_some(boost::asio::buffer(waste), error);
    socket_.reset();
  }

 private:
  static constexpr std::size_t most_parts = 16;

  template <class Buffers>
  static ::msghdr header(const Buffers& buffers, std::array<::iovec, most_parts>& parts) {
    std::size_t count = 0;
    for (auto at = boost::asio::buffer_sequence_begin(buffers);
         at != boost::asio::buffer_sequence_end(buffers) && count < most_parts; ++at) {
      const boost::asio::const_buffer part(*at);
      if (part.size() > 0) parts[count++] = {const_cast<void*>(part.data()), part.size()};
    }
    ::msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    return message;
  }

  template <class Call>
  std::size_t transfer(short event, Clock::time_point deadline, ErrorCode& error, const Call& call,
                       bool reading) {
    error = {};
    while (!error) {
      const ssize_t moved = call();
      if (moved > 0) return static_cast<std::size_t>(moved);
      if (moved == 0 && reading) error = boost::asio::error::eof;
      if (moved == 0) return 0;
      if (errno == EAGAIN) {
        wait(event, deadline, error);
      } else if (errno != EINTR) {
        error.assign(errno, boost::system::system_category());
      }
    }
    return 0;
  }

  void wait(short event, Clock::time_point deadline, ErrorCode& error) const {
    std::array<::pollfd, 2> looks{{{socket_.get(), event, 0}, {stop_, POLLIN, 0}}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const int found = ::poll(looks.data(), looks.size(), static_cast<int>(std::max<decltype(left)>(left, 0)));
    if (found == 0) error = boost::beast::error::timeout;
    if (found < 0 && errno != EINTR) error.assign(errno, boost::system::system_category());
    if (found > 0 && looks[1].revents != 0) error = boost::asio::error::operation_aborted;
  }

  template <class Call>
  static std::size_t or_throw(const Call& call) {
    ErrorCode error;
    const std::size_t moved = call(error);
    if (error) throw boost::system::system_error(error);
    return moved;
  }

  FileDescriptor socket_;
  int stop_;
  std::chrono::milliseconds write_patience_;
  Clock::time_point deadline_{};
};

}  // namespace headrace::cli::demo
