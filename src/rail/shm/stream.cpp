// SPDX-License-Identifier: Apache-2.0
#include "rail/shm/stream.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

namespace headrace::rail::shm {
namespace {

constexpr std::string_view pipe_packet = "HRFABRIC pipe 1";
constexpr std::uint64_t most_ring_bytes = 64ULL * 1024 * 1024;  // that a peer may choose

bool is_readable(int fd) {
  pollfd look{fd, POLLIN, 0};
  return fd >= 0 && ::poll(&look, 1, 0) > 0;
}

}  // namespace

Result<std::unique_ptr<ShmStream>> ShmStream::of(UnixSocket socket) {
  HEADRACE_TRY(process, host_link::PeerProcess::of(socket));
  if (process.uid() != ::geteuid())
    return make_error(Code::not_supported,
                      "{} runs as user {} and we as user {}: memory is shared by one user", process.text(),
                      process.uid(), ::geteuid());
  return std::unique_ptr<ShmStream>(new ShmStream(std::move(socket), std::move(process)));
}

Result<std::unique_ptr<ShmStream>> ShmStream::connect(const std::string& path) {
  HEADRACE_TRY(socket, UnixSocket::connect(path));
  HEADRACE_TRY(stream, of(std::move(socket)));
  HEADRACE_TRY(made, Pipe::create(stream_ring_bytes));
  std::array<int, Pipe::descriptors> numbers;
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = made.to_send[i].get();
  HEADRACE_TRY_VOID(stream->socket_.send(std::as_bytes(std::span(pipe_packet)), numbers));
  stream->pipe_ = std::move(made.pipe);
  return stream;
}

Result<std::unique_ptr<ShmStream>> ShmStream::accept(UnixSocket socket) { return of(std::move(socket)); }

/// The peer sees `closed` before this side's posts end, and takes nothing of them from then on.
ShmStream::~ShmStream() {
  if (pipe_) pipe_->own().closed.store(1, std::memory_order_seq_cst);
  if (epoll_ == nullptr) return;
  static_cast<void>(epoll_->remove(socket_.fd()));
  if (process_.pidfd() >= 0) static_cast<void>(epoll_->remove(process_.pidfd()));
  if (pipe_) static_cast<void>(epoll_->remove(pipe_->bell()));
}

// ------------------------------------------------------------------ opening

Result<void> ShmStream::watch_one(int fd) { return epoll_->add(fd, EPOLLIN, key_); }

Result<void> ShmStream::watch(Epoll& epoll, std::uint64_t key) {
  epoll_ = &epoll;
  key_ = key;
  HEADRACE_TRY_VOID(watch_one(socket_.fd()));
  if (process_.pidfd() >= 0) HEADRACE_TRY_VOID(watch_one(process_.pidfd()));
  return pipe_ ? watch_one(pipe_->bell()) : Result<void>();
}

Result<void> ShmStream::open() {
  std::array<std::byte, pipe_packet.size()> packet;
  auto came = socket_.receive(packet);
  if (!came && came.code() == Code::would_block) return {};
  if (!came) return std::move(came).error();
  if (came->bytes != packet.size() || std::memcmp(packet.data(), pipe_packet.data(), packet.size()) != 0)
    return make_error(Code::corrupt, "{} said something else than \"{}\"", process_.text(), pipe_packet);
  HEADRACE_TRY(pipe, Pipe::adopt(std::move(came->descriptors), most_ring_bytes));
  pipe_ = std::move(pipe);
  return watch_one(pipe_->bell());
}

// ------------------------------------------------------------------ bytes

bool ShmStream::peer_ended() const {
  return hung_up_ || pipe_->theirs().closed.load(std::memory_order_acquire) != 0;
}

Result<std::size_t> ShmStream::send(std::span<const iovec> pieces) {
  const auto taken = pipe_->writer.write(pieces);
  if (!taken) return make_error(Code::corrupt, "{} has read more than was written", process_.text());
  if (*taken > 0 && pipe_->writer.reader_sleeps()) pipe_->ring();
  return *taken;
}

Result<void> ShmStream::tell_room(bool on) {
  wants_room_ = on;
  return {};
}

Result<std::size_t> ShmStream::receive(std::span<const iovec> places) {
  const bool ended = peer_ended();  // before the look into the ring: what it wrote before counts
  const auto taken = pipe_->reader.read(places);
  if (!taken) return make_error(Code::corrupt, "{} has written more than the ring holds", process_.text());
  if (*taken > 0 && pipe_->reader.writer_sleeps()) pipe_->ring();
  if (*taken == 0 && ended)
    return make_error(Code::peer_lost, "{} has ended or closed the connection", process_.text());
  return *taken;
}

// ------------------------------------------------------------------ news

void ShmStream::woken() {
  if (!pipe_) return;
  pipe_->drain();
  char more = 0;  // the peer has nothing more to say here: its end, or a lie
  const ssize_t n = ::recv(socket_.fd(), &more, sizeof more, MSG_DONTWAIT);
  const bool alive = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  // A child of the peer may hold its socket.
  if (!alive || is_readable(process_.pidfd())) hung_up_ = true;
}

std::uint32_t ShmStream::news() {
  if (!pipe_) return 0;
  const bool in = !pipe_->reader.empty() || peer_ended();
  const bool out = wants_room_ && pipe_->writer.has_room();
  return (in ? EPOLLIN : 0U) | (out ? EPOLLOUT : 0U);
}

bool ShmStream::arm() {
  if (!pipe_) return true;
  return pipe_->reader.arm() && (!wants_room_ || pipe_->writer.arm()) && !peer_ended();
}

void ShmStream::disarm() {
  if (!pipe_) return;
  pipe_->reader.disarm();
  pipe_->writer.disarm();
}

}  // namespace headrace::rail::shm
