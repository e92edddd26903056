// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/receiver.hpp"

#include "backends/tcp/context.hpp"
#include "backends/tcp/link.hpp"
#include "backends/tcp/socket_setup.hpp"
#include "base/clock.hpp"
#include "wire/codes.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace headrace::tcp {
namespace {

// Pieces of memory that one receive is offered. More would be looked at by the kernel and mostly not filled.
constexpr std::size_t receive_pieces = 256;
// A caller that polled so recently is about to poll again, and will find what came: the I/O thread leaves it
// to him instead of fighting for the socket with him.
constexpr std::uint64_t caller_takes_ns = 3'000;
// A socket that was seen open so recently is taken to be open. Less than `end_of_writes` of a link.
constexpr std::uint64_t open_for_ns = 1'000'000;

Error out_of_order(std::string_view what, const FrameHeader& header) {
  return make_error(Code::corrupt, "{} for chunk {} of request {}, which is not the next one", what,
                    header.chunk, header.request);
}

/// A refusal is about the peer's memory (docs/wire.md has its codes). Others would say something of this
/// side: that the post was canceled, or still runs.
Code code_in_refusal(std::uint32_t number) {
  switch (const Code code = wire::code_from_wire(number)) {
    case Code::not_found:
    case Code::invalid_argument:
    case Code::not_supported:
      return code;
    default:
      return Code::backend_failed;
  }
}

Status status_of(const FrameHeader& header) {
  if (header.code == 0) return {};
  return {code_in_refusal(header.code), static_cast<std::int32_t>(header.os_error)};
}

/// Whether the frame answers the chunk that is the next to be answered.
bool answers(const FrameHeader& header, const Unanswered* next) {
  return next != nullptr && next->wire_id == header.request && next->chunk.number == header.chunk;
}

}  // namespace

// ------------------------------------------------------------------ the socket

bool Receiver::start(HostCalls& calls, std::string_view early) {
  const std::scoped_lock lock(mutex_);
  if (!state_.fd) return false;  // closed meanwhile
  receipt_.open = true;
  receipt_.calls = &calls;
  if (auto fed = receipt_.reader.feed(std::as_bytes(std::span(early)), *this); !fed) {
    calls.lose({Code::corrupt}, fed.error().message);
  } else if (gpu_ != nullptr) {
    if (auto more = gpu_->feed(); !more) calls.lose({more.error().code}, more.error().message);
    gpu_->after_receive();
  }
  receipt_.calls = nullptr;
  return true;
}

bool Receiver::closed_by_peer() {
  const std::scoped_lock lock(mutex_);
  return receipt_.open && tcp::closed_by_peer(state_.fd.get());
}

bool Receiver::left_to_caller() const {
  return headrace::now_ns() - caller_ns_.load(std::memory_order_relaxed) < caller_takes_ns;
}

bool Receiver::receive(HostCalls& calls, Driver driver) {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (driver == Driver::io_thread) {
    lock.lock();
  } else {
    caller_ns_.store(headrace::now_ns(), std::memory_order_relaxed);
    if (!lock.try_lock()) return false;  // somebody is at it
  }
  if (!receipt_.open) return false;
  receipt_.calls = &calls;
  std::uint64_t total = 0;
  bool landed = false;
  if (gpu_ != nullptr) {
    landed = gpu_->settle();
    if (auto fed = gpu_->feed(); !fed) receipt_.fail(std::move(fed).error());
  }
  for (int round = 0; round < rounds_of(driver) && receipt_.open && !receipt_.reader.starved(); ++round)
    if (take(total) != Taken::all) break;
  if (gpu_ != nullptr) landed = gpu_->after_receive() || landed;
  receipt_.calls = nullptr;
  if (total > 0) {
    if (driver == Driver::io_thread) {
      state_.heartbeat.heard_at(state_.thread.woke_ns());
    } else {
      state_.heartbeat.heard();
    }
    calls.received(total);
  }
  return total > 0 || landed;
}

Receiver::Taken Receiver::take(std::uint64_t& total) {
  asked_ = false;
  end_write_if_closed();
  const std::span<iovec> targets = receipt_.reader.targets(receive_pieces);
  std::size_t offered = 0;
  for (const iovec& target : targets) offered += target.iov_len;
  msghdr message{};
  message.msg_iov = targets.data();
  message.msg_iovlen = targets.size();
  const ssize_t n = state_.context.calls->recvmsg(state_.fd.get(), &message);
  if (n < 0) return failed(errno);
  if (n == 0) {
    receipt_.calls->lose({Code::peer_lost}, fmt::format("it closed socket {}", state_.index));
    return Taken::nothing;
  }
  const auto bytes = static_cast<std::size_t>(n);
  total += bytes;
  auto taken = receipt_.reader.took(bytes, *this);
  if (taken && gpu_ != nullptr) taken = gpu_->feed();
  if (!taken) {
    receipt_.fail(std::move(taken).error());
    return Taken::nothing;
  }
  return bytes < offered ? Taken::some : Taken::all;
}

/// Whether writes have ended. This process may have been stopped while what came waited in the socket. A peer
/// that has closed the socket since then has ended its writes, and may have filled the same memory anew by
/// another path: what is still to come of them is thrown away. Messages that came whole still count. Only a
/// write asks, once a receive: the answer takes a system call, which a heartbeat does without.
bool Receiver::writes_have_ended() {
  if (closed_ || std::exchange(asked_, true)) return closed_;
  const std::uint64_t now = headrace::now_ns();
  if (now - looked_ns_ < open_for_ns) return false;
  looked_ns_ = now;
  closed_ = tcp::closed_by_peer(state_.fd.get());
  return closed_;
}

/// The next receive may place the rest of a write.
void Receiver::end_write_if_closed() {
  const FrameReader& reader = receipt_.reader;
  if (closed_ || reader.payload_left() == 0 || reader.header().type != FrameType::write) return;
  if (writes_have_ended()) discard_write(0);
}

/// The write that is being received goes no further than its byte `at`.
void Receiver::discard_write(std::uint64_t at) {
  receipt_.refuse(Code::not_found, at);
  if (gpu_ != nullptr) gpu_->drop();
  receipt_.reader.discard();
}

/// What follows from the error of a receive.
Receiver::Taken Receiver::failed(int error) {
  if (error == EINTR) return Taken::all;
  FrameReader& reader = receipt_.reader;
  if (error == EFAULT && reader.placing()) {
    unwritable(reader.header().payload - reader.payload_left());
    reader.discard();
    return Taken::all;
  }
  if (error != EAGAIN && error != EWOULDBLOCK)
    receipt_.calls->lose({Code::peer_lost, error},
                         fmt::format("receive on socket {}: {}", state_.index, os_error_text(error)));
  return Taken::nothing;
}

/// The peer has closed this socket on purpose: the link's end follows over socket 0, or our heartbeat makes
/// one, since nothing is heard here any more. What waits for an answer over this socket ends with the link.
void Receiver::retire() {
  receipt_.open = false;
  {
    const std::scoped_lock lock(state_.link->mutex_);
    state_.retired.store(true);
    state_.rouse();
  }
  state_.thread.deafen(state_.fd.get());
}

bool Receiver::look(HostCalls& calls) {
  const std::scoped_lock lock(mutex_);
  if (!receipt_.open || gpu_ == nullptr) return false;
  receipt_.calls = &calls;
  const bool moved = gpu_->look();
  receipt_.calls = nullptr;
  return moved;
}

void Receiver::stop() {
  receipt_.open = false;
  if (gpu_ != nullptr) gpu_->wait();
}

GpuReceiver& Receiver::gpu() {
  if (gpu_ == nullptr) gpu_ = std::make_unique<GpuReceiver>(state_, receipt_, static_cast<Handler&>(*this));
  return *gpu_;
}

// ------------------------------------------------------------------ frames

Result<void> Receiver::begin(const FrameHeader& header, const RangeList& ranges) {
  switch (header.type) {
    case FrameType::write:
      return begin_write(ranges);
    case FrameType::read:
      return begin_read(header, ranges);
    case FrameType::read_data:
      return begin_read_data(header);
    default:
      return {};
  }
}

Result<void> Receiver::end(const FrameHeader& header, std::span<const std::byte> payload) {
  switch (header.type) {
    case FrameType::write:
      return end_write(header);
    case FrameType::write_ack:
      return end_write_ack(header, payload);
    case FrameType::read_data:
      return end_read_data(header, payload);
    case FrameType::message:
      return end_message(header, payload);
    case FrameType::message_ack: {
      const std::scoped_lock lock(state_.link->mutex_);
      return state_.link->outbox_.acknowledged(header.channel, header.request);
    }
    case FrameType::ping:
      end_ping();
      return {};
    case FrameType::goodbye:
      end_goodbye();
      return {};
    case FrameType::pong:  // that something was heard is all that it says
    case FrameType::read:
      return {};
  }
  return {};
}

/// Of a write the peer is told; of a read the request fails.
void Receiver::unwritable(std::uint64_t at) {
  receipt_.refuse(Code::backend_failed, at);
  if (gpu_ != nullptr) gpu_->drop();
  if (receipt_.reader.header().type == FrameType::write) receipt_.calls->refused_chunk();
}

bool Receiver::goes_to_gpu(Regions::View& view, const RangeList& ranges) const {
  return state_.context.regions.any_of_gpu() && find_gpu_region(view, ranges, Access::write) != nullptr;
}

Result<void> Receiver::begin_write(const RangeList& ranges) {
  receipt_.refuse(Code::ok, UINT64_MAX);
  if (writes_have_ended()) {
    receipt_.refuse(Code::not_found, 0);
    receipt_.reader.discard();
    return {};
  }
  Regions::View view(state_.context.regions);
  const bool to_gpu = goes_to_gpu(view, ranges);
  if (to_gpu) gpu().begin();
  std::uint64_t at = 0;
  for (std::uint32_t i = 0; i < ranges.size(); ++i) {
    const Range range = ranges[i];
    const auto found = view.find(range, Access::write);
    if (found.region == nullptr) {
      receipt_.refuse(found.code, at + found.good_bytes);
      receipt_.reader.discard();
      receipt_.calls->refused_chunk();
      return {};
    }
    if (receipt_.regions.empty() || receipt_.regions.back().first != found.region)
      receipt_.regions.emplace_back(found.region, at);
    if (to_gpu) {
      gpu_->add_run({found.region, range.offset, range.length});
    } else {
      receipt_.reader.place(found.region->base + range.offset, range.length);
    }
    at += range.length;
  }
  return {};
}

Result<void> Receiver::end_write(const FrameHeader& header) {
  receipt_.regions.clear();
  if (gpu_ != nullptr && gpu_->lands_later(header, {})) return {};
  return state_.landed(*receipt_.calls, header, receipt_.code, receipt_.good_bytes);
}

Result<void> Receiver::begin_read(const FrameHeader& header, const RangeList& ranges) {
  HEADRACE_TRY(total, ranges.total_bytes());
  if (total == 0)
    return make_error(Code::corrupt, "a read of nothing, chunk {} of request {}", header.chunk,
                      header.request);
  Answer answer{header, {}};
  answer.ranges.assign(ranges.data(), ranges.data() + ranges_bytes(header));
  answer.header.payload = total;
  const std::scoped_lock lock(state_.link->mutex_);
  if (state_.answers.size() >= max_unanswered_frames ||
      state_.answer_ranges + header.ranges > max_unanswered_read_ranges)
    return make_error(Code::corrupt, "more than {} reads with {} ranges wait for their answer",
                      state_.answers.size(), state_.answer_ranges);
  state_.answer_ranges += header.ranges;
  state_.answers.push_back(std::move(answer));
  return {};
}

Result<void> Receiver::begin_read_data(const FrameHeader& header) {
  Unanswered answered;
  {
    const std::scoped_lock lock(state_.link->mutex_);
    const Unanswered* const next = state_.reads.find(state_.reads.front());
    if (!answers(header, next)) return out_of_order("data", header);
    answered = *next;
  }
  receipt_.code = Code::ok;
  if (header.code != 0) return {};
  if (header.payload != answered.chunk.bytes)
    return make_error(Code::corrupt, "{} bytes of data for chunk {} of request {}, which has {}",
                      header.payload, header.chunk, header.request, answered.chunk.bytes);
  if (answered.request == nullptr) {
    receipt_.reader.discard();
  } else {
    place_data(answered);
  }
  return {};
}

/// The request stays: it waits for this chunk, and to stop waiting takes the lock.
void Receiver::place_data(const Unanswered& answered) {
  const auto& request = *static_cast<const RemoteRequest*>(answered.request);
  PageCursor cursor(request.args, answered.chunk.from, answered.chunk.to);
  PageRun run;
  if (request.of_gpu()) {
    gpu().begin();
    while (cursor.next(run)) gpu_->add_run({&Handles::region(run.local_region), run.local_offset, run.bytes});
    return;
  }
  while (cursor.next(run))
    receipt_.reader.place(Handles::region(run.local_region).base + run.local_offset, run.bytes);
}

Result<void> Receiver::end_read_data(const FrameHeader& header, std::span<const std::byte> payload) {
  std::uint64_t good_bytes = UINT64_MAX;
  if (header.code != 0) std::memcpy(&good_bytes, payload.data(), sizeof good_bytes);
  std::unique_lock lock(state_.link->mutex_);
  const Unanswered done = *state_.reads.take(state_.reads.front());
  if (gpu_ != nullptr && header.code == 0) {
    lock.unlock();
    if (gpu_->lands_later(header, done)) return {};
    lock.lock();
  }
  if (done.request == nullptr) return {};
  Status status = status_of(header);
  if (header.code == 0 && receipt_.code != Code::ok) {
    status = {receipt_.code, EFAULT};
    good_bytes = receipt_.good_bytes;
  }
  state_.link->answered(done, {status, good_bytes}, *receipt_.calls);
  return {};
}

Result<void> Receiver::end_write_ack(const FrameHeader& header, std::span<const std::byte> payload) {
  std::uint64_t good_bytes = 0;
  std::memcpy(&good_bytes, payload.data(), sizeof good_bytes);
  const std::scoped_lock lock(state_.link->mutex_);
  if (!answers(header, state_.writes.find(state_.writes.front())))
    return out_of_order("an acknowledgement", header);
  const Unanswered done = *state_.writes.take(state_.writes.front());
  state_.link->answered(done, {status_of(header), good_bytes}, *receipt_.calls);
  return {};
}

Result<void> Receiver::end_message(const FrameHeader& header, std::span<const std::byte> payload) {
  if (state_.index != 0)
    return make_error(Code::corrupt, "a message came over socket {}; they go over socket 0", state_.index);
  const std::scoped_lock lock(state_.link->mutex_);
  transport::MessageInbox& inbox = state_.link->inbox_;
  const transport::MessageHead head{header.channel,   inbox.next_number(header.channel),
                                    header.request,   header.chunks,
                                    header.code != 0, (header.flags & flag_counted) != 0};
  HEADRACE_TRY_VOID(inbox.message(head, {reinterpret_cast<const char*>(payload.data()), payload.size()}));
  receipt_.calls->deliver();
  return {};
}

void Receiver::end_ping() {
  const std::scoped_lock lock(state_.link->mutex_);
  state_.pong_due = true;
}

/// The last message lies before the goodbye of socket 0. Others may say theirs earlier: then they are only
/// done.
void Receiver::end_goodbye() {
  if (state_.index == 0) {
    receipt_.calls->lose({Code::peer_lost}, "it said goodbye");
  } else {
    retire();
  }
}

// ------------------------------------------------------------------ taking memory out of reach

void Receiver::abandon(std::uint64_t wire_id) {
  const std::scoped_lock receiving(mutex_);
  FrameReader& reader = receipt_.reader;
  if (reader.payload_left() > 0 && reader.header().type == FrameType::read_data &&
      reader.header().request == wire_id) {
    if (gpu_ != nullptr) gpu_->cancel();
    reader.discard();
  }
  const std::scoped_lock lock(state_.link->mutex_);
  for (auto left = state_.reads.abandon(wire_id); left > 0; --left) state_.link->requests_.abandoned(wire_id);
}

void Receiver::detach(const Region& region) {
  const std::scoped_lock lock(mutex_);
  if (receipt_.reader.payload_left() > 0 && receipt_.reader.header().type == FrameType::write) {
    const auto hit =
        std::ranges::find(receipt_.regions, &region, &std::pair<const Region*, std::uint64_t>::first);
    if (hit != receipt_.regions.end()) discard_write(hit->second);
  }
  if (region.of_gpu() && gpu_ != nullptr) gpu_->wait_for_lane();
}

}  // namespace headrace::tcp
