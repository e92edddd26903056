// SPDX-License-Identifier: Apache-2.0
#include "rail/stream/frame_reader.hpp"

#include "memory/peer_memory_access.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace headrace::rail::stream {
namespace {

constexpr std::size_t most_pieces = 64;

}  // namespace

std::span<iovec> FrameReader::targets(Memories::View& view) {
  pieces_.clear();
  direct_bytes_ = 0;
  const bool direct = in_payload_ && fate_ != Fate::kept;
  if (direct && fate_ == Fate::placed && !cursor_.gather(view, pieces_, most_pieces)) {
    pieces_.clear();
    refuse();
  }
  if (direct && fate_ == Fate::scrapped)
    pieces_.push_back(
        {scrap_.get(), static_cast<std::size_t>(std::min<std::uint64_t>(left_, staging_bytes))});
  for (const iovec& piece : pieces_) direct_bytes_ += piece.iov_len;
  if (direct && direct_bytes_ < left_) return pieces_;

  std::memmove(staging_.get(), staging_.get() + begin_, staged());  // a part of a header at most
  end_ = staged();
  begin_ = 0;
  pieces_.push_back({staging_.get() + end_, staging_bytes - end_});
  return pieces_;
}

Result<void> FrameReader::took(std::size_t bytes, Handler& handler) {
  const auto direct = std::min<std::uint64_t>(bytes, std::exchange(direct_bytes_, 0));
  if (fate_ == Fate::placed) cursor_.advance(direct);
  left_ -= direct;
  end_ += bytes - direct;
  for (;;) {
    HEADRACE_TRY(more, step(handler));
    if (!more) return {};
  }
}

/// False: it needs more bytes.
Result<bool> FrameReader::step(Handler& handler) {
  return in_payload_ ? take_payload(handler) : begin_frame(handler);
}

Result<bool> FrameReader::begin_frame(Handler& handler) {
  if (staged() < header_bytes) return false;
  std::memcpy(&header_, staging_.get() + begin_, header_bytes);
  HEADRACE_TRY_VOID(check(header_));
  const std::size_t needed = header_bytes + header_.ranges * range_bytes;
  if (staged() < needed) return false;
  const std::string_view bytes(reinterpret_cast<const char*>(staging_.get()) + begin_ + header_bytes,
                               needed - header_bytes);
  HEADRACE_TRY(ranges, read_ranges(header_, bytes));
  begin_ += needed;
  in_payload_ = true;
  refused_ = false;
  fate_ = Fate::scrapped;
  left_ = header_.payload;
  kept_.clear();
  HEADRACE_TRY_VOID(handler.begin(header_, std::move(ranges)));
  return true;
}

Result<bool> FrameReader::take_payload(Handler& handler) {
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(left_, staged()));
  if (fate_ == Fate::placed) copy_to_place(bytes);
  if (fate_ == Fate::kept) kept_.append(reinterpret_cast<const char*>(staging_.get()) + begin_, bytes);
  begin_ += bytes;
  left_ -= bytes;
  if (left_ > 0) return false;
  in_payload_ = false;
  HEADRACE_TRY_VOID(handler.end(header_, kept_, refused_));
  return true;
}

void FrameReader::copy_to_place(std::size_t bytes) {
  Memories::View view(memories_);
  const PeerMemoryAccess access;
  for (const std::byte* from = staging_.get() + begin_; bytes > 0;) {
    pieces_.clear();
    if (!cursor_.gather(view, pieces_, 1)) return refuse();
    const std::size_t step = std::min(bytes, pieces_.front().iov_len);
    std::memcpy(pieces_.front().iov_base, from, step);
    cursor_.advance(step);
    from += step;
    bytes -= step;
  }
}

}  // namespace headrace::rail::stream
