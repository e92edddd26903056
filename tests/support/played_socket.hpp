// SPDX-License-Identifier: Apache-2.0
// A peer of the tcp backend that is played byte by byte.
#pragma once

#include "backends/tcp/frame.hpp"
#include "base/tcp_address.hpp"
#include "base/unique_fd.hpp"
#include "wire/handshake.hpp"

#include <sys/socket.h>

#include <stdexcept>
#include <string>

namespace headrace::test {

/// A socket to an instance that has shaken hands, with calls that wait.
class PlayedSocket {
 public:
  PlayedSocket(const SocketAddress& to, unsigned channel)
      : fd_(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval patience{.tv_sec = 30, .tv_usec = 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (::connect(fd_.get(), to.get(), to.length) < 0)
      throw std::runtime_error("cannot connect to " + to.text());
    wire::Handshake::Config config;
    config.mine.name = "played";
    config.mine.incarnation = 7;
    config.mine.link_id = 99;
    config.mine.channel = static_cast<std::uint8_t>(channel);
    auto handshake = wire::Handshake::begin(std::move(config)).value();
    while (handshake.state() == wire::Handshake::State::running) {
      const std::string out(handshake.to_send());
      write(out.data(), out.size());
      handshake.sent(out.size());
      char byte = 0;  // one at a time: what follows the handshake is not its own
      read(&byte, 1);
      handshake.feed({&byte, 1});
    }
    if (handshake.state() != wire::Handshake::State::done)
      throw std::runtime_error(handshake.refusal().message);
  }

  void say(tcp::FrameType type, std::string_view payload = {}) const {
    tcp::FrameHeader header;
    header.type = type;
    say(header, payload);
  }
  void acknowledge(const tcp::FrameHeader& heard) const {
    tcp::FrameHeader header;
    header.type = tcp::FrameType::write_ack;
    header.request = heard.request;
    header.chunk = heard.chunk;
    say(header, std::string(8, '\xff'));
  }
  void refuse(const tcp::FrameHeader& heard, tcp::FrameType answer, Code code) const {
    tcp::FrameHeader header;
    header.type = answer;
    header.request = heard.request;
    header.chunk = heard.chunk;
    header.code = static_cast<std::uint32_t>(code);
    say(header, std::string(8, '\0'));
  }
  /// The next frame; what follows its header is thrown away.
  [[nodiscard]] tcp::FrameHeader hear() const {
    tcp::FrameHeader header;
    read(&header, sizeof header);
    std::string rest(tcp::ranges_bytes(header) + header.payload, '\0');
    read(rest.data(), rest.size());
    return header;
  }
  /// Asks for `bytes` from the beginning of a region, as one chunk.
  void read_from(std::uint32_t region, std::uint64_t bytes) const {
    tcp::FrameHeader header;
    header.type = tcp::FrameType::read;
    header.request = 1;
    header.ranges = 1;
    const tcp::WireRange range{region, 0, 0, bytes};
    std::string frame(reinterpret_cast<const char*>(&header), sizeof header);
    frame.append(reinterpret_cast<const char*>(&range), sizeof range);
    write(frame.data(), frame.size());
  }
  /// Writes to the beginning of a region: the header of one chunk of `bytes`, and the first of them.
  void write_to(std::uint32_t region, std::uint64_t bytes, std::string_view first) const {
    tcp::FrameHeader header;
    header.type = tcp::FrameType::write;
    header.request = 1;
    header.ranges = 1;
    header.payload = bytes;
    const tcp::WireRange range{region, 0, 0, bytes};
    std::string frame(reinterpret_cast<const char*>(&header), sizeof header);
    frame.append(reinterpret_cast<const char*>(&range), sizeof range);
    frame += first;
    write(frame.data(), frame.size());
  }
  void write_more(std::string_view bytes) const { write(bytes.data(), bytes.size()); }
  /// Closes the socket behind what was sent, or resets the connection.
  void close(bool reset) {
    const linger none{.l_onoff = reset ? 1 : 0, .l_linger = 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
    fd_.reset();
  }
  /// The next header by itself, then its payload.
  [[nodiscard]] tcp::FrameHeader hear_header() const {
    tcp::FrameHeader header;
    read(&header, sizeof header);
    return header;
  }
  [[nodiscard]] std::string hear_payload(const tcp::FrameHeader& header) const {
    std::string bytes(header.payload, '\0');
    read(bytes.data(), bytes.size());
    return bytes;
  }
  /// To be polled.
  [[nodiscard]] int fd() const { return fd_.get(); }
  /// The next one of this type.
  tcp::FrameHeader hear(tcp::FrameType wanted) const {
    tcp::FrameHeader header = hear();
    while (header.type != wanted) header = hear();
    return header;
  }

 private:
  void say(tcp::FrameHeader header, std::string_view payload) const {
    header.payload = payload.size();
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    bytes += payload;
    write(bytes.data(), bytes.size());
  }
  void write(const void* bytes, std::size_t count) const {
    if (::send(fd_.get(), bytes, count, MSG_NOSIGNAL) != static_cast<ssize_t>(count))
      throw std::runtime_error("cannot send");
  }
  void read(void* bytes, std::size_t count) const {
    if (count > 0 && ::recv(fd_.get(), bytes, count, MSG_WAITALL) != static_cast<ssize_t>(count))
      throw std::runtime_error("the other side has closed, or says nothing");
  }

  UniqueFd fd_;
};

}  // namespace headrace::test
