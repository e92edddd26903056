// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/page_pipe.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace headrace::tcp {
namespace {

constexpr int wanted_bytes = 1 << 20;  // what a user may have without privileges (fs.pipe-max-size)
constexpr int least_bytes = 256 << 10;
constexpr std::size_t pipe_pieces_a_call = 1024;  // IOV_MAX of Linux

}  // namespace

std::unique_ptr<PagePipe> PagePipe::open() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) < 0) return nullptr;
  UniqueFd out(ends[0]), in(ends[1]);
  if (::fcntl(in.get(), F_SETPIPE_SZ, wanted_bytes) < 0 && ::fcntl(in.get(), F_SETPIPE_SZ, least_bytes) < 0)
    return nullptr;
  return std::unique_ptr<PagePipe>(new PagePipe(std::move(in), std::move(out)));
}

ssize_t PagePipe::take(SocketCalls& calls, std::span<const iovec> pieces) {
  const ssize_t n = calls.vmsplice(in_.get(), pieces.data(), std::min(pieces.size(), pipe_pieces_a_call));
  if (n > 0) bytes_ += static_cast<std::uint64_t>(n);
  return n;
}

ssize_t PagePipe::give(SocketCalls& calls, int fd, bool more) {
  const ssize_t n = calls.splice(out_.get(), fd, bytes_, more);
  if (n > 0) bytes_ -= static_cast<std::uint64_t>(n);
  return n;
}

std::string PagePipe::drain() {
  std::string all(bytes_, '\0');
  std::size_t got = 0;
  while (got < all.size()) {
    const ssize_t n = ::read(out_.get(), all.data() + got, all.size() - got);
    if (n > 0) got += static_cast<std::size_t>(n);
    if (n <= 0 && errno != EINTR) break;
  }
  bytes_ = 0;
  return all;
}

}  // namespace headrace::tcp
