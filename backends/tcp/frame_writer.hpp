// SPDX-License-Identifier: Apache-2.0
// A batch of frames on its way into a socket: headers and ranges in a buffer of its own, payload where it
// lies.
//
// Frames are put in while there is room, then the whole is flushed, over as many calls as the socket wants.
// The socket copies: what has been flushed is not read again.
#pragma once

#include "backends/tcp/frame.hpp"
#include "backends/tcp/socket_calls.hpp"

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace headrace::tcp {

class FrameWriter {
 public:
  enum class Flushed {
    all,
    blocked,  ///< the socket is full: go on when it can be written to
    failed,   ///< errno says why
  };
  struct Step {
    Flushed result = Flushed::all;
    std::uint64_t bytes = 0;  ///< that went out
    int error = 0;
  };

  [[nodiscard]] bool empty() const noexcept { return next_ == pieces_.size(); }
  /// Of the whole batch.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t pieces() const noexcept { return pieces_.size(); }

  /// Whether `bytes` more of headers and ranges fit without moving what is there. Always true of an empty
  /// batch.
  [[nodiscard]] bool fits(std::size_t bytes);
  /// Room for so many bytes of headers and ranges, which `fits`.
  std::byte* head(std::size_t bytes);
  void put(const void* bytes, std::size_t count) { std::memcpy(head(count), bytes, count); }
  void put(const FrameHeader& header) { put(&header, sizeof header); }
  /// Payload that stays where it is until it has been flushed.
  void lend(const void* bytes, std::size_t count);
  /// Payload that this object keeps.
  void keep(std::string bytes);

  /// The place in the batch, to take back what comes after it.
  struct Mark {
    std::size_t head, pieces, last_length;
    std::uint64_t bytes;
  };
  [[nodiscard]] Mark mark() const noexcept;
  void take_back(const Mark& mark);

  /// Sends what there is, in one call or, after a call that took everything it was given, in several.
  Step flush(SocketCalls& calls, int fd);

  /// Copies what it still has to send from [begin, begin + length), so that the memory may go away.
  void detach(const std::byte* begin, std::size_t length);
  /// Appends what it still has to send to `bytes`, and forgets it. False: some of that memory is not there.
  [[nodiscard]] bool move_to(std::string& bytes);
  void clear();

 private:
  void took(std::size_t bytes);

  std::unique_ptr<std::byte[]> head_;
  std::size_t head_capacity_ = 0;
  std::size_t head_size_ = 0;
  std::vector<iovec> pieces_;
  std::size_t next_ = 0;
  std::uint64_t bytes_ = 0;
  std::vector<std::unique_ptr<std::string>> kept_;
};

}  // namespace headrace::tcp
