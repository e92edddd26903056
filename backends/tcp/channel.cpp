// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/channel.hpp"

#include "backends/tcp/channel_gpu.hpp"
#include "backends/tcp/lingering_close.hpp"
#include "backends/tcp/link.hpp"
#include "base/clock.hpp"
#include "wire/codes.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace headrace::tcp {
namespace {

// A batch is closed once it has this much: several small frames share a system call, large ones go alone.
constexpr std::uint64_t batch_bytes = 256 * 1024;
constexpr std::size_t batch_pieces = 768;
constexpr std::size_t inline_message_bytes = 1024;
// What a socket may take at least, however little is left: enough to keep it busy over the way there and back
// inside a machine (4 GB/s for half a millisecond), and so that the last chunk of one is no long wait for
// all.
constexpr std::uint64_t least_window_bytes = 2 << 20;
constexpr std::uint64_t least_chunk_bytes = 256 * 1024;
// Pieces of memory that one receive is offered. More would be looked at by the kernel and mostly not filled.
constexpr std::size_t receive_pieces = 256;
// A caller that polled so recently is about to poll again, and will find what came: the I/O thread leaves it
// to him instead of fighting for the socket with him.
constexpr std::uint64_t caller_takes_ns = 3'000;
// Rounds of a driver before it looks after others: receives, and batches sent.
constexpr int io_thread_rounds = 8;
constexpr int caller_rounds = 1;

int rounds_of(Channel::Driver driver) {
  return driver == Channel::Driver::io_thread ? io_thread_rounds : caller_rounds;
}

Error out_of_order(std::string_view what, const FrameHeader& header) {
  return make_error(Code::corrupt, "{} for chunk {} of request {}, which is not the next one", what,
                    header.chunk, header.request);
}

}  // namespace

Channel::Channel(std::shared_ptr<Link> link, unsigned index, UniqueFd fd, IoThread& thread)
    : link_(std::move(link)), context_(link_->context_), index_(index), thread_(thread), fd_(std::move(fd)) {}

Result<void> Channel::watch() { return thread_.watch(shared_from_this(), fd_.get(), 0); }

Channel::~Channel() = default;

void Channel::start(HostCalls& calls, std::string_view early) {
  {
    const std::scoped_lock lock(receive_);
    if (!fd_) return;  // closed meanwhile
    receiving_ = true;
    calls_ = &calls;
    if (auto fed = reader_.feed(std::as_bytes(std::span(early)), *this); !fed) {
      calls.lose({Code::corrupt}, fed.error().message);
    } else if (gpu_in_ != nullptr) {
      if (auto more = feed_gpu(); !more) calls.lose({more.error().code}, more.error().message);
      after_receive();
    }
    calls_ = nullptr;
  }
  {
    const std::scoped_lock lock(send_);
    if (sending_) listen_for(events_ | EPOLLIN);
  }
  pump(calls, Driver::io_thread);
}

void Channel::on_ready(std::uint32_t events) {
  if (events == EPOLLIN && headrace::now_ns() - caller_ns_.load(std::memory_order_relaxed) < caller_takes_ns)
    return;
  HostCalls calls(*link_);
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) receive(calls, Driver::io_thread);
  pump(calls, Driver::io_thread, (events & EPOLLOUT) != 0);
}

void Channel::on_kick() {
  HostCalls calls(*link_);
  pump(calls, Driver::io_thread);
}

std::uint64_t Channel::on_time(std::uint64_t now_ns) {
  const auto ns = [](std::chrono::nanoseconds d) { return static_cast<std::uint64_t>(d.count()); };
  const std::uint64_t interval = ns(context_.settings.heartbeat_interval);
  const std::uint64_t timeout = ns(context_.settings.heartbeat_timeout);
  const std::uint64_t again = now_ns + std::clamp<std::uint64_t>(interval / 2, 1'000'000, 250'000'000);
  HostCalls calls(*link_);
  if (index_ == 0) link_->check_cancels(now_ns, calls);
  if (heard_.exchange(false) || starved_.load())
    heard_ns_ = now_ns;  // what the peer says may stand behind what waits
  if (spoke_.exchange(false)) spoke_ns_ = now_ns;
  if (now_ns - heard_ns_ >= timeout) {
    calls.lose({Code::peer_lost},
               fmt::format("socket {} {} {} ms", index_,
                           retired_.load() ? "was closed without the others for" : "was silent for",
                           (now_ns - heard_ns_) / 1'000'000));
    return again;
  }
  const bool quiet = now_ns - heard_ns_ >= interval || now_ns - spoke_ns_ >= interval;
  if (quiet && now_ns - pinged_ns_ >= interval) {
    pinged_ns_ = now_ns;
    {
      const std::scoped_lock lock(link_->mutex_);
      ping_due_ = true;
    }
    pump(calls, Driver::io_thread);
  }
  return again;
}

// ------------------------------------------------------------------ receiving

bool Channel::receive(HostCalls& calls, Driver driver) {
  std::unique_lock lock(receive_, std::defer_lock);
  if (driver == Driver::io_thread) {
    lock.lock();
  } else {
    caller_ns_.store(headrace::now_ns(), std::memory_order_relaxed);
    if (!lock.try_lock()) return false;  // somebody is at it
  }
  if (!receiving_) return false;
  calls_ = &calls;
  std::uint64_t total = 0;
  bool landed = false;
  if (gpu_in_ != nullptr) {
    landed = settle();
    if (auto fed = feed_gpu(); !fed) {
      receiving_ = false;
      calls.lose({fed.error().code}, std::move(fed.error().message));
    }
  }
  for (int round = 0; round < rounds_of(driver) && receiving_ && !reader_.starved(); ++round) {
    const std::span<iovec> targets = reader_.targets(receive_pieces);
    std::size_t offered = 0;
    for (const iovec& target : targets) offered += target.iov_len;
    msghdr message{};
    message.msg_iov = targets.data();
    message.msg_iovlen = targets.size();
    const ssize_t n = context_.calls->recvmsg(fd_.get(), &message);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EFAULT && reader_.placing()) {
        unwritable(reader_.header().payload - reader_.payload_left());
        reader_.discard();
        continue;
      }
      if (errno != EAGAIN && errno != EWOULDBLOCK)
        calls.lose({Code::peer_lost, errno},
                   fmt::format("receive on socket {}: {}", index_, os_error_text(errno)));
      break;
    }
    if (n == 0) {
      calls.lose({Code::peer_lost}, fmt::format("it closed socket {}", index_));
      break;
    }
    total += static_cast<std::uint64_t>(n);
    auto taken = reader_.took(static_cast<std::size_t>(n), *this);
    if (taken && gpu_in_ != nullptr) taken = feed_gpu();
    if (!taken) {
      receiving_ = false;
      calls.lose({taken.error().code}, std::move(taken.error().message));
      break;
    }
    if (static_cast<std::size_t>(n) < offered) break;  // the socket is empty
  }
  if (gpu_in_ != nullptr) landed = after_receive() || landed;
  calls_ = nullptr;
  if (total > 0) {
    heard_.store(true, std::memory_order_relaxed);
    calls.received(total);
  }
  return total > 0 || landed;
}

Result<void> Channel::begin(const FrameHeader& header, const RangeList& ranges) {
  switch (header.type) {
    case FrameType::write:
      return begin_write(header, ranges);
    case FrameType::read:
      return begin_read(header, ranges);
    case FrameType::read_data:
      return begin_read_data(header);
    default:
      return {};
  }
}

Result<void> Channel::end(const FrameHeader& header, std::span<const std::byte> payload) {
  switch (header.type) {
    case FrameType::write:
      return end_write(header);
    case FrameType::write_ack: {
      std::uint64_t good_bytes = 0;
      std::memcpy(&good_bytes, payload.data(), sizeof good_bytes);
      return end_write_ack(header, good_bytes);
    }
    case FrameType::read_data:
      return end_read_data(header, payload);
    case FrameType::message: {
      if (index_ != 0)
        return make_error(Code::corrupt, "a message came over socket {}; they go over socket 0", index_);
      const std::scoped_lock lock(link_->mutex_);
      HEADRACE_TRY_VOID(
          link_->inbox_.message(header, {reinterpret_cast<const char*>(payload.data()), payload.size()}));
      calls_->deliver();
      return {};
    }
    case FrameType::message_ack: {
      const std::scoped_lock lock(link_->mutex_);
      return link_->outbox_.acknowledged(header.channel, header.request);
    }
    case FrameType::ping: {
      const std::scoped_lock lock(link_->mutex_);
      pong_due_ = true;
      return {};
    }
    case FrameType::goodbye:
      // The last message lies before the goodbye of socket 0. Others may say theirs earlier: then they are
      // only done.
      if (index_ == 0) {
        calls_->lose({Code::peer_lost}, "it said goodbye");
      } else {
        retire();
      }
      return {};
    case FrameType::pong:  // that something was heard is all that it says
    case FrameType::read:
      return {};
  }
  return {};
}

/// Of a write the peer is told; of a read the request fails.
void Channel::unwritable(std::uint64_t at) {
  incoming_.code = Code::backend_failed;
  incoming_.good_bytes = at;
  incoming_.regions.clear();
  drop_received();
  if (reader_.header().type == FrameType::write) calls_->refused_chunk();
}

/// The peer has closed this socket on purpose: the link's end follows over socket 0, or our heartbeat makes
/// one, since nothing is heard here any more. What waits for an answer over this socket ends with the link.
void Channel::retire() {
  receiving_ = false;
  retired_.store(true);
  thread_.deafen(fd_.get());
}

Result<void> Channel::begin_write(const FrameHeader&, const RangeList& ranges) {
  incoming_.code = Code::ok;
  incoming_.good_bytes = UINT64_MAX;
  incoming_.regions.clear();
  Regions::View view(context_.regions);
  const bool to_gpu =
      context_.regions.any_of_gpu() && find_gpu_region(view, ranges, Access::write) != nullptr;
  if (to_gpu) begin_placing();
  std::uint64_t at = 0;
  for (std::uint32_t i = 0; i < ranges.size(); ++i) {
    const Range range = ranges[i];
    const auto found = view.find(range, Access::write);
    if (found.region == nullptr) {
      incoming_.code = found.code;
      incoming_.good_bytes = at + found.good_bytes;
      incoming_.regions.clear();
      reader_.discard();
      calls_->refused_chunk();
      return {};
    }
    if (incoming_.regions.empty() || incoming_.regions.back().first != found.region)
      incoming_.regions.emplace_back(found.region, at);
    if (to_gpu) {
      add_placed_run(*found.region, range.offset, range.length);
    } else {
      reader_.place(found.region->base + range.offset, range.length);
    }
    at += range.length;
  }
  return {};
}

Result<void> Channel::end_write(const FrameHeader& header) {
  incoming_.regions.clear();
  if (gpu_in_ != nullptr && lands_later(header, {})) return {};
  return landed(header, incoming_.code, incoming_.good_bytes);
}

/// A write's bytes are where they belong, or were refused.
Result<void> Channel::landed(const FrameHeader& header, Code code, std::uint64_t good_bytes) {
  const std::scoped_lock lock(link_->mutex_);
  if (acknowledgements_.size() >= max_unanswered_frames)
    return make_error(Code::corrupt, "more than {} writes wait for their answer", max_unanswered_frames);
  acknowledgements_.push_back({header.request, header.chunk, code, good_bytes});
  if ((header.flags & flag_bound) != 0) {
    HEADRACE_TRY_VOID(link_->inbox_.chunk(header.request, code == Code::ok));
    calls_->deliver();
  }
  return {};
}

Result<void> Channel::begin_read(const FrameHeader& header, const RangeList& ranges) {
  HEADRACE_TRY(total, ranges.total_bytes());
  if (total == 0)
    return make_error(Code::corrupt, "a read of nothing, chunk {} of request {}", header.chunk,
                      header.request);
  Answer answer{header, {}};
  answer.ranges.assign(ranges.data(), ranges.data() + ranges_bytes(header));
  answer.header.payload = total;
  const std::scoped_lock lock(link_->mutex_);
  if (answers_.size() >= max_unanswered_frames || answer_ranges_ + header.ranges > max_unanswered_read_ranges)
    return make_error(Code::corrupt, "more than {} reads with {} ranges wait for their answer",
                      answers_.size(), answer_ranges_);
  answer_ranges_ += header.ranges;
  answers_.push_back(std::move(answer));
  return {};
}

Result<void> Channel::begin_read_data(const FrameHeader& header) {
  Unanswered answered;
  {
    const std::scoped_lock lock(link_->mutex_);
    if (reads_.empty() || reads_.front().wire_id != header.request ||
        reads_.front().chunk.number != header.chunk)
      return out_of_order("data", header);
    answered = reads_.front();
  }
  const Chunk& chunk = answered.chunk;
  incoming_.code = Code::ok;
  if (header.code != 0) return {};
  if (header.payload != chunk.bytes)
    return make_error(Code::corrupt, "{} bytes of data for chunk {} of request {}, which has {}",
                      header.payload, header.chunk, header.request, chunk.bytes);
  if (answered.request == nullptr) {
    reader_.discard();
    return {};
  }
  // The request stays: it waits for this chunk, and to stop waiting takes receive_.
  PageCursor cursor(answered.request->args, chunk.from, chunk.to);
  PageRun run;
  if (answered.request->of_gpu()) {
    begin_placing();
    while (cursor.next(run))
      add_placed_run(*static_cast<const Region*>(run.local_region), run.local_offset, run.bytes);
    return {};
  }
  while (cursor.next(run))
    reader_.place(static_cast<const Region*>(run.local_region)->base + run.local_offset, run.bytes);
  return {};
}

Result<void> Channel::end_read_data(const FrameHeader& header, std::span<const std::byte> payload) {
  std::uint64_t good_bytes = UINT64_MAX;
  if (header.code != 0) std::memcpy(&good_bytes, payload.data(), sizeof good_bytes);
  std::unique_lock lock(link_->mutex_);
  const Unanswered done = reads_.front();
  reads_.pop_front();
  read_bytes_ -= done.chunk.bytes;
  read_ranges_ -= done.ranges;
  if (gpu_in_ != nullptr && header.code == 0) {
    lock.unlock();
    if (lands_later(header, done)) return {};
    lock.lock();
  }
  if (done.request == nullptr) return {};
  Status status;
  if (header.code != 0)
    status = {wire::code_from_wire(header.code), static_cast<std::int32_t>(header.os_error)};
  if (header.code == 0 && incoming_.code != Code::ok) {
    status = {incoming_.code, EFAULT};
    good_bytes = incoming_.good_bytes;
  }
  link_->answered(*done.request, *calls_, status, good_bytes, done.chunk);
  return {};
}

Result<void> Channel::end_write_ack(const FrameHeader& header, std::uint64_t good_bytes) {
  const std::scoped_lock lock(link_->mutex_);
  if (writes_.empty() || writes_.front().wire_id != header.request ||
      writes_.front().chunk.number != header.chunk)
    return out_of_order("an acknowledgement", header);
  const Unanswered done = writes_.front();
  writes_.pop_front();
  write_bytes_ -= done.chunk.bytes;
  Status status;
  if (header.code != 0)
    status = {wire::code_from_wire(header.code), static_cast<std::int32_t>(header.os_error)};
  link_->answered(*done.request, *calls_, status, good_bytes, done.chunk);
  return {};
}

// ------------------------------------------------------------------ sending

void Channel::pump(HostCalls& calls, Driver driver, bool writable) {
  std::unique_lock lock(send_, std::defer_lock);
  if (driver == Driver::io_thread) {
    lock.lock();
  } else if (!lock.try_lock()) {
    thread_.kick(shared_from_this());  // whoever is at it may have looked before there was what we want sent
    return;
  }
  gathering_.store(false);
  if (!sending_ || retired_.load()) return;
  if (const bool starved = starved_.load(); starved != deaf_.exchange(starved))
    listen_for(starved ? events_ & ~EPOLLIN : events_ | EPOLLIN);
  if (blocked_ && !writable) return;
  blocked_ = false;
  for (int round = 0;; ++round) {
    if (writer_.empty() && !fill(calls) && !(gathered_soon() && fill(calls))) {
      watch_gathering();
      if ((events_ & EPOLLOUT) != 0) listen_for(events_ & ~EPOLLOUT);
      return;
    }
    if (round == rounds_of(driver)) break;
    const FrameWriter::Step step = writer_.flush(*context_.calls, fd_.get());
    if (step.bytes > 0) {
      spoke_.store(true, std::memory_order_relaxed);
      calls.sent(step.bytes);
    }
    if (step.result == FrameWriter::Flushed::failed) {
      sending_ = false;
      if (step.error == EFAULT) {
        calls.lose({Code::backend_failed, step.error},
                   "memory that was to be sent is not there: it was unmapped, or made unreadable, while it "
                   "was registered; deregister it first");
      } else {
        calls.lose({Code::peer_lost, step.error},
                   fmt::format("send on socket {}: {}", index_, os_error_text(step.error)));
      }
      return;
    }
    if (step.result == FrameWriter::Flushed::blocked) {
      blocked_ = true;
      listen_for(events_ | EPOLLOUT);
      return;
    }
  }
  thread_.kick(shared_from_this());  // there is more
}

void Channel::listen_for(std::uint32_t events) {
  if (events == events_) return;
  events_ = events;
  (void)thread_.change(*this, fd_.get(), events);  // fails only for a descriptor that is not watched
}

/// Puts together the next batch; false: there is nothing to send.
bool Channel::fill(HostCalls& calls) {
  if (gpu_out_ != nullptr) release_sent();
  {
    const std::scoped_lock lock(link_->mutex_);
    idle_ = false;
    if (link_->state_ == Link::State::ready) {
      if (context_.regions.any_of_gpu()) stage_work(calls);
      bool more = !mid_frame();
      if (more) {
        put_control();
      } else {
        put_staged(calls);
      }
      while (more && !mid_frame() && writer_.bytes() < batch_bytes && writer_.pieces() < batch_pieces) {
        more = put_messages();
        // Answers and requests of our own in turn.
        more = (answers_turn_ ? put_answer() || put_chunk() : put_chunk() || put_answer()) || more;
        answers_turn_ = !answers_turn_;
        more = (gpu_out_ != nullptr && put_staged(calls)) || more;
      }
    }
    idle_ = writer_.empty() && !anything_staged();
  }
  if (gpu_out_ != nullptr) launch_staged();
  return !writer_.empty();
}

void Channel::put_empty(FrameType type, std::uint64_t request, std::uint16_t channel) {
  FrameHeader header;
  header.type = type;
  header.request = request;
  header.channel = channel;
  writer_.put(header);
}

void Channel::put_control() {
  constexpr std::size_t ack_bytes = frame_header_bytes + 8;
  while (!acknowledgements_.empty() && writer_.fits(ack_bytes)) {
    const Acknowledgement& ack = acknowledgements_.front();
    FrameHeader header;
    header.type = FrameType::write_ack;
    header.request = ack.request;
    header.chunk = ack.chunk;
    header.payload = 8;
    header.code = static_cast<std::uint32_t>(ack.code);
    writer_.put(header);
    writer_.put(&ack.good_bytes, 8);
    acknowledgements_.pop_front();
  }
  if (pong_due_ && writer_.fits(frame_header_bytes)) {
    put_empty(FrameType::pong);
    pong_due_ = false;
  }
  if (ping_due_ && writer_.fits(frame_header_bytes)) {
    put_empty(FrameType::ping);
    ping_due_ = false;
  }
  if (index_ != 0) return;
  while (!link_->message_acks_.empty() && writer_.fits(frame_header_bytes)) {
    const auto& ack = link_->message_acks_.front();
    put_empty(FrameType::message_ack, ack.delivered, ack.channel);
    link_->message_acks_.pop_front();
  }
}

bool Channel::put_messages() {
  if (index_ != 0) return false;
  bool any = false;
  while (writer_.bytes() < batch_bytes && writer_.fits(frame_header_bytes + inline_message_bytes)) {
    auto next = link_->outbox_.next();
    if (!next) break;
    any = true;
    writer_.put(next->header);
    if (next->bytes.size() <= inline_message_bytes) {
      writer_.put(next->bytes.data(), next->bytes.size());
    } else {
      writer_.keep(std::move(next->bytes));
    }
  }
  return any;
}

/// The data of one read that the peer asked for.
bool Channel::put_answer() {
  if (answers_.empty() || holds_answers() || !writer_.fits(frame_header_bytes + 8)) return false;
  const Answer& answer = answers_.front();
  FrameHeader header;
  header.type = FrameType::read_data;
  header.request = answer.header.request;
  header.chunk = answer.header.chunk;
  header.payload = answer.header.payload;
  const FrameWriter::Mark before = writer_.mark();
  writer_.put(header);
  // Looked up only now: from here on the batch holds pointers into the regions, and `detach` knows where to
  // find them.
  Regions::View view(context_.regions);
  const RangeList ranges(answer.header, answer.ranges.data());
  std::uint64_t at = 0;
  bool of_gpu = false;
  for (std::uint32_t i = 0; i < ranges.size(); ++i) {
    const Range range = ranges[i];
    const auto found = view.find(range, Access::read);
    of_gpu = of_gpu || (found.region != nullptr && found.region->of_gpu());
    if (found.region == nullptr) {
      writer_.take_back(before);
      header.code = static_cast<std::uint32_t>(found.code);
      header.payload = 8;
      at += found.good_bytes;
      writer_.put(header);
      writer_.put(&at, 8);
      break;
    }
    writer_.lend(found.region->base + range.offset, range.length);
    at += range.length;
  }
  if (header.code == 0 &&
      of_gpu) {  // its turn has come since work was staged: it is staged for the next batch
    writer_.take_back(before);
    return false;
  }
  answer_ranges_ -= answer.header.ranges;
  answers_.pop_front();
  return true;
}

// Towards the end of the work no socket takes so much that the others wait for it.

std::uint64_t Channel::window_now() const {
  return std::min(context_.settings.window_bytes,
                  std::max(least_window_bytes, link_->uncut_bytes_ / link_->attached_));
}

ChunkLimits Channel::limits_of(const RemoteRequest& request) const {
  ChunkLimits limits = link_->limits_;
  limits.bytes =
      std::min(limits.bytes, std::max(least_chunk_bytes, link_->uncut_bytes_ / link_->attached_ / 4));
  if (request.of_gpu()) limits.bytes = std::min(limits.bytes, context_.settings.gpu_chunk_bytes);
  return limits;
}

/// The next chunk of a request of ours: its data, or the question for them.
bool Channel::put_chunk() {
  const std::uint64_t window = window_now();
  const bool may_write = write_bytes_ < window && writes_.size() < max_unanswered_frames;
  const bool may_read = read_bytes_ < window && reads_.size() < max_unanswered_frames &&
                        read_ranges_ + max_ranges <= max_unanswered_read_ranges;
  RemoteRequest* request = link_->next_work(may_read, may_write, reads_turn_);
  // Writes from GPU memory are staged first.
  if (request != nullptr && request->of_gpu() && request->is_write())
    request = link_->next_work(may_read, false, true);
  if (request == nullptr) return false;
  Chunk chunk = cut_chunk(request->args, request->next, limits_of(*request));
  if (!writer_.fits(frame_header_bytes + most_ranges(request->args, chunk) * range_bytes)) return false;
  reads_turn_ = request->is_write();

  chunk.number = request->chunks;
  FrameHeader header;
  header.type = request->is_write() ? FrameType::write : FrameType::read;
  header.request = request->wire_id;
  header.chunk = chunk.number;
  if (request->is_write()) {
    header.payload = chunk.bytes;
    if (request->message != nullptr) header.flags |= flag_bound;
  }
  std::byte* const at = writer_.head(frame_header_bytes);
  const std::uint32_t ranges = put_ranges(*request, chunk, header);
  std::memcpy(at, &header, sizeof header);
  if (request->is_write()) {
    lend_payload();
    writes_.push_back({request, request->wire_id, chunk, ranges});
    write_bytes_ += chunk.bytes;
  } else {
    reads_.push_back({request, request->wire_id, chunk, ranges});
    read_bytes_ += chunk.bytes;
    read_ranges_ += ranges;
  }
  link_->took_chunk(*request, chunk, index_);
  return true;
}

/// Puts payload_ behind header and ranges.
void Channel::lend_payload() {
  for (const iovec& piece : payload_) writer_.lend(piece.iov_base, piece.iov_len);
}

/// Puts the chunk's ranges, fills in what the header says of them and leaves the local pieces in payload_.
std::uint32_t Channel::put_ranges(const RemoteRequest& request, const Chunk& chunk, FrameHeader& header) {
  // Nearly always all runs are alike; where one is not, begin again with lengths.
  for (bool uniform = true;; uniform = false) {
    const FrameWriter::Mark before = writer_.mark();
    payload_.clear();
    PageCursor cursor(request.args, chunk.from, chunk.to);
    PageRun run;
    std::uint64_t first_bytes = 0;
    bool alike = true;
    while (cursor.next(run)) {
      if (payload_.empty()) {
        first_bytes = run.bytes;
        if (uniform) writer_.put(&first_bytes, 8);
      } else if (uniform && run.bytes != first_bytes) {
        alike = false;
        break;
      }
      const Range range{static_cast<const RemoteRegion*>(run.remote_region)->id, 0, run.remote_offset,
                        run.bytes};
      writer_.put(&range, uniform ? uniform_range_bytes : range_bytes);
      payload_.push_back({static_cast<const Region*>(run.local_region)->base + run.local_offset, run.bytes});
    }
    if (alike) {
      header.ranges = static_cast<std::uint32_t>(payload_.size());
      if (uniform) header.flags |= flag_uniform;
      return header.ranges;
    }
    writer_.take_back(before);
  }
}

// ------------------------------------------------------------------ taking memory out of reach

void Channel::abandon(std::uint64_t wire_id) {
  const std::scoped_lock receiving(receive_);
  if (reader_.payload_left() > 0 && reader_.header().type == FrameType::read_data &&
      reader_.header().request == wire_id) {
    cancel_received();
    reader_.discard();
  }
  const std::scoped_lock state(link_->mutex_);
  for (Unanswered& chunk : reads_) {
    if (chunk.wire_id != wire_id || chunk.request == nullptr) continue;
    --chunk.request->unanswered;
    if (chunk.request->status.ok()) chunk.request->status.code = Code::canceled;
    chunk.request = nullptr;
  }
}

void Channel::detach(const Region& region) {
  {
    const std::scoped_lock lock(receive_);
    if (reader_.payload_left() > 0 && reader_.header().type == FrameType::write) {
      const auto hit = std::find_if(incoming_.regions.begin(), incoming_.regions.end(),
                                    [&](const auto& entry) { return entry.first == &region; });
      if (hit != incoming_.regions.end()) {
        incoming_.code = Code::not_found;
        incoming_.good_bytes = hit->second;
        incoming_.regions.clear();
        drop_received();
        reader_.discard();
      }
    }
    if (region.of_gpu() && gpu_in_ != nullptr) gpu_in_->lane.wait();
  }
  const std::scoped_lock lock(send_);
  if (region.of_gpu()) {
    if (gpu_out_ != nullptr) gpu_out_->lane.wait();  // what has been gathered lies in the ring
    return;
  }
  writer_.detach(region.base, region.length);
}

/// Sends what is ready of messages, and a goodbye, if the socket takes it at once.
bool Channel::say_farewell() {
  if (!sending_ || blocked_ || retired_.load() || mid_frame()) return false;
  if (!writer_.empty() && writer_.flush(*context_.calls, fd_.get()).result != FrameWriter::Flushed::all)
    return false;
  {
    const std::scoped_lock state(link_->mutex_);
    put_control();
    put_messages();
    if (writer_.fits(frame_header_bytes)) put_empty(FrameType::goodbye);
  }
  return writer_.flush(*context_.calls, fd_.get()).result == FrameWriter::Flushed::all;
}

void Channel::close(bool farewell) {
  const std::scoped_lock both(receive_, send_);
  if (!fd_) return;
  const bool told = farewell && say_farewell();
  receiving_ = sending_ = false;
  if (gpu_in_ != nullptr) wait_for_unpacking();
  thread_.forget(*this, fd_.get());
  context_.calls->forget(fd_.get());
  if (told) {
    close_lingering(thread_, std::move(fd_), context_);
  } else {
    ::shutdown(fd_.get(), SHUT_RDWR);
    fd_.reset();
  }
  writer_.clear();
  gpu_in_.reset();
  gpu_out_.reset();
  gathering_ = landing_ = starved_ = false;
  const std::scoped_lock state(link_->mutex_);
  idle_ = false;
  acknowledgements_.clear();
  answers_.clear();
  writes_.clear();
  reads_.clear();
}

}  // namespace headrace::tcp
