// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/link.hpp"

#include "base/errors.hpp"

#include <algorithm>
#include <thread>

namespace headrace::tcp {
namespace {

// A canceled write waits for the peer's word this long, then the link goes: with the I/O thread's tick less
// than the second that the contract allows.
constexpr std::uint64_t cancel_patience_ns = 600'000'000;

// What a socket may take at least, however little is left: enough to keep it busy over the way there and back
// inside a machine (4 GB/s for half a millisecond), and so that the last chunk of one is no long wait for
// all.
constexpr std::uint64_t least_window_bytes = 2 << 20;
constexpr std::uint64_t least_chunk_bytes = 256 * 1024;

/// How the posts of a link end that was lost for this reason.
Code code_for_posts(Code loss) {
  switch (loss) {
    case Code::canceled:
      return Code::backend_failed;  // closed for another's sake
    case Code::not_supported:
    case Code::corrupt:
    case Code::backend_failed:
      return loss;
    default:
      return Code::peer_lost;
  }
}

/// Of a post or message on a link that is not ready.
Code code_of_refusal(Link::State state) {
  if (state == Link::State::connecting) return Code::would_block;
  return state == Link::State::lost ? Code::peer_lost : Code::canceled;
}

void erase_from(std::deque<RemoteRequest*>& queue, const RemoteRequest* request) {
  queue.erase(std::remove(queue.begin(), queue.end(), request), queue.end());
}

}  // namespace

// ------------------------------------------------------------------ requests

Status RemoteRequest::post(const headrace_post_v1& how) { return link->post(*this, how); }
bool RemoteRequest::poll() { return link->poll(*this); }
void RemoteRequest::cancel() { link->cancel(*this); }

// ------------------------------------------------------------------ Link

Link::Link(Context& context, std::string peer_name, std::uint64_t peer_incarnation, std::uint64_t id,
           std::uint64_t token, unsigned sockets)
    : transport::HostCalls::Link(context.host),
      context_(context),
      peer_name_(std::move(peer_name)),
      peer_incarnation_(peer_incarnation),
      id_(id),
      sockets_(sockets),
      limits_{context.settings.chunk_bytes, max_ranges},
      token_(token),
      mutex_(context.settings.cores > 2),
      state_(token == 0 ? State::ready : State::connecting),
      channels_(sockets) {}

bool Link::connecting() const {
  const std::scoped_lock lock(mutex_);
  return state_ == State::connecting;
}

bool Link::alive() const {
  const std::scoped_lock lock(mutex_);
  return state_ == State::connecting || state_ == State::ready;
}

std::vector<std::shared_ptr<Channel>> Link::channels() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::shared_ptr<Channel>> all;
  for (const auto& channel : channels_)
    if (channel != nullptr) all.push_back(channel);
  return all;
}

Status Link::post(RemoteRequest& request, const headrace_post_v1& args) {
  std::string message;
  std::uint16_t message_channel = count_channel;
  if (args.has_immediate != 0) {
    const CountedImmediate counted{args.scope, args.immediate};
    message.assign(reinterpret_cast<const char*>(&counted), sizeof counted);
  }
  if (args.has_message != 0) {
    if (args.message.length > max_message_bytes || args.channel >= count_channel)
      return {Code::invalid_argument};
    message_channel = static_cast<std::uint16_t>(args.channel);
    message.append(static_cast<const char*>(args.message.data), args.message.length);
  }
  const bool small = request.args.bytes <= context_.settings.direct_bytes;
  // Questions are short, whatever they ask for: sent from here they spare a wake-up of each I/O thread, one
  // after the other, before the peer hears of any. What more there is to ask is for the I/O threads, which
  // wake meanwhile.
  const bool from_here = small || !request.is_write();
  HostCalls calls(*this);
  std::vector<std::shared_ptr<Channel>> helpers;
  {
    const std::scoped_lock lock(mutex_);
    if (state_ != State::ready) return {code_of_refusal(state_)};
    if (request.posted) return {Code::invalid_argument};
    if (args.has_message != 0 || args.has_immediate != 0) {
      if (!outbox_.knows(message_channel)) return {Code::invalid_argument};
      if (!outbox_.has_room(message_channel, message.size())) return {Code::would_block};
      request.message =
          outbox_.add(message_channel, std::move(message), transport::OutMessage::State::waiting);
      request.message->counted = args.has_immediate != 0;
    }
    request.posted = true;
    request.token = args.token;
    request.canceling = false;
    request.wire_id = next_wire_id_++;
    request.next = transport::skip_empty_pages(request.args, {0, 0});
    request.chunks = 0;
    request.unanswered = 0;
    request.status = {};
    request.text.clear();
    request.cut_all = request.next.page >= request.args.count || request.args.bytes == 0;
    request.uncut_bytes = request.args.bytes;
    uncut_bytes_ += request.uncut_bytes;
    posted_.insert(&request);
    if (request.cut_all) {
      end_if_done(request, calls);
    } else {
      (request.is_write() ? writes_ : reads_).push_back(&request);
    }
    if (small) {
      // A message goes over socket 0: best right behind its bytes.
      auto channel = request.message != nullptr ? claim_idle(0) : claim_awake();
      if (channel != nullptr) helpers.push_back(std::move(channel));
    } else {
      for (std::uint64_t left = request.args.bytes; left > 0; left -= std::min(left, limits_.bytes)) {
        auto channel = claim_idle(next_channel_++);
        if (channel == nullptr) break;
        helpers.push_back(std::move(channel));
      }
    }
  }
  for (const auto& channel : helpers) {
    if (from_here) {
      channel->pump(calls, Driver::caller);
    } else {
      channel->kick();
    }
  }
  return {};
}

bool Link::poll(RemoteRequest& request) {
  if (request.args.bytes > context_.settings.direct_bytes) return false;  // the I/O threads are better at it
  HostCalls calls(*this);
  std::shared_ptr<Channel> channel;
  {
    const std::scoped_lock lock(mutex_);
    if (!request.posted || state_ != State::ready || request.chunks == 0) return false;
    channel = channels_[request.last_channel];
  }
  if (channel == nullptr || !channel->receive(calls, Driver::caller)) return false;
  calls.flush();  // the sooner the better: the end may be what the caller waits for
  channel->pump(calls, Driver::caller);
  return true;
}

void Link::cancel(RemoteRequest& request) {
  const std::uint64_t now = context_.host.now_ns();
  HostCalls calls(*this);
  std::uint64_t wire_id = 0;
  {
    const std::scoped_lock lock(mutex_);
    if (!request.posted || request.canceling) return;
    request.canceling = true;
    request.cancel_ns = now;
    ++canceling_;
    wire_id = request.wire_id;
    stop_cutting(request);
    end_if_done(request, calls);
    if (request.is_write()) return;  // it ends with the peer's word, or with the link: check_cancels
  }
  // A read's data may come whenever they like once they are kept out of the memory. The post is named by its
  // wire id: it may end by itself meanwhile, and the request be posted again.
  for (const auto& channel : channels()) channel->abandon(wire_id);
  const std::scoped_lock lock(mutex_);
  if (request.posted && request.wire_id == wire_id) end_if_done(request, calls);
}

Status Link::notify(std::uint32_t channel, std::string_view bytes) {
  if (bytes.size() > max_message_bytes || channel >= count_channel) return {Code::invalid_argument};
  HostCalls calls(*this);
  std::shared_ptr<Channel> first;
  {
    const std::scoped_lock lock(mutex_);
    if (state_ != State::ready) return {code_of_refusal(state_)};
    const auto number = static_cast<std::uint16_t>(channel);
    if (!outbox_.knows(number)) return {Code::invalid_argument};
    if (!outbox_.has_room(number, bytes.size())) return {Code::would_block};
    outbox_.add(number, std::string(bytes), transport::OutMessage::State::ready);
    if (channels_[0] != nullptr && channels_[0]->claim()) first = channels_[0];
  }
  if (first != nullptr) first->pump(calls, Driver::caller);
  return {};
}

void Link::detach(const Region& region) {
  for (const auto& channel : channels()) channel->detach(region);
}

// ------------------------------------------------------------------ work for channels

/// An idle channel, which the caller must pump.
std::shared_ptr<Channel> Link::claim_idle(unsigned first) {
  if (state_ != State::ready) return nullptr;
  for (unsigned i = 0; i < sockets_; ++i) {
    const auto& channel = channels_[(first + i) % sockets_];
    if (channel != nullptr && channel->claim()) return channel;
  }
  return nullptr;
}

/// An idle channel for a small request, which the caller must pump: the one that the last small request had,
/// if that has its answer, since its threads still look for more work at both ends. Of several at once each
/// has a channel.
std::shared_ptr<Channel> Link::claim_awake() {
  const auto quiet = [&](unsigned index) {
    const auto& channel = channels_[index];
    return channel != nullptr && channel->quiet();
  };
  for (unsigned i = 0; i < sockets_; ++i)
    if (const unsigned index = (last_small_ + i) % sockets_; quiet(index))
      return claim_idle(last_small_ = index);
  return claim_idle(next_channel_++);
}

// Towards the end of the work no socket takes so much that the others wait for it.

std::uint64_t Link::window_now() const {
  return std::min(context_.settings.window_bytes, std::max(least_window_bytes, uncut_bytes_ / attached_));
}

transport::ChunkLimits Link::limits_of(const RemoteRequest& request) const {
  transport::ChunkLimits limits = limits_;
  limits.bytes = std::min(limits.bytes, std::max(least_chunk_bytes, uncut_bytes_ / attached_ / 4));
  if (request.of_gpu()) limits.bytes = std::min(limits.bytes, context_.settings.gpu_chunk_bytes);
  return limits;
}

RemoteRequest* Link::next_work(bool reads, bool writes, bool reads_first) {
  reads = reads && !reads_.empty();
  writes = writes && !writes_.empty();
  if (reads && (reads_first || !writes)) return reads_.front();
  return writes ? writes_.front() : nullptr;
}

void Link::took_chunk(RemoteRequest& request, const transport::Chunk& chunk, unsigned channel) {
  ++request.chunks;
  ++request.unanswered;
  uncut_bytes_ -= chunk.bytes;
  request.uncut_bytes -= chunk.bytes;
  request.last_channel = channel;
  request.next = transport::skip_empty_pages(request.args, chunk.to);
  auto& queue = request.is_write() ? writes_ : reads_;
  queue.pop_front();
  if (request.next.page < request.args.count) {
    queue.push_back(&request);  // others have their turn
    return;
  }
  request.cut_all = true;
  if (request.is_write() && request.message != nullptr) {
    request.message->request = request.wire_id;
    request.message->chunks = request.chunks;
    request.message->state = transport::OutMessage::State::ready;
    messages_changed();
  }
}

void Link::stop_cutting(RemoteRequest& request) {
  if (request.cut_all) return;
  erase_from(request.is_write() ? writes_ : reads_, &request);
  uncut_bytes_ -= std::exchange(request.uncut_bytes, 0);
  request.cut_all = true;
  if (request.status.ok()) request.status.code = Code::canceled;
}

/// No chunk of the request can be made any more.
void Link::refuse(RemoteRequest& request, HostCalls& calls, Status status, std::string text) {
  stop_cutting(request);
  if (request.status.ok() || request.status.code == Code::canceled) {
    request.status = status;
    request.text = std::move(text);
  }
  end_if_done(request, calls);
}

/// A chunk has been answered: by the peer, or, with a reason, by what became of it here.
void Link::answered(RemoteRequest& request, HostCalls& calls, Status status, std::uint64_t good_bytes,
                    const transport::Chunk& chunk, std::string_view why) {
  --request.unanswered;
  if (!status.ok() && (request.status.ok() || request.canceling)) {
    if (good_bytes < chunk.bytes) status.page = position_at_byte(request.args, good_bytes, chunk.from).page;
    stop_cutting(request);
    request.status = status;
    request.text = why.empty() ? fmt::format("peer {} refused page {}: {}", peer_name_, status.page,
                                             transport::why_refused(status.code))
                               : fmt::format("page {} of {}: {}", status.page, peer_name_, why);
    if (status.code == Code::not_supported)
      request.status.code = Code::invalid_argument;  // no other path may write it either
  }
  end_if_done(request, calls);
}

void Link::end_if_done(RemoteRequest& request, HostCalls& calls) {
  if (!request.cut_all || request.unanswered > 0) return;
  if (request.canceling) --canceling_;
  end(request, calls, request.status, std::move(request.text));
}

void Link::end(RemoteRequest& request, HostCalls& calls, Status status, std::string text) {
  if (const auto message = std::exchange(request.message, nullptr)) {
    if (!status.ok()) {
      // A write may have chunks over there that announced it.
      if (request.is_write()) {
        message->request = request.wire_id;
        message->chunks = request.chunks;
      }
      message->state = transport::OutMessage::State::dropped;
    } else {
      message->state = transport::OutMessage::State::ready;
    }
    messages_changed();
  }
  posted_.erase(&request);
  request.posted = false;
  calls.completed(request.token, status, std::move(text));
}

/// A message may have become ready: socket 0 takes it.
void Link::messages_changed() {
  const auto& first = channels_[0];
  if (state_ != State::ready || first == nullptr || !outbox_.anything_ready()) return;
  if (first->claim()) first->kick();
}

/// Tells the host what a message frame brought.
void Link::tell(const transport::InMessage& message) const {
  std::string_view bytes = message.bytes;
  if (message.counted) {
    CountedImmediate counted;
    std::memcpy(&counted, bytes.data(), sizeof counted);
    bytes.remove_prefix(sizeof counted);
    context_.host.counted(token_.load(), {counted.scope, counted.immediate});
  }
  if (message.channel != count_channel) context_.host.received(token_.load(), message.channel, bytes);
}

/// Gives the host the messages whose turn has come, in order: one thread at a time does it for all.
void Link::deliver() {
  std::unique_lock lock(mutex_);
  if (delivering_) return;  // that thread looks again before it leaves
  delivering_ = true;
  bool told = false;
  while (state_ != State::closed) {
    auto message = inbox_.next();
    while (auto ack = inbox_.acknowledgement()) {
      message_acks_.push_back(*ack);
      told = true;
    }
    if (!message) break;
    lock.unlock();
    tell(*message);
    lock.lock();
  }
  delivering_ = false;
  if (told && state_ == State::ready && channels_[0] != nullptr && channels_[0]->claim())
    channels_[0]->kick();
}

// ------------------------------------------------------------------ beginning and end

void Link::accepted(std::uint64_t token) { token_.store(token); }

bool Link::attach(unsigned index, UniqueFd fd, std::string_view early) {
  const auto channel =
      std::make_shared<Channel>(shared_from_this(), index, std::move(fd), context_.some_thread());
  if (auto watched = channel->watch(); !watched) {
    context_.log(HEADRACE_LOG_WARN, "socket {} to peer {}: {}", index, peer_name_, watched.error().message);
    return false;
  }
  HostCalls calls(*this);
  bool wanted = false, first = false;
  {
    const std::scoped_lock lock(mutex_);
    if ((state_ == State::connecting || state_ == State::ready) && index < sockets_ &&
        channels_[index] == nullptr) {
      channels_[index] = channel;
      ++attached_;
      wanted = true;
      first = std::exchange(state_, State::ready) == State::connecting;
    }
  }
  if (!wanted) {
    channel->close(
        true);  // with a goodbye: what the peer still hears over other sockets is not cut off by this one
    return false;
  }
  if (first)
    context_.host.link_event(token_.load(), HEADRACE_LINK_READY, {},
                             fmt::format("connected to peer {}", peer_name_));
  channel->start(calls, early);
  return true;
}

bool Link::check_cancels(std::uint64_t now_ns, HostCalls& calls) {
  const std::scoped_lock lock(mutex_);
  if (canceling_ == 0) return false;
  for (const RemoteRequest* request : posted_) {
    if (!request->canceling || now_ns < request->cancel_ns + cancel_patience_ns) continue;
    calls.lose({Code::canceled},
               fmt::format("closed to end a canceled request that it did not confirm within {} ms",
                           (now_ns - request->cancel_ns) / 1'000'000));
    return true;
  }
  return false;
}

/// Ends every post; no channel may be open any more.
void Link::end_all(HostCalls& calls, Status status, const std::string& text) {
  const std::scoped_lock lock(mutex_);
  reads_.clear();
  writes_.clear();
  canceling_ = 0;
  for (RemoteRequest* request : std::exchange(posted_, {})) {
    request->message = nullptr;
    request->posted = false;
    calls.completed(request->token, request->canceling ? Status{Code::canceled} : status, text);
  }
  outbox_.clear();
  inbox_.clear();
}

void Link::lose(Status status, std::string why) {
  HostCalls calls(*this);
  {
    const std::scoped_lock lock(mutex_);
    if (state_ == State::lost || state_ == State::closed) return;
    state_ = State::lost;
  }
  for (const auto& channel : channels()) channel->close(false);
  // What came in whole is still delivered, before the host hears of the end.
  for (bool busy = true; busy;) {
    deliver();
    {
      const std::scoped_lock lock(mutex_);
      busy = delivering_;  // another thread is at it
    }
    if (busy) std::this_thread::yield();
  }
  const std::string text = fmt::format("peer {}: {}", peer_name_, why);
  end_all(calls, {code_for_posts(status.code), status.os_error}, text);
  calls.flush();
  context_.host.count("links_lost", 1);
  context_.log(HEADRACE_LOG_INFO, "link lost, {}", text);
  bool closed = false;
  {
    const std::scoped_lock lock(mutex_);
    closed = state_ == State::closed;
  }
  if (const std::uint64_t token = token_.load(); token != 0 && !closed)
    context_.host.link_event(token, HEADRACE_LINK_LOST, status, text);
}

void Link::disconnect() {
  {
    HostCalls calls(*this);
    bool ready = false;
    {
      const std::scoped_lock lock(mutex_);
      ready = std::exchange(state_, State::closed) == State::ready;
    }
    for (const auto& channel : channels()) channel->close(ready);
    end_all(calls, {Code::canceled}, fmt::format("the link to peer {} was closed", peer_name_));
  }
  wait_for_host_calls();
  // Channels hold the link: let them go, or neither ever would.
  const std::scoped_lock lock(mutex_);
  channels_.assign(channels_.size(), nullptr);
}

}  // namespace headrace::tcp
