// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/frame_writer.hpp"

#include "memory/faultless_copy.hpp"

#include <algorithm>
#include <cerrno>
#include <span>

namespace headrace::tcp {
namespace {

constexpr std::size_t first_capacity = 8 * 1024;
constexpr std::size_t pieces_a_call = 1024;  // IOV_MAX of Linux

}  // namespace

bool FrameWriter::fits(std::size_t bytes) {
  if (head_capacity_ - head_size_ >= bytes) return true;
  if (!empty()) return false;
  clear();
  head_capacity_ = std::max(bytes, first_capacity);
  head_.reset(new std::byte[head_capacity_]);
  return true;
}

std::byte* FrameWriter::head(std::size_t bytes) {
  std::byte* const at = head_.get() + head_size_;
  head_size_ += bytes;
  lend(at, bytes);
  return at;
}

void FrameWriter::lend(const void* bytes, std::size_t count) {
  if (count == 0) return;
  bytes_ += count;
  if (!pieces_.empty()) {
    iovec& last = pieces_.back();
    if (static_cast<const std::byte*>(last.iov_base) + last.iov_len == bytes) {
      last.iov_len += count;
      return;
    }
  }
  pieces_.push_back({const_cast<void*>(bytes), count});
}

void FrameWriter::keep(std::string bytes) {
  kept_.push_back(std::make_unique<std::string>(std::move(bytes)));
  lend(kept_.back()->data(), kept_.back()->size());
}

FrameWriter::Mark FrameWriter::mark() const noexcept {
  return {head_size_, pieces_.size(), pieces_.empty() ? 0 : pieces_.back().iov_len, bytes_};
}

void FrameWriter::take_back(const Mark& mark) {
  head_size_ = mark.head;
  pieces_.resize(mark.pieces);
  if (!pieces_.empty()) pieces_.back().iov_len = mark.last_length;
  bytes_ = mark.bytes;
}

/// The socket has so many bytes of the pieces.
void FrameWriter::took(std::size_t bytes) {
  while (bytes > 0) {
    iovec& piece = pieces_[next_];
    const std::size_t part = std::min(bytes, piece.iov_len);
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + part;
    piece.iov_len -= part;
    bytes -= part;
    if (piece.iov_len == 0) ++next_;
  }
}

FrameWriter::Step FrameWriter::flush(SocketCalls& calls, int fd) {
  Step step;
  while (!empty()) {
    msghdr message{};
    message.msg_iov = &pieces_[next_];
    message.msg_iovlen = std::min(pieces_.size() - next_, pieces_a_call);
    std::size_t offered = 0;
    for (std::size_t i = 0; i < message.msg_iovlen; ++i) offered += message.msg_iov[i].iov_len;
    const ssize_t n = calls.sendmsg(fd, &message, next_ + message.msg_iovlen < pieces_.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      step.error = errno;
      // ENOBUFS: the kernel is out of memory for the moment.
      step.result =
          errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS ? Flushed::blocked : Flushed::failed;
      return step;
    }
    took(static_cast<std::size_t>(n));
    step.bytes += static_cast<std::uint64_t>(n);
    if (static_cast<std::size_t>(n) < offered) {
      step.result = Flushed::blocked;
      return step;
    }
  }
  clear();
  return step;
}

void FrameWriter::detach(const std::byte* begin, std::size_t length) {
  const std::byte* const end = begin + length;
  for (std::size_t i = next_; i < pieces_.size(); ++i) {
    iovec& piece = pieces_[i];
    const auto* const from = static_cast<const std::byte*>(piece.iov_base);
    if (from + piece.iov_len <= begin || from >= end) continue;
    kept_.push_back(std::make_unique<std::string>(reinterpret_cast<const char*>(from), piece.iov_len));
    piece.iov_base = kept_.back()->data();
  }
}

bool FrameWriter::move_to(std::string& bytes) {
  const std::span<const iovec> rest = std::span(pieces_).subspan(next_);
  const std::size_t before = bytes.size();
  std::size_t more = 0;
  for (const iovec& piece : rest) more += piece.iov_len;
  bytes.resize(before + more);
  const bool there = gather_unless_it_faults(bytes.data() + before, rest);
  clear();
  return there;
}

void FrameWriter::clear() {
  head_size_ = 0;
  pieces_.clear();
  next_ = 0;
  bytes_ = 0;
  kept_.clear();
}

}  // namespace headrace::tcp
