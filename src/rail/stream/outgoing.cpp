// SPDX-License-Identifier: Apache-2.0
#include "rail/stream/outgoing.hpp"

#include "memory/peer_memory_access.hpp"
#include "rail/stream/frame.hpp"

#include <algorithm>
#include <array>

namespace headrace::rail::stream {
namespace {

constexpr std::size_t most_pieces_out = 64;
constexpr int sends_at_once = 16;  // then other peers have their turn
std::array<std::byte, 64 * 1024> zeros{};

std::uint64_t bytes_in(const std::vector<iovec>& pieces) {
  std::uint64_t sum = 0;
  for (const iovec& piece : pieces) sum += piece.iov_len;
  return sum;
}

}  // namespace

bool Outgoing::withdraw(std::uint64_t post) {
  const auto at = std::find_if(frames_.begin(), frames_.end(), [post](const OutFrame& frame) {
    return frame.role == OutFrame::Role::post && frame.post == post && !frame.begun();
  });
  if (at == frames_.end()) return false;
  frames_.erase(at);
  return true;
}

/// Fills pieces_ with what comes next, of as many frames as fit.
Result<void> Outgoing::gather(Memories::View& view) {
  pieces_.clear();
  std::uint64_t wanted = 0;
  for (std::size_t i = 0; i < frames_.size() && pieces_.size() + 1 < most_pieces_out; ++i) {
    OutFrame& frame = frames_[i];
    wanted += frame.left();
    if (frame.head_sent < frame.head.size())
      pieces_.push_back({frame.head.data() + frame.head_sent, frame.head.size() - frame.head_sent});
    HEADRACE_TRY_VOID(gather_payload(view, i));
    if (bytes_in(pieces_) < wanted) return {};  // the rest of this frame comes first
  }
  return {};
}

Result<void> Outgoing::gather_payload(Memories::View& view, std::size_t index) {
  OutFrame& frame = frames_[index];
  const std::size_t before = pieces_.size();
  if (!frame.refused && !frame.payload.gather(view, pieces_, most_pieces_out)) {
    if (frame.role != OutFrame::Role::data)
      return make_error(Code::internal, "memory of post {} was deregistered before its end", frame.post);
    pieces_.resize(before);
    frame.refused = true;
    frames_[index + 1].head =
        encode({.type = FrameType::end, .post = frame.post, .value = code_value(Code::not_found)});
  }
  if (frame.refused && frame.payload.left() > 0)
    pieces_.push_back({zeros.data(), static_cast<std::size_t>(
                                         std::min<std::uint64_t>(frame.payload.left(), zeros.size()))});
  return {};
}

void Outgoing::sent(std::size_t bytes, const std::function<void(const OutFrame&)>& finished) {
  while (!frames_.empty()) {
    OutFrame& frame = frames_.front();
    const std::size_t of_head = std::min(bytes, frame.head.size() - frame.head_sent);
    frame.head_sent += of_head;
    bytes -= of_head;
    const auto of_payload = std::min<std::uint64_t>(bytes, frame.payload.left());
    frame.payload.advance(of_payload);
    bytes -= of_payload;
    if (frame.left() > 0) return;
    const OutFrame whole = std::move(frame);
    frames_.pop_front();
    finished(whole);
    if (bytes == 0) return;
  }
}

Result<std::size_t> Outgoing::send_some(Stream& stream, const Memories& memories) {
  Memories::View view(memories);
  HEADRACE_TRY_VOID(gather(view));
  const PeerMemoryAccess access;
  return stream.send(pieces_);
}

Result<bool> Outgoing::flush(Stream& stream, const Memories& memories,
                             const std::function<void(const OutFrame&)>& finished) {
  for (int i = 0; i < sends_at_once && !frames_.empty(); ++i) {
    HEADRACE_TRY(taken, send_some(stream, memories));
    if (taken == 0) return true;
    sent(taken, finished);
  }
  return !frames_.empty();
}

}  // namespace headrace::rail::stream
