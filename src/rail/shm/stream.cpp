// SPDX-License-Identifier: Apache-2.0
#include "rail/shm/stream.hpp"

#include "base/random.hpp"
#include "host_link/attach.hpp"
#include "host_link/live_table.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
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

ShmStream::ShmStream(UnixSocket socket, host_link::PeerProcess process, const Ways& ways,
                     std::shared_ptr<cuda_ipc::ClosedMemories> closed)
    : socket_(std::move(socket)),
      process_(std::move(process)),
      ways_(ways),
      nonce_(random_u64()),
      closed_(std::move(closed)),
      shown_to_us_(process_.is_this_one(), closed_) {}

Result<std::unique_ptr<ShmStream>> ShmStream::of(UnixSocket socket, const Ways& ways) {
  HEADRACE_TRY(process, host_link::PeerProcess::of(socket));
  if (process.uid() != ::geteuid())
    return make_error(Code::not_supported,
                      "{} runs as user {} and we as user {}: memory is shared by one user", process.text(),
                      process.uid(), ::geteuid());
  std::shared_ptr<cuda_ipc::ClosedMemories> closed;
  if (ways.gpus != nullptr) {
    HEADRACE_TRY(bell, EventFd::create());
    closed = std::make_shared<cuda_ipc::ClosedMemories>(std::move(bell));
  }
  return std::unique_ptr<ShmStream>(
      new ShmStream(std::move(socket), std::move(process), ways, std::move(closed)));
}

Result<std::unique_ptr<ShmStream>> ShmStream::connect(const std::string& path, const Ways& ways) {
  HEADRACE_TRY(socket, UnixSocket::connect(path));
  HEADRACE_TRY(stream, of(std::move(socket), ways));
  HEADRACE_TRY(made, Pipe::create(stream_ring_bytes));
  std::array<int, Pipe::descriptors> numbers;
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = made.to_send[i].get();
  HEADRACE_TRY_VOID(stream->socket_.send(std::as_bytes(std::span(pipe_packet)), numbers));
  stream->begin(std::move(made.pipe));
  return stream;
}

Result<std::unique_ptr<ShmStream>> ShmStream::accept(UnixSocket socket, const Ways& ways) {
  return of(std::move(socket), ways);
}

ShmStream::~ShmStream() {
  if (pipe_) pipe_->own().closed.store(1, std::memory_order_seq_cst);
  // Our posts end, and their memory gets its next use. A peer that copies out of it sees `closed` before that
  // (pairs with `check_peer`) and throws away what it copied.
  host_link::stores_before_later_stores();
  if (epoll_ == nullptr) return;
  static_cast<void>(epoll_->remove(socket_.fd()));
  if (process_.pidfd() >= 0) static_cast<void>(epoll_->remove(process_.pidfd()));
  if (pipe_) static_cast<void>(epoll_->remove(pipe_->bell()));
  if (closed_ != nullptr)
    static_cast<void>(epoll_->remove(closed_->descriptor()));  // mappings may outlive us
}

// ------------------------------------------------------------------ opening

Result<void> ShmStream::watch_one(int fd) { return epoll_->add(fd, EPOLLIN, key_); }

Result<void> ShmStream::watch(Epoll& epoll, std::uint64_t key) {
  epoll_ = &epoll;
  key_ = key;
  HEADRACE_TRY_VOID(watch_one(socket_.fd()));
  if (process_.pidfd() >= 0) HEADRACE_TRY_VOID(watch_one(process_.pidfd()));
  if (closed_ != nullptr) HEADRACE_TRY_VOID(watch_one(closed_->descriptor()));
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
  begin(std::move(pipe));
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

// ------------------------------------------------------------------ copies out of the peer's memory

void ShmStream::begin(Pipe pipe) {
  pipe_ = std::move(pipe);
  host_link::allow_attach_by(process_.pid());  // before the peer tries
  pipe_->own().nonce_address.store(reinterpret_cast<std::uintptr_t>(&nonce_), std::memory_order_relaxed);
  pipe_->own().nonce.store(nonce_, std::memory_order_relaxed);
}

/// The hello has published the peer's nonce.
void ShmStream::greeted() {
  const host_link::Nonce theirs{pipe_->theirs().nonce_address.load(std::memory_order_relaxed),
                                pipe_->theirs().nonce.load(std::memory_order_relaxed)};
  // Without a pidfd, a copy out of a process that took the peer's number could not be told.
  if (ways_.copies == Copies::through_rings || process_.pidfd() < 0 ||
      !host_link::why_no_attach(process_.pid(), theirs).empty())
    return;
  pipe_->own().fetches.store(1, std::memory_order_release);
}

bool ShmStream::can_fetch() const { return pipe_->own().fetches.load(std::memory_order_relaxed) != 0; }

bool ShmStream::peer_fetches() const { return pipe_->theirs().fetches.load(std::memory_order_acquire) != 0; }

Result<void> ShmStream::check_peer() {
  host_link::copies_before_later_loads();
  if (peer_ended() || is_readable(process_.pidfd()))
    return make_error(Code::peer_lost, "{} ended while its bytes were copied", process_.text());
  return {};
}

Result<std::size_t> ShmStream::fetch(std::span<const iovec> to, std::span<const iovec> from) {
  const ssize_t n = ::process_vm_readv(process_.pid(), to.data(), to.size(), from.data(), from.size(), 0);
  const int error = n < 0 ? errno : EFAULT;
  HEADRACE_TRY_VOID(check_peer());
  if (n > 0) return static_cast<std::size_t>(n);
  if (error == EPERM || error == ENOSYS) {
    pipe_->own().fetches.store(0, std::memory_order_release);
    return os_error(Code::not_supported, error, "copy from {}", process_.text());
  }
  return os_error(Code::peer_lost, error, "copy from {}, which unmapped memory that it writes from",
                  process_.text());
}

// ------------------------------------------------------------------ news

void ShmStream::woken() {
  if (!pipe_) return;
  pipe_->drain();
  while (take_packet()) {
  }
  if (closed_ != nullptr) tell_closed();
  if (is_readable(process_.pidfd())) hung_up_ = true;  // a child of the peer may hold its socket
}

std::uint32_t ShmStream::news() {
  if (!pipe_) return 0;
  if (!untold_.empty()) send_untold();
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
