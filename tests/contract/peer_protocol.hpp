// SPDX-License-Identifier: Apache-2.0
// How a test talks to contract_peer: a line of words each way, bytes as hexadecimal digits.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::contract {

inline constexpr int peer_control_fd = 3;  ///< of the peer's process

/// "-" for no bytes, so that a word is never empty.
inline std::string to_hex(std::string_view bytes) {
  if (bytes.empty()) return "-";
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

inline std::string from_hex(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    unsigned value = 0;
    std::from_chars(text.data() + i, text.data() + i + 2, value, 16);
    bytes += static_cast<char>(value);
  }
  return bytes;
}

inline std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  while (!line.empty()) {
    const auto space = line.find(' ');
    words.emplace_back(line.substr(0, space));
    line = space == std::string_view::npos ? std::string_view() : line.substr(space + 1);
  }
  return words;
}

/// One end of the line between the two.
class ControlLine {
 public:
  explicit ControlLine(int fd) : fd_(fd) {}

  void write_line(std::string text) const {
    text += '\n';
    for (std::size_t done = 0; done < text.size();) {
      const ssize_t n = ::write(fd_, text.data() + done, text.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) throw std::runtime_error("the other process does not listen any more");
      done += static_cast<std::size_t>(n);
    }
  }
  /// False at the end of the stream.
  bool read_line(std::string& line) {
    for (;;) {
      const auto end = buffer_.find('\n');
      if (end != std::string::npos) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return true;
      }
      char some[65'536];
      const ssize_t n = ::read(fd_, some, sizeof(some));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      buffer_.append(some, static_cast<std::size_t>(n));
    }
  }

 private:
  int fd_;
  std::string buffer_;
};

}  // namespace headrace::contract
