// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/frame_reader.hpp"

#include "memory/faultless_copy.hpp"
#include "memory/peer_memory_access.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace headrace::tcp {
namespace {

constexpr std::size_t scrap_bytes = 64 * 1024;

bool handler_places(const FrameHeader& header) {
  return header.type == FrameType::write || (header.type == FrameType::read_data && header.code == 0);
}

/// Into the caller's memory; false: it is not there.
bool copy_to_the_caller(void* target, const std::byte* from, std::size_t bytes) {
  const PeerMemoryAccess access;
  return copy_unless_it_faults(target, from, bytes);
}

bool known(FrameType type) { return type >= FrameType::write && type <= FrameType::message_ack; }

}  // namespace

FrameReader::FrameReader() : staging_(new std::byte[staging_bytes]) {}

/// Makes staging hold `needed` unread bytes in one piece.
void FrameReader::make_room(std::size_t needed) {
  if (begin_ == end_) begin_ = end_ = 0;
  if (needed > capacity_) {
    std::unique_ptr<std::byte[]> larger(new std::byte[needed]);
    std::memcpy(larger.get(), staging_.get() + begin_, end_ - begin_);
    staging_ = std::move(larger);
    capacity_ = needed;
  } else if (begin_ == 0 || capacity_ - begin_ >= std::max(needed, staging_bytes / 2)) {
    return;
  } else {
    std::memmove(staging_.get(), staging_.get() + begin_, end_ - begin_);
  }
  end_ -= begin_;
  begin_ = 0;
}

std::span<iovec> FrameReader::targets(std::size_t max_count) {
  if (std::exchange(staging_in_pieces_, false)) pieces_.pop_back();  // the last answer was not used
  if (!in_payload_) {
    make_room(needed_);
    pieces_.clear();
    next_ = 0;
  } else if (discarding_) {
    if (scrap_ == nullptr) scrap_.reset(new std::byte[scrap_bytes]);
    make_room(0);
    pieces_.assign(1, {scrap_.get(), static_cast<std::size_t>(std::min<std::uint64_t>(left_, scrap_bytes))});
    next_ = 0;
    if (left_ > scrap_bytes) return pieces_;
  } else {
    make_room(0);
  }
  const std::size_t count = pieces_.size() - next_;
  if (count >= max_count) return {pieces_.data() + next_, max_count};
  pieces_.push_back({staging_.get() + end_, capacity_ - end_});
  staging_in_pieces_ = true;
  return {pieces_.data() + next_, count + 1};
}

/// Moves over filled pieces; returns the bytes that were not theirs.
std::size_t FrameReader::advance(std::size_t bytes) {
  while (bytes > 0 && next_ < pieces_.size()) {
    iovec& piece = pieces_[next_];
    const std::size_t n = std::min(bytes, piece.iov_len);
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + n;
    piece.iov_len -= n;
    bytes -= n;
    left_ -= n;
    if (piece.iov_len == 0) ++next_;
  }
  return bytes;
}

void FrameReader::take_payload_from_staging(Handler& handler) {
  const std::size_t n =
      static_cast<std::size_t>(std::min<std::uint64_t>(discarding_ ? left_ : room(), end_ - begin_));
  if (!discarding_) {
    std::size_t copied = 0;
    while (copied < n) {
      const iovec piece = pieces_[next_];
      const std::size_t part = std::min(n - copied, piece.iov_len);
      if (all_ours_) {
        std::memcpy(piece.iov_base, staging_.get() + begin_ + copied, part);
      } else if (!copy_to_the_caller(piece.iov_base, staging_.get() + begin_ + copied, part)) {
        const std::uint64_t at = header_.payload - left_;
        discard();
        left_ -= n - copied;
        handler.unwritable(at);
        break;
      }
      advance(part);
      copied += part;
    }
  } else {
    left_ -= n;
  }
  begin_ += n;
}

Result<void> FrameReader::took(std::size_t bytes, Handler& handler) {
  if (std::exchange(staging_in_pieces_, false)) pieces_.pop_back();
  if (in_payload_) {
    if (discarding_) {
      const std::uint64_t gone = std::min<std::uint64_t>(bytes, left_);
      left_ -= gone;
      bytes -= gone;
    } else {
      bytes = advance(bytes);
    }
  }
  end_ += bytes;
  return go_on(handler);
}

Result<void> FrameReader::go_on(Handler& handler) {
  for (;;) {
    HEADRACE_TRY(more, take_frame(handler));
    if (!more) return {};
  }
}

Result<void> FrameReader::feed(std::span<const std::byte> bytes, Handler& handler) {
  while (!bytes.empty()) {
    if (starved()) {  // it waits in staging
      make_room(end_ - begin_ + bytes.size());
      std::memcpy(staging_.get() + end_, bytes.data(), bytes.size());
      end_ += bytes.size();
      return {};
    }
    std::size_t given = 0;
    for (const iovec& piece : targets(SIZE_MAX)) {
      const std::size_t n = std::min(piece.iov_len, bytes.size() - given);
      std::memcpy(piece.iov_base, bytes.data() + given, n);
      given += n;
      if (given == bytes.size()) break;
    }
    HEADRACE_TRY_VOID(took(given, handler));
    bytes = bytes.subspan(given);
  }
  return {};
}

/// Takes the next step with what staging holds; false: it needs more bytes.
Result<bool> FrameReader::take_frame(Handler& handler) {
  if (in_payload_) return take_payload(handler);
  const std::size_t there = end_ - begin_;
  if (there < frame_header_bytes) {
    needed_ = frame_header_bytes;
    return false;
  }
  std::memcpy(&header_, staging_.get() + begin_, frame_header_bytes);
  HEADRACE_TRY_VOID(check(header_));
  needed_ = frame_header_bytes + ranges_bytes(header_);
  if (there < needed_) return false;
  forget_payload();
  if (known(header_.type)) {
    HEADRACE_TRY_VOID(begin_frame(handler));
  } else {
    discard();
  }
  begin_ += needed_;
  in_payload_ = true;
  return true;
}

/// False: some of the payload is missing. Otherwise the frame ends.
Result<bool> FrameReader::take_payload(Handler& handler) {
  take_payload_from_staging(handler);
  if (left_ > 0) return false;
  in_payload_ = false;
  needed_ = frame_header_bytes;
  pieces_.clear();
  next_ = 0;
  if (known(header_.type)) HEADRACE_TRY_VOID(handler.end(header_, small_));
  return true;
}

/// The payload of the new header has no place yet.
void FrameReader::forget_payload() {
  left_ = header_.payload;
  placed_ = 0;
  discarding_ = false;
  more_later_ = false;
  all_ours_ = true;
  pieces_.clear();
  next_ = 0;
  small_.clear();
}

Result<void> FrameReader::begin_frame(Handler& handler) {
  const RangeList ranges(header_, staging_.get() + begin_ + frame_header_bytes);
  if (header_.type == FrameType::write) {
    HEADRACE_TRY(total, ranges.total_bytes());
    if (total != header_.payload)
      return make_error(Code::corrupt, "a write of {} bytes whose ranges hold {}", header_.payload, total);
  }
  HEADRACE_TRY_VOID(handler.begin(header_, ranges));
  if (!handler_places(header_)) {
    small_.resize(header_.payload);
    place(small_.data(), small_.size(), Memory::ours);
  }
  if (!discarding_ && !more_later_ && placed_ != header_.payload)
    return make_error(Code::internal, "{} of {} bytes of payload were given a place", placed_,
                      header_.payload);
  return {};
}

void FrameReader::place(void* at, std::size_t bytes, Memory memory) {
  if (bytes == 0) return;
  placed_ += bytes;
  all_ours_ = all_ours_ && memory == Memory::ours;
  if (next_ < pieces_.size()) {
    iovec& last = pieces_.back();
    if (static_cast<std::byte*>(last.iov_base) + last.iov_len == at) {
      last.iov_len += bytes;
      return;
    }
  }
  pieces_.push_back({at, bytes});
}

void FrameReader::discard() {
  discarding_ = true;
  pieces_.clear();
  staging_in_pieces_ = false;
  next_ = 0;
}

}  // namespace headrace::tcp
