// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/sender.hpp"

#include "backends/tcp/context.hpp"
#include "backends/tcp/link.hpp"
#include "base/errors.hpp"

#include <sys/epoll.h>

#include <utility>

namespace headrace::tcp {
namespace {

constexpr std::size_t inline_message_bytes = 1024;

FrameHeader header_of(const transport::MessageHead& message, std::size_t bytes) {
  FrameHeader header;
  header.type = FrameType::message;
  header.channel = message.channel;
  header.request = message.request;
  header.chunks = message.chunks;
  header.payload = bytes;
  if (message.dropped) header.code = static_cast<std::uint32_t>(Code::canceled);
  if (message.counted) header.flags |= flag_counted;
  return header;
}

}  // namespace

// ------------------------------------------------------------------ the socket

void Sender::start() {
  const std::scoped_lock lock(mutex_);
  started_ = true;
  if (sending_) listen_for(events_ | EPOLLIN);
}

void Sender::pump(HostCalls& calls, Driver driver, bool writable) {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (driver == Driver::io_thread) {
    lock.lock();
  } else if (!lock.try_lock()) {
    state_.kick();  // whoever is at it may have looked before there was what we want sent
    return;
  }
  state_.gathering.store(false);
  if (!started_ || !sending_ || state_.retired.load()) return;
  if (const bool starved = state_.starved.load(); starved != deaf_.exchange(starved))
    listen_for(starved ? events_ & ~EPOLLIN : events_ | EPOLLIN);
  if (blocked_ && !writable) return;
  blocked_ = false;
  for (int round = 0;; ++round) {
    if (batch_.writer.empty() && !refill(calls)) {
      if (gpu_ != nullptr) gpu_->watch();
      if ((events_ & EPOLLOUT) != 0) listen_for(events_ & ~EPOLLOUT);
      return;
    }
    if (round == rounds_of(driver)) break;
    if (send_batch(calls, driver) == Next::over) return;
  }
  state_.kick();  // there is more
}

bool Sender::refill(HostCalls& calls) {
  return fill(calls) || (gpu_ != nullptr && gpu_->gathered_soon() && fill(calls));
}

/// Over: the socket has failed, or is full.
Sender::Next Sender::send_batch(HostCalls& calls, Driver driver) {
  const FrameWriter::Step step = batch_.writer.flush(*state_.context.calls, state_.fd.get());
  if (step.bytes > 0) {
    if (driver == Driver::io_thread) {
      state_.heartbeat.spoke_at(state_.thread.woke_ns());
    } else {
      state_.heartbeat.spoke();
    }
    calls.sent(step.bytes);
  }
  if (step.result == FrameWriter::Flushed::failed) {
    failed(calls, step.error);
    return Next::over;
  }
  if (step.result == FrameWriter::Flushed::blocked) {
    blocked_ = true;
    blocked_ns_ = state_.context.host.now_ns();
    listen_for(events_ | EPOLLOUT);
    return Next::over;
  }
  return Next::more;
}

void Sender::failed(HostCalls& calls, int error) {
  sending_ = false;
  if (error == EFAULT) {
    calls.lose({Code::backend_failed, error},
               "memory that was to be sent is not there: it was unmapped, or made unreadable, while it "
               "was registered; deregister it first");
  } else {
    calls.lose({Code::peer_lost, error},
               fmt::format("send on socket {}: {}", state_.index, os_error_text(error)));
  }
}

void Sender::listen_for(std::uint32_t events) {
  if (events == events_) return;
  events_ = events;
  // Fails only for a descriptor that is not watched.
  (void)state_.thread.change(state_.channel, state_.fd.get(), events);
}

// ------------------------------------------------------------------ the next batch

/// Puts together the next batch; false: there is nothing to send.
bool Sender::fill(HostCalls& calls) {
  if (gpu_ != nullptr) gpu_->release_sent();
  {
    const std::scoped_lock lock(state_.link->mutex_);
    state_.idle = false;
    if (state_.link->state_ == Link::State::ready) take_work(calls);
    if (state_.reads.size() + state_.writes.size() != 0) state_.rouse();
    state_.idle = batch_.writer.empty() && !(gpu_ != nullptr && gpu_->anything_staged());
  }
  if (gpu_ != nullptr) gpu_->launch();
  return !batch_.writer.empty();
}

void Sender::take_work(HostCalls& calls) {
  if (state_.context.regions.any_of_gpu() && (gpu_ != nullptr || has_work_for_gpu())) gpu().stage(calls);
  if (mid_frame()) {
    gpu_->put(calls);
    return;
  }
  put_control();
  for (bool more = true; more && !mid_frame() && batch_.has_room();) {
    more = put_messages();
    // Answers and requests of our own in turn.
    more = (answers_turn_ ? put_answer() || put_chunk() : put_chunk() || put_answer()) || more;
    answers_turn_ = !answers_turn_;
    more = (gpu_ != nullptr && gpu_->put(calls)) || more;
  }
}

bool Sender::has_work_for_gpu() {
  const RemoteRequest* const write = state_.link->next_work(false, true, false);
  if (write != nullptr && write->of_gpu()) return true;
  if (state_.answers.empty()) return false;
  Regions::View view(state_.context.regions);
  const Answer& answer = state_.answers.front();
  return find_gpu_region(view, RangeList(answer.header, answer.ranges.data()), Access::read) != nullptr;
}

GpuSender& Sender::gpu() {
  if (gpu_ == nullptr) gpu_ = std::make_unique<GpuSender>(state_, batch_);
  return *gpu_;
}

void Sender::put_control() {
  FrameWriter& writer = batch_.writer;
  while (!state_.acknowledgements.empty() && writer.fits(frame_header_bytes + 8)) {
    put_acknowledgement(state_.acknowledgements.front());
    state_.acknowledgements.pop_front();
  }
  if (state_.pong_due && writer.fits(frame_header_bytes)) {
    batch_.put_empty(FrameType::pong);
    state_.pong_due = false;
  }
  if (state_.ping_due && writer.fits(frame_header_bytes)) {
    batch_.put_empty(FrameType::ping);
    state_.ping_due = false;
  }
  if (state_.index != 0) return;
  auto& of_messages = state_.link->message_acks_;
  while (!of_messages.empty() && writer.fits(frame_header_bytes)) {
    batch_.put_empty(FrameType::message_ack, of_messages.front().delivered, of_messages.front().channel);
    of_messages.pop_front();
  }
}

void Sender::put_acknowledgement(const Acknowledgement& acknowledgement) {
  FrameHeader header;
  header.type = FrameType::write_ack;
  header.request = acknowledgement.request;
  header.chunk = acknowledgement.chunk;
  header.payload = 8;
  header.code = static_cast<std::uint32_t>(acknowledgement.code);
  batch_.writer.put(header);
  batch_.writer.put(&acknowledgement.good_bytes, 8);
}

bool Sender::put_messages() {
  if (state_.index != 0) return false;
  FrameWriter& writer = batch_.writer;
  bool any = false;
  while (batch_.has_bytes_left() && writer.fits(frame_header_bytes + inline_message_bytes)) {
    auto next = state_.link->outbox_.next();
    if (!next) break;
    any = true;
    writer.put(header_of(next->head, next->bytes.size()));
    if (next->bytes.size() <= inline_message_bytes) {
      writer.put(next->bytes.data(), next->bytes.size());
    } else {
      writer.keep(std::move(next->bytes));
    }
  }
  return any;
}

/// The data of one read that the peer asked for.
bool Sender::put_answer() {
  if (state_.answers.empty() || (gpu_ != nullptr && gpu_->holds_answers()) ||
      !batch_.writer.fits(frame_header_bytes + 8))
    return false;
  const Answer& answer = state_.answers.front();
  FrameHeader header;
  header.type = FrameType::read_data;
  header.request = answer.header.request;
  header.chunk = answer.header.chunk;
  header.payload = answer.header.payload;
  if (!lend_answer(answer, header)) return false;
  state_.answer_ranges -= answer.header.ranges;
  state_.answers.pop_front();
  return true;
}

/// False: the answer is from GPU memory. Its turn has come since work was staged, so it is staged for the
/// next batch.
bool Sender::lend_answer(const Answer& answer, FrameHeader& header) {
  FrameWriter& writer = batch_.writer;
  const FrameWriter::Mark before = writer.mark();
  writer.put(header);
  // Looked up only now: from here on the batch holds pointers into the regions, and `detach` knows where to
  // find them.
  Regions::View view(state_.context.regions);
  const RangeList ranges(answer.header, answer.ranges.data());
  std::uint64_t at = 0;
  bool of_gpu = false;
  for (std::uint32_t i = 0; i < ranges.size(); ++i) {
    const Range range = ranges[i];
    const auto found = view.find(range, Access::read);
    if (found.region == nullptr) {
      writer.take_back(before);
      put_refusal(header, found.code, at + found.good_bytes);
      return true;
    }
    of_gpu = of_gpu || found.region->of_gpu();
    writer.lend(found.region->base + range.offset, range.length);
    at += range.length;
  }
  if (of_gpu) writer.take_back(before);
  return !of_gpu;
}

/// Instead of data.
void Sender::put_refusal(FrameHeader& header, Code code, std::uint64_t good_bytes) {
  header.code = static_cast<std::uint32_t>(code);
  header.payload = sizeof good_bytes;
  batch_.writer.put(header);
  batch_.writer.put(&good_bytes, sizeof good_bytes);
}

/// The request whose chunk is put next, if the windows have room. Writes from GPU memory are staged instead.
RemoteRequest* Sender::next_work() const {
  const std::uint64_t window = state_.link->window_now();
  const bool may_write =
      state_.writes.bytes() + state_.staged_bytes < window && state_.writes.size() < max_unanswered_frames;
  const bool may_read = state_.reads.bytes() < window && state_.reads.size() < max_unanswered_frames &&
                        state_.reads.ranges() + max_ranges <= max_unanswered_read_ranges;
  RemoteRequest* const request = state_.link->next_work(may_read, may_write, reads_turn_);
  if (request != nullptr && request->of_gpu() && request->is_write())
    return state_.link->next_work(may_read, false, true);
  return request;
}

/// The next chunk of a request of ours: its data, or the question for them.
bool Sender::put_chunk() {
  RemoteRequest* const request = next_work();
  if (request == nullptr) return false;
  transport::Chunk chunk =
      transport::cut_chunk(request->args, request->next(), state_.link->limits_of(*request));
  if (!batch_.fits(*request, chunk)) return false;
  reads_turn_ = request->is_write();
  chunk.number = request->chunks();
  const std::uint32_t ranges = batch_.put_chunk(*request, chunk);
  if (request->is_write()) batch_.lend_payload();
  (request->is_write() ? state_.writes : state_.reads).add({request, request->wire_id(), chunk, ranges});
  state_.link->took_chunk(*request, chunk, state_.index);
  return true;
}

// ------------------------------------------------------------------ the end

void Sender::detach(const Region& region) {
  const std::scoped_lock lock(mutex_);
  if (region.of_gpu()) {
    if (gpu_ != nullptr) gpu_->wait_for_lane();  // what has been gathered lies in the ring
    return;
  }
  batch_.writer.detach(region.base, region.length);
}

std::optional<LastWords> Sender::farewell() {
  if (!sending_ || state_.retired.load()) return std::nullopt;
  LastWords words;
  words.until_ns = (blocked_ ? blocked_ns_ : state_.context.host.now_ns()) + farewell_patience_ns;
  if (!batch_.writer.move_to(words.bytes)) return std::nullopt;
  // Of a frame whose rest is with a GPU no more comes, and no other frame can follow it.
  if (!mid_frame() && !put_last_words(words.bytes)) return std::nullopt;
  return words;
}

bool Sender::put_last_words(std::string& words) {
  const std::scoped_lock lock(state_.link->mutex_);
  const bool has_messages = state_.link->channels_[0].get() == &state_.channel;  // else it is not wanted
  bool all = true;
  do {
    put_control();
    if (has_messages) put_messages();
    all = batch_.writer.empty();
    if (!batch_.writer.move_to(words)) return false;
  } while (!all);
  if (batch_.writer.fits(frame_header_bytes)) batch_.put_empty(FrameType::goodbye);
  return batch_.writer.move_to(words);
}

void Sender::release() {
  batch_.writer.clear();
  gpu_.reset();
}

}  // namespace headrace::tcp
