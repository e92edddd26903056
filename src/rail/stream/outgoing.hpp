// SPDX-License-Identifier: Apache-2.0
// The frames that wait for one stream, in order. Payload is read from its place when the stream takes it.
#pragma once

#include "rail/stream/range_cursor.hpp"
#include "rail/stream/stream.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

namespace headrace::rail::stream {

struct OutFrame {
  enum class Role : std::uint8_t {
    post,    ///< of ours: a write, a read, an offer, a message
    answer,  ///< to the peer
    data,    ///< to the peer, from memory that may go away. The next frame is its end, which says so
  };
  std::string head = {};
  RangeCursor payload = {};
  Role role = Role::answer;
  std::uint64_t post = 0;
  bool refused = false;  ///< its memory is gone: zeros are sent
  std::size_t head_sent = 0;

  [[nodiscard]] bool begun() const { return head_sent > 0; }
  [[nodiscard]] std::uint64_t left() const { return head.size() - head_sent + payload.left(); }
};

class Outgoing {
 public:
  void push(OutFrame frame) { frames_.push_back(std::move(frame)); }
  [[nodiscard]] bool empty() const { return frames_.empty(); }
  [[nodiscard]] std::size_t size() const { return frames_.size(); }
  /// Takes out the frame of a post, if none of its bytes has left.
  bool withdraw(std::uint64_t post);

  /// Sends until the stream takes no more, or for a while. `finished` is called for each whole frame.
  /// True: the stream is full.
  ///   errors  of the stream; internal (memory of a post was deregistered)
  Result<bool> flush(Stream& stream, const Memories& memories,
                     const std::function<void(const OutFrame&)>& finished);

 private:
  Result<std::size_t> send_some(Stream& stream, const Memories& memories);
  Result<void> gather(Memories::View& view);
  Result<void> gather_payload(Memories::View& view, std::size_t index);
  void sent(std::size_t bytes, const std::function<void(const OutFrame&)>& finished);

  std::deque<OutFrame> frames_;
  std::vector<iovec> pieces_;
};

}  // namespace headrace::rail::stream
