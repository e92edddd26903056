// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/frame_writer.hpp"

#include <algorithm>
#include <cerrno>
#include <limits>

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

void FrameWriter::share(std::span<const iovec> payload) {
  const std::size_t begin = pieces_.size();
  for (const iovec& piece : payload) {
    bytes_ += piece.iov_len;
    pieces_.push_back(piece);
  }
  if (!payload.empty()) shared_.push_back({begin, pieces_.size()});
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
  while (!shared_.empty() && shared_.back().end > mark.pieces) shared_.pop_back();
  if (!pieces_.empty()) pieces_.back().iov_len = mark.last_length;
  bytes_ = mark.bytes;
}

/// The next shared stretch that is not out yet.
const FrameWriter::Stretch* FrameWriter::next_shared() {
  for (const Stretch& shared : shared_)
    if (next_ < shared.end) return &shared;
  return nullptr;
}

/// False: this memory, or this system, does not share; what is left is copied, and errors told there.
bool FrameWriter::fill_pipe(SocketCalls& calls, const Stretch& shared) {
  if (!pipe_tried_) pipe_ = PagePipe::open();
  pipe_tried_ = true;
  ssize_t n = -1;
  if (pipe_ != nullptr) {
    do n = pipe_->take(calls, std::span(pieces_).subspan(next_, shared.end - next_));
    while (n < 0 && errno == EINTR);
  }
  if (n <= 0) {
    shared_.clear();
    return false;
  }
  took(static_cast<std::size_t>(n));
  return true;
}

/// The socket does not take pages by reference: from here on they are copied.
void FrameWriter::empty_pipe() {
  kept_.push_back(std::make_unique<std::string>(pipe_->drain()));
  pieces_.insert(pieces_.begin() + static_cast<std::ptrdiff_t>(next_),
                 {kept_.back()->data(), kept_.back()->size()});
  shared_.clear();
  pipe_ = nullptr;
}

ssize_t FrameWriter::send_copies(SocketCalls& calls, int fd, std::size_t end, bool more,
                                 std::size_t& offered) {
  msghdr message{};
  message.msg_iov = &pieces_[next_];
  message.msg_iovlen = std::min(end - next_, pieces_a_call);
  offered = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) offered += message.msg_iov[i].iov_len;
  const ssize_t n = calls.sendmsg(fd, &message, more || next_ + message.msg_iovlen < end);
  if (n > 0) took(static_cast<std::size_t>(n));
  return n;
}

/// So many bytes of the pieces are in the socket, or in the pipe.
void FrameWriter::took(std::size_t bytes) {
  while (bytes > 0) {
    iovec& piece = pieces_[next_];
    const std::size_t part = std::min(bytes, piece.iov_len);
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + part;
    piece.iov_len -= part;
    bytes -= part;
    begun_ = piece.iov_len > 0;
    if (piece.iov_len == 0) ++next_;
  }
}

FrameWriter::Step FrameWriter::flush(SocketCalls& calls, int fd, bool may_share) {
  Step step;
  while (!empty()) {
    const Stretch* const shared = may_share ? next_shared() : nullptr;
    if (piped() == 0 && shared != nullptr && shared->begin <= next_ && !fill_pipe(calls, *shared)) continue;
    std::size_t offered = piped();
    ssize_t n = 0;
    if (offered > 0) {
      n = pipe_->give(calls, fd, next_ < pieces_.size());
    } else {
      n = send_copies(calls, fd, shared != nullptr ? shared->begin : pieces_.size(), shared != nullptr,
                      offered);
    }
    if (n < 0) {
      if (errno == EINTR) continue;
      if (piped() > 0 && (errno == EINVAL || errno == ENOSYS || errno == EPERM)) {
        empty_pipe();
        continue;
      }
      step.error = errno;
      // ENOBUFS: the kernel is out of memory for the moment.
      step.result =
          errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS ? Flushed::blocked : Flushed::failed;
      return step;
    }
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
  shared_.clear();  // what is copied here cannot be shared
  for (std::size_t i = next_; i < pieces_.size(); ++i) {
    iovec& piece = pieces_[i];
    const auto* const from = static_cast<const std::byte*>(piece.iov_base);
    if (from + piece.iov_len <= begin || from >= end) continue;
    kept_.push_back(std::make_unique<std::string>(reinterpret_cast<const char*>(from), piece.iov_len));
    piece.iov_base = kept_.back()->data();
  }
}

void FrameWriter::clear() {
  head_size_ = 0;
  pieces_.clear();
  next_ = 0;
  begun_ = false;
  bytes_ = 0;
  shared_.clear();
  kept_.clear();
  if (piped() > 0) {  // given up halfway
    pipe_ = nullptr;
    pipe_tried_ = false;
  }
}

}  // namespace headrace::tcp
